"""The verbs about checkpoints: named points of a key's or a group's history, which retention leaves alone."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from statecache.checkpoints import Checkpoint
from statecache.clock import monotonic
from statecache.core.history import checkpointing
from statecache.core.history.checkpointing import Wanted
from statecache.core.history.terms import Terms
from statecache.core.view import VerbGroup
from statecache.keys import checked_group, checked_key
from statecache.model import Durability
from statecache.rules.checkpoints import checked_label, checked_metadata

D = TypeVar("D")


class AsyncCheckpoints(VerbGroup[D], Generic[D]):
    """The verbs about checkpoints."""

    async def checkpoint(
        self,
        name: str,
        label: str | None = None,
        *,
        metadata: Any = None,
        group: bool = False,
        durability: Durability = "postgres",
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> Checkpoint:
        """Give the current state a name that can be gone back to, and return the checkpoint.

        It pins that version: retention keeps it until the checkpoint is deleted. With `group`, `name` is a group, and
        what is pinned is one consistent point of all its keys. Without a label it gets one that sorts by time.
        `metadata` is any plain data, at most 64 KiB as JSON. It is durable when it returns, unless `durability` says
        less. Raises NotFound where there is nothing, CheckpointExists for a label of this key, or group, that is in
        use, Forked, Quarantined or Lost where Postgres has set aside what it would name. `change_id` repeats a call
        whose outcome is unknown. `timeout` is in seconds.
        """
        full = self._view.full(name)
        key = checked_group(full) if group else checked_key(full)
        terms = Terms.of(
            self._view, durability=durability, actor=actor, reason=reason, timeout=timeout, change_id=change_id
        )
        wanted = Wanted(
            key=key, scope="group" if group else "key", label=None if label is None else checked_label(label),
            metadata=checked_metadata(metadata, key=key),
        )  # fmt: skip
        return await checkpointing.make(self._view, wanted, terms)

    async def checkpoints(self, name: str, *, group: bool = False, timeout: float | None = None) -> list[Checkpoint]:
        """Return the checkpoints of a key, and of its group, in the order in which they were made.

        With `group`, `name` is a group, and those of all its keys are meant. `timeout` bounds each exchange with a
        server, in seconds.
        """
        full = self._view.full(name)
        key = checked_group(full) if group else checked_key(full)
        seconds = self._view.end_of(timeout) - monotonic()
        return await self._runtime.checkpoints.all(key, whole=group, seconds=seconds)

    async def rename_checkpoint(
        self,
        name: str,
        label: str,
        to: str,
        *,
        durability: Durability = "postgres",
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> Checkpoint:
        """Give a checkpoint of a key, or of a group, another label, and return it: it names the same point as before.

        Raises CheckpointNotFound, and CheckpointExists where the new label is in use. `timeout` is in seconds.
        """
        key = checked_key(self._view.full(name))
        terms = Terms.of(self._view, durability=durability, actor=actor, reason=reason, timeout=timeout)
        return await checkpointing.rename(self._view, key, label, to, terms)

    async def delete_checkpoint(
        self,
        name: str,
        label: str,
        *,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> Checkpoint:
        """Delete a checkpoint of a key, or of a group, and return what it was: what it pinned may go from then on.

        States are left as they are. Raises CheckpointNotFound. `timeout` is in seconds.
        """
        key = checked_key(self._view.full(name))
        terms = Terms.of(self._view, durability=durability, actor=actor, reason=reason, timeout=timeout)
        return await checkpointing.delete(self._view, key, label, terms)

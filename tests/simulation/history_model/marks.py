"""Checkpoints of keys and groups, drawn."""

from __future__ import annotations

from typing import Any

import msgspec

from statecache import AlreadyExists, NotFound
from statecache.history_errors import CheckpointExists, CheckpointNotFound
from tests.simulation.history_model.drawing import WORDS, Drawing
from tests.simulation.history_model.plain import Mark, Row

LABELS = ("a", "b", "c", "d")


class Marks:
    """The making, renaming and deleting of checkpoints."""

    def __init__(self, drawing: Drawing) -> None:
        self._draw = drawing
        self._past = drawing.past
        self._rng = drawing.rng

    async def checkpoint(self) -> None:
        """Make a checkpoint of a key or a group, durable or not; a label that is in use is refused."""
        whole = self._rng.random() < 0.5
        key = self._draw.group() if whole else self._draw.key()
        if key is None:
            return
        label, metadata = self._rng.choice(LABELS), {"why": self._rng.choice(WORDS)}
        durability: Any = self._rng.choice(("memory", "postgres"))
        self._draw.said = f"checkpoint {key} {label} {durability} {'of the group' if whole else ''}"
        target = f"{key}/checkpoints/{label}"
        there = any(self._past.exists(one) for one in self._own(key, whole=whole))
        call = self._draw.client.checkpoint(key, label, metadata=metadata, group=whole, durability=durability)
        taken = self._taken(target)
        if not there or taken is not None:
            await self._draw.refused(call, taken if there and taken is not None else NotFound)
            return
        if durability == "postgres":
            async with self._draw.here.flushes():
                made = await call
        else:
            made = await call
        n = self._past.n.get(self._past.shard(key), 0) + 1
        tip = None if whole else self._past.chain(key)[-1]
        mark = Mark(label, "group" if whole else "key", key, tip.version if tip else None, n, metadata)
        wanted = (mark.scope, key, label, mark.version, n, metadata, tip.digest if tip else "")
        found = (made.scope, made.key, made.label, made.version, made.position.n, made.metadata, made.sha256)
        assert found == wanted, f"{self._draw.said}: {found} was made, and {wanted} was to be"
        await self._marked(target, mark, "set")
        self._draw.here.look()

    def _own(self, key: str, *, whole: bool) -> list[str]:
        """Return the keys of which one has to hold something: what users write where checkpoints are counts as well."""
        marks = self._past.marks()
        return [one for one in self._past.group(key) if one not in marks] if whole else [key]

    def _taken(self, target: str) -> type[Exception] | None:
        """Return the error for a label at which a checkpoint is, or what a user wrote; None where there is neither."""
        if target in self._past.marks():
            return CheckpointExists
        return AlreadyExists if self._past.exists(target) else None

    async def _marked(self, target: str, mark: Mark | None, op: str, n: int | None = None) -> None:
        """Add what was written at a checkpoint's record, as it is read there."""
        tip = self._past.tip(target)
        version = 1 if tip is None else tip.version + 1
        change = [one async for one in self._draw.here.clients[0].history(target, values=True)][-1]
        place = self._past.n.get(self._past.shard(target), 0) + 1 if n is None else n
        found = (change.version, change.position.n, change.op)
        assert found == (version, place, op), (
            f"{self._draw.said}: {found} was written, and {(version, place, op)} was to be"
        )
        self._past.add(Row(
            key=target, version=version, op=op, value=change.value,
            data=b"" if op != "set" else msgspec.json.encode(change.value), form="json" if op == "set" else "",
            change_id=change.change_id, parent=change.parent_change_id, n=place, epoch=change.epoch, at=change.at,
            reason="", mark=mark,
        ))  # fmt: skip

    async def rename_checkpoint(self) -> None:
        """Give a checkpoint another label; it names what it named."""
        drawn = self._some_mark()
        if drawn is None:
            return
        place, mark = drawn
        label = self._rng.choice(LABELS)
        if label == mark.label:
            return
        self._draw.said, target = f"rename checkpoint {place} to {label}", f"{mark.key}/checkpoints/{label}"
        call = self._draw.client.rename_checkpoint(mark.key, mark.label, label, durability="memory")
        if (taken := self._taken(target)) is not None:
            await self._draw.refused(call, taken)
            return
        renamed = await call
        assert (renamed.label, renamed.position.n, renamed.version) == (label, mark.n, mark.version), self._draw.said
        n = self._past.n[self._past.shard(place)] + 1
        await self._marked(place, None, "delete", n)
        await self._marked(target, msgspec.structs.replace(mark, label=label), "set", n)

    async def unpin(self) -> None:
        """Delete a checkpoint, or be told that there is none."""
        drawn = self._some_mark()
        if drawn is None:
            return
        place, mark = drawn
        self._draw.said = f"delete checkpoint {place}"
        gone = await self._draw.client.delete_checkpoint(mark.key, mark.label)
        assert (gone.position.n, gone.version, gone.pinned) == (mark.n, mark.version, False), self._draw.said
        await self._marked(place, None, "delete")
        await self._draw.refused(self._draw.client.delete_checkpoint(mark.key, mark.label), CheckpointNotFound)

    def _some_mark(self) -> tuple[str, Mark] | None:
        marks = sorted(self._past.marks().items())
        return self._rng.choice(marks) if marks else None

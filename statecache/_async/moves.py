"""The verbs that write a value as it is stored, whatever its type: copy, rename, touch."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from statecache.backoff import Backoff
from statecache.call_notes import note
from statecache.core.history.terms import plain_value
from statecache.core.own_records import refuse_checkpoint, refuse_copy_of_head
from statecache.core.view import VerbGroup, checked_reason, checked_text
from statecache.errors import AlreadyExists, NotFound, StateCacheError, UsageError, VersionConflict
from statecache.expiry import form_of, lasting
from statecache.keys import checked_key, group_of
from statecache.model import ABSENT, BLIND, Durability, Record, State, Ttl, Write

D = TypeVar("D")


class AsyncMoves(VerbGroup[D], Generic[D]):
    """The verbs that write a value as it is stored."""

    async def copy(
        self,
        name: str,
        to: str,
        *,
        replace: bool = False,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> State[D]:
        """Write the current value of `name`, as it is stored, to `to`, and return the new state.

        The copy ends when the original does. Raises NotFound where there is nothing to copy, AlreadyExists where `to`
        exists, unless `replace`, and UsageError for the head of what an adapter keeps in several keys of a group, which
        `branch` takes as a whole. Within one group the value is still the current one when it is written. `timeout` is
        in seconds.
        """
        return await self._moved(
            name, to, "check", replace=replace, durability=durability, actor=actor, reason=reason, timeout=timeout
        )

    async def rename(
        self,
        name: str,
        to: str,
        *,
        replace: bool = False,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> State[D]:
        """Move the current value of `name`, as it is stored, to `to` of the same group, and return the new state.

        One commit deletes the one and writes the other. The new state begins a chain of its own, and steps of `name`
        stay where they are. Raises NotFound where there is nothing to rename, AlreadyExists where `to` exists, unless
        `replace`, and InvalidKey where it is of another group. `timeout` is in seconds.
        """
        return await self._moved(
            name, to, "delete", replace=replace, durability=durability, actor=actor, reason=reason, timeout=timeout
        )

    async def touch(
        self,
        name: str,
        *,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> State[D]:
        """Let the state last that long from now on, and return it: a change like any other, with the value as it is.

        `ttl` is in seconds or a timedelta, or the namespace's; `inf` is for ever. Raises NotFound where there is no
        state any more. `timeout` is in seconds.
        """
        view, reason = self._view, checked_reason(reason)
        key, end, backoff = checked_key(view.full(name)), view.end_of(timeout), Backoff(0.001, 0.1)
        if ttl is None and view.lasts_ms is None:
            raise UsageError("touch does not know how long", hint="Say ttl=, or give the namespace a ttl.")
        lasts_ms, kept = view.lasting_ms(ttl), view.kept(key)
        while True:
            record = kept or await self._runtime.reader.record(key, end=end)
            try:
                found = self._there(record)
            except StateCacheError:
                if kept is None:
                    raise
                kept = None  # what is kept here may be out of date: nothing is refused without asking the primary
                continue
            write = Write(
                key=key, op="set", expected=record.change_id, value=record.value, seen=found.value,
                encoding=lasting(form_of(record.encoding), lasts_ms), schema=record.schema, ttl_ms=view.ttl_ms,
            )  # fmt: skip
            try:
                return await view.commit_one(
                    write, durability=durability, actor=actor, reason=reason, end=end, change_id=None
                )
            except VersionConflict:
                if backoff.outlasts(end):
                    raise
            kept = None
            note(retries=1, conflicts=1)
            await self._runtime.io.sleep(backoff.take())

    def _there(self, record: Record) -> State[Any]:
        """Return a record's state; raise NotFound without one, or what hinders that it is written as it is stored."""
        found = self._view.state_of(record)
        if found is None:
            raise NotFound(record.key)
        refuse_checkpoint(record.key, record.schema)
        return found

    async def _moved(
        self, name: str, to: str, op: Literal["check", "delete"], *, replace: bool, durability: Durability | None,
        actor: str, reason: str, timeout: float | None,
    ) -> State[Any]:  # fmt: skip
        """Write one state's value to another key; again where the one has changed meanwhile."""
        view, reason = self._view, checked_reason(reason)
        source, target, end = checked_key(view.full(name)), checked_key(view.full(to)), view.end_of(timeout)
        if source == target:
            raise UsageError(f"{source!r} cannot be copied or renamed to itself")
        together = op == "delete" or group_of(source) == group_of(target)
        keys = (source, target) if together else (target,)
        shard, backoff = self._runtime.keys.one_group(keys), Backoff(0.001, 0.1)
        while True:
            record = await self._runtime.reader.record(source, end=end)
            found = self._there(record)
            writes = [
                Write(key=source, op=op, expected=record.change_id, ttl_ms=view.ttl_ms if op == "delete" else None),
                Write(
                    key=target, op="set", expected=BLIND if replace else ABSENT, value=record.value,
                    encoding=record.encoding, schema=record.schema, ttl_ms=view.ttl_ms, seen=found.value,
                ),
            ]  # fmt: skip
            if op == "check":
                refuse_copy_of_head(source, plain_value(view, writes[1]))
            commit = self._runtime.committer.new(
                writes if together else writes[1:], shard, durability=view.durability_of(durability),
                actor=checked_text(actor, "actor"), reason=reason, end=end,
                locks=view.locks_of(keys if op == "delete" else (target,)),
            )  # fmt: skip
            try:
                committed = await self._runtime.committer.commit(commit)
                await view.applied((commit, committed))
                return view.committed_state(writes[1], committed, len(commit.written()) - 1)
            except VersionConflict as error:
                if error.key == target:
                    raise AlreadyExists(target) from None
                if backoff.outlasts(end):
                    raise
            note(retries=1, conflicts=1)
            await self._runtime.io.sleep(backoff.take())

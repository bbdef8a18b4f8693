"""The verbs that write one state: blind, compared, by a function, and the delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from statecache._async.answers import Absent
from statecache._async.observing import note
from statecache._async.reads import AsyncReads
from statecache._async.scope import expected_of
from statecache._bridge import async_called, async_sleep
from statecache.clock import monotonic
from statecache.errors import NotFound, UsageError, VersionConflict
from statecache.keys import checked_key
from statecache.model import ABSENT, PRESENT, Durability, State, Write

D = TypeVar("D")
V = TypeVar("V")


class AsyncWrites(AsyncReads[D], Generic[D]):
    """These are the verbs that write one state."""

    async def set(
        self,
        name: str,
        value: V,
        *,
        expected: State[Any] | str | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[V]:
        """This writes the value; with `expected` only where that is still the current state, else VersionConflict.

        `expected` is a State or its change_id. `change_id` repeats an earlier write whose outcome is unknown: it is
        applied at most once.
        """
        key, end = checked_key(self.full(name)), self.end_of(timeout)
        write = self.write_of(key, value, expected=expected_of(key, expected))
        return await self._commit_one(
            write, value, durability=durability, actor=actor, reason=reason, end=end, change_id=change_id
        )

    async def create(
        self,
        name: str,
        value: V,
        *,
        assume_new: bool = False,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[V]:
        """This writes the first value, else AlreadyExists.

        `assume_new` skips asking Postgres for keys that are unique by construction; where that is wrong the flusher
        sets the change aside as a conflict.
        """
        key, end = checked_key(self.full(name)), self.end_of(timeout)
        write = self.write_of(key, value, expected=ABSENT, assume_new=assume_new)
        return await self._commit_one(
            write, value, durability=durability, actor=actor, reason=reason, end=end, change_id=change_id
        )

    async def update(
        self,
        name: str,
        function: Callable[[Any], Awaitable[Any] | Any],
        *,
        type: Any = None,  # noqa: A002
        default: Any = ...,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> State[Any]:
        """This reads, calls the function with the value, and writes what it returns; again where someone was quicker.

        The function may be called several times, and may raise to abort. `default` is a value, or a class or function
        that makes one, for a key that does not exist; without it that is NotFound.
        """
        key, end, pause = checked_key(self.full(name)), self.end_of(timeout), 0.001
        while True:
            record = await self.tier.reader.record(key, end=end)
            state = self.state_of(record, type)
            if state is None and default is ...:
                raise NotFound(key)
            before = state.value if state is not None else default() if callable(default) else default
            value = await async_called(function(before))
            if value is None:
                raise UsageError("the function given to update returned None", hint="Return the new value.")
            write = self.write_of(key, value, expected=record.change_id)
            try:
                return await self._commit_one(
                    write, value, durability=durability, actor=actor, reason=reason, end=end, change_id=None
                )
            except VersionConflict:
                if monotonic() + pause > end:
                    raise
            note(retries=1, conflicts=1)
            await async_sleep(self.tier.rng.uniform(0, pause))
            pause = min(pause * 2, 0.1)

    async def delete(
        self,
        name: str,
        *,
        expected: State[Any] | str | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[None] | None:
        """This deletes the state and gives its tombstone, or None where there was nothing to delete."""
        key, end = checked_key(self.full(name)), self.end_of(timeout)
        wanted = PRESENT if expected is None else expected_of(key, expected)
        write = Write(key=key, op="delete", expected=wanted, ttl_ms=self._ttl_ms)
        try:
            return await self._commit_one(
                write, None, durability=durability, actor=actor, reason=reason, end=end, change_id=change_id
            )
        except Absent:
            return None

"""The verbs that change what is there without reading it: counters and collections.

Redis makes the new value of the stored one, within the exchange that commits it: so callers never conflict, however
many of them there are, and none tries again. What is committed is the whole new value, by a change like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from statecache.core.merging import increment_write, items_write
from statecache.core.view import VerbGroup
from statecache.keys import checked_key
from statecache.model import Durability, State, Ttl, Write

if TYPE_CHECKING:
    from collections.abc import Callable

D = TypeVar("D")
E = TypeVar("E")


class AsyncMerges(VerbGroup[D], Generic[D]):
    """The verbs that change what is there without reading it."""

    async def increment(
        self: AsyncMerges[int],
        name: str,
        by: int = 1,
        *,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[int]:
        """Add a whole number to the one that is stored, 0 where there is none, and return the state with the sum.

        However many callers do so at the same time, each is counted once, and none waits for another. The number stays
        exact: a sum beyond 64 bits, and a stored value that is no whole number, raise CodecError, and nothing is
        applied. The state ends when it was to end, unless `ttl` or the namespace says how long it lasts from now on.
        `change_id` repeats an earlier increment whose outcome is unknown: it is applied at most once. `timeout` is in
        seconds.
        """
        return await self._merge(
            lambda key: increment_write(self._view, key, by, ttl=ttl), name, durability, actor, reason, change_id,
            timeout,
        )  # fmt: skip

    @overload
    async def append(
        self: AsyncMerges[list[E]], name: str, *items: E, ttl: Ttl | None = ..., durability: Durability | None = ...,
        actor: str = ..., reason: str = ..., change_id: str | None = ..., timeout: float | None = ...,
    ) -> State[list[E]]: ...  # fmt: skip
    @overload
    async def append(
        self: AsyncMerges[tuple[E, ...]], name: str, *items: E, ttl: Ttl | None = ...,
        durability: Durability | None = ..., actor: str = ..., reason: str = ..., change_id: str | None = ...,
        timeout: float | None = ...,
    ) -> State[tuple[E, ...]]: ...  # fmt: skip
    async def append(
        self: AsyncMerges[Any],
        name: str,
        *items: Any,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[Any]:
        """Put the items behind those of the list that is stored, an empty one where there is none; return the state.

        What several callers append at the same time stands there once, in the order of their commits, and the items of
        one call stand together. A stored value that is no list raises CodecError; one that would become too large
        LimitExceeded. `ttl`, `change_id` and `timeout` are as in `increment`.
        """
        return await self._merge(
            lambda key: items_write(self._view, key, "append", items, ttl=ttl), name, durability, actor, reason,
            change_id, timeout,
        )  # fmt: skip

    @overload
    async def add(
        self: AsyncMerges[list[E]], name: str, *items: E, ttl: Ttl | None = ..., durability: Durability | None = ...,
        actor: str = ..., reason: str = ..., change_id: str | None = ..., timeout: float | None = ...,
    ) -> State[list[E]]: ...  # fmt: skip
    @overload
    async def add(
        self: AsyncMerges[set[E]], name: str, *items: E, ttl: Ttl | None = ..., durability: Durability | None = ...,
        actor: str = ..., reason: str = ..., change_id: str | None = ..., timeout: float | None = ...,
    ) -> State[set[E]]: ...  # fmt: skip
    @overload
    async def add(
        self: AsyncMerges[frozenset[E]], name: str, *items: E, ttl: Ttl | None = ...,
        durability: Durability | None = ..., actor: str = ..., reason: str = ..., change_id: str | None = ...,
        timeout: float | None = ...,
    ) -> State[frozenset[E]]: ...  # fmt: skip
    @overload
    async def add(
        self: AsyncMerges[tuple[E, ...]], name: str, *items: E, ttl: Ttl | None = ...,
        durability: Durability | None = ..., actor: str = ..., reason: str = ..., change_id: str | None = ...,
        timeout: float | None = ...,
    ) -> State[tuple[E, ...]]: ...  # fmt: skip
    async def add(
        self: AsyncMerges[Any],
        name: str,
        *items: Any,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[Any]:
        """Put those items into the set that is stored, an empty one where there is none, that are not in it.

        Returns the state. In a list they go to the end. Items are compared as they are stored, so floats and
        dictionaries raise CodecError. A call that finds all of them there is a change like any other. The errors,
        `ttl`, `change_id` and `timeout` are as in `append`.
        """
        return await self._merge(
            lambda key: items_write(self._view, key, "add", items, ttl=ttl), name, durability, actor, reason, change_id,
            timeout,
        )  # fmt: skip

    @overload
    async def remove(
        self: AsyncMerges[list[E]], name: str, *items: E, ttl: Ttl | None = ..., durability: Durability | None = ...,
        actor: str = ..., reason: str = ..., change_id: str | None = ..., timeout: float | None = ...,
    ) -> State[list[E]]: ...  # fmt: skip
    @overload
    async def remove(
        self: AsyncMerges[set[E]], name: str, *items: E, ttl: Ttl | None = ..., durability: Durability | None = ...,
        actor: str = ..., reason: str = ..., change_id: str | None = ..., timeout: float | None = ...,
    ) -> State[set[E]]: ...  # fmt: skip
    @overload
    async def remove(
        self: AsyncMerges[frozenset[E]], name: str, *items: E, ttl: Ttl | None = ...,
        durability: Durability | None = ..., actor: str = ..., reason: str = ..., change_id: str | None = ...,
        timeout: float | None = ...,
    ) -> State[frozenset[E]]: ...  # fmt: skip
    @overload
    async def remove(
        self: AsyncMerges[tuple[E, ...]], name: str, *items: E, ttl: Ttl | None = ...,
        durability: Durability | None = ..., actor: str = ..., reason: str = ..., change_id: str | None = ...,
        timeout: float | None = ...,
    ) -> State[tuple[E, ...]]: ...  # fmt: skip
    async def remove(
        self: AsyncMerges[Any],
        name: str,
        *items: Any,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[Any]:
        """Take the items out of the set or list that is stored, each wherever it stands, and return the state.

        What is not there is passed over; where there is nothing, an empty one is left. The rest is as in `add`.
        """
        return await self._merge(
            lambda key: items_write(self._view, key, "remove", items, ttl=ttl), name, durability, actor, reason,
            change_id, timeout,
        )  # fmt: skip

    async def _merge(
        self, write_of: Callable[[str], Write], name: str, durability: Durability | None, actor: str, reason: str,
        change_id: str | None, timeout: float | None,
    ) -> State[Any]:  # fmt: skip
        key, end = checked_key(self._view.full(name)), self._view.end_of(timeout)
        return await self._view.commit_one(
            write_of(key), durability=durability, actor=actor, reason=reason, end=end, change_id=change_id
        )

"""The verbs that read: one state, or many by prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, Literal, TypeVar, overload

from statecache._async.scope import AsyncScope
from statecache.clock import monotonic
from statecache.errors import UsageError
from statecache.keys import checked_key
from statecache.model import State

D = TypeVar("D")
V = TypeVar("V")


class AsyncReads(AsyncScope[D], Generic[D]):
    """These are the verbs that read."""

    @overload
    async def get(self, name: str, *, timeout: float | None = None) -> State[D] | None: ...
    @overload
    async def get(self, name: str, *, type: type[V], timeout: float | None = None) -> State[V] | None: ...
    async def get(self, name: str, *, type: Any = None, timeout: float | None = None) -> State[Any] | None:  # noqa: A002
        """This gives the current state, or None where there is none; a wrong type is a CodecError."""
        key = checked_key(self.full(name))
        return self.state_of(await self.tier.reader.record(key, end=self.end_of(timeout)), type)

    async def list(
        self,
        prefix: str = "",
        *,
        type: Any = None,  # noqa: A002
        order: Literal["key", "newest"] = "key",
        limit: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[State[Any]]:
        """This gives the states whose keys start with the prefix, those not yet in Postgres too.

        By key (byte order) or newest first. Not a snapshot: each state is as of some moment during the iteration.
        `timeout` bounds each exchange with a server. A state that only quarantine holds raises Quarantined, as it does
        when it is read.
        """
        if order not in ("key", "newest"):
            raise UsageError(f"order {order!r} is not 'key' or 'newest'")
        if limit is not None and limit < 1:
            raise UsageError(f"limit={limit} is not a number above 0")
        seconds = self.end_of(timeout) - monotonic()
        async for record in self.tier.listing.records(self.full(prefix), order=order, limit=limit, seconds=seconds):
            state = self.state_of(record, type)
            if state is not None:
                yield state

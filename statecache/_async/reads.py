"""The verbs that read: one state, or many by prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from statecache.clock import boottime, monotonic
from statecache.core.arguments import refuse_no_limit, refuse_no_names, refuse_no_version
from statecache.core.own_records import OWN_SCHEMAS
from statecache.core.read.listed import LIMIT_MAX, ORDERS, Listed, Order
from statecache.core.view import VerbGroup, expected_of
from statecache.errors import NotChanged, UsageError
from statecache.keys import checked_key, checked_prefix_of_list
from statecache.model import ABSENT, ReadMode, State
from statecache.rules.filters import Selection

if TYPE_CHECKING:
    pass

D = TypeVar("D")
V = TypeVar("V")
_LOOK_S = 1.0
_LOOK_DEAF_S = 0.1
"""How often a waiter that no push can wake looks at the state, as seconds between two looks."""
_LAST_LOOK_S = 0.25
"""How long a look may take at least once the server has answered, in seconds: beyond the end of the time too."""


class AsyncReads(VerbGroup[D], Generic[D]):
    """The verbs that read."""

    @overload
    async def get(
        self, name: str, *, read: ReadMode | None = ..., max_stale: float | None = ..., min_version: int = ...,
        timeout: float | None = ...,
    ) -> State[D] | None: ...  # fmt: skip
    @overload
    async def get(
        self, name: str, *, type: type[V], read: ReadMode | None = ..., max_stale: float | None = ...,
        min_version: int = ..., timeout: float | None = ...,
    ) -> State[V] | None: ...  # fmt: skip
    @overload
    async def get(
        self, name: str, *, type: object, read: ReadMode | None = ..., max_stale: float | None = ...,
        min_version: int = ..., timeout: float | None = ...,
    ) -> State[Any] | None: ...  # fmt: skip
    @overload
    async def get(
        self, name: str, *, default: D | Callable[[], D], read: ReadMode | None = ..., max_stale: float | None = ...,
        min_version: int = ..., timeout: float | None = ...,
    ) -> State[D]: ...  # fmt: skip
    @overload
    async def get(
        self, name: str, *, type: type[V], default: V | Callable[[], V], read: ReadMode | None = ...,
        max_stale: float | None = ..., min_version: int = ..., timeout: float | None = ...,
    ) -> State[V]: ...  # fmt: skip
    @overload
    async def get(
        self, name: str, *, type: object, default: Any, read: ReadMode | None = ..., max_stale: float | None = ...,
        min_version: int = ..., timeout: float | None = ...,
    ) -> State[Any]: ...  # fmt: skip
    async def get(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002
        default: Any = ...,
        read: ReadMode | None = None,
        max_stale: float | None = None,
        min_version: int = 0,
        timeout: float | None = None,
    ) -> State[Any] | None:
        """Return the current state, or None where there is none.

        With `default`, a value, or a class or function that makes one, an absence comes as a state with that value and
        without a change_id, which nobody has stored: as `expected`, it demands that there still is none. `read` says
        where from: `local` from this process while what it holds may be believed (stale by at most the setting
        `near_window_s`, or `max_stale` seconds; normally by one push), `primary` with one round trip to the Redis
        primary, `fenced` with Postgres' word too that this primary is of the current lineage. `min_version` is one that
        the key is known to have reached, from someone who has seen it. In every mode this process sees what it wrote,
        and no key ever goes back. `timeout` is in seconds. Raises CodecError where the value is not of the type,
        Unavailable where no such state can be had in time, and Quarantined for a state that only quarantine holds.
        """
        view = self._view
        if default is not ... or max_stale is not None or min_version != 0:
            view.refuse_unlike(default, type)
            view.mode_of(read, max_stale)
            refuse_no_version(min_version)
        if timeout is not None:
            view.moment_of(timeout)
        if name.__class__ is str and (view.reads == "local" if read is None else read == "local"):
            entry = view.near.look(view.prefix + name, boottime(), inf if max_stale is None else max_stale)
            if entry is not None and (not min_version or entry.record.version >= min_version):
                shared_kind, state = entry.shared
                kind = view.kind if type is None else type
                state = state if shared_kind is kind else view.decoded(entry, kind, type)
                return state if state is not None or default is ... else view.state_without(entry.record, default, type)
        key, end, mode = checked_key(view.full(name)), view.end_of(timeout), view.mode_of(read, max_stale)
        record = await view.read_record(key, mode, max_stale, min_version, end)
        state = view.state_of(record, type)
        return state if state is not None or default is ... else view.state_without(record, default, type)

    @overload
    def list(
        self, prefix: str = ..., *, order: Order = ..., after: str | None = ..., before: str | None = ...,
        where: Mapping[str, Any] | None = ..., values: bool = ..., limit: int | None = ...,
        timeout: float | None = ...,
    ) -> AsyncIterator[State[D]]: ...  # fmt: skip
    @overload
    def list(
        self, prefix: str = ..., *, type: type[V], order: Order = ..., after: str | None = ...,
        before: str | None = ..., where: Mapping[str, Any] | None = ..., values: bool = ..., limit: int | None = ...,
        timeout: float | None = ...,
    ) -> AsyncIterator[State[V]]: ...  # fmt: skip
    @overload
    def list(
        self, prefix: str = ..., *, type: object, order: Order = ..., after: str | None = ...,
        before: str | None = ..., where: Mapping[str, Any] | None = ..., values: bool = ..., limit: int | None = ...,
        timeout: float | None = ...,
    ) -> AsyncIterator[State[Any]]: ...  # fmt: skip
    async def list(
        self,
        prefix: str = "",
        *,
        type: Any = None,  # noqa: A002
        order: Order = "key",
        after: str | None = None,
        before: str | None = None,
        where: Mapping[str, Any] | None = None,
        values: bool = True,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[State[Any]]:
        """Yield the states whose keys start with the prefix, or all that there are, those not yet in Postgres too.

        The order is by key in byte order (`key`, `-key`), or by the time of the last change (`newest`, `oldest`), which
        takes a prefix.
        `after` and `before` are names between which the keys lie, whatever the order: the last name of one call bounds
        the next. `where={"meta.source": "input"}` takes states whose value holds that: names of members with dots
        between them, and text, a number, true, false or None; of values stored as JSON, others match nothing. With
        `values=False` no value is read, and that of each state is None. Of Postgres as much is read as `limit` needs.
        With a type, or where values are raw, the records of steps (`<key>/steps/<name>`) and checkpoints
        (`<key>/checkpoints/<label>`), which are of another one, are left out.

        It is no snapshot: each state is as of some moment during the iteration. `timeout` bounds each exchange with a
        server, in seconds. Raises Quarantined at a state that only quarantine holds, as `get` does.
        """
        typed = self._view.policy.encoding == "raw" or (self._view.kind if type is None else type) is not Any
        listed = self._listed(prefix, order, after, before, where, values, limit, typed)
        seconds = self._view.end_of(timeout) - monotonic()
        async for record in self._runtime.listing.records(listed, seconds=seconds):
            if self._runtime.in_flight.closed:
                self._runtime.in_flight.refuse_if_closing()
            if values:
                state = self._view.state_of(record, type)
            else:
                self._view.refuse_quarantined(record)
                state = self._view.shown(record, None)
            if state is not None:
                yield state

    def _listed(
        self, prefix: str, order: Any, after: str | None, before: str | None, where: Mapping[str, Any] | None,
        values: bool, limit: int | None, typed: bool,
    ) -> Listed:  # fmt: skip
        """Return what a listing is about, or raise UsageError."""
        if order not in ORDERS:
            raise UsageError(f"order {order!r} is not one of {', '.join(map(repr, ORDERS))}")
        refuse_no_limit(limit)
        if order in ("newest", "oldest") and not self._view.full(prefix):
            hint = "Give its prefix, like 'runs/'; namespaces() lists them."
            raise UsageError("by age one namespace is listed at a time", hint=hint)
        selection = self._view.selection(prefix, after, before, where, OWN_SCHEMAS if typed else ())
        most = None if limit is None else min(limit, LIMIT_MAX)
        return Listed(selection=selection, order=order, limit=most, values=bool(values))

    async def warm(self, names: str | Iterable[str], *, timeout: float | None = None) -> int:
        """Load many states into Redis and into this process, and return how many are kept here now.

        `names` are names of states, or one text: the prefix of all that are meant. `timeout` bounds each exchange with
        a server, in seconds. Where the near cache has no room for all of them, the first ones are evicted.
        """
        seconds = self._view.end_of(timeout) - monotonic()
        if isinstance(names, str):
            prefix, _ = checked_prefix_of_list(self._view.full(names), self._runtime.keys.shards)
            listed = Listed(selection=Selection(prefix=prefix), values=False)
            keys = [record.key async for record in self._runtime.listing.records(listed, seconds=seconds)]
        else:
            refuse_no_names(names, "warm")
            keys = [*dict.fromkeys(checked_key(self._view.full(name)) for name in names)]
        return await self._runtime.warmer.warm(keys, seconds=seconds)

    @overload
    async def wait_for(
        self, name: str, *, after: State[Any] | str | None = ..., timeout: float | None = ...,
    ) -> State[D] | None: ...  # fmt: skip
    @overload
    async def wait_for(
        self, name: str, *, after: State[Any] | str | None = ..., type: type[V], timeout: float | None = ...,
    ) -> State[V] | None: ...  # fmt: skip
    @overload
    async def wait_for(
        self, name: str, *, after: State[Any] | str | None = ..., type: object, timeout: float | None = ...,
    ) -> State[Any] | None: ...  # fmt: skip
    async def wait_for(
        self,
        name: str,
        *,
        after: State[Any] | str | None = None,
        type: Any = None,  # noqa: A002
        timeout: float | None = None,
    ) -> State[Any] | None:
        """Wait for a state other than `after`, and return it, or None where it was deleted.

        `after` is a State or its change_id; without it, or with a default that nobody has stored, wait until the state
        exists. The server's push ends the wait; now and then the state is looked at anyway. Raises NotChanged when
        `timeout` seconds have passed, and a look after them, at the primary, has shown no other state.
        """
        key, end = checked_key(self._view.full(name)), self._view.end_of(timeout)
        known, near = ABSENT if after is None else expected_of(key, after), self._runtime.near
        begun, answered = monotonic(), False
        while True:
            signal, now = self._runtime.io.signal(), monotonic()
            last = answered and now >= end
            near.watch(key, signal)
            try:
                look = self._runtime.reader.primary if last else self._runtime.reader.local
                record = await look(key, end=max(end, now + _LAST_LOOK_S) if answered else end)
                answered = True
                if record.change_id != known and (record.exists or known != ABSENT):
                    return self._view.state_of(record, type)
                if last:
                    raise NotChanged(key, seconds=end - begun)
                await signal.wait(
                    min(
                        max(end - monotonic(), 0.0),
                        _LOOK_S if near.keeps and self._runtime.tracked.is_up() else _LOOK_DEAF_S,
                    )
                )
            finally:
                near.unwatch(key, signal)

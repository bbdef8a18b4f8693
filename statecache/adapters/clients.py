"""The clients behind a saver or a store: threads use one, each event loop has its own.

    made from settings    a StateCache for what is called without await, an AsyncStateCache for each event loop; they
                          are made when they are first needed, and closed with the saver or the store
    a StateCache          is used for all; what is awaited runs in threads
    an AsyncStateCache    belongs to one event loop; other threads wait for what runs in that one

Copies of a saver share this object, so they share clients, and whoever closes one of them closes all.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeVar

from statecache import AsyncStateCache, Settings, StateCache, UsageError
from statecache.adapters.event_loops import LoopEnded, until_done
from statecache.adapters.plans import Listing, Plan, arun, call, run, until_found

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from statecache import AsyncNamespace, Namespace

T = TypeVar("T")


class Clients:
    """Carries out plans, from threads and from event loops."""

    def __init__(
        self, cache: StateCache | AsyncStateCache | Settings, namespace: str, policy: dict[str, Any], *,
        of: str, awaited: str,
    ) -> None:  # fmt: skip
        self._namespace, self._policy, self._of, self._awaited = namespace, policy, of, awaited
        self._mutex = Lock()
        self._settings = cache if isinstance(cache, Settings) else None
        self._made: list[StateCache] = []
        self._made_in: dict[asyncio.AbstractEventLoop, tuple[AsyncStateCache, AsyncGenerator[None, None]]] = {}
        self._views: dict[object, Any] = {}
        self._sync = cache if isinstance(cache, StateCache) else None
        self._async = cache if isinstance(cache, AsyncStateCache) else None
        self._loop = _running() if self._async is not None else None
        self._closed = False
        self._closing: list[asyncio.Task[None]] = []
        if not isinstance(cache, (StateCache, AsyncStateCache, Settings)):
            raise UsageError(f"a {of} stands on a StateCache or an AsyncStateCache, not on a {type(cache).__name__}")
        self._view_of(cache if not isinstance(cache, Settings) else None)

    def run(self, plan: Plan[T]) -> T:
        """Carry out a plan for a caller who waits."""
        if self._async is None:
            return run(self._sync_view(), plan)
        loop = self._loop
        if loop is None or not loop.is_running():
            raise UsageError(
                f"this {self._of} stands on an AsyncStateCache whose event loop does not run",
                hint="Await its asynchronous methods, or give it a StateCache, or settings.",
            )
        if _running() is loop:
            raise UsageError(
                "a call that is not awaited would wait for its own event loop",
                hint=f"Await the asynchronous one ({self._awaited}, …), or call it in a thread.",
            )
        try:
            return until_done(loop, self.arun(plan))
        except LoopEnded:
            raise UsageError(
                f"the event loop of this {self._of} ended while a thread waited for a call",
                hint="Whether the call did what it should is not known: read it, or repeat it.",
            ) from None

    async def arun(self, plan: Plan[T]) -> T:
        """Carry out a plan for a caller who awaits it."""
        if self._sync is not None:
            return await asyncio.to_thread(run, self._sync_view(), plan)
        view, begun = self._async_view()
        if begun is not None:
            await anext(begun)
        return await arun(view, plan)

    def stream(self, listing: Listing) -> Iterator[Any]:
        """Yield what a listing finds."""
        while (found := self.run(until_found(listing))) is not None:
            yield found

    async def astream(self, listing: Listing) -> AsyncIterator[Any]:
        """Yield what a listing finds."""
        while (found := await self.arun(until_found(listing))) is not None:
            yield found

    def close(self) -> None:
        """Close the clients that were made here, those of event loops that still run in these."""
        made, made_in = self._given_up()
        for loop, (_, begun) in made_in.items():
            if loop is _running():  # which cannot be waited for here
                self._closing.append(loop.create_task(_ended(begun)))
            elif loop.is_running():
                with suppress(LoopEnded):  # which has closed it as well
                    until_done(loop, _ended(begun))
        for one in made:
            one.close()

    async def aclose(self) -> None:
        """Close the clients that were made here; of those in event loops, this one's and those that still run."""
        made, made_in = self._given_up()
        for loop, (_, begun) in made_in.items():
            if loop is asyncio.get_running_loop():
                await _ended(begun)
            elif loop.is_running():
                with suppress(LoopEnded):
                    await asyncio.to_thread(until_done, loop, _ended(begun))
        for one in made:
            await asyncio.to_thread(one.close)

    def _given_up(
        self,
    ) -> tuple[list[StateCache], dict[asyncio.AbstractEventLoop, tuple[AsyncStateCache, AsyncGenerator[None, None]]]]:
        with self._mutex:
            self._closed = True
            made, made_in = self._made, self._made_in
            self._made, self._made_in, self._views = [], {}, {}
        return made, made_in

    def _sync_view(self) -> Namespace[Any]:
        with self._mutex:
            self._refuse_if_closed()
            if self._sync is not None:
                return self._view_of(self._sync)  # type: ignore[no-any-return]
            if not self._made:
                self._made.append(StateCache(settings=self._settings))
            return self._view_of(self._made[0])  # type: ignore[no-any-return]

    def _async_view(self) -> tuple[AsyncNamespace[Any], AsyncGenerator[None, None] | None]:
        """Return the view for this event loop, and what has to be begun where its client is new."""
        loop = asyncio.get_running_loop()
        with self._mutex:
            self._refuse_if_closed()
            if self._async is not None:
                self._loop = self._loop or loop
                return self._view_of(self._async), None
            for ended in [one for one in self._made_in if one.is_closed()]:
                self._views.pop(id(self._made_in.pop(ended)[0]), None)
            begun = None
            if loop not in self._made_in:
                client = AsyncStateCache(settings=self._settings)
                begun = _closed_with_its_loop(client)
                self._made_in[loop] = client, begun
            return self._view_of(self._made_in[loop][0]), begun

    def _view_of(self, client: StateCache | AsyncStateCache | None) -> Any:
        if client is not None and id(client) not in self._views:
            self._views[id(client)] = client.namespace(self._namespace, **self._policy)
        return None if client is None else self._views[id(client)]

    def _refuse_if_closed(self) -> None:
        if self._closed and self._settings is not None:
            raise UsageError(f"the {self._of} is closed")


class OnClients:
    """What savers and stores have in common: clients, looked at by `setup`, and given back when one is closed."""

    _clients: Clients

    def setup(self) -> None:
        """Look whether Redis and Postgres can be used; raise what hinders that. `statecache migrate` sets them up."""
        self._clients.run(_look())

    async def asetup(self) -> None:
        """Do what `setup` does."""
        await self._clients.arun(_look())

    def close(self) -> None:
        """Close the clients that were made here; one that was given stays open."""
        self._clients.close()

    async def aclose(self) -> None:
        """Do what `close` does."""
        await self._clients.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


def settings_of(redis_url: str | None, postgres_url: str | None, more: dict[str, Any]) -> Settings:
    """Return settings; what is not given comes from STATECACHE_* variables."""
    given = {"redis_url": redis_url, "postgres_url": postgres_url, **more}
    return Settings(**{name: value for name, value in given.items() if value is not None})


def _look() -> Plan[None]:
    yield from call("get", "setup/look", read="primary")


async def _closed_with_its_loop(client: AsyncStateCache) -> AsyncGenerator[None, None]:
    """Close the client when this is closed, as event loops do with what is left of such when they end."""
    try:
        yield
    finally:
        await client.close()


async def _ended(begun: AsyncGenerator[None, None]) -> None:
    await begun.aclose()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

"""The clients behind a saver or a store: threads use one, each event loop has its own.

    made from settings    a StateCache for what is called without await, an AsyncStateCache for each event loop; they
                          are made when they are first needed, and closed with the saver or the store
    a StateCache          is used for all; what is awaited runs in threads, and who is cancelled waits for a write
    an AsyncStateCache    belongs to one event loop; other threads wait for what runs in that one

Copies of a saver share this object, so they share clients, and whoever closes one of them closes all. What was pickled
has the same settings, passwords among them, and makes clients of its own. In a forked child no event loop of its parent
runs, so nothing waits for one there: each event loop of the child has a client of its own.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self, TypeVar

from statecache import AsyncStateCache, Settings, StateCache, UsageError
from statecache._process import begins_anew_after_fork, mutex
from statecache.adapters.event_loops import LoopClients, LoopEnded, running_loop, until_done
from statecache.adapters.in_threads import run_in_thread
from statecache.adapters.plans import Listing, Plan, arun, call, run, until_found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractContextManager

    from statecache import Namespace

T = TypeVar("T")
_SERVERS_DIGITS = 16


class Clients:
    """Carries out plans, from threads and from event loops."""

    def __init__(
        self, cache: StateCache | AsyncStateCache | Settings, namespace: str, policy: dict[str, Any], *,
        of: str, awaited: str,
    ) -> None:  # fmt: skip
        if not isinstance(cache, (StateCache, AsyncStateCache, Settings)):
            raise UsageError(f"a {of} stands on a StateCache or an AsyncStateCache, not on a {type(cache).__name__}")
        self._namespace, self._policy, self._of, self._awaited = namespace, policy, of, awaited
        self._mutex, self._closed = mutex(), False
        self._settings = cache if isinstance(cache, Settings) else None
        self._made: StateCache | None = None
        self._sync: Namespace[Any] | None = None
        self._loops: LoopClients | None = None
        self._given = cache if isinstance(cache, AsyncStateCache) else None
        self._made_in = running_loop()
        if isinstance(cache, StateCache):
            self._sync = cache.namespace(namespace, **policy)
        else:
            self._loops = LoopClients(cache, namespace, policy, of=of, run_sync=awaited)
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget the event loop of a parent, which says for ever that it runs, and what a thread of it had begun."""
        self._mutex, self._made_in = mutex, None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._settings is None:
            raise UsageError(
                f"this {self._of} stands on a client that was given, which cannot be pickled",
                hint=f"Make the {self._of} of settings: whoever unpickles it has clients of its own then.",
            )
        return _unpickled, (self._settings, self._namespace, self._policy, self._of, self._awaited)

    def run(self, plan: Plan[T]) -> T:
        """Carry out a plan for a caller who waits."""
        if self._given is None:
            return run(self._sync_view(), plan)
        loop = self._loop_of(self._given)
        if loop is None or not loop.is_running():
            which = "that no event loop has used yet" if loop is None else "whose event loop does not run"
            raise UsageError(
                f"this {self._of} stands on an AsyncStateCache {which}",
                hint="Await its asynchronous methods, or give it a StateCache, or settings.",
            )
        if running_loop() is loop:
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
        if self._loops is None:
            return await run_in_thread(self._sync_view(), plan)
        if self._given is not None:
            self._refuse_elsewhere(self._given)
        return await arun(self._loops.here().view, plan)

    def _refuse_elsewhere(self, given: AsyncStateCache) -> None:
        """Raise UsageError where a client that nothing has used would come to belong to another loop than this did."""
        made_in = self._made_in if given._runtime.place is None else None
        if made_in is not None and made_in.is_running() and made_in is not running_loop():
            raise UsageError(
                f"the AsyncStateCache of this {self._of} belongs to another event loop",
                hint="Make one client for each event loop.",
            )

    def _loop_of(self, given: AsyncStateCache) -> asyncio.AbstractEventLoop | None:
        """Return the event loop that has used the client; before any has, the one in which this was made."""
        used = given._runtime.place
        return used if isinstance(used, asyncio.AbstractEventLoop) else self._made_in

    def stream(self, listing: Listing) -> Iterator[Any]:
        """Yield what a listing finds."""
        while (found := self.run(until_found(listing))) is not None:
            yield found

    async def astream(self, listing: Listing) -> AsyncIterator[Any]:
        """Yield what a listing finds."""
        while (found := await self.arun(until_found(listing))) is not None:
            yield found

    def close(self) -> None:
        """Close the clients that were made here; the one of the event loop that this is called in closes soon after."""
        made = self._given_up()
        if self._loops is not None:
            self._loops.close_from_thread()
        if made is not None:
            made.close()

    async def aclose(self) -> None:
        """Close the clients that were made here."""
        made = self._given_up()
        if self._loops is not None:
            await self._loops.close()
        if made is not None:
            await asyncio.to_thread(made.close)

    def _given_up(self) -> StateCache | None:
        with self._mutex:
            self._closed = self._settings is not None
            made, self._made = self._made, None
        return made

    def _sync_view(self) -> Namespace[Any]:
        with self._mutex:
            if self._closed:
                raise UsageError(f"the {self._of} is closed")
            if self._sync is None:
                self._made = StateCache(settings=self._settings)
                self._sync = self._made.namespace(self._namespace, **self._policy)
            return self._sync


def _unpickled(settings: Settings, namespace: str, policy: dict[str, Any], of: str, awaited: str) -> Clients:
    return Clients(settings, namespace, policy, of=of, awaited=awaited)


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


def servers_of(settings: Settings) -> str:
    """Return a digest of the servers that settings mean, and of which data there; whatever the passwords are."""
    told = f"{settings!r} {settings.postgres_schema}"  # URLs without passwords, and the prefix
    return sha256(told.encode()).hexdigest()[:_SERVERS_DIGITS]


def settings_again(servers: str | None, *, of: str) -> Settings:
    """Return the environment's settings for what is made without any, or again from its fields.

    Raises UsageError where the fields say that it stood on other servers.
    """
    settings = Settings()
    if servers not in (None, servers_of(settings)):
        raise UsageError(
            f"this {of} is made again from its fields, and stood on other servers than the environment names",
            hint=f"Have STATECACHE_* name them here, or give the {of} itself where its fields were given. "
            "Where they are the same servers under another name, leave `servers` out.",
        )
    return settings


def _look() -> Plan[None]:
    yield from call("get", "setup/look", read="primary")

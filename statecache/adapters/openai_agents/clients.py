"""The clients behind a session: an AsyncStateCache belongs to one event loop, so each loop has its own.

made from settings      an AsyncStateCache for each event loop in which the session is used; it is closed when the
                        session is, or when its loop ends, as `asyncio.run` ends what is left of tasks, or when
                        nothing refers to the session any more
an AsyncStateCache      is used as it is, in its one event loop, and stays open
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache import AsyncStateCache, Settings, UsageError
from statecache.adapters.openai_agents.pages import Last

if TYPE_CHECKING:
    from statecache import AsyncNamespace


class Client(NamedTuple):
    """What serves one event loop: a view, what a value may have of bytes, and whose turn it is to write here.

    `last` is how the session was left here.
    """

    view: AsyncNamespace[Any]
    bytes_max: int
    writing: asyncio.Lock
    last: Last


class _Made(NamedTuple):
    client: Client
    keeper: asyncio.Task[None]


class Clients:
    """Gives each event loop its client."""

    def __init__(self, cache: AsyncStateCache | Settings, namespace: str, policy: dict[str, Any]) -> None:
        if not isinstance(cache, (AsyncStateCache, Settings)):
            what = f"a session stands on an AsyncStateCache or on Settings, not on a {type(cache).__name__}"
            raise UsageError(what, hint="With settings, Runner.run_sync works as well.")
        self._namespace, self._policy = namespace, policy
        self._settings = cache if isinstance(cache, Settings) else None
        self._given = None if isinstance(cache, Settings) else self._client(cache)
        self._mutex, self._closed = Lock(), False
        self._made: dict[asyncio.AbstractEventLoop, _Made] = {}
        weakref.finalize(self, _end_all, self._made)

    def here(self) -> Client:
        """Return the client for this event loop; raise UsageError once the session is closed."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        with self._mutex:
            if self._closed:
                raise UsageError("the session is closed")
            for ended in [one for one in [*self._made] if one.is_closed()]:
                self._made.pop(ended, None)
            made = self._made.get(loop)
            if made is None:
                cache = AsyncStateCache(settings=self._settings)
                keeper = loop.create_task(_keep(cache, self._made, loop), name="statecache session")
                made = self._made[loop] = _Made(self._client(cache), keeper)
            return made.client

    async def close(self) -> None:
        """Close the clients that were made: of this event loop, of those that run, and of those that may run again."""
        with self._mutex:
            self._closed = self._closed or self._settings is not None
            made = [(loop, one.keeper) for loop, one in [*self._made.items()]]
        here = asyncio.get_running_loop()
        for loop, keeper in made:
            if loop is here:
                await _ended(keeper)
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_ended(keeper), loop))
            elif not loop.is_closed():
                await asyncio.to_thread(_end_idle, loop, keeper)

    def _client(self, cache: AsyncStateCache) -> Client:
        view = cache.namespace(self._namespace, **self._policy)
        return Client(view, cache.settings.value_bytes_max, asyncio.Lock(), Last())


async def _keep(cache: AsyncStateCache, made: dict[asyncio.AbstractEventLoop, _Made], loop: Any) -> None:
    """Close the client once this is cancelled, and have the next call make another one."""
    try:
        await loop.create_future()
    finally:
        made.pop(loop, None)
        await cache.close()


async def _ended(keeper: asyncio.Task[None]) -> None:
    keeper.cancel()
    await asyncio.wait([keeper])


def _end_idle(loop: asyncio.AbstractEventLoop, keeper: asyncio.Task[None]) -> None:
    """End a keeper in an event loop that is between two runs, as `Runner.run_sync` leaves its own."""
    with suppress(RuntimeError):  # another thread runs it by now, or has closed it
        ended = _ended(keeper)
        try:
            loop.run_until_complete(ended)
        finally:
            ended.close()


def _end_all(made: dict[asyncio.AbstractEventLoop, _Made]) -> None:
    """Have the keepers end of a session that nothing refers to any more."""
    for loop, one in [*made.items()]:
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(one.keeper.cancel)

"""The clients behind a session or a store: an AsyncStateCache belongs to one event loop, so each loop has its own.

made from settings      an AsyncStateCache for each event loop in which the session is used; it is closed when the
                        session is, or when its loop ends, or when nothing refers to the session any more
an AsyncStateCache      is used as it is, in its one event loop, and stays open

Where a loop ends, as `asyncio.run` has it end, all tasks are cancelled and waited for. Some write as they end, or have
other tasks do so, which nobody waits for. So the task that keeps the client, cancelled as they are, closes it only once
nobody uses it any more.

Where a loop is closed without that, there is nothing left to await with: the client is let go, and its connections end
with it. In a forked child no event loop of its parent runs, though each says so: none of them is waited for.

What writes is not left half waited for: `alone` waits for how a write ends, also for who is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from concurrent.futures import wait
from contextlib import suppress
from inspect import CORO_CREATED, getcoroutinestate
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from statecache import AsyncStateCache, Settings, Unavailable, UsageError
from statecache._process import begins_anew_after_fork, mutex
from statecache.adapters.given_up import until_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable
    from contextlib import AbstractContextManager

    from statecache import AsyncNamespace


T = TypeVar("T")
_LOOKS_EVERY_S = 0.05
_ENDING_S_MAX = 5.0
"""How long an event loop that ends waits for who still uses a client."""
_IDLE_TURNS = 10
"""So many turns of an event loop that ends nobody uses a client until it is closed: a task may be about to."""
_IDLE_LOOKS_MAX = 20
"""So often in a row an event loop is seen not to run, between two runs of it, before it has ended."""
_inherited: list[_Made] = []
"""What a forked child has of its parent, kept: to collect a task that waits is an error to asyncio."""


class LoopEnded(Exception):
    """An event loop ended before what was begun in it."""


class Client(NamedTuple):
    """What serves one event loop: a view, what a value may have of bytes, and whose turn it is to write here."""

    view: AsyncNamespace[Any]
    bytes_max: int
    writing: asyncio.Lock


class _Made(NamedTuple):
    client: Client
    keeper: asyncio.Task[None]
    given_up: asyncio.Event
    users: weakref.WeakSet[asyncio.Task[Any]]


class LoopClients:
    """Gives each event loop its client; `of` says what it is for, and `run_sync` what may be called on settings."""

    def __init__(
        self, cache: AsyncStateCache | Settings, namespace: str, policy: dict[str, Any], *, of: str, run_sync: str
    ) -> None:
        if not isinstance(cache, (AsyncStateCache, Settings)):
            what = f"a {of} stands on an AsyncStateCache or on Settings, not on a {type(cache).__name__}"
            raise UsageError(what, hint=f"With settings, {run_sync} works as well.")
        self._namespace, self._policy, self._of = namespace, policy, of
        self._settings = cache if isinstance(cache, Settings) else None
        self._given = None if isinstance(cache, Settings) else self._client(cache)
        self._mutex, self._closed = mutex(), False
        self._made: dict[asyncio.AbstractEventLoop, _Made] = {}
        self._turns: weakref.WeakValueDictionary[tuple[int, Hashable], asyncio.Lock] = weakref.WeakValueDictionary()
        weakref.finalize(self, _end_all, self._made)
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget the event loops of a parent, none of which runs in its child, and whose turn it was to write there."""
        self._mutex = mutex
        _inherited.extend(self._made.values())
        self._made.clear()
        self._turns = weakref.WeakValueDictionary()
        if self._given is not None:
            self._given = self._given._replace(writing=asyncio.Lock())

    def on(self, what: Hashable) -> Client:
        """Return the client for this event loop, on which writes to that thing go one after the other."""
        here, key = self.here(), (id(asyncio.get_running_loop()), what)
        turns = self._turns.get(key)
        if turns is None:
            turns = self._turns[key] = asyncio.Lock()
        return here._replace(writing=turns)

    def here(self) -> Client:
        """Return the client for this event loop; raise UsageError once it is closed, or for a given one of another."""
        if self._given is not None:
            self._given.view._runtime.check_place()
            return self._given
        loop = asyncio.get_running_loop()
        with self._mutex:
            if self._closed:
                raise UsageError(f"the {self._of} is closed")
            for ended in [one for one in [*self._made] if one.is_closed()]:
                self._made.pop(ended, None)
            made = self._made.get(loop)
            if made is None:
                cache = AsyncStateCache(settings=self._settings)
                given_up, users = asyncio.Event(), weakref.WeakSet[asyncio.Task[Any]]()
                keeping = _keep(cache, self._made, loop, given_up, users)
                keeper = loop.create_task(keeping, name=f"statecache {self._of}")
                made = self._made[loop] = _Made(self._client(cache), keeper, given_up, users)
            if (task := asyncio.current_task()) is not None:
                made.users.add(task)
            return made.client

    async def close(self) -> None:
        """Close the clients that were made: of this event loop, of those that run, and of those that may run again."""
        here = asyncio.get_running_loop()
        for loop, made in self._given_up():
            if loop is here:
                await _ended(made)
            else:
                await asyncio.to_thread(_end, loop, made)

    def close_from_thread(self) -> None:
        """Do what `close` does, without awaiting: the client of an event loop that runs here closes soon after."""
        here = running_loop()
        for loop, made in self._given_up():
            if loop is here:
                made.given_up.set()
            else:
                _end(loop, made)

    def _given_up(self) -> list[tuple[asyncio.AbstractEventLoop, _Made]]:
        with self._mutex:
            self._closed = self._closed or self._settings is not None
            return [*self._made.items()]

    def _client(self, cache: AsyncStateCache) -> Client:
        view = cache.namespace(self._namespace, **self._policy)
        return Client(view, cache.settings.value_bytes_max, asyncio.Lock())


class OnEventLoops:
    """What sessions and stores have in common: clients, which `ping` asks whether they work, and `close` gives back."""

    _clients: LoopClients

    async def ping(self) -> bool:
        """Return whether Redis answers, and Postgres where it is asked."""
        here = self._clients.here()
        try:
            await here.view.get("-", read="primary")
        except Unavailable:
            return False
        return True

    async def close(self) -> None:
        """Close the clients that were made here; every other call raises UsageError from then on."""
        await self._clients.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


async def alone(here: Client, write: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Carry out what writes, after what else writes here; who is cancelled meanwhile waits for how it ends."""
    async with here.writing:
        task = asyncio.ensure_future(write())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await until_ended([task])
            if not task.cancelled():
                task.exception()  # which nobody is told
            raise


def until_done(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Have an event loop that another thread runs carry out a coroutine; raise LoopEnded where that loop ends first."""
    try:
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:
            raise LoopEnded from None
        idle = 0
        while not wait([future], timeout=_LOOKS_EVERY_S).done:
            idle = 0 if loop.is_running() else idle + 1
            if loop.is_closed() or idle == _IDLE_LOOKS_MAX:
                raise LoopEnded
        return future.result()
    finally:
        if getcoroutinestate(coroutine) == CORO_CREATED:
            coroutine.close()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that this is called in; None where there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _keep(
    cache: AsyncStateCache, made: dict[asyncio.AbstractEventLoop, _Made], loop: asyncio.AbstractEventLoop,
    given_up: asyncio.Event, users: weakref.WeakSet[asyncio.Task[Any]],
) -> None:  # fmt: skip
    """Close the client once it is given up, or the event loop ends, and have the next call make another one."""
    try:
        await given_up.wait()
    except asyncio.CancelledError:
        await _done(loop, given_up, users)
        raise
    finally:
        made.pop(loop, None)
        if not _is_thrown_away():
            await cache.close()


async def _done(
    loop: asyncio.AbstractEventLoop, given_up: asyncio.Event, users: weakref.WeakSet[asyncio.Task[Any]]
) -> None:
    """Wait, for a while, until no task uses a client any more, or one gives it up.

    Tasks that live and are not cancelled are none of an event loop that ends: one of them may wait for this.
    """
    bystanders = {one for one in users if not one.cancelling()}
    waiting = [loop.create_task(given_up.wait()), loop.create_task(_unused(users, bystanders, loop.create_future()))]
    try:
        await asyncio.wait(waiting, timeout=_ENDING_S_MAX, return_when=asyncio.FIRST_COMPLETED)
    finally:  # it may be cancelled again
        if not _is_thrown_away():
            for one in waiting:
                one.cancel()
            await asyncio.wait(waiting)


def _is_thrown_away() -> bool:
    """Return whether the coroutine that calls this ends as its event loop was closed: nothing is awaited there."""
    return isinstance(sys.exception(), GeneratorExit)


async def _unused(
    users: weakref.WeakSet[asyncio.Task[Any]], bystanders: set[asyncio.Task[Any]], never: asyncio.Future[None]
) -> bool:
    """Wait until no task but bystanders uses a client, nor begins to within some turns of its event loop."""
    turns = 0
    while turns < _IDLE_TURNS:
        left: list[asyncio.Future[Any]] = [one for one in users - bystanders if not one.done()]
        await asyncio.wait(left or [never], timeout=None if left else 0)
        turns = 0 if left else turns + 1
    return True


async def _ended(made: _Made) -> None:
    made.given_up.set()
    await asyncio.wait([made.keeper])


def _end(loop: asyncio.AbstractEventLoop, made: _Made) -> None:
    """End a keeper in an event loop that another thread runs, or that is between two runs, as `Runner` leaves it."""
    if loop.is_running():
        with suppress(LoopEnded):  # which has cancelled the keeper as well
            until_done(loop, _ended(made))
        return
    with suppress(RuntimeError):  # it is closed, another thread runs it by now, or this one runs another
        ended = _ended(made)
        try:
            loop.run_until_complete(ended)
        finally:
            ended.close()


def _end_all(made: dict[asyncio.AbstractEventLoop, _Made]) -> None:
    """Have the keepers end of what nothing refers to any more."""
    for loop, one in [*made.items()]:
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(one.given_up.set)

"""Who waits for what another thread's event loop carries out does not wait for ever."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings, UsageError
from statecache.adapters import event_loops
from statecache.adapters.clients import Clients
from statecache.adapters.event_loops import LoopEnded, until_done
from tests.support.polling import pause_thread


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return an event loop that another thread runs until it is told to stop; that thread does not close it."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
    thread.join()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    if not loop.is_closed():
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _seven() -> int:
    return 7


async def _wrong() -> int:
    raise RuntimeError("wrong")


async def _for_ever(begun: Event) -> int:
    begun.set()
    await asyncio.Event().wait()
    return 0


def test_what_it_comes_to_is_returned_or_raised(loop: asyncio.AbstractEventLoop) -> None:
    assert until_done(loop, _seven()) == 7
    with pytest.raises(RuntimeError, match="wrong"):
        until_done(loop, _wrong())


def _ended_meanwhile(loop: asyncio.AbstractEventLoop, call: Callable[[], Any], begun: Event) -> list[BaseException]:
    """Stop the loop once the call waits in it; return what the call raised."""
    raised = list[BaseException]()

    def waits() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=waits, daemon=True)
    thread.start()
    assert begun.wait(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    return raised


def test_who_waits_for_a_loop_that_ends_is_told(loop: asyncio.AbstractEventLoop) -> None:
    begun = Event()
    (raised,) = _ended_meanwhile(loop, lambda: until_done(loop, _for_ever(begun)), begun)
    assert isinstance(raised, LoopEnded)


def test_what_a_loop_never_began_is_told_and_leaves_no_warning(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)
    while loop.is_running():
        pause_thread()
    with pytest.raises(LoopEnded):
        until_done(loop, _seven())
    loop.close()
    with pytest.raises(LoopEnded):
        until_done(loop, _seven())


def test_a_call_of_an_adapter_in_a_thread_is_told_that_its_loop_ended(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Event()

    async def made() -> Clients:
        return Clients(AsyncStateCache(settings=Settings()), "n", {}, of="store", awaited="aget")

    clients = until_done(loop, made())
    monkeypatch.setattr(clients, "arun", lambda plan: _for_ever(begun))
    (raised,) = _ended_meanwhile(loop, lambda: clients.run(iter(())), begun)  # type: ignore[arg-type]
    assert isinstance(raised, UsageError)
    assert "ended while a thread waited" in str(raised)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.AbstractEventLoop]:
    """In which event loops a client was closed."""
    loops = list[asyncio.AbstractEventLoop]()

    async def close(_: AsyncStateCache) -> None:
        loops.append(asyncio.get_running_loop())

    monkeypatch.setattr(AsyncStateCache, "close", close)
    return loops


async def _made_here(clients: Clients) -> None:
    assert clients._loops is not None
    assert clients._loops.here() is clients._loops.here()


@pytest.mark.parametrize("awaited", [True, False])
def test_clients_of_event_loops_that_run_are_idle_or_have_ended_are_closed_in_these(
    loop: asyncio.AbstractEventLoop, closed: list[asyncio.AbstractEventLoop], awaited: bool
) -> None:
    clients, idle = Clients(Settings(), "n", {}, of="store", awaited="aget"), asyncio.new_event_loop()
    idle.run_until_complete(_made_here(clients))
    asyncio.run(_made_here(clients))
    until_done(loop, _made_here(clients))
    (ended,) = closed
    assert ended.is_closed()
    if awaited:
        asyncio.run(clients.aclose())
    else:
        clients.close()
    assert {*closed[1:]} == {idle, loop}
    idle.close()
    with pytest.raises(UsageError, match="the store is closed"):
        asyncio.run(_made_here(clients))
    clients.close()
    assert len(closed) == 3


def test_a_client_is_closed_soon_by_a_call_that_is_not_awaited_in_its_own_event_loop(
    closed: list[asyncio.AbstractEventLoop],
) -> None:
    async def closes() -> None:
        clients = Clients(Settings(), "n", {}, of="store", awaited="aget")
        await _made_here(clients)
        await asyncio.sleep(0)
        clients.close()
        assert closed == []
        await asyncio.sleep(0)
        assert closed == [asyncio.get_running_loop()]

    asyncio.run(closes())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("ending", [False, True])
def test_an_event_loop_that_is_closed_with_its_tasks_pending_only_lets_its_client_go(
    closed: list[asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch, ending: bool
) -> None:
    swallowed = list[str]()
    monkeypatch.setattr(sys, "unraisablehook", lambda told: swallowed.append(repr(told.exc_value)))
    clients, loop = Clients(Settings(), "n", {}, of="store", awaited="aget"), asyncio.new_event_loop()

    loop.run_until_complete(_made_here(clients))
    assert clients._loops is not None
    keeper = clients._loops._made[loop].keeper
    if ending:
        keeper.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    del keeper, task
    asyncio.run(_made_here(clients))
    gc.collect()
    assert swallowed == []
    assert len(closed) == 1


def test_an_event_loop_that_ends_waits_for_who_still_uses_its_client_but_not_for_ever(
    closed: list[asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, told, stays = Clients(Settings(), "n", {}, of="store", awaited="aget"), list[str](), Event()

    async def uses(times: int) -> None:
        await _made_here(clients)
        for _ in range(times):
            await asyncio.sleep(0)
        told.append(f"used {times} times, closed {len(closed)}")

    async def for_ever() -> None:
        await _made_here(clients)
        await _for_ever(stays)

    async def ends(*others: Callable[[], Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks.extend(asyncio.create_task(other()) for other in others)

    async def program(*others: Callable[[], Any]) -> None:
        await _made_here(clients)
        tasks.append(asyncio.create_task(ends(*others)))
        await asyncio.sleep(0)

    tasks = list[asyncio.Task[None]]()
    asyncio.run(program(lambda: uses(0), lambda: uses(20)))
    assert told == ["used 0 times, closed 0", "used 20 times, closed 0"]
    assert len(closed) == 1
    monkeypatch.setattr(event_loops, "_ENDING_S_MAX", 0)
    asyncio.run(program(for_ever))
    assert (len(closed), stays.is_set(), tasks[-1].done()) == (2, True, False)
    tasks[-1].get_coro().close()
    tasks[-1]._log_destroy_pending = False  # type: ignore[attr-defined]


def test_who_closes_what_is_used_as_its_event_loop_ends_is_not_waited_for(
    closed: list[asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loops, "_ENDING_S_MAX", 1000)
    clients, tasks = Clients(Settings(), "n", {}, of="store", awaited="aget"), list[asyncio.Task[None]]()

    async def closes() -> None:
        await _made_here(clients)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            async with asyncio.timeout(10):
                await clients.aclose()

    async def program() -> None:
        tasks.append(asyncio.create_task(closes()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(program())
    assert tasks[0].exception() is None
    assert len(closed) == 1


def test_who_cancels_all_others_and_waits_for_them_is_not_waited_for(
    closed: list[asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loops, "_ENDING_S_MAX", 1000)
    clients = Clients(Settings(), "n", {}, of="store", awaited="aget")

    async def works() -> None:
        await _made_here(clients)
        await asyncio.Event().wait()

    async def program() -> None:
        await _made_here(clients)
        working = asyncio.create_task(works())
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert working in others
        for one in others:
            one.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(*others, return_exceptions=True)
        assert len(closed) == 1

    asyncio.run(program())


def test_a_keeper_that_is_cancelled_again_while_it_waits_leaves_nothing_behind(
    closed: list[asyncio.AbstractEventLoop],
) -> None:
    clients = Clients(Settings(), "n", {}, of="store", awaited="aget")

    async def saves(done: asyncio.Event) -> None:
        await _made_here(clients)
        try:
            await asyncio.Event().wait()
        finally:
            await done.wait()

    async def program() -> None:
        done, here = asyncio.Event(), asyncio.current_task()
        saving = asyncio.create_task(saves(done))
        for _ in range(2):
            await asyncio.sleep(0)
        (keeper,) = asyncio.all_tasks() - {here, saving}
        saving.cancel()
        for _ in range(2):
            keeper.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([keeper], timeout=10)
        assert (keeper.cancelled(), len(closed)) == (True, 1)
        for _ in range(3):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {here, saving}
        done.set()
        await asyncio.wait([saving])

    asyncio.run(program())

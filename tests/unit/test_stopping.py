"""Being told to stop: by signals and by hand, in tasks and in threads, and what handled the signals before."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from statecache import AsyncStateCache, DrainReport, StateCache, UsageError
from statecache._signals import SIGNALS, AsyncStopRequest, StopRequest
from tests.fixtures.redis import FakeDeployment
from tests.support.polling import pause

HERE = signal.SIGUSR1
WAIT_S = 20.0


@pytest.fixture
def before() -> Iterator[list[int]]:
    """The signal numbers that reach a handler installed before."""
    told: list[int] = []
    earlier = signal.signal(HERE, lambda number, frame: told.append(number))
    yield told
    signal.signal(HERE, earlier)


def _async_cache(fake: FakeDeployment) -> AsyncStateCache:
    return AsyncStateCache(settings=fake.settings, dial=fake.dial)


def _cache(fake: FakeDeployment) -> StateCache:
    return StateCache(settings=fake.settings, dial=fake.dial_sync)


def test_the_signals_are_those_that_ask_a_process_to_end() -> None:
    assert set(SIGNALS) == {signal.SIGTERM, signal.SIGINT}


async def test_a_signal_tells_a_task_and_is_given_back(fake: FakeDeployment, before: list[int]) -> None:
    async with _async_cache(fake) as cache:
        async with cache.until_stopped(drain=0, signals=[HERE]) as told:
            assert (told.stopping, told.signal, await told.wait(0.0)) == (False, None, False)
            waiting = asyncio.create_task(told.wait(WAIT_S))
            await asyncio.sleep(0)
            signal.raise_signal(HERE)
            assert await waiting
            assert (told.stopping, told.signal) == (True, HERE)
            await cache.get("runs/42")
        assert (told.left, told.status) == (DrainReport(), 0)
        with pytest.raises(UsageError, match="it is closed"):
            await cache.get("runs/43")
    assert before == []
    signal.raise_signal(HERE)
    assert before == [HERE]


def test_a_signal_tells_a_thread_and_is_given_back(fake: FakeDeployment, before: list[int]) -> None:
    with _cache(fake) as cache:
        with cache.until_stopped(drain=0, signals=[HERE]) as told:
            assert (told.stopping, told.signal, told.wait(0.0)) == (False, None, False)
            timer = threading.Timer(0.05, signal.raise_signal, [HERE])
            timer.start()
            assert told.wait(WAIT_S)
            timer.join()
            assert (told.stopping, told.signal, told.wait(WAIT_S)) == (True, HERE, True)
        assert (told.left, told.status) == (DrainReport(), 0)
    assert before == []
    signal.raise_signal(HERE)
    assert before == [HERE]


async def test_a_second_signal_ends_a_tasks_block_at_once(fake: FakeDeployment, before: list[int]) -> None:
    cache = _async_cache(fake)
    entered = asyncio.Event()

    async def work() -> None:
        async with cache.until_stopped(drain=1000, signals=[HERE]):
            entered.set()
            await asyncio.Event().wait()

    async def ended() -> Any:
        try:
            await work()
        except SystemExit as error:
            return error.code
        return None

    task = asyncio.create_task(ended())
    await entered.wait()
    signal.raise_signal(HERE)
    await asyncio.sleep(0)
    assert not task.done()
    signal.raise_signal(HERE)
    done, _ = await asyncio.wait([task], timeout=WAIT_S)
    assert [one.result() for one in done] == [128 + HERE]
    with pytest.raises(UsageError, match="it is closed"):
        await cache.get("runs/42")


async def test_a_second_signal_that_comes_as_the_block_ends_is_heard(fake: FakeDeployment, before: list[int]) -> None:
    """The cancellation has nowhere to strike but in the closing, which is seen through all the same."""
    cache = _async_cache(fake)
    await cache.set("runs/42", 1)

    async def work() -> None:
        async with cache.until_stopped(drain=1000, signals=[HERE]) as told:
            for _ in range(2):
                told._told._signalled(HERE)

    with pytest.raises(SystemExit) as caught:
        await work()
    assert caught.value.code == 128 + HERE
    with pytest.raises(UsageError, match="it is closed"):
        await cache.get("runs/43")


def test_a_second_signal_ends_a_threads_block_at_once(fake: FakeDeployment, before: list[int]) -> None:
    cache, after = _cache(fake), list[bool]()

    def work() -> None:
        with cache.until_stopped(drain=1000, signals=[HERE]) as told:
            signal.raise_signal(HERE)
            after.append(told.stopping)
            signal.raise_signal(HERE)
            after.append(False)

    with pytest.raises(SystemExit) as caught:
        work()
    assert (caught.value.code, after) == (128 + HERE, [True])
    with pytest.raises(UsageError, match="it is closed"):
        cache.get("runs/42")


async def test_a_second_signal_ends_the_draining_too(fake: FakeDeployment, before: list[int]) -> None:
    """What was written is not flushed by anybody, so the draining would take its whole time."""
    cache = _async_cache(fake)
    draining = asyncio.Event()

    async def work() -> Any:
        try:
            async with cache.until_stopped(drain=1000, signals=[HERE]) as told:
                await cache.set("runs/42", 1)
                told.stop()
                draining.set()
        except SystemExit as error:
            return error.code

    task = asyncio.create_task(work())
    await draining.wait()
    async with asyncio.timeout(WAIT_S):
        while not cache._runtime.in_flight.closing:
            await pause()
        signal.raise_signal(HERE)
        signal.raise_signal(HERE)
    done, _ = await asyncio.wait([task], timeout=WAIT_S)
    assert [one.result() for one in done] == [128 + HERE]


async def test_an_error_of_the_block_goes_on_after_the_closing(fake: FakeDeployment) -> None:
    cache = _async_cache(fake)
    with pytest.raises(ZeroDivisionError):
        async with cache.until_stopped(drain=0, signals=[HERE]) as told:
            raise ZeroDivisionError
    assert (told.left, told.stopping) == (DrainReport(), False)


async def test_a_cancellation_that_no_signal_made_stays_one(fake: FakeDeployment) -> None:
    cache = _async_cache(fake)
    entered = asyncio.Event()

    async def work() -> None:
        async with cache.until_stopped(drain=0, signals=[HERE]):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_it_can_be_told_by_hand_from_another_thread(fake: FakeDeployment) -> None:
    async with _async_cache(fake).until_stopped(drain=0, signals=[HERE]) as told:
        threading.Thread(target=told.stop).start()
        assert await told.wait(WAIT_S)
        assert (told.stopping, told.signal) == (True, None)


def test_beside_the_main_thread_it_is_told_by_hand_only(fake: FakeDeployment, before: list[int]) -> None:
    entered, found = threading.Event(), list[bool]()
    with _cache(fake) as cache, cache.until_stopped(drain=0, signals=[]) as other:

        def work() -> None:
            with _cache(fake).until_stopped(drain=0, signals=[HERE]) as told:
                entered.set()
                found.append(other.wait(WAIT_S) and not told.stopping)
                told.stop()
                found.append(told.wait(WAIT_S))

        def in_a_loop() -> None:
            async def told_by_hand() -> None:
                async with _async_cache(fake).until_stopped(drain=0, signals=[HERE]) as told:
                    told.stop()
                    found.append(await told.wait(WAIT_S))

            asyncio.run(told_by_hand())

        threads = [threading.Thread(target=work), threading.Thread(target=in_a_loop)]
        for thread in threads:
            thread.start()
        entered.wait(WAIT_S)
        signal.raise_signal(HERE)
        other.stop()
        for thread in threads:
            thread.join(WAIT_S)
    assert (found, before) == ([True] * 3, [HERE])


async def test_where_a_loop_takes_no_signals_the_process_does(
    before: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", none)
    told = AsyncStopRequest()
    told.listen([HERE])
    signal.raise_signal(HERE)
    assert await told.wait(WAIT_S)
    told.restore()
    signal.raise_signal(HERE)
    assert before == [HERE]


def test_a_handler_takes_no_lock_that_its_thread_may_hold(before: list[int]) -> None:
    """The signal arrives while this very thread is on its way into or out of waiting, a thousand times."""
    for _ in range(1000):
        told = StopRequest()
        told.listen([HERE])
        timer = threading.Thread(target=signal.pthread_kill, args=(threading.get_ident(), HERE))
        timer.start()
        assert told.wait(WAIT_S)
        timer.join()
        told.restore()


def test_a_deadline_that_is_none_is_refused(fake: FakeDeployment) -> None:
    with pytest.raises(UsageError, match="drain="):
        _cache(fake).until_stopped(drain=-1)

"""Slots: first come first served, and whoever is interrupted, wherever it is, takes none along."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from statecache.concurrency import THREADS, run
from statecache.concurrency.slots import TaskSlots, ThreadSlots
from tests.support.pooled import Line, pool_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Of who is interrupted between making a coroutine and beginning it, Python says so."""

WAIT_S = 20.0
TIMES = 4000


def _interrupted(work: Callable[[], object], looks: Callable[[], object], right: object) -> None:
    """Do the work again and again, as a signal handler that raises ends it, and look each time what is left."""
    met = 0

    def interrupt(*_: object) -> None:
        raise InterruptedError

    before, told = signal.signal(signal.SIGALRM, interrupt), sys.unraisablehook
    sys.unraisablehook = lambda _: None  # pytest's keeps the frames of what a finalizer met, and they their connections
    try:
        for number in range(TIMES):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + number % 50))
                for _ in range(50):
                    work()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except InterruptedError:
                met += 1
            assert looks() == right, f"after {met} interruptions"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = told
    assert met > TIMES / 2


def _free(slots: Any) -> int:
    return int(slots._free)


@pytest.mark.parametrize("hold", [False, True])
def test_who_is_interrupted_while_it_is_lent_a_connection_keeps_none(hold: bool) -> None:
    async def dial(_: float | None = None) -> Line:
        return Line()

    pool = pool_of(2, dial, io=THREADS)

    def work() -> None:
        line = run(pool.hold(1) if hold else pool.take(1))
        try:
            assert line.alive
        finally:
            pool.give(line)

    _interrupted(work, lambda: (pool.lent, _free(pool._slots), _free(pool._holds)), (0, 2, 1))


def test_who_is_interrupted_on_its_way_to_give_a_slot_back_keeps_none() -> None:
    slots = ThreadSlots(1)

    def work() -> None:
        slot = run(slots.acquire(1))
        assert slot is not None
        slot.release()

    _interrupted(work, lambda: slots._free, 1)


def test_who_gives_up_waiting_and_is_interrupted_stands_in_nobodys_way() -> None:
    slots = ThreadSlots(1)

    def work() -> None:
        mine = slots.acquire_now()
        assert run(slots.acquire(1e-6)) is None
        assert mine is not None
        mine.release()

    _interrupted(work, lambda: slots._free, 1)


async def test_a_slot_that_frees_itself_while_its_waiter_gives_up_is_not_lost() -> None:
    """The timeout has cancelled the waiter, which has not run since: that is when the slot is given back."""
    slots = TaskSlots(1)
    first = await slots.acquire(1)
    assert first is not None
    waiter = asyncio.create_task(slots.acquire(WAIT_S))
    await asyncio.sleep(0)
    waiter.cancel()
    first.release()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert await slots.acquire(0.01)


async def test_a_waiter_that_is_served_and_cancelled_at_once_hands_its_slot_on() -> None:
    slots = TaskSlots(1)
    first = await slots.acquire(1)
    assert first is not None
    waiter = asyncio.create_task(slots.acquire(WAIT_S))
    await asyncio.sleep(0)
    first.release()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert await slots.acquire(0.01)


def test_threads_are_served_in_the_order_in_which_they_came() -> None:
    slots, served, standing = ThreadSlots(1), list[int](), threading.Event()
    first = run(slots.acquire(1))
    assert first is not None

    def wait(number: int) -> None:
        slot = run(slots.acquire(WAIT_S))
        served.append(number)
        assert slot is not None
        slot.release()

    threads = []
    for number in range(8):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        while len(slots._waiting) <= number:
            standing.wait(0.001)
    first.release()
    for thread in threads:
        thread.join(WAIT_S)
    assert served == list(range(8))


def test_a_thread_that_gives_up_takes_no_slot_along() -> None:
    slots = ThreadSlots(1)
    first = run(slots.acquire(1))
    assert first is not None
    assert not run(slots.acquire(0.01))
    first.release()
    assert run(slots.acquire(0.01))


def test_a_thread_whose_wait_a_signal_handler_ends_takes_no_slot_along() -> None:
    slots = ThreadSlots(1)
    inside: Any = slots._mutex
    first = slots.acquire_now()
    assert first is not None

    def interrupt(*_: object) -> None:
        if slots._waiting and not inside._is_owned():  # else it does not wait yet
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(slots.acquire(WAIT_S))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    first.release()
    assert slots.acquire_now()

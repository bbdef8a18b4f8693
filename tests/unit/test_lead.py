"""Threads that wait for answers on one connection: one of them reads for all, and nobody waits for nothing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from statecache.clock import monotonic
from statecache.concurrency import THREADS, run
from statecache.concurrency.arrivals import ThreadArrivals
from statecache.concurrency.slots import ThreadSlots
from statecache.concurrency.waking import ThreadSignal

LIMIT_S = 60.0


class Arrivals(ThreadArrivals):
    """The wait of a listener, which remembers whether it is held off."""

    def __init__(self) -> None:
        super().__init__(None)
        self.held = False

    def hold_off(self) -> None:
        """Note it."""
        self.held = True

    def go_on(self) -> None:
        """Note it."""
        self.held = False


def lead(ear: ThreadSlots, take: Any, signal: ThreadSignal, seconds: float) -> Coroutine[Any, Any, bool]:
    """Lead where nobody listens."""
    return THREADS.lead(ear, take, signal, seconds, Arrivals())


async def _nothing(_: float) -> bool:
    return False


async def _reads(_: float) -> bool:
    raise AssertionError("it reads")


def test_who_waits_reads_until_its_own_answer_is_there_and_all_that_is_there_already() -> None:
    mine, others = ThreadSignal(), ThreadSignal()
    arriving = deque([others, mine, ThreadSignal()])
    last = arriving[-1]

    async def take(_: float) -> bool:
        arriving.popleft().set()
        return bool(arriving)

    ear = ThreadSlots(1)
    assert run(lead(ear, take, mine, LIMIT_S))
    assert others.is_set
    assert last.is_set
    assert ear.acquire_now()


def test_who_comes_when_somebody_reads_is_woken_by_that_one() -> None:
    ear, mine = ThreadSlots(1), ThreadSignal()
    reads = ear.acquire_now()
    assert reads is not None
    waiter = threading.Timer(0, lambda: mine.set())
    waiter.start()
    assert run(lead(ear, _nothing, mine, LIMIT_S))
    waiter.join()
    assert ear.acquire_now() is None


def test_a_signal_handler_that_interrupts_who_reads_waits_for_nothing() -> None:
    ear, mine, its = ThreadSlots(1), ThreadSignal(), ThreadSignal()
    came: list[bool] = []

    async def take(_: float) -> bool:
        came.append(await lead(ear, _reads, its, LIMIT_S))  # as if its thread were interrupted here
        mine.set()
        return False

    begun = monotonic()
    assert run(lead(ear, take, mine, LIMIT_S))
    assert came == [False]
    assert monotonic() - begun < LIMIT_S / 2


def test_nothing_comes_and_that_is_said_in_time() -> None:
    ear, mine = ThreadSlots(1), ThreadSignal()
    assert not run(lead(ear, _nothing, mine, 0.05))
    assert ear.acquire_now()
    assert not run(lead(ear, _nothing, mine, 0.05))


def test_what_goes_wrong_in_reading_leaves_the_ear_to_others() -> None:
    ear, mine = ThreadSlots(1), ThreadSignal()

    async def broken(_: float) -> bool:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        run(lead(ear, broken, mine, LIMIT_S))
    assert ear.acquire_now()


def test_who_listens_is_held_off_while_another_thread_reads() -> None:
    ear, arrivals = ThreadSlots(1), Arrivals()
    leads = partial(THREADS.lead, ear, seconds=LIMIT_S, arrivals=arrivals)
    mine = ThreadSignal()
    held = list[bool]()

    async def take(_: float) -> bool:
        held.append(arrivals.held)
        mine.set()
        return False

    assert run(leads(take, mine))
    assert (held, arrivals.held) == ([True], False)
    assert run(leads(take, mine))
    assert (held, arrivals.held) == ([True], False)

    async def broken(_: float) -> bool:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        run(leads(broken, ThreadSignal()))
    assert not arrivals.held


def test_a_signal_wakes_all_who_wait_and_may_be_set_twice() -> None:
    signal = ThreadSignal()
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(run(signal.wait(LIMIT_S)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    signal.set()
    signal.set()
    for thread in threads:
        thread.join()
    assert woken == [True] * 8
    assert run(signal.wait(0))

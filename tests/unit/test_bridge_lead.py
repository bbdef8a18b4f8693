"""Threads that wait for answers on one connection: one of them reads for all, and nobody waits for nothing."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from statecache._bridge import Signal, Slots, lead
from statecache.clock import monotonic

LIMIT_S = 60.0


def test_who_waits_reads_until_its_own_answer_is_there_and_all_that_is_there_already() -> None:
    mine, others = Signal(), Signal()
    arriving = deque([others, mine, Signal()])
    last = arriving[-1]

    def take(_: float) -> bool:
        arriving.popleft().set()
        return bool(arriving)

    ear = Slots(1)
    assert lead(ear, take, mine, LIMIT_S)
    assert others.is_set
    assert last.is_set
    assert ear.acquire_now()


def test_who_comes_when_somebody_reads_is_woken_by_that_one() -> None:
    ear, mine = Slots(1), Signal()
    reads = ear.acquire_now()
    assert reads is not None
    waiter = threading.Timer(0, lambda: mine.set())
    waiter.start()
    assert lead(ear, lambda _: False, mine, LIMIT_S)
    waiter.join()
    assert ear.acquire_now() is None


def test_a_signal_handler_that_interrupts_who_reads_waits_for_nothing() -> None:
    ear, mine, its = Slots(1), Signal(), Signal()
    came: list[bool] = []

    def take(_: float) -> bool:
        came.append(
            lead(ear, lambda _: pytest.fail("it reads"), its, LIMIT_S)
        )  # as if its thread were interrupted here
        mine.set()
        return False

    begun = monotonic()
    assert lead(ear, take, mine, LIMIT_S)
    assert came == [False]
    assert monotonic() - begun < LIMIT_S / 2


def test_nothing_comes_and_that_is_said_in_time() -> None:
    ear, mine = Slots(1), Signal()
    assert not lead(ear, lambda _: False, mine, 0.05)
    assert ear.acquire_now()
    assert not lead(ear, lambda _: False, mine, 0.05)


def test_what_goes_wrong_in_reading_leaves_the_ear_to_others() -> None:
    ear, mine = Slots(1), Signal()

    def broken(_: float) -> bool:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        lead(ear, broken, mine, LIMIT_S)
    assert ear.acquire_now()


def test_a_signal_wakes_all_who_wait_and_may_be_set_twice() -> None:
    signal = Signal()
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(signal.wait(LIMIT_S))) for _ in range(8)]
    for thread in threads:
        thread.start()
    signal.set()
    signal.set()
    for thread in threads:
        thread.join()
    assert woken == [True] * 8
    assert signal.wait(0)

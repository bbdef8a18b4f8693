"""A long computation beside an event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import NoReturn

import pytest

from statecache import Unavailable
from statecache._process import mutex
from statecache.clock import monotonic
from statecache.concurrency import TASKS, THREADS, run
from statecache.concurrency.slots import TaskSlots, ThreadSlots
from statecache.core.history.computations import Computations

LONG_S = 60.0


async def test_the_loop_goes_on_meanwhile() -> None:
    met = threading.Event()

    def work() -> bool:
        return met.wait(LONG_S)

    computing = asyncio.create_task(TASKS.computed(work, TaskSlots(1), LONG_S))
    await asyncio.sleep(0)
    met.set()
    assert await computing


async def test_an_error_is_whoevers_that_asked() -> None:
    def work() -> NoReturn:
        raise ValueError("it has two sides")

    turns = TaskSlots(1)
    with pytest.raises(ValueError, match="it has two sides"):
        await TASKS.computed(work, turns, LONG_S)
    assert turns.acquire_now() is not None


@pytest.mark.parametrize("how", ["out of time", "cancelled"])
async def test_what_nobody_waits_for_any_more_keeps_its_turn_until_it_ends(how: str) -> None:
    """Whoever gives up and asks again has one thread, not one for each call."""
    go, turns = threading.Event(), TaskSlots(1)
    if how == "cancelled":
        given_up = asyncio.create_task(TASKS.computed(lambda: go.wait(LONG_S), turns, LONG_S))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
    else:
        with pytest.raises(TimeoutError):
            await TASKS.computed(lambda: go.wait(LONG_S), turns, 0.001)
    assert turns.acquire_now() is None
    with pytest.raises(TimeoutError):
        await TASKS.computed(lambda: 1, turns, 0.001)
    go.set()
    assert await TASKS.computed(lambda: 2, turns, LONG_S) == 2


async def test_where_no_thread_can_be_started_the_turn_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    turns = TaskSlots(1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await TASKS.computed(lambda: 1, turns, LONG_S)
    assert await TASKS.computed(lambda: 2, turns, LONG_S) == 2


def test_a_loop_that_is_closed_meanwhile_is_told_nothing() -> None:
    go, done = threading.Event(), threading.Event()
    failed: list[threading.ExceptHookArgs] = []

    def work() -> None:
        go.wait(LONG_S)
        done.set()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await TASKS.computed(work, TaskSlots(1), 0.001)

    before, threading.excepthook = threading.excepthook, failed.append
    try:
        asyncio.run(give_up())
        (thread,) = [one for one in threading.enumerate() if one.name == "statecache-computation"]
        go.set()
        thread.join(LONG_S)
    finally:
        threading.excepthook = before
    assert done.is_set()
    assert not failed


def test_a_thread_computes_for_itself_and_is_told_that_it_took_too_long() -> None:
    turns = ThreadSlots(1)
    assert run(THREADS.computed(threading.get_ident, turns, LONG_S)) == threading.get_ident()
    with pytest.raises(TimeoutError):
        run(THREADS.computed(threading.get_ident, turns, -1.0))


async def test_little_is_computed_at_once_and_what_takes_too_long_is_refused() -> None:
    computations, go = Computations(TASKS), threading.Event()
    here = await computations.result(threading.get_ident, size=4095, end=0.0, what="a comparison")
    there = await computations.result(threading.get_ident, size=4096, end=monotonic() + LONG_S, what="a comparison")
    assert here == threading.get_ident() != there
    try:
        with pytest.raises(Unavailable, match="a comparison takes longer than the call may") as refused:
            await computations.result(go.wait, size=4096, end=monotonic() + 0.01, what="a comparison")
        assert refused.value.reason == "timeout"
        assert "timeout=, or STATECACHE_TIMEOUT_S" in refused.value.hint
        computations.begin_anew(mutex())  # as in a forked child, which does not have that thread
        assert await computations.result(lambda: 1, size=4096, end=monotonic() + LONG_S, what="a comparison") == 1
    finally:
        go.set()

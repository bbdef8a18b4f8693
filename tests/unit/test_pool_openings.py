"""Connections that are being opened: whoever began one may leave, and whoever waits longest gets what there is."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from weakref import ref

import pytest

from statecache.clock import monotonic
from statecache.concurrency import THREADS, run
from statecache.core.idle import _Waiter
from statecache.core.pool import Pool
from statecache.errors import RedisUnavailable, UsageError
from tests.support.polling import pause, pause_thread
from tests.support.pooled import WAIT_S, Door, Gate, Line, pool_of


async def _waiting(pool: Pool[Line], door: Door, number: int) -> list[asyncio.Task[Line]]:
    """Return that many tasks, each of which waits for a connection of its own."""
    tasks = [asyncio.create_task(pool.take(WAIT_S)) for _ in range(number)]
    while len(door.openings) < number:
        await pause()
    return tasks


async def test_whoever_waits_longest_gets_the_first_that_is_opened() -> None:
    door = Door()
    pool = pool_of(3, door)
    first, second, _ = tasks = await _waiting(pool, door, 3)
    line = door.let_in(2)
    assert await first is line
    assert [task.done() for task in tasks] == [True, False, False]
    other = door.let_in(0)
    assert await second is other


async def test_a_connection_that_is_given_back_serves_who_waits_for_another_to_be_opened() -> None:
    door = Door()
    pool = pool_of(2, door)
    (first,) = await _waiting(pool, door, 1)
    line = door.let_in(0)
    pool.give(await first)
    assert await pool.take(WAIT_S) is line
    waiting = asyncio.create_task(pool.take(WAIT_S))
    while len(door.openings) < 2:
        await pause()
    pool.give(line)
    assert await waiting is line
    later = door.let_in(1)  # of which nobody waits any more
    assert await pool.take(WAIT_S) is later


async def test_a_dead_connection_that_is_given_back_serves_nobody() -> None:
    door = Door()
    pool = pool_of(2, door)
    (first,) = await _waiting(pool, door, 1)
    line = door.let_in(0)
    assert await first is line
    waiting = asyncio.create_task(pool.take(WAIT_S))
    while len(door.openings) < 2:
        await pause()
    line.alive = False
    pool.give(line)
    alive = door.let_in(1)
    assert await waiting is alive


@pytest.mark.parametrize("ends", ["cancelled", "late"])
async def test_who_leaves_leaves_what_he_began_to_the_next_one(ends: str) -> None:
    door = Door()
    pool = pool_of(1, door)
    if ends == "late":
        with pytest.raises(RedisUnavailable, match="no answer within"):
            await pool.take(0.01)
    else:
        (leaving,) = await _waiting(pool, door, 1)
        leaving.cancel()
        await asyncio.wait([leaving])
    waiting = asyncio.create_task(pool.take(WAIT_S))
    await pause()
    assert len(door.openings) == 1, "a pool of one opens one at a time"
    line = door.let_in(0)
    assert await waiting is line


async def test_who_is_cancelled_as_he_is_served_hands_it_on() -> None:
    door = Door()
    pool = pool_of(2, door)
    first, second = await _waiting(pool, door, 2)
    line = Line()
    pool._idle.put(line)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second is line


async def test_an_error_goes_to_whom_the_opening_was_begun_for() -> None:
    door = Door()
    pool = pool_of(2, door)
    first, second = await _waiting(pool, door, 2)
    door.fail(1, "the second")
    with pytest.raises(RedisUnavailable, match="the second"):
        await second
    assert not first.done()
    door.fail(0, "the first")
    with pytest.raises(RedisUnavailable, match="the first"):
        await first


async def test_an_error_whose_caller_has_left_goes_to_who_waits_for_that_opening() -> None:
    door = Door()
    pool = pool_of(1, door)
    with pytest.raises(RedisUnavailable, match="no answer within"):
        await pool.take(0.01)
    waiting = asyncio.create_task(pool.take(WAIT_S))
    await pause()
    door.fail(0)
    with pytest.raises(RedisUnavailable, match="told to"):
        await waiting
    waiting = asyncio.create_task(pool.take(WAIT_S))  # the next one begins anew
    while len(door.openings) < 2:
        await pause()
    line = door.let_in(1)
    assert await waiting is line


async def test_callers_who_leave_do_not_have_more_opened_than_the_pool_has_room_for() -> None:
    door = Door()
    pool = pool_of(3, door)
    for _ in range(20):
        with pytest.raises(RedisUnavailable, match="no answer within"):
            await pool.take(0.002)
    assert 1 <= len(door.openings) <= 3
    for number in range(len(door.openings)):
        door.let_in(number)
    await pause()
    lent = [await pool.take(WAIT_S) for _ in door.openings]
    assert len({id(line) for line in lent}) == len(door.openings)


async def test_a_connection_that_was_handed_over_counts_before_who_gets_it_has_run() -> None:
    door = Door()
    pool = pool_of(1, door)
    (waiting,) = await _waiting(pool, door, 1)
    line = Line()
    pool._idle._opened[line] = None
    pool._idle.put(line)  # handed to a task that has not run since
    assert pool._idle._room_for(_Waiter(None)) is None
    assert await waiting is line


async def test_where_there_is_no_room_an_opening_that_takes_long_is_given_up_for_a_new_one() -> None:
    """The server may have changed since; who is still waited for is left alone."""
    door = Door()
    pool = pool_of(2, door, connect_timeout_s=0.8)  # a quarter of it is long
    (waited_for,) = await _waiting(pool, door, 1)
    with pytest.raises(RedisUnavailable, match="no answer within"):
        await pool.take(0.01)
    assert len(door.openings) == 2
    waited_for.cancel()
    with suppress(asyncio.CancelledError):
        await waited_for
    began = monotonic()
    third = asyncio.create_task(pool.take(WAIT_S))
    while len(door.openings) < 3:
        await pause()
    assert monotonic() - began < 2.0
    assert [opening.cancelled() for opening in door.openings] == [True, False, False]
    line = door.let_in(2)
    assert await third is line


async def test_who_is_out_of_the_queue_without_anything_is_seen_to_when_his_opening_ends() -> None:
    """A signal handler has raised as another thread was about to hand something over."""
    door = Door()
    pool = pool_of(3, door)
    succeeds, fails, woken_late = await _waiting(pool, door, 3)
    waiters = list(pool._idle._waiting)
    pool._idle._waiting.clear()
    waiters[2].outcomes.append(Line())
    line = door.let_in(0)
    assert await succeeds is line
    door.fail(1)
    with pytest.raises(RedisUnavailable, match="told to"):
        await fails
    door.let_in(2)
    assert (await woken_late).alive


def test_who_wants_one_of_a_pool_that_is_closed_meanwhile_does_not_wait_for_it() -> None:
    async def dial(_: float | None = None) -> Line:
        raise AssertionError("nothing is opened any more")

    pool = pool_of(1, dial, io=THREADS)
    run(pool.close())
    with pytest.raises(UsageError, match="closed"):
        run(pool._idle.get(WAIT_S))


async def test_an_opening_that_somebody_cancels_tells_who_waits_for_it() -> None:
    door = Door()
    pool = pool_of(1, door)
    (waiting,) = await _waiting(pool, door, 1)
    for task in asyncio.all_tasks() - {asyncio.current_task(), waiting}:
        task.cancel()
    with pytest.raises(RedisUnavailable, match="its opening was cancelled"):
        await waiting
    assert pool.lent == 0


async def test_an_opening_that_succeeds_asks_for_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one reads the TLS files again."""
    door = Door()
    pool = pool_of(1, door)
    monkeypatch.setattr(pool._idle, "_late", None)
    (waiting,) = await _waiting(pool, door, 1)
    line = door.let_in(0)
    assert await waiting is line


async def test_closing_ends_what_is_being_opened_and_leaves_no_task() -> None:
    door = Door()
    pool = pool_of(2, door)
    first, second = await _waiting(pool, door, 2)
    second.cancel()
    await pool.close()
    with pytest.raises(UsageError, match="closed"):
        await first
    with suppress(asyncio.CancelledError):
        await second
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert all(opening.cancelled() for opening in door.openings)


async def test_what_was_begun_for_a_client_that_nobody_uses_any_more_is_closed() -> None:
    door = Door()
    pool = pool_of(1, door)
    with pytest.raises(RedisUnavailable, match="no answer within"):
        await pool.take(0.01)
    pool.let_go()
    await pause()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_opening_that_was_cut_off_keeps_nothing_alive() -> None:
    """What a driver had opened by then is closed once nobody refers to it."""

    class Socket:
        """Closed by being forgotten."""

    seen: list[ref[Socket]] = []

    async def dial(_: float | None = None) -> Line:
        mine = Socket()
        seen.append(ref(mine))
        await asyncio.Event().wait()
        raise AssertionError

    pool = pool_of(1, dial)
    with pytest.raises(RedisUnavailable, match="no answer within"):
        await pool.take(0.01)
    gc.disable()
    try:
        await pool.close()
        assert [known() for known in seen] == [None]
    finally:
        gc.enable()


def test_a_thread_that_leaves_leaves_its_opening_to_the_next_one() -> None:
    gate = Gate()
    pool = pool_of(1, gate, io=THREADS)
    with pytest.raises(RedisUnavailable, match="no answer within"):
        run(pool.take(0.01))
    gate.goes_on.set()
    line = run(pool.take(WAIT_S))
    assert [line] == gate.opened
    pool.give(line)
    run(pool.close())
    assert not line.alive


def test_what_a_thread_opens_for_a_pool_that_was_closed_is_closed() -> None:
    gate = Gate()
    pool = pool_of(1, gate, io=THREADS)
    with pytest.raises(RedisUnavailable, match="no answer within"):
        run(pool.take(0.01))
    connecting = [thread for thread in threading.enumerate() if thread.name == "statecache-connecting"]
    run(pool.close())
    gate.goes_on.set()
    for thread in connecting:
        thread.join(WAIT_S)
    assert [line.alive for line in gate.opened] == [False]


def test_threads_open_no_more_at_once_than_the_pool_may_have() -> None:
    lock, most, standing = threading.Lock(), [0], list[Line]()
    opening = [0]

    async def dial(_: float | None = None) -> Line:
        with lock:
            opening[0] += 1
            most[0] = max(most[0], opening[0] + sum(line.alive for line in standing))
        pause_thread()
        with lock:
            opening[0] -= 1
            standing.append(Line())
            return standing[-1]

    pool = pool_of(3, dial, io=THREADS)

    def work(number: int) -> None:
        for turn in range(60):
            with suppress(RedisUnavailable):
                line = run(pool.take(0.002 + (number + turn) % 5 * 0.004))
                if (number + turn) % 2:
                    run(line.close())
                pool.give(line)

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(work, range(8))] == [None] * 8
    run(pool.close())
    assert 1 <= most[0] <= 3


def test_what_a_signal_handler_raises_as_an_opening_begins_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its class: it says nothing of threads that cannot be started."""

    class Stopped(RuntimeError):
        """What a handler raises."""

    begin = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        begin(thread)
        raise Stopped("can't go on")

    async def dial(_: float | None = None) -> Line:
        return Line()

    pool = pool_of(1, dial, io=THREADS)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(Stopped):
            run(pool.take(WAIT_S))
    assert run(pool.take(WAIT_S)).alive


def test_who_is_interrupted_before_his_opening_begins_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    async def dial(_: float | None = None) -> Line:
        return Line()

    pool = pool_of(1, dial, io=THREADS)
    with monkeypatch.context() as patched:
        patched.setattr(pool._idle, "_is_within", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(pool.take(WAIT_S))
    assert run(pool.take(1.0)).alive


def test_where_no_thread_can_be_started_the_caller_opens_it_himself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of the interpreter."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    given = list[float | None]()

    async def dial(seconds: float | None = None) -> Line:
        given.append(seconds)
        return Line()

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool = pool_of(1, dial, io=THREADS)
    assert run(pool.take(WAIT_S)).alive
    (seconds,) = given
    assert seconds is not None, "it goes on no longer than its caller"
    assert 0 < seconds <= WAIT_S

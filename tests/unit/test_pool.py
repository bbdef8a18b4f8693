"""The pool: bounded, fair, and never the poorer for what goes wrong. Tasks and threads alike."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf
from weakref import ref

import pytest

from statecache._process import mutex
from statecache.clock import monotonic
from statecache.concurrency import THREADS, run
from statecache.core.pool import Pool, silent_since
from statecache.errors import RedisUnavailable, UsageError
from tests.support.polling import pause
from tests.support.pooled import Line, pool_of

WAIT_S = 20.0


class Dialed:
    """A dialer that remembers its lines, and fails when told to."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.failing = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self, _: float | None = None) -> Line:
        await self.answers.wait()
        if self.failing:
            raise RedisUnavailable("connect", detail="told to")
        self.lines.append(Line())
        return self.lines[-1]


def _pool(size: int, dialed: Dialed | None = None) -> Pool[Line]:
    return pool_of(size, dialed or Dialed())


async def test_an_idle_connection_is_lent_again() -> None:
    dialed = Dialed()
    pool = _pool(2, dialed)
    first = await pool.take(1)
    pool.give(first)
    assert await pool.take(1) is first
    assert len(dialed.lines) == 1


async def test_no_more_than_its_size_are_lent_and_the_wait_ends_with_the_time() -> None:
    pool = _pool(2)
    held = [await pool.take(1), await pool.take(1)]
    with pytest.raises(
        RedisUnavailable, match=r"\(pool\): waited 0\.0\d+ s for a connection of 2\. This process"
    ) as caught:
        await pool.take(0.01)
    assert caught.value.reason == "pool"
    for line in held:
        pool.give(line)
    assert await pool.take(1) in held
    assert await pool.take(1) in held


async def test_who_waits_longest_is_served_first() -> None:
    pool = _pool(1)
    line = await pool.take(1)
    served: list[int] = []

    async def one(number: int) -> None:
        mine = await pool.take(WAIT_S)
        served.append(number)
        await asyncio.sleep(0)
        pool.give(mine)

    tasks = []
    for number in range(50):
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(0)
    pool.give(line)
    # Whoever comes now stands behind all of them, although a connection was given back just before.
    late = asyncio.create_task(one(50))
    await asyncio.gather(*tasks, late)
    assert served == list(range(51))
    assert 0 < pool.longest_wait_s < WAIT_S


async def test_a_cancelled_waiter_takes_no_slot_along() -> None:
    pool = _pool(1)
    line = await pool.take(1)
    waiting = [asyncio.create_task(pool.take(WAIT_S)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    pool.give(line)
    waiting[1].cancel()
    assert await waiting[2] is line
    pool.give(line)
    assert await pool.take(1) is line


async def test_a_connection_that_cannot_be_opened_gives_its_slot_back() -> None:
    dialed = Dialed()
    pool = _pool(1, dialed)
    dialed.failing = True
    for _ in range(3):
        with pytest.raises(RedisUnavailable, match="told to"):
            await pool.take(0.01)
    dialed.failing = False
    assert (await pool.take(0.01)).alive


async def test_who_waits_where_no_connection_can_be_opened_is_told_that() -> None:
    """Their number is not what is in the way. Once one stands, it is again."""
    dialed = Dialed()
    pool = _pool(1, dialed)
    dialed.answers.clear()
    opening = asyncio.create_task(pool.take(WAIT_S))
    await asyncio.sleep(0)
    with pytest.raises(RedisUnavailable, match=r"of 1, none of which is open yet\. This process has more calls"):
        await pool.take(0.01)
    dialed.failing = True
    dialed.answers.set()
    with pytest.raises(RedisUnavailable, match="told to"):
        await opening
    dialed.answers.clear()
    opening = asyncio.create_task(pool.take(WAIT_S))
    await asyncio.sleep(0)
    with pytest.raises(RedisUnavailable, match=r"\(pool\).* of 1, none of which could be opened: told to\.$"):
        await pool.take(0.01)
    dialed.failing = False
    dialed.answers.set()
    assert (await opening).alive
    with pytest.raises(RedisUnavailable, match=r"for a connection of 1\. This process has more calls"):
        await pool.take(0.01)


async def test_a_connection_that_could_not_be_opened_keeps_none_of_its_callers_alive() -> None:
    """A client that nobody refers to any more ends its threads, and an error refers to all whom it went through."""
    dialed = Dialed()
    pool, caller = _pool(1, dialed), Dialed()
    dialed.failing, seen = True, ref(caller)

    async def call(_: Dialed) -> None:
        await pool.take(0.01)

    with suppress(RedisUnavailable):
        await call(caller)
    del caller
    assert seen() is None


async def test_a_dead_connection_is_not_lent_again() -> None:
    pool = _pool(2)
    first, second = await pool.take(1), await pool.take(1)
    pool.give(first)
    first.alive = False  # it dies while idle
    second.alive = False  # it dies in its borrower's hands
    pool.give(second)
    third = await pool.take(1)
    assert third not in (first, second)


async def test_who_waited_for_a_slot_has_that_much_less_time_to_connect() -> None:
    dialed = Dialed()
    pool = _pool(1, dialed)
    line, began = await pool.take(WAIT_S), monotonic()

    async def give_it_back_dead() -> None:
        while monotonic() < began + 0.2:
            await pause()
        dialed.answers.clear()
        line.alive = False
        pool.give(line)

    with pytest.raises(RedisUnavailable, match=r"no answer within 0\.[0-3]") as caught:
        await asyncio.gather(pool.take(0.5), give_it_back_dead())
    assert caught.value.reason == "connect"
    assert 0.15 < pool.longest_wait_s < 0.5 <= monotonic() - began


async def test_who_is_told_too_late_of_his_connection_asks_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy process runs him when hardly any of his time is left: a server could not answer in that."""
    dialed, ahead = Dialed(), [0.0]
    monkeypatch.setattr("statecache.core.pool.monotonic", lambda: monotonic() + ahead[0])
    pool = _pool(1, dialed)
    line = await pool.take(WAIT_S)

    async def give_it_back(late_s: float) -> None:
        ahead[0] += late_s
        pool.give(line)

    for late_s, told in ((WAIT_S - 0.15, False), (WAIT_S - 0.05, True), (WAIT_S + 1, True)):
        taken, _ = await asyncio.gather(pool.take(WAIT_S), give_it_back(late_s), return_exceptions=True)
        assert isinstance(taken, RedisUnavailable) is told
        if told:
            line = await pool.take(WAIT_S)  # the slot is free again
    assert str(taken).startswith("Redis is unavailable (pool): waited 21 s for a connection of 1.")


async def test_what_is_idle_can_be_dropped_and_what_is_lent_stays() -> None:
    pool = _pool(2)
    idle, lent = await pool.take(1), await pool.take(1)
    pool.give(idle)
    await pool.drop_idle(all_of_them=True)
    assert (idle.closed, lent.closed) == (1, 0)
    assert await pool.take(1) not in (idle, lent)


async def test_what_failed_takes_along_what_is_idle_and_was_not_heard_since() -> None:
    pool = _pool(4)
    early, late, failed, slow = [await pool.take(1) for _ in range(4)]
    for line, heard_at in ((early, 1.0), (late, 3.0)):
        line.heard_at = heard_at
        pool.give(line)
    slow.alive = False  # it was given up so soon that it says nothing of the others
    await pool.drop_idle()
    assert (early.closed, late.closed) == (0, 0)
    failed.alive, failed.silent_since = False, 2.0
    await pool.drop_idle()
    assert (early.closed, late.closed) == (1, 0)
    for line in (failed, slow):
        pool.give(line)
    assert await pool.take(1) is late


def test_a_request_that_was_left_unanswered_for_a_moment_says_nothing_of_other_connections() -> None:
    now = monotonic()
    assert silent_since(now) == -inf
    assert silent_since(now - 1) == now - 1


async def test_closing_closes_what_is_idle_and_severs_what_is_lent() -> None:
    pool = _pool(2)
    idle, lent = await pool.take(1), await pool.take(1)
    pool.give(idle)
    await pool.close()
    assert (idle.alive, idle.severed, lent.closed, lent.severed) == (False, False, 0, True)
    pool.give(lent)
    assert (idle.closed, lent.closed) == (1, 1)
    with pytest.raises(UsageError, match="closed"):
        await pool.take(1)


async def test_who_waits_or_connects_while_it_is_closed_gets_nothing_that_stays_open() -> None:
    dialing = asyncio.Event()

    class Slow(Dialed):
        async def __call__(self, _: float | None = None) -> Line:
            with suppress(asyncio.CancelledError):  # its connection was made nevertheless
                await dialing.wait()
            return await super().__call__()

    dialed = Slow()
    pool = _pool(1, dialed)
    both = [asyncio.create_task(pool.take(WAIT_S)) for _ in range(2)]
    await pause()
    await pool.close()
    dialing.set()
    assert [type(one) for one in await asyncio.gather(*both, return_exceptions=True)] == [UsageError] * 2
    assert [line.alive for line in dialed.lines] == [False] * len(dialed.lines)
    assert dialed.lines


def test_it_belongs_to_the_event_loop_that_used_it_first() -> None:
    pool = _pool(1)

    async def use() -> None:
        pool.give(await pool.take(1))

    asyncio.run(use())
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(use())


async def test_a_forked_child_starts_with_an_empty_pool_and_leaves_the_parents_lines_alone() -> None:
    pool = _pool(2)
    idle, lent = await pool.take(1), await pool.take(1)
    pool.give(idle)
    pool.begin_anew(mutex())
    assert (idle.abandoned, lent.abandoned, pool.lent) == (False, False, 0), "a child that uses nothing does nothing"
    own = [await pool.take(0.01), await pool.take(0.01)]
    assert idle not in own
    await pool.close()
    assert (idle.closed, lent.closed) == (0, 0)
    assert (idle.abandoned, lent.abandoned) == (True, True)
    assert [line.severed for line in own] == [True, True]


async def test_a_parents_connection_is_not_taken_into_the_childs_pool() -> None:
    pool = _pool(1)
    parents = await pool.take(1)
    pool.begin_anew(mutex())
    pool.give(parents)
    own = await pool.take(0.01)
    assert own is not parents
    pool.give(parents)
    with pytest.raises(RedisUnavailable):
        await pool.take(0.01)


def test_threads_share_it_and_each_line_has_one_borrower() -> None:
    lock, lines = threading.Lock(), list[Line]()
    borrowers = Counter[int]()

    async def dial(_: float | None = None) -> Line:
        with lock:
            lines.append(Line())
            return lines[-1]

    pool = pool_of(3, dial, io=THREADS)

    def work(number: int) -> None:
        for turn in range(60):
            line = run(pool.take(WAIT_S))
            with lock:
                borrowers[id(line)] += 1
                assert borrowers[id(line)] == 1
                assert sum(borrowers.values()) <= 3
            if (number + turn) % 17 == 0:
                run(line.close())
            if (number + turn) % 23 == 0:
                run(pool.drop_idle(all_of_them=True))
            with lock:
                borrowers[id(line)] -= 1
            pool.give(line)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            assert [*threads.map(work, range(8))] == [None] * 8
    finally:
        sys.setswitchinterval(before)
    run(pool.close())
    assert [line for line in lines if line.alive] == []

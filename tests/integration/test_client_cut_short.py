"""A thousand calls cut short at random moments: no reply reaches another call, and of no commit is the outcome lost.

Tasks are cancelled; threads, which nobody can cancel, run out of time. Every value names its key, so a reply that came
to the wrong call would show; every commit is accounted for in the end, against what Postgres holds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any

import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    Outcome,
    OutcomeUnknown,
    Settings,
    StateCache,
    Unavailable,
    VersionConflict,
)
from statecache.concurrency import run
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, rows
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause

CALLS = 1000
KEYS = tuple(f"runs/{number}" for number in range(12))
WINDOW_S = 0.07
"""The time in which a task is cancelled at first, at a moment drawn from it; on a slow machine it grows."""
VERBS = ("get", "get primary", "set", "update", "transact")
WAVE = 25
DELAY_S = 0.003
"""What the way to Redis takes each time, so that most calls are cut short in the middle of an exchange."""

Psql = psycopg.Connection[Any]


class Books:
    """The books of one story: what was read wrongly, what was acknowledged, what was cut short."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.acknowledged: set[str] = set()
        self.ends: Counter[str] = Counter()

    def read(self, key: str, state: Any) -> None:
        """Check that a state is the one that was asked for."""
        if state is None or state.key != key or state.value["key"] != key:
            self.wrong.append(f"{key}: {state}")

    def wrote(self, key: str, state: Any) -> None:
        """Note an acknowledged commit."""
        self.read(key, state)
        self.acknowledged.add(state.change_id)


def _value(key: str, call: int) -> dict[str, Any]:
    return {"key": key, "call": call, "padding": "x" * (call % 7 * 300)}


def _next(call: int, value: dict[str, Any]) -> dict[str, Any]:
    return _value(value["key"], call)


def _few(settings: Settings, proxy: FaultProxy) -> Settings:
    return through(settings, redis=proxy).model_copy(update={"redis_connections_max": 5, "postgres_connections_max": 2})


def _balanced(books: Books, outcomes: list[Outcome], psql: Psql) -> None:
    """Assert that Postgres holds exactly the commits acknowledged or found to be applied, each once."""
    assert books.wrong == []
    applied = [one.change_id for one in outcomes if one.verdict == "applied"]
    assert {one.verdict for one in outcomes} <= {"applied", "not applied"}
    held = [change_id for (change_id,) in rows(psql, "SELECT change_id FROM change")]
    assert Counter(held) == Counter([*books.acknowledged, *applied])
    assert rows(psql, "SELECT count(*) FROM change WHERE gap") == [(0,)]
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


# Tasks.


async def _called(client: AsyncStateCache, books: Books, verb: str, key: str, call: int) -> None:
    if verb == "get":
        books.read(key, await client.get(key))
    elif verb == "get primary":
        books.read(key, await client.get(key, read="primary"))
    elif verb == "set":
        books.wrote(key, await client.set(key, _value(key, call)))
    elif verb == "update":
        books.wrote(key, await client.update(key, partial(_next, call)))
    else:
        await _transacted(client, books, key, call)


async def _transacted(client: AsyncStateCache, books: Books, key: str, call: int) -> None:
    async with client.transaction(key) as tx:
        books.read(key, await tx.get(key))
        tx.set(key, _value(key, call))
    books.wrote(key, tx.states[key])


@pytest.mark.parametrize("seed", [1, 2])
async def test_tasks_that_are_cancelled_at_random_moments(
    seed: int, settings: Settings, proxy: FaultProxy, worker: Worker, psql: Psql
) -> None:
    rng, books = Random(seed), Books()
    async with AsyncStateCache(settings=_few(settings, proxy)) as client:
        for key in KEYS:
            books.wrote(key, await client.set(key, _value(key, 0)))
        proxy.delay_s = DELAY_S
        window_s = WINDOW_S
        for start in range(0, CALLS, WAVE):
            ended = books.ends["ended"]
            await _wave(client, books, rng, range(start, min(start + WAVE, CALLS)), window_s)
            window_s *= 1.5 if books.ends["ended"] - ended < WAVE / 10 else 0.9
        proxy.delay_s = 0.0
        await _is_whole(client)
        assert books.ends["cancelled"] > CALLS / 10
        assert books.ends["ended"] > CALLS / 50
        lost = client.unknown_outcomes()
        assert len(lost) > 5
        outcomes = [await client.outcome(one.change_id, one.keys[0]) for one in lost]
        assert client.unknown_outcomes() == ()
        for key in KEYS:
            books.read(key, await client.get(key))
            books.read(key, await client.get(key, read="primary"))
    await flush(worker)
    _balanced(books, outcomes, psql)


async def _wave(client: AsyncStateCache, books: Books, rng: Random, calls: range, window_s: float) -> None:
    """Begin a call per number at once and cancel each at a moment of its own."""
    loop = asyncio.get_running_loop()
    tasks = []
    for call in calls:
        task = asyncio.create_task(_called(client, books, rng.choice(VERBS), rng.choice(KEYS), call))
        loop.call_later(rng.uniform(0, window_s), task.cancel)
        tasks.append(task)
    async with asyncio.timeout(60):
        await asyncio.wait(tasks)
    for task in tasks:
        if task.cancelled():
            books.ends["cancelled"] += 1
        elif isinstance(error := task.exception(), VersionConflict):
            books.ends["conflict"] += 1
        elif error is not None:
            raise error
        else:
            assert not task.cancelling(), "a cancellation was lost"
            books.ends["ended"] += 1


async def _is_whole(client: AsyncStateCache) -> None:
    """Assert that all connections of the pools can be taken at once, and that each answers its own question."""
    for pool, size in (
        (client._runtime.redis.pool, client.settings.redis_connections_max),
        (client._runtime.postgres.pool, client.settings.postgres_connections_max),
    ):
        async with asyncio.timeout(5.0):  # what several calls had asked for together goes on without them
            while pool.lent:
                await pause()
        taken: list[Any] = [await pool.take(5.0) for _ in range(size)]
        assert len({id(one) for one in taken}) == size
        for one in taken:
            pool.give(one)
    links = [await client._runtime.redis.pool.take(5.0) for _ in range(client.settings.redis_connections_max)]
    for number, link in enumerate(links):
        assert await link.run([("ECHO", str(number))], seconds=5.0) == [str(number).encode()]
        client._runtime.redis.pool.give(link)


# Threads.


@pytest.mark.parametrize("seed", [1])
async def test_threads_that_run_out_of_time_at_random_moments(
    seed: int, settings: Settings, proxy: FaultProxy, worker: Worker, psql: Psql
) -> None:
    books = Books()
    with StateCache(settings=_few(settings, proxy)) as client, ThreadPoolExecutor(8) as threads:
        loop = asyncio.get_running_loop()

        def begin() -> None:
            for key in KEYS:
                books.wrote(key, client.set(key, _value(key, 0)))

        await loop.run_in_executor(threads, begin)
        proxy.delay_s = DELAY_S
        working = [
            loop.run_in_executor(threads, _hurried, client, books, Random(seed * 100 + thread), thread)
            for thread in range(8)
        ]
        await asyncio.gather(*working)
        proxy.delay_s = 0.0
        assert books.ends["out of time"] > CALLS / 10
        assert books.ends["ended"] > CALLS / 50
        lost = client.unknown_outcomes()
        assert len(lost) > 5

        def settle() -> list[Outcome]:
            return [client.outcome(one.change_id, one.keys[0]) for one in lost]

        outcomes = await loop.run_in_executor(threads, settle)
        assert client.unknown_outcomes() == ()
        await loop.run_in_executor(threads, _is_whole_for_threads, client)
        await loop.run_in_executor(threads, _read_all, client, books)
    await flush(worker)
    _balanced(books, outcomes, psql)


def _is_whole_for_threads(client: StateCache) -> None:
    assert (client._runtime.redis.pool.lent, client._runtime.postgres.pool.lent) == (0, 0)
    links = [run(client._runtime.redis.pool.take(5.0)) for _ in range(client.settings.redis_connections_max)]
    for number, link in enumerate(links):
        assert run(link.run([("ECHO", str(number))], seconds=5.0)) == [str(number).encode()]
        client._runtime.redis.pool.give(link)


def _read_all(client: StateCache, books: Books) -> None:
    for key in KEYS:
        books.read(key, client.get(key))
        books.read(key, client.get(key, read="primary"))


def _hurried(client: StateCache, books: Books, rng: Random, thread: int) -> None:
    """Make one thread's calls, each with a deadline of its own."""
    for call in range(thread, CALLS, 8):
        verb, key = rng.choice(VERBS[1:4]), rng.choice(KEYS)
        timeout = rng.uniform(0.001, 16 * DELAY_S)
        try:
            if verb == "get primary":
                books.read(key, client.get(key, read="primary", timeout=timeout))
            elif verb == "set":
                books.wrote(key, client.set(key, _value(key, call), timeout=timeout))
            else:
                books.wrote(key, client.update(key, partial(_next, call), timeout=timeout))
        except (OutcomeUnknown, Unavailable, VersionConflict):
            books.ends["out of time"] += 1
        else:
            books.ends["ended"] += 1

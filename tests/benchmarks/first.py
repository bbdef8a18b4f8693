"""What nobody has touched yet: Redis lacks it, so Postgres has to be asked before anything can be said or written.

By hand it is the same exchanges without any proof: HGETALL, a prepared SELECT of one row, and, for a write, MULTI,
HSET, XADD, EXEC. No two calls meet the same key. The misses of many tasks at one moment are held against as many that
come one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

import psycopg
import redis

from statecache import AsyncStateCache, Create, Set, Settings, StateCache
from tests.benchmarks.measuring import Measure, Row, in_turns
from tests.benchmarks.values import Value, encoded

CALLS = 100
TOGETHER = 64
ABSENT_MS, WRITE_MS, COMMIT_MS, TOGETHER_MAX = 0.6, 1.0, 0.5, 0.5
_ROW = "SELECT version, value FROM state WHERE key = %s"
Call = Callable[[], Any]


class ByHand:
    """The same exchanges, written down without a check."""

    def __init__(self, bare: Any, psql: psycopg.Connection[Any], values: Sequence[Value]) -> None:
        self._bare = bare
        self._psql = psql
        self._data = encoded(values[0])
        self._numbers = count()

    def read(self) -> None:
        """Look for a state in Redis, then in Postgres."""
        key = f"by-hand/{next(self._numbers)}"
        self._bare.hgetall(key)
        self._psql.execute(_ROW, [key], prepare=True).fetchone()

    def write(self, states: int = 1) -> None:
        """Write states and what was changed, with nothing in between."""
        keys = [f"by-hand/{next(self._numbers)}" for _ in range(states)]
        with self._bare.pipeline() as pipe:
            for key in keys:
                pipe.hset(key, mapping={"value": self._data, "version": 1, "change_id": "c" * 24})
            pipe.xadd("by-hand:changes", {"keys": " ".join(keys), "value": self._data * states})
            pipe.execute()

    def read_and_write(self) -> None:
        """Look for a state, and write it."""
        self.read()
        self.write()


def first(settings: Settings, values: Sequence[Value], rounds: int) -> Iterator[Row]:
    """Measure the rows; no worker runs."""
    path = f"-c search_path={settings.postgres_schema}"
    with (
        StateCache(settings=settings) as cache,
        redis.Redis.from_url(settings.redis_url) as bare,
        psycopg.connect(settings.postgres_url, autocommit=True, options=path) as psql,
    ):
        for number in range(1000):  # so that the gate of every shard is open
            cache.set(f"open/{number}", 1)
        hand, numbers, value = ByHand(bare, psql, values), count(), values[0]

        def name() -> str:
            return f"runs/{next(numbers)}"

        def commit() -> None:
            cache.commit([Set("old/1", value), _new("old/1", numbers, value), _new("old/1", numbers, value)])

        yield _row("get of a key that is nowhere", lambda: cache.get(name()), hand.read, "HGETALL, SELECT by hand",
                   ABSENT_MS, rounds)  # fmt: skip
        yield _row("first write of a key, 1 KB", lambda: cache.set(name(), value), hand.read_and_write,
                   "HGETALL, SELECT, MULTI HSET XADD EXEC", WRITE_MS, rounds)  # fmt: skip
        cache.set("old/1", value)
        yield _row("commit of one old and two new keys, 1 KB", commit, lambda: hand.write(3),
                   "MULTI, 3 HSET, XADD, EXEC by hand", COMMIT_MS, rounds)  # fmt: skip
    yield asyncio.run(_together(settings, rounds))


def _new(beside: str, numbers: Iterator[int], value: Value) -> Create:
    return Create(f"{beside}/{next(numbers)}", value, assume_new=True)


def _row(name: str, ours: Call, theirs: Call, by_hand: str, bound: float, rounds: int) -> Row:
    return in_turns((name, ours), (by_hand, theirs), bound=bound, rounds=rounds, calls=CALLS, unit="ms", alone=True)


async def _together(settings: Settings, rounds: int) -> Row:
    """Hold misses of many tasks at one moment against as many that come one after the other."""
    ours, theirs, numbers = list[float](), list[float](), count()
    async with AsyncStateCache(settings=settings) as cache:
        for turn in range(rounds + 1):
            names = [f"none/{next(numbers)}" for _ in range(2 * TOGETHER)]
            begun = perf_counter()
            await asyncio.gather(*map(cache.get, names[:TOGETHER]))
            between = perf_counter()
            for name in names[TOGETHER:]:
                await cache.get(name)
            if turn:
                ours.append(between - begun)
                theirs.append(perf_counter() - between)
    return Row(
        subject=Measure(name=f"{TOGETHER} tasks each miss a key at once", ops_s=TOGETHER / median(ours)),
        against=Measure(name="the same, one after the other", ops_s=TOGETHER / median(theirs)),
        figures=[one / other for one, other in zip(ours, theirs, strict=True)], bound=TOGETHER_MAX,
    )  # fmt: skip

"""The feed of changes: how quickly a reader is through what Postgres holds, and how soon it has what is committed.

The changes are put into Postgres as flushes leave them, on all shards, and read from the beginning to the end, each
decoded. By hand the same rows are read in pages in the order of each shard's index, and their values decoded: nothing
is said of epochs, of where to go on, or of what comes late. For the lag a client commits now and then while another one
follows; what is counted is the time from before the commit until the change is given, which is durable by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from statistics import median
from time import perf_counter
from typing import Any

import msgspec
import psycopg

from statecache import AsyncStateCache, Settings, StateCache
from statecache.history import link_of
from tests.benchmarks.measuring import Measure, Row, measure, percentile
from tests.benchmarks.values import Value

CHANGES, SHARDS, KEYS = 200_000, 64, 5_000
READ_MS_MAX = 4_000.0
LAG_MS_MAX = 50.0
COMMITS = 200
ROUNDS_MAX = 5
PAGE = 4_000
_COLUMNS = """
    key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding, schema, writer, actor, reason, gap,
    at, size, digest, hash
"""
_MOVE = "UPDATE shard SET flushed = %s"
_PAGE = "SELECT * FROM change WHERE shard = %s AND n > %s ORDER BY n LIMIT %s"
_N, _VALUE = 6, 8


def feed(
    settings: Settings, values: Sequence[Value], rounds: int, *, start_worker: Callable[[], object]
) -> Iterator[Row]:
    """Measure the rows; a worker is started for those that need one."""
    small = [b'{"step":%d,"goal":"refund order %d"}' % (number, number) for number in range(100)]
    large = [msgspec.json.encode(value) for value in values[:100]]
    path = f"-c search_path={settings.postgres_schema}"
    with psycopg.connect(settings.postgres_url, autocommit=True, options=path) as psql:
        with StateCache(settings=settings) as cache:
            for number in range(1000):  # so that the gate of every shard is open
                cache.set(f"open/{number}", 1)
        for name, data in (("small states", small), ("states of 1 KB", large)):
            psql.execute("TRUNCATE change")
            _fill(psql, data)
            psql.execute(_MOVE, [-(-CHANGES // SHARDS)])
            psql.execute("VACUUM ANALYZE change")
            yield _reading(settings, psql, name, min(rounds, ROUNDS_MAX), bound=data is small)
        psql.execute("TRUNCATE change")
        psql.execute(_MOVE, [0])
    start_worker()
    yield asyncio.run(_lag(settings, min(rounds, ROUNDS_MAX)))


def _fill(psql: psycopg.Connection[Any], data: Sequence[bytes]) -> None:
    """Put changes of 5,000 keys into Postgres, each with its hash over the one before it."""
    epochs = dict(psql.execute("SELECT shard, epoch FROM shard").fetchall())
    digests, before = [sha256(value).digest() for value in data], dict[str, bytes]()
    at = datetime.now(UTC)
    with psql.cursor() as cursor, cursor.copy(f"COPY change ({_COLUMNS}) FROM STDIN") as copy:
        for number in range(CHANGES):
            key, version, shard = f"runs/{number % KEYS}", number // KEYS + 1, number % SHARDS
            value, digest, n = data[number % len(data)], digests[number % len(data)], number // SHARDS + 1
            change_id, epoch = f"{number:032x}", epochs[shard]
            said = (key, "set", change_id, "", "json", "", "bench", "", "")
            before[key] = link_of(before.get(key, b""), said, (version, epoch, n), digest)
            copy.write_row((
                key, version, change_id, "", shard, epoch, n, "set", value, "json", "", "bench", "", "", False, at,
                len(value), digest, before[key],
            ))  # fmt: skip


def _reading(settings: Settings, psql: psycopg.Connection[Any], name: str, rounds: int, *, bound: bool) -> Row:
    ours, theirs = list[float](), list[float]()
    for _ in range(rounds):
        begun = perf_counter()
        by_hand = _by_hand(psql)
        theirs.append(perf_counter() - begun)
        ours.append(asyncio.run(_through(settings, by_hand)))
    return Row(
        subject=Measure(name=f"{CHANGES:,} changes of {name} by the feed", ops_s=CHANGES / median(ours)),
        against=Measure(name="pages of each shard by hand, and json", ops_s=CHANGES / median(theirs)),
        figures=[1e3 * seconds for seconds in ours], unit="ms", bound=READ_MS_MAX if bound else None,
    )  # fmt: skip


async def _through(settings: Settings, wanted: int) -> float:
    async with AsyncStateCache(settings=settings) as cache:
        begun, count = perf_counter(), 0
        async for change in cache.changes("runs/", follow=False):
            count += change.value is not None
        spent = perf_counter() - begun
    if count != wanted:
        raise RuntimeError(f"the feed gave {count} changes of {wanted}")
    return spent


def _by_hand(psql: psycopg.Connection[Any]) -> int:
    count = 0
    for shard in range(SHARDS):
        n = 0
        while page := psql.execute(_PAGE, [shard, n, PAGE]).fetchall():
            n = page[-1][_N]
            count += len([msgspec.json.decode(row[_VALUE]) for row in page])
    return count


async def _lag(settings: Settings, rounds: int) -> Row:
    lags: list[list[float]] = []
    async with AsyncStateCache(settings=settings) as writer, AsyncStateCache(settings=settings) as reader:
        await writer.set("lag/0", 0, durability="postgres")
        async with reader.changes("lag/", since="now") as changes:
            for _ in range(rounds):
                lags.append([])
                for number in range(COMMITS):
                    waiting = asyncio.ensure_future(anext(changes))
                    await asyncio.sleep(0)  # it waits from here on
                    begun = perf_counter()
                    await writer.set(f"lag/{number}", number)
                    await waiting
                    lags[-1].append(perf_counter() - begun)
    return Row(
        subject=measure("from a commit until a follower has it", lags),
        figures=[1e3 * percentile(spent, 99) for spent in lags], unit="ms", bound=LAG_MS_MAX,
    )  # fmt: skip

"""What history costs: its bytes in Postgres, how fast it is flushed, and how soon any version of it is read.

Recorded agent runs, the whole state of each committed after every message, as agents would who take turns. By hand the
same entries are moved by a loop that checks nothing and keeps every value as it is. Sizes are those of the tables with
TOAST and indexes, after VACUUM; the table of states, which holds the newest value of each key for reading, is a row of
its own. What is read back is compared with what was written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import psycopg
import redis

from statecache import StateCache
from statecache.keys import KeySpace
from statecache.replay.runs import AgentRun, advanced, beginning, key_of
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.benchmarks.backlog import PIPELINE, Backlog, until_settled
from tests.benchmarks.by_hand import STREAM, TABLES, flush_in_batches
from tests.benchmarks.flushing import entry_of, stopped
from tests.benchmarks.measuring import Measure, Row, measure, percentile, rates

VERSIONS = 1_000
STATE_BYTES = 50 * 1024
READS = 300
READ_MS_MAX, LIST_MS_MAX = 2.0, 30.0
SHARE_MAX = 100 / 15
FASTER_MIN = 3.0
KEY = "long/1"

Pair = tuple[str, bytes]


def history(runs: Path, rounds: int) -> Iterator[Row]:
    """Measure the rows on servers of their own."""
    with servers(workers=1) as running:
        bare: Any = redis.Redis.from_url(running.redis_url)
        with bare, StateCache(redis_url=running.redis_url, postgres_url=running.postgres_url) as cache:
            backlog = Backlog(bare, KeySpace(cache.settings.prefix, cache.settings.shards), [])
            cache.set("open/1", 1)
            with psycopg.connect(running.postgres_url, autocommit=True) as psql:
                psql.execute(TABLES)
                changes = list(states_of(runs))
                yield from _sizes(running, psql, backlog, bare, changes)
                yield _flushing(running, psql, backlog, bare, changes, rounds)
            yield from _reading(cache, backlog, rounds)


def states_of(runs: Path) -> Iterator[Pair]:
    """Yield the state of every run after each message, encoded: the runs take turns."""
    values = [(key_of(run.id), _growing(run)) for run in _runs(runs)]
    while values:
        for key, states in list(values):
            value = next(states, None)
            if value is None:
                values.remove((key, states))
            else:
                yield key, value


def _runs(path: Path) -> Iterator[AgentRun]:
    with path.open("rb") as file:
        for line in file:
            yield msgspec.json.decode(line, type=AgentRun)


def _growing(run: AgentRun) -> Iterator[bytes]:
    state = beginning(run.id)
    for message in run.messages:
        state = advanced(state, message)
        yield msgspec.json.encode(state)


def _sizes(
    running: Servers, psql: psycopg.Connection[Any], backlog: Backlog, bare: Any, changes: Sequence[Pair]
) -> Iterator[Row]:
    """Compare what full history takes with the values themselves, and with a table that has each whole."""
    before = {table: _bytes_of(psql, table) for table in ("statecache.change", "statecache.state")}
    _flushed(running, backlog, bare, changes)
    _by_hand(psql, bare, changes)
    psql.execute("VACUUM")
    whole = sum(len(value) for _, value in changes)
    ours = _bytes_of(psql, "statecache.change") - before["statecache.change"]
    states = _bytes_of(psql, "statecache.state") - before["statecache.state"]
    plain = _bytes_of(psql, "by_hand.change")
    name = f"history of {len(changes):,} versions of {whole / len(changes) / 1000:.1f} KB, % of their JSON"
    against = Measure(name=f"a table of whole values: {100 * plain / whole:.0f} %")
    yield Row(subject=Measure(name=name), against=against, figures=[100 * ours / whole], bound=SHARE_MAX)
    yield Row(subject=Measure(name="the table of newest states, % of the same"), figures=[100 * states / whole])


def _flushing(
    running: Servers, psql: psycopg.Connection[Any], backlog: Backlog, bare: Any, changes: Sequence[Pair], rounds: int
) -> Row:
    """Compare the changes per second of a worker with those of the loop."""
    spent: dict[str, list[float]] = {"worker": [], "loop": []}
    for turn in range(rounds):
        for name in list(spent)[:: 1 if turn % 2 else -1]:
            renamed = [(f"{key}-{turn}", value) for key, value in changes]
            seconds = _flushed(running, backlog, bare, renamed) if name == "worker" else _by_hand(psql, bare, renamed)
            spent[name].append(len(changes) / seconds)
    ours = ("flush of recorded runs, every version whole in the stream", spent["worker"])
    return rates(ours, ("loop by hand that keeps the JSON", spent["loop"]), bound=FASTER_MIN)


def _flushed(running: Servers, backlog: Backlog, bare: Any, changes: Sequence[Pair]) -> float:
    """Lay these changes while the worker stands still, and return how long it then takes to flush them."""
    with stopped(running.worker_pids):
        backlog.lay_values(changes)
        until_settled(bare)
    started = perf_counter()
    backlog.until_flushed()
    return perf_counter() - started


def _by_hand(psql: psycopg.Connection[Any], bare: Any, changes: Sequence[Pair]) -> float:
    psql.execute("TRUNCATE by_hand.change, by_hand.state")
    bare.delete(STREAM)
    versions: dict[str, int] = {}
    numbered = enumerate(changes, 1)
    while some := list(islice(numbered, PIPELINE)):
        pipe = bare.pipeline(transaction=False)
        for number, (key, value) in some:
            versions[key] = versions.get(key, 0) + 1
            pipe.xadd(STREAM, entry_of(number, key, versions[key], value), id=f"1-{number}")
        pipe.execute()
    until_settled(bare)
    return flush_in_batches(bare, psql)


def _bytes_of(psql: psycopg.Connection[Any], table: str) -> int:
    found = psql.execute("SELECT pg_total_relation_size(%s::regclass)", [table]).fetchone()
    return int(found[0]) if found else 0


def _reading(cache: StateCache, backlog: Backlog, rounds: int) -> Iterator[Row]:
    """Measure how soon any of many versions is read, and how soon all are listed."""
    chance = random.Random(7)
    words = ["refund", "order", "flight", "customer", "policy", "answer", "lookup", "booking", "please", "thanks"]
    said = [" ".join(chance.choices(words, k=9)) for _ in range(STATE_BYTES // 60)]
    values: list[bytes] = []
    for step in range(VERSIONS):
        said[step % len(said)] = " ".join(chance.choices(words, k=9)) + f" {step}"
        values.append(msgspec.json.encode({"step": step, "said": said}))
    backlog.lay_values((KEY, value) for value in values)
    backlog.until_flushed()
    size = sum(map(len, values)) // len(values) // 1024

    def any_version() -> None:
        version = chance.randrange(VERSIONS)
        state = cache.get_at(KEY, version=version + 1)
        if state is None or state.value["step"] != version:
            raise RuntimeError(f"version {version + 1} was read wrongly")

    def all_versions() -> None:
        if len(list(cache.history(KEY))) != VERSIONS:
            raise RuntimeError("a version is missing")

    yield _timed(f"get_at, any of {VERSIONS:,} versions of {size} KB", any_version, READS, rounds, READ_MS_MAX)
    yield _timed(f"history, {VERSIONS:,} changes of one key", all_versions, 20, rounds, LIST_MS_MAX)


def _timed(name: str, call: Callable[[], None], times: int, rounds: int, most: float) -> Row:
    spent: list[list[float]] = []
    for _ in range(rounds):
        taken: list[float] = []
        for _ in range(times):
            started = perf_counter()
            call()
            taken.append(perf_counter() - started)
        spent.append(taken)
    return Row(
        subject=measure(name, spent), figures=[percentile(one, 50) * 1000 for one in spent], unit="ms", bound=most
    )

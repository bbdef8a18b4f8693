"""What an agent's process holds in its hands: sections independent of each other, each on servers of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

import redis

from statecache import Settings
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.benchmarks.adapters import adapters
from tests.benchmarks.bulk import bulk
from tests.benchmarks.contenders import Contenders
from tests.benchmarks.contention import PROCESSES_MIN, TASKS_MIN, Tasks, contention
from tests.benchmarks.feed import feed
from tests.benchmarks.first import first
from tests.benchmarks.inspecting import inspecting
from tests.benchmarks.listing import listing
from tests.benchmarks.locks import handover, uncontended
from tests.benchmarks.measuring import Row
from tests.benchmarks.near import near
from tests.benchmarks.pruning import pruning
from tests.benchmarks.steps import steps
from tests.benchmarks.values import Value
from tests.benchmarks.warming import warming
from tests.benchmarks.watchers import watchers

SEED = 7
Section = Callable[[Sequence[Value], int], Iterator[Row]]


def _near(values: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=0) as running:
        yield from near(_settings(running), values, rounds)


def _contention(_: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=0) as running:
        with Tasks(_settings(running)) as tasks:
            yield from contention(tasks, "tasks", rounds=rounds, bound=TASKS_MIN)
        with Contenders(_settings(running)) as processes:
            yield from contention(processes, "processes", rounds=rounds, bound=PROCESSES_MIN)


def _locks(_: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=0) as running:
        yield uncontended(_settings(running), rounds)
        yield from handover(_settings(running), rounds, Random(SEED))


def _steps(_: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=1) as running:
        yield steps(_settings(running), rounds)


def _warm(values: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=1) as running:
        yield warming(_settings(running), values, rounds)


def _first(values: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=0) as running:
        yield from first(_settings(running), values, rounds)


def _list(values: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=1) as running:
        yield from listing(_settings(running), values, rounds)


def _bulk(values: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=1) as running:
        yield from bulk(_settings(running), values, rounds)


def _feed(values: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=0) as running:
        yield from feed(_settings(running), values, rounds, start_worker=lambda: running.start_workers(1))


def _watchers(values: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=0) as alone, servers(workers=0) as watched:
        yield from watchers(_settings(alone), _settings(watched), values, rounds)


def _prune(values: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=1) as running, redis.Redis.from_url(running.redis_url) as bare:
        yield from pruning(_settings(running), bare, values, rounds)


def _inspector(_: Sequence[Value], rounds: int) -> Iterator[Row]:
    with servers(workers=1) as running:
        yield from inspecting(_settings(running), rounds)


def _settings(running: Servers) -> Settings:
    return Settings(redis_url=running.redis_url, postgres_url=running.postgres_url)


AGENTS_SIDE: Mapping[str, Section] = {
    "near": _near,
    "contention": _contention,
    "locks": _locks,
    "steps": _steps,
    "warm": _warm,
    "first": _first,
    "list": _list,
    "bulk": _bulk,
    "feed": _feed,
    "watchers": _watchers,
    "prune": _prune,
    "inspector": _inspector,
    "adapters": adapters,
}

"""Measures statecache against hand-written code on throwaway servers, and prints a table.

    make bench                      or python -m tests.benchmarks: everything, some twelve minutes
    make bench JSON=bench.json      writes the numbers as JSON too
    make bench RUNS=runs.jsonl      takes the values from recorded agent runs instead of the sample that is shipped
    make bench ROUNDS=9             5 or more
    make bench ONLY="commit lag"    some rows only; or --only commit lag
    make bench CHANGES=200000       a shorter watch over the worker's memory
    make bench STRICT=1             ends with status 1 where a bound is not met

Otherwise it only informs: the exit status is 0 whether or not the bounds are met, for a ratio on a busy machine is no
verdict.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import redis

from statecache import Settings, StateCache
from statecache.keys import KeySpace
from statecache.testing import servers
from tests.benchmarks.agents import Agents
from tests.benchmarks.agents_side import AGENTS_SIDE
from tests.benchmarks.backlog import Backlog
from tests.benchmarks.choices import Choices, choices_of
from tests.benchmarks.durable import durable_commit
from tests.benchmarks.exchanges import Exchanges
from tests.benchmarks.flushing import Flushing
from tests.benchmarks.growth import status_of, worker_growth
from tests.benchmarks.history import history
from tests.benchmarks.importing import importing
from tests.benchmarks.load import CLIENTS, Load
from tests.benchmarks.measuring import Row
from tests.benchmarks.memory import state_memory
from tests.benchmarks.near import CALLS
from tests.benchmarks.report import Circumstances, document, table
from tests.benchmarks.stream import stream
from tests.benchmarks.values import Value, short, values_of
from tests.benchmarks.workers import workers

EXCHANGES = ("commit", "transaction", "get")
LOADED = ("durable", "flush", "clients", "lag", "workers")
ALONE = ("memory", "rss")
SCALING = (
    f"Of clients and of workers the ratio is that to one of them. All share {os.cpu_count()} cores with Redis and",
    "Postgres: where these are busy, more processes bring no more, they only wait longer.",
)
BLOCKS_NOTE = f"Of near a call's time is its share of a block of {CALLS:,} calls; the sides take turns block by block."
TIDY = {"retention_s": "0"}
NO_REWRITE = {"auto-aof-rewrite-percentage": "0"}


class Bench:
    """The chosen sections, measured one after the other."""

    def __init__(self, choices: Choices) -> None:
        self.notes: list[str] = []
        self.servers: dict[str, str] = {}
        self._choices = choices
        self._started = perf_counter()
        self._values: list[Value] = values_of(choices.runs)

    def rows(self) -> Iterator[Row]:
        """Yield the rows as they are measured."""
        if self._choices.wants("clients", "workers"):
            self.notes += SCALING
        if self._choices.wants(*EXCHANGES, *LOADED):
            yield from self._on_busy_servers()
        if self._choices.wants(*ALONE):
            yield from self._on_fresh_servers()
        if self._wants("history"):
            yield from history(self._choices.runs, self._choices.rounds)
        if self._wants("stream"):
            yield from stream(self._choices.runs, self._choices.rounds)
        if self._wants("import"):
            yield from importing(self._choices.rounds)
        if self._choices.wants("near"):
            self.notes.append(BLOCKS_NOTE)
        for section in filter(self._wants, AGENTS_SIDE):
            yield from AGENTS_SIDE[section](self._values, self._choices.rounds)

    def _wants(self, section: str) -> bool:
        wanted = self._choices.wants(section)
        if wanted:
            sys.stderr.write(f"{perf_counter() - self._started:4.0f} s  {section}\n")
        return wanted

    def _on_busy_servers(self) -> Iterator[Row]:
        rounds, values = self._choices.rounds, self._values
        with servers(workers=0) as running:
            bare: Any = redis.Redis.from_url(running.redis_url)
            with bare, StateCache(redis_url=running.redis_url, postgres_url=running.postgres_url) as cache:
                self._note(bare)
                space = KeySpace(cache.settings.prefix, cache.settings.shards)
                yield from Exchanges(cache, bare, values).rows(rounds, filter(self._wants, EXCHANGES))
                if not self._choices.wants(*LOADED):
                    return
                running.start_workers(1)
                backlog = Backlog(bare, space, values)
                backlog.until_flushed()
                if self._wants("durable"):
                    yield durable_commit(cache, running.postgres_url, values, rounds=rounds)
                if self._wants("flush"):
                    yield from Flushing(running, bare, backlog, values).rows(rounds)
                yield from self._under_load(cache.settings, bare, space, backlog)
                if self._wants("workers"):
                    yield from workers(running, backlog, shards=space.shards, rounds=rounds)

    def _under_load(self, settings: Settings, bare: Any, space: KeySpace, backlog: Backlog) -> Iterator[Row]:
        if not self._choices.wants("clients", "lag"):
            return
        with Agents(settings, self._values, most=max(CLIENTS)) as agents:
            load = Load(agents, bare, space, backlog)
            if self._wants("clients"):
                yield from load.clients(self._choices.rounds)
            if self._wants("lag"):
                yield load.lag(self._choices.rounds)

    def _on_fresh_servers(self) -> Iterator[Row]:
        with servers(workers=1, settings=TIDY, redis_config=NO_REWRITE) as running:
            bare: Any = redis.Redis.from_url(running.redis_url)
            with bare:
                self._note(bare)
                if self._wants("memory"):
                    backlog = Backlog(bare, KeySpace(), self._values)
                    yield from state_memory(running, bare, backlog, rounds=self._choices.rounds)
                if self._choices.wants("rss") and not status_of(running.worker_pids[0]).exists():
                    self.notes.append("rss is left out: this system does not show a process's memory in /proc.")
                elif self._wants("rss"):
                    backlog = Backlog(bare, KeySpace(), [short(value) for value in self._values])
                    yield worker_growth(running, backlog, changes=self._choices.changes)

    def _note(self, bare: Any) -> None:
        about: Mapping[str, Any] = bare.info("server")
        name = f"{about.get('server_name', 'redis')} {about.get('valkey_version', about['redis_version'])}"
        self.servers = {"redis": name, "allocator": str(bare.info("memory").get("mem_allocator", "unknown"))}


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return the exit status: 0 measured, 1 strict and a bound is not met, 2 wrongly called."""
    try:
        choices = choices_of(arguments, os.environ)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    bench, load, started = Bench(choices), os.getloadavg()[0], perf_counter()
    rows = list(bench.rows())
    about = Circumstances(
        rounds=choices.rounds,
        cores=os.cpu_count() or 1,
        load=(load, os.getloadavg()[0]),
        seconds=perf_counter() - started,
        servers=bench.servers,
        notes=bench.notes,
    )
    sys.stdout.write(table(rows, about))
    if choices.json is not None:
        choices.json.write_bytes(document(rows, about))
    return 1 if choices.strict and any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

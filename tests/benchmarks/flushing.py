"""How fast one worker empties a backlog, against a loop written by hand, both with fsync on.

The worker is stopped, the backlog is laid with the commit script in pipelines, the worker goes on; what counts is the
time until every shard's watermark in Redis has reached its head. The loop finds the same entries in one stream.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from itertools import count, islice
from time import perf_counter
from typing import Any

import psycopg

from statecache.keys import KeySpace
from statecache.lua import script
from statecache.model import COMMIT_BYTES_MAX, VALUE_BYTES_MAX
from statecache.testing.embedded import Servers
from tests.benchmarks.by_hand import STREAM, TABLES, flush_in_batches, flush_one_by_one
from tests.benchmarks.measuring import Row, rates
from tests.benchmarks.values import Value, encoded

CHANGES = 20_000
CHANGES_ONE_BY_ONE = 500
KEYS = 2_000
PIPELINE = 500
WAIT_S = 60.0


class Flushing:
    """These are the rows of flushing; `servers` have one worker, which has nothing to do."""

    def __init__(self, servers: Servers, bare: Any, space: KeySpace, values: Sequence[Value]) -> None:
        self._worker = servers.worker_pids[0]
        self._bare = bare
        self._space = space
        self._values = [encoded(value) for value in values]
        self._numbers = count()
        self._connection: psycopg.Connection[Any] = psycopg.connect(servers.postgres_url, autocommit=True)
        self._connection.execute(TABLES)

    def rows(self, rounds: int) -> list[Row]:
        """This measures all of them in turns."""
        turns = {"worker": self._by_worker, "batches": self._by_hand, "one by one": self._one_by_one}
        spent: dict[str, list[float]] = {name: [] for name in turns}
        self._until_flushed()
        for turn in range(rounds):
            for name, rate in list(turns.items())[:: 1 if turn % 2 else -1]:
                spent[name].append(rate())
        self._connection.close()
        ours = ("flush of 1 KB changes, one worker", spent["worker"])
        return [
            rates(ours, ("loop by hand: XREAD, unnest, XTRIM", spent["batches"]), bound=0.65),
            rates(ours, ("loop by hand: one transaction a change", spent["one by one"]), bound=5),
        ]

    def _by_worker(self) -> float:
        os.kill(self._worker, signal.SIGSTOP)
        try:
            self._lay_backlog(CHANGES)
            started = perf_counter()
        finally:
            os.kill(self._worker, signal.SIGCONT)
        self._until_flushed()
        return CHANGES / (perf_counter() - started)

    def _by_hand(self) -> float:
        self._lay_stream(CHANGES)
        return CHANGES / flush_in_batches(self._bare, self._connection)

    def _one_by_one(self) -> float:
        self._lay_stream(CHANGES_ONE_BY_ONE)
        return CHANGES_ONE_BY_ONE / flush_one_by_one(self._bare, self._connection, CHANGES_ONE_BY_ONE)

    def _until_flushed(self) -> None:
        """This returns when every shard's watermark has reached its head."""
        shards = range(self._space.shards)
        with self._bare.pubsub() as events:
            events.ssubscribe(*(self._space.events(shard) for shard in shards))
            pipe = self._bare.pipeline(transaction=False)
            for shard in shards:
                pipe.hmget(self._space.meta(shard), "n", "flushed")
            heads = {self._space.events(shard).encode(): (int(n), int(done))
                     for shard, (n, done) in zip(shards, pipe.execute(), strict=True)}  # fmt: skip
            behind = {channel: n for channel, (n, done) in heads.items() if done < n}
            while behind:
                message = events.get_message(timeout=WAIT_S)
                if message is None:
                    raise TimeoutError(f"{len(behind)} shards were not flushed within {WAIT_S:.0f} s")
                if message["type"] == "smessage" and message["channel"] in behind:
                    _, flushed, _ = message["data"].split()
                    if int(flushed) >= behind[message["channel"]]:
                        del behind[message["channel"]]

    def _lay_backlog(self, changes: int) -> None:
        """This commits that many changes as fast as it goes."""
        commit = self._bare.script_load(script("commit").text)
        limits = (10**9, 10**12, COMMIT_BYTES_MAX, VALUE_BYTES_MAX)
        for some in _in_pipelines(changes):
            pipe = self._bare.pipeline(transaction=False)
            for number in islice(self._numbers, some):
                key = f"flush/{number % KEYS}"
                shard, state = self._space.place(key)
                fixed = (self._space.meta(shard), self._space.changes(shard), self._space.unflushed(shard),
                         self._space.hydrating(shard))  # fmt: skip
                value = self._values[number % len(self._values)]
                pipe.evalsha(
                    commit, 5, *fixed, state, "", secrets.token_hex(12), "on", "0", "bench", "", "", *limits,
                    key, "set", "*", value, "json", "", "", "1",
                )  # fmt: skip
            for reply in pipe.execute():
                if reply[1] != b"OK":
                    raise RuntimeError(f"a commit was answered with {reply}")

    def _lay_stream(self, changes: int) -> None:
        """This puts that many changes into one stream, spelled as the commit script does."""
        self._bare.delete(STREAM)
        for some in _in_pipelines(changes):
            pipe = self._bare.pipeline(transaction=False)
            for number in islice(self._numbers, some):
                value = self._values[number % len(self._values)]
                pipe.xadd(STREAM, _entry(number, value), id=f"1-{number + 1}")
            pipe.execute()


def _in_pipelines(changes: int) -> Iterator[int]:
    for start in range(0, changes, PIPELINE):
        yield min(PIPELINE, changes - start)


def _entry(number: int, value: bytes) -> dict[Any, Any]:
    return {
        "format": "1", "change_id": secrets.token_hex(12), "at": "2026-11-20T12:00:00.123456Z", "writer": "bench",
        "entries": number, "bytes": number * 1300, "key1": f"flush/{number % KEYS}", "op1": "set",
        "version1": number // KEYS + 1, "parent1": secrets.token_hex(12), "encoding1": "json", "schema1": "",
        "value1": value,
    }  # fmt: skip

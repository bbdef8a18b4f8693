"""Commits laid by the commit script in pipelines, faster than clients do, and waiting until they are flushed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from threading import Event
from time import monotonic
from typing import Any

from statecache.keys import KeySpace
from statecache.lua import parts_of, script
from statecache.model import COMMIT_BYTES_MAX, VALUE_BYTES_MAX
from tests.benchmarks.values import Value, encoded

PIPELINE = 500
WAIT_S = 120.0
LOOK_S = 0.05


class Backlog:
    """Changes committed into the shards' streams, faster than clients commit."""

    def __init__(self, bare: Any, space: KeySpace, values: Sequence[Value]) -> None:
        self._bare = bare
        self._space = space
        self._values = [encoded(value) for value in values]
        self._laid = 0

    def lay(self, keys: Iterable[str]) -> None:
        """Commit one change of each key, in this order, as fast as possible."""
        self.lay_values(
            (key, self._values[number % len(self._values)]) for number, key in enumerate(keys, self._laid + 1)
        )

    def lay_values(self, changes: Iterable[tuple[str, bytes]]) -> None:
        """Commit these values of keys, in this order, as fast as possible."""
        commit = self._bare.script_load(script("commit").text)
        limits = (10**9, 10**12, COMMIT_BYTES_MAX, VALUE_BYTES_MAX)
        left = iter(changes)
        while some := list(islice(left, PIPELINE)):
            pipe = self._bare.pipeline(transaction=False)
            for key, value in some:
                self._laid += 1
                pipe.evalsha(
                    commit, 5, *self._places(key), "", secrets.token_hex(12), "on", "0", "bench", "", "", *limits,
                    key, "set", "*", value, "json", "", "", "1",
                )  # fmt: skip
            for reply in pipe.execute():
                if parts_of(reply)[1] != b"OK":
                    raise RuntimeError(f"a commit was answered with {reply}")

    def _places(self, key: str) -> tuple[str, ...]:
        shard, state = self._space.place(key)
        space = self._space
        return space.meta(shard), space.changes(shard), space.unflushed(shard), space.hydrating(shard), state

    def heads(self) -> list[tuple[int, int]]:
        """Return every shard's head and the copy of its watermark."""
        pipe = self._bare.pipeline(transaction=False)
        for shard in range(self._space.shards):
            pipe.hmget(self._space.meta(shard), "n", "flushed")
        return [(int(n), int(done)) for n, done in pipe.execute()]

    def is_flushed(self) -> bool:
        """Return whether every shard's watermark has reached its head."""
        return all(done >= n for n, done in self.heads())

    def until_flushed(self, heads: Sequence[tuple[int, int]] | None = None) -> None:
        """Wait until every shard's watermark has reached its present head, or the one in `heads`."""
        with self._bare.pubsub() as events:
            events.ssubscribe(*(self._space.events(shard) for shard in range(self._space.shards)))
            wanted = [n for n, _ in heads or self.heads()]
            behind = {
                self._space.events(shard).encode(): n
                for shard, (n, (_, done)) in enumerate(zip(wanted, self.heads(), strict=True))
                if done < n
            }
            while behind:
                message = events.get_message(timeout=WAIT_S)
                if message is None:
                    raise TimeoutError(f"{len(behind)} shards were not flushed within {WAIT_S:.0f} s")
                if message["type"] == "smessage" and message["channel"] in behind:
                    _, flushed, *_ = message["data"].split()
                    if int(flushed) >= behind[message["channel"]]:
                        del behind[message["channel"]]

    def until_trimmed(self) -> None:
        """Wait until all entries have left the streams."""
        until(lambda: not any(self._lengths()), "an empty change stream")

    def _lengths(self) -> Iterator[int]:
        pipe = self._bare.pipeline(transaction=False)
        for shard in range(self._space.shards):
            pipe.xlen(self._space.changes(shard))
        yield from pipe.execute()


def until_settled(bare: Any) -> None:
    """Wait until Redis rewrites no file and forces none onto the disk, as it does when a backlog was laid.

    Otherwise it takes a core in some rounds of a measurement and in others not.
    """
    working = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "aof_pending_bio_fsync", "rdb_bgsave_in_progress")
    until(lambda: not any(bare.info("persistence").get(name) for name in working), "a Redis at rest")


def until(holds: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds; raise TimeoutError after WAIT_S."""
    deadline, pause = monotonic() + WAIT_S, Event()
    while not holds():
        if monotonic() > deadline:
            raise TimeoutError(f"there was not {what} within {WAIT_S:.0f} s")
        pause.wait(LOOK_S)

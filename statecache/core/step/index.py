"""Which steps of a key are known to be new, so that Postgres need not be asked for each of them.

A step's record that is not in Redis may be in Postgres, evicted from Redis long ago. So before a client runs the first
step of a key it asks Postgres, once, which records the key has. A step that is not among them is taken for new, and its
first commit vouches for that (`assume_new`), in the epoch in which it was asked: in that, what another agent has
written since is still in Redis, for nothing leaves Redis within an epoch before it is flushed and out of the retained
part of its stream. In a later epoch, and once the answer is older than that, Postgres is asked. Many keys that are
begun at one moment are asked for in one statement.

Of a key with more than `RECORDS_MAX` records they are not kept: each of its steps is then read like any other state.
Where what is kept is wrong after all, for somebody deleted a record by hand, the flusher finds out and refuses the
commit: that is known before the step's function is called, for its intent is awaited in Postgres.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic
from statecache.errors import PostgresUnavailable, RedisUnavailable
from statecache.keys import beyond_prefix

if TYPE_CHECKING:
    from statecache.concurrency import Batcher, Request
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.settings import Settings

INDEX_S_MAX = 600.0
KEYS_MAX = 10_000
RECORDS_MAX = 1000
LOOK_S_MAX = 2.0
"""How long an answer is waited for at most, in seconds; half of a call's time at most: Redis may hold the record."""


class _KeyRecords(msgspec.Struct):
    """The step records that a key had in an epoch, as far as this client knows; `until` on the monotonic clock."""

    records: set[str]
    epoch: int
    until: float

    def new_in(self, record_key: str) -> int | None:
        """Return the epoch in which a step is known to be new, or None."""
        return self.epoch if len(self.records) <= RECORDS_MAX and record_key not in self.records else None


class StepIndex:
    """For each key, the step records that it had when this client looked, and those met since."""

    def __init__(self, settings: Settings, keys: KeySpace, redis: RedisTier, postgres: PostgresTier) -> None:
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._lasts_s = min(INDEX_S_MAX, settings.retention_s)
        self._batcher: Batcher[str, tuple[int, set[str]]] = self._redis.io.batcher(self._looked_up)
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget what is known of every key."""
        self._mutex = mutex
        self._step_index: dict[str, _KeyRecords] = {}

    async def new_in(self, key: str, record_key: str, *, end: float) -> int | None:
        """Return the epoch in which a step may be taken for new; None where it may not, or that cannot be found out."""
        with self._mutex:
            of_key = self._step_index.get(key)
            if of_key is not None and of_key.until > monotonic():
                return of_key.new_in(record_key)
        asked = monotonic()
        try:
            seconds = max(min((end - asked) / 2, LOOK_S_MAX), 0.001)
            epoch, records = await self._batcher.ask(key, weight=len(key), seconds=seconds)
        except (PostgresUnavailable, RedisUnavailable):
            return None
        of_key = _KeyRecords(set(records), epoch, asked + self._lasts_s)
        with self._mutex:
            self._step_index.pop(key, None)
            while len(self._step_index) >= KEYS_MAX:
                del self._step_index[next(iter(self._step_index))]
            self._step_index[key] = of_key
        return of_key.new_in(record_key)

    async def _looked_up(self, requests: Sequence[Request[str]], seconds: float) -> list[tuple[int, set[str]]]:
        """Return the epoch of each key's shard, read first, and the step records that the key has."""
        end = monotonic() + seconds
        shards = sorted({self._keys.shard(request.question) for request in requests})
        asked = [("HGET", self._keys.meta(shard), "epoch") for shard in shards]
        epochs = dict(zip(shards, await self._redis.read(asked, seconds=seconds), strict=True))
        prefixes = [f"{request.question}/steps/" for request in requests]
        beyond = [beyond_prefix(prefix) for prefix in prefixes]
        parameters = {"prefixes": prefixes, "beyond": beyond, "limit": RECORDS_MAX + 1}
        records: dict[str, set[str]] = {prefix: set() for prefix in prefixes}
        left_s = max(end - monotonic(), 0.001)
        for prefix, record in await self._postgres.fetch("keys_under", parameters, seconds=left_s):
            records[prefix].add(record)
        found = [epochs[self._keys.shard(request.question)] for request in requests]
        known = [int(epoch) if isinstance(epoch, bytes) and epoch.isdigit() else 0 for epoch in found]
        return [(epoch, records[prefix]) for epoch, prefix in zip(known, prefixes, strict=True)]

    def add(self, key: str, record_key: str) -> None:
        """Note that the step has a record."""
        with self._mutex:
            of_key = self._step_index.get(key)
            if of_key is not None and len(of_key.records) <= RECORDS_MAX:
                of_key.records.add(record_key)

"""Reading states whose gates are closed: Postgres answers, unless Redis holds a newer state, or none may be given yet.

Of what Redis holds nothing is believed but that it is there, and how far it remembers that Postgres was. A state is not
given where this process has seen a newer one, or Redis holds one; and an absence, or what Redis lacks, only of a
Postgres that holds no less than it did. What cannot be given so is given as Redis holds it where the setting
`stale_reads` accepts that, unless this process has seen a newer one. How long a gate is left to open is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from statecache.clock import monotonic
from statecache.core.parts import in_parts
from statecache.core.read.closed_gates import GATE_S
from statecache.core.read.listed import UNKNOWN, Watermark, remembered, watermarks_of
from statecache.errors import PostgresUnavailable, RedisUnavailable
from statecache.records import FIELDS, absence, record_of, record_of_row
from statecache.redis_errors import refusal

if TYPE_CHECKING:
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.model import Record
    from statecache.near import Near
    from statecache.settings import Settings

Place = tuple[int, int]
"""The epoch and version of the state that Redis holds behind a closed gate, or (0, 0)."""
_ASKED_AT_ONCE = 200
"""How many states are asked for in one exchange."""


class Given(NamedTuple):
    """The records that may be given, by key, and why others may not."""

    records: dict[str, Record]
    why: dict[str, str]


class BehindGates:
    """The reading of states whose gates are closed."""

    def __init__(
        self, settings: Settings, keys: KeySpace, redis: RedisTier, postgres: PostgresTier, *, near: Near
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._near = near

    async def places(self, keys: Sequence[str], *, seconds: float) -> dict[str, Place]:
        """Return what a primary holds of those of the states whose gates are closed there."""
        found: dict[str, Place] = {}
        for some in in_parts(keys, _ASKED_AT_ONCE):
            shards = sorted({*map(self._keys.shard, some)})
            metas = [self._keys.meta(shard) for shard in shards]
            asked = [("HMGET", self._keys.state(key), "epoch", "version") for key in some]
            try:
                (server, _, *heads), *replies = await self._redis.read_script(
                    "heads", metas, [self._settings.fence], behind=asked, seconds=seconds
                )
            except ResponseError as error:
                raise refusal(error, metas[0]) from error
            told = zip(shards, heads, strict=True)
            closed = {shard for shard, head in told if isinstance(head, list) and (not head[0] or head[1] != server)}
            for key, reply in zip(some, replies, strict=True):
                if self._keys.shard(key) in closed:
                    whole = isinstance(reply, list) and None not in reply
                    found[key] = (int(reply[0]), int(reply[1])) if whole else (0, 0)
        return found

    async def records(self, here: Mapping[str, Place], *, end: float) -> Given:
        """Return what may be given of states that Redis holds at these places, behind gates that were left to open.

        A Postgres that does not answer is not asked for the next ones.
        """
        left = max(end - monotonic(), 0.001)
        seconds = min(left, GATE_S if len(here) == 1 else max(GATE_S, left / 4))
        given, hindered = Given({}, {}), ""
        for some in in_parts([*here], _ASKED_AT_ONCE):
            try:
                if not hindered:
                    await self._take(given, {key: here[key] for key in some}, seconds)
            except (PostgresUnavailable, RedisUnavailable) as error:
                hindered = str(error)
            if hindered:
                given.why.update(dict.fromkeys(some, hindered))
        if not (given.why and self._settings.stale_reads):
            return given
        try:
            stale = await self._unproven([*given.why], end)
        except RedisUnavailable as error:  # who looks again meets it; where no time is left for that, the gate is why
            return Given(given.records, {key: f"{why}; {error}" for key, why in given.why.items()})
        return Given(given.records | stale, given.why)

    async def _take(self, given: Given, here: Mapping[str, Place], seconds: float) -> None:
        """Ask Postgres, and add what may be given of it, and why the rest may not."""
        shards = {*map(self._keys.shard, here)}
        least = await self._remembered({self._keys.shard(key) for key, place in here.items() if not place[1]}, seconds)
        asked = {"keys": [*here], "shards": sorted(shards)}
        flushed, rows = await self._postgres.fetch_each(("watermarks", "states"), asked, seconds=seconds)
        watermarks = watermarks_of(flushed)
        stored = {record.key: record for record, _ in map(record_of_row, rows)}
        for key, there in here.items():
            shard = self._keys.shard(key)
            record = stored.get(key) or absence(key, self._near.epoch_of(key))
            place = (record.epoch, record.version)
            whole = place >= there if there[1] else watermarks.get(shard, UNKNOWN).reaches(least[shard])
            if whole and self._near.seen(key, place):
                given.records[key] = self._redis.clock.lived(record)
                continue
            older = f"Postgres holds an older state of {key!r}"
            given.why[key] = older if whole or there[1] else "Postgres holds less of it than it did"

    async def _remembered(self, shards: Iterable[int], seconds: float) -> dict[int, Watermark]:
        """Return how far Redis remembers that shards are flushed whose gates are closed."""
        asked = sorted(shards)
        if not asked:
            return {}
        metas = [self._keys.meta(shard) for shard in asked]
        try:
            ((_, _, *heads),) = await self._redis.read_script("heads", metas, [self._settings.fence], seconds=seconds)
        except ResponseError as error:
            raise refusal(error, metas[0]) from error
        return {shard: remembered(head) for shard, head in zip(asked, heads, strict=True)}

    async def _unproven(self, keys: Sequence[str], end: float) -> dict[str, Record]:
        """Return the states that Redis holds although the gates are closed, but for what is less than was seen."""
        found: dict[str, Record] = {}
        for some in in_parts(keys, _ASKED_AT_ONCE):
            asked = [("HMGET", self._keys.state(key), *FIELDS) for key in some]
            replies = await self._redis.read(asked, seconds=max(end - monotonic(), 0.001))
            for key, reply in zip(some, replies, strict=True):
                redis_key = self._keys.state(key)
                if isinstance(reply, Exception):
                    raise refusal(reply, redis_key) from reply
                record = record_of(redis_key, key, reply)
                seen = record is not None and self._near.seen(key, (record.epoch, record.version))
                if record is not None and record.exists and seen:
                    found[key] = self._redis.clock.lived(record)
        return found

"""Reading many states in few exchanges, with the promises of reading each by itself.

    local     what is kept here is the caller's to look up; the rest is asked of the tracked connection in one sending,
              which fills the near cache
    primary   one run of a script a shard, all in one exchange: that the server is a primary and the shard open is
              proven in the same moment in which the shard's states are read
    fenced    that, and Postgres, asked once about all the shards afterwards, says that their epochs are current

What is not in Redis is hydrated, a shard in one query. Gates that are closed are left their moment to open all at once;
then Postgres is asked together for what is behind them (`behind_gates`). A fenced read waits for them longer. A state
that cannot be believed as it was found (an older one than this process has seen, or than Redis holds behind a closed
gate, the server is not the current one) is read by itself, by the reader: what that waits for and proves stands there.
An answer is as of some moment during the call, each state by itself: also whether its end has come, which is judged as
it is read, for it may be put off while others are waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from statecache.backoff import Backoff
from statecache.clock import boottime, monotonic
from statecache.core.parts import in_parts
from statecache.core.read.reader import ReadState
from statecache.errors import ConfigurationError, ForeignData, RedisUnavailable, Unavailable
from statecache.records import FIELDS, record_of
from statecache.redis_errors import found_at, refusal

if TYPE_CHECKING:
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.read.hydration import Hydrator
    from statecache.core.read.reader import Reader
    from statecache.core.redis.tier import RedisTier
    from statecache.core.redis.tracking import TrackedConnection
    from statecache.keys import KeySpace
    from statecache.model import Record
    from statecache.near import Near, Reading
    from statecache.settings import Settings

_ASKED_AT_ONCE = 500
"""How many states are asked for in one exchange."""
_PER_SCRIPT = 100
"""How many states one run of the script reads, for which nobody else is served."""
_HYDRATED_AT_ONCE = 200
"""How many states of a shard are loaded by one query."""


class _Part(NamedTuple):
    """Keys of one shard that are read together."""

    shard: int
    keys: Sequence[str]


class ManyReader:
    """The reading of many records."""

    def __init__(
        self, settings: Settings, keys: KeySpace, redis: RedisTier, postgres: PostgresTier, *, near: Near,
        tracked: TrackedConnection, hydrator: Hydrator, reader: Reader,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._near = near
        self._tracked = tracked
        self._hydrator = hydrator
        self._reader = reader

    async def local(self, keys: Sequence[str], *, end: float, max_stale: float | None = None) -> dict[str, Record]:
        """Return the keys' records by way of the tracked connection, where it stands; else the primary's."""
        found: dict[str, Record] = {}
        for some in in_parts(keys, _ASKED_AT_ONCE):
            if self._near.keeps and self._tracked.is_up():
                found |= await self._kept(some, end, max_stale)
        return found | await self.primary([key for key in keys if key not in found], end=end)

    async def primary(self, keys: Sequence[str], *, end: float) -> dict[str, Record]:
        """Return the keys' records on the primary; a state is never older than what was seen before."""
        found: dict[str, Record] = {}
        closed, gates, begun, backoff = keys, self._reader.closed_gates, monotonic(), Backoff(0.005, 0.25)
        while True:
            closed = [key for some in in_parts(closed, _ASKED_AT_ONCE) for key in await self._take(some, found, end)]
            patient_until = min(gates.patient_until(map(self._keys.shard, closed)), begun + (end - begun) / 4)
            if not closed or monotonic() >= patient_until:
                break
            await self._redis.io.sleep(min(backoff.take(), max(patient_until - monotonic(), 0.0)))
        if closed:
            found |= await self._reader.behind_gates(closed, end=end)
        for key in keys:
            if key not in found:
                found[key] = await self._reader.primary(key, end=end)
        return found

    async def _take(self, keys: Sequence[str], found: dict[str, Record], end: float) -> list[str]:
        """Add what is found that may be believed, and return the keys whose gates are closed."""
        states, closed = await self._read(keys, end)
        for state in states:
            if self._reader.is_believed(state.record, state.epoch):
                found[state.record.key] = state.record
        return closed

    async def fenced(self, keys: Sequence[str], *, end: float) -> dict[str, Record]:
        """Return the records of the lineage that Postgres says is current."""
        if self._settings.fence != "on":
            raise ConfigurationError("a fenced read needs the fence", hint="Set fence=on, or read the primary.")
        found: dict[str, Record] = {}
        closed, together_until, backoff = keys, (monotonic() + end) / 2, Backoff(0.005, 0.25)
        while True:
            closed = [key for some in in_parts(closed, _ASKED_AT_ONCE) for key in await self._prove(some, found, end)]
            if not closed or backoff.outlasts(together_until):
                break
            await self._redis.io.sleep(backoff.take())
        for key in keys:
            if key not in found:
                found[key] = await self._reader.fenced(key, end=end)
        return found

    async def _prove(self, keys: Sequence[str], found: dict[str, Record], end: float) -> list[str]:
        """Add what is found of the current lineage, and return the keys whose gates are closed."""
        states, closed = await self._read(keys, end)
        shards = sorted({self._keys.shard(state.record.key) for state in states})
        if not shards:
            return closed
        rows = await self._postgres.fetch("shards", {"shards": shards}, seconds=max(end - monotonic(), 0.001))
        current = {row[0]: tuple(row[1:3]) for row in rows}
        for state in states:
            proven = current.get(self._keys.shard(state.record.key)) == (state.epoch, state.replid)
            if proven and self._reader.is_believed(state.record, state.epoch):
                found[state.record.key] = state.record
        return closed

    async def _kept(self, keys: Sequence[str], end: float, max_stale: float | None) -> dict[str, Record]:
        """Return what the tracked connection brings, from now on kept here, of keys that are not."""
        now = boottime()
        mine: list[Reading] = []
        readings: list[Reading] = []
        for key in keys:
            reading, is_mine = self._near.reserve(key, self._redis.io.signal(), now)
            if is_mine:
                mine.append(reading)
            if is_mine or max_stale is None or now - reading.begun <= max_stale:
                readings.append(reading)
        patience = min(max(end - monotonic(), 0.001), self._settings.near_window_s / 2)
        until = monotonic() + patience
        with suppress(RedisUnavailable):
            await self._tracked.ask(*mine, seconds=patience)
        found: dict[str, Record] = {}
        for reading in readings:
            answered = await self._answered(reading, max(until - monotonic(), 0.0))
            if answered and isinstance(reading.error, ForeignData):
                raise reading.error
            record = reading.record if answered else None
            if record is not None and self._near.seen(record.key, (record.epoch, record.version)):
                found[record.key] = self._redis.clock.lived(record)
        return found

    async def _answered(self, reading: Reading, patience: float) -> bool:
        try:
            return await self._tracked.answered(reading, patience)
        except RedisUnavailable:
            return False

    async def _read(self, keys: Sequence[str], end: float) -> tuple[list[ReadState], list[str]]:
        """Return the states on a primary whose shards are open, hydrated, and the keys of the other shards."""
        parts, gates = self._parts(keys), self._reader.closed_gates
        found: list[ReadState] = []
        closed: list[str] = []
        missing: list[tuple[_Part, int, str]] = []
        for part, (verdict, *rest) in zip(parts, await self._run(parts, end), strict=True):
            if verdict == b"FOREIGN":
                raise found_at(rest[0].decode("utf-8", "replace"), rest[1].decode("utf-8", "replace"))
            if verdict == b"CLOSED":
                gates.met(part.shard)
                closed += part.keys
                continue
            gates.opened(part.shard)
            epoch, replid, lacking = int(rest[0]), rest[1].decode(), list[str]()
            stem = self._keys.state_stem(part.shard)
            for key, reply in zip(part.keys, rest[2:], strict=True):
                record = record_of(stem + key, key, reply)
                if record is None:
                    lacking.append(key)
                else:
                    found.append(ReadState(self._redis.clock.lived(record), epoch, replid))
            missing += [(_Part(part.shard, some), epoch, replid) for some in in_parts(lacking, _HYDRATED_AT_ONCE)]
        for part, epoch, replid in missing:
            loaded = await self._hydrator.load(part.keys, end=end)
            lived = map(self._redis.clock.lived, loaded.values())
            found += [ReadState(record, epoch, replid) for record in lived]
        return found, closed

    async def _run(self, parts: Sequence[_Part], end: float) -> list[Any]:
        seconds = end - monotonic()
        if seconds <= 0:
            raise Unavailable("timeout", detail=f"{parts[0].keys[0]!r} could not be read in time")
        arguments = [self._settings.fence, *FIELDS]
        calls = [(self._asked(part), arguments) for part in parts]
        try:
            return await self._redis.read_scripts("fenced_reads", calls, seconds=seconds)
        except ResponseError as error:
            raise refusal(error, calls[0][0][0]) from error

    def _asked(self, part: _Part) -> list[str]:
        stem = self._keys.state_stem(part.shard)
        return [self._keys.meta(part.shard), *(stem + key for key in part.keys)]

    def _parts(self, keys: Sequence[str]) -> list[_Part]:
        of_shard: dict[int, list[str]] = {}
        for key in keys:
            of_shard.setdefault(self._keys.shard(key), []).append(key)
        return [_Part(shard, some) for shard, held in of_shard.items() for some in in_parts(held, _PER_SCRIPT)]

"""Reading one state: from this process, from the primary, or from the primary proven to be the current lineage.

    local     the near cache where it may be believed; else the tracked connection, which fills it; else the primary
    primary   one round trip: the server is a primary, the shard is open on it, and this is the state
    fenced    that, and Postgres, asked afterwards, says that its epoch is the current one: at the moment of the read
              nobody else was the primary

A state that is not in Redis is hydrated. While a shard's gate is closed Redis may hold what is lost or lack what is
durable, so Postgres answers, unless Redis holds a newer state: that may be what is current, or be gone when the gate
is open. Reading never opens a gate. It is normally closed for some milliseconds, which are waited for. Where Postgres
cannot answer there is no answer, unless the setting `stale_reads` accepts what Redis holds. A fenced read waits for the
gate, and who reads in order to write opens it.

Whatever way it comes, a state that is older than one that this process has seen is not given: it is read again, and
where that brings nothing newer, it is believed only when the newer one is proven to be gone: the shard is in a later
epoch (it was lost with its Redis), or Postgres knows the server as the current lineage (it was set aside).

A state whose end has come when it is read is given as `expired`, at the same place, until a worker has deleted it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from statecache.backoff import Backoff
from statecache.clock import boottime, monotonic
from statecache.core.read.behind_gates import BehindGates
from statecache.core.read.closed_gates import ClosedGates
from statecache.errors import ConfigurationError, ForeignData, PostgresUnavailable, RedisUnavailable, Unavailable
from statecache.records import FIELDS, record_of
from statecache.redis_errors import found_at, refusal

if TYPE_CHECKING:
    from statecache.core.epoch.opener import Opener
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.read.hydration import Hydrator
    from statecache.core.redis.tier import RedisTier
    from statecache.core.redis.tracking import TrackedConnection
    from statecache.keys import KeySpace
    from statecache.model import Record
    from statecache.near import Near, Reading
    from statecache.settings import Settings


class ReadState(NamedTuple):
    """A state as a primary holds it whose shard is open, with that epoch and the primary's replication id."""

    record: Record
    epoch: int
    replid: str


class Closed(NamedTuple):
    """The epoch and version of the state that Redis holds behind a closed gate, or (0, 0)."""

    place: tuple[int, int]


class Reader:
    """The reading of records; what is not in Redis is loaded from Postgres."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        redis: RedisTier,
        postgres: PostgresTier,
        *,
        near: Near,
        tracked: TrackedConnection,
        hydrator: Hydrator,
        opener: Opener,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._near = near
        self._tracked = tracked
        self._hydrator = hydrator
        self._opener = opener
        self.closed_gates = ClosedGates()
        self._behind_gates = BehindGates(settings, keys, redis, postgres, near=near)

    async def record(self, key: str, *, end: float) -> Record:
        """Return the key's record on the primary, for a caller about to write: a closed gate is opened."""
        return await self._read(key, end, least=0, to_write=True)

    async def primary(self, key: str, *, end: float, least: int = 0) -> Record:
        """Return the key's record on the primary, which may be a tombstone or a known absence.

        `least` is a version that it must have reached; a state is never older than what was seen before.
        """
        return await self._read(key, end, least=least, to_write=False)

    async def _read(self, key: str, end: float, *, least: int, to_write: bool) -> Record:
        backoff, asking, begun = Backoff(0.005, 0.25), False, monotonic()
        unavailable: Unavailable | None = None
        while True:
            found = await self._found(key, end, unavailable)
            if isinstance(found, Closed) and to_write:
                await self._opener.open(self._keys.shard(key), end=end)
                continue
            if isinstance(found, Closed):
                record, unavailable = await self._behind_the_gate(key, found.place, begun, end)
            else:
                record, unavailable = await self._believed(found, end, asking=asking)
            if record is not None and record.version >= least:
                return record
            unavailable = unavailable or Unavailable("version", detail=f"{key!r} has not reached version {least}")
            if backoff.outlasts(end):
                raise unavailable
            await self._redis.io.sleep(backoff.take())
            asking = True

    async def _believed(
        self, found: ReadState, end: float, *, asking: bool
    ) -> tuple[Record | None, Unavailable | None]:
        """Return the record if it is not older than what was seen, or what was seen is proven to be gone.

        It is gone where the shard is open in a later epoch, or where Postgres, if `asking`, says that this server is
        the current lineage: then what was seen was set aside as a conflict.
        """
        record = found.record
        if self.is_believed(record, found.epoch):
            return record, None
        if asking:
            shard = self._keys.shard(record.key)
            if await self.are_current({shard: (found.epoch, found.replid)}, end):
                self._near.lowered(record.key, (record.epoch, record.version))
                return record, None
            await self._redis.pool.drop_idle(all_of_them=True)
        detail = f"Redis holds an older state of {record.key!r} than this process has seen, in the same epoch"
        shard = self._keys.shard(record.key)
        if (known := self.newest_epoch(shard)) > found.epoch:
            detail = f"shard {shard} is in epoch {found.epoch} there, and this process has seen it in {known}"
        return None, Unavailable("epoch", detail=detail)

    def is_believed(self, record: Record, epoch: int) -> bool:
        """Return whether a state may be given of a shard that is open in that epoch; an old primary's may not."""
        shard = self._keys.shard(record.key)
        if epoch < self.newest_epoch(shard):
            return False
        self._opener.epochs.note(shard, epoch)
        self._tracked.met(shard, epoch)
        place = (record.epoch, record.version)
        if self._near.seen(record.key, place):
            return True
        later = epoch > self._near.epoch_of(record.key)
        if later:
            self._near.lowered(record.key, place)
        return later

    def newest_epoch(self, shard: int) -> int:
        """Return the newest epoch of the shard that this process has met."""
        return self._opener.epochs.of(shard)

    async def are_current(self, found: Mapping[int, tuple[int, str]], end: float) -> bool:
        """Return whether Postgres knows one of those servers, in its epoch, as the current lineage of a shard.

        That is remembered, whatever was met before: the whole deployment may have been put back.
        """
        if not found:
            return False
        seconds = max((end - monotonic()) / 2, 0.001)
        try:
            rows = await self._postgres.fetch("shards", {"shards": [*found]}, seconds=seconds)
        except PostgresUnavailable:
            return False
        current = [row[0] for row in rows if tuple(row[1:3]) == found[row[0]]]
        for shard in current:
            self._opener.epochs.prove(shard, found[shard][0])
        return bool(current)

    async def _found(self, key: str, end: float, met: Unavailable | None) -> ReadState | Closed:
        """Return what is found; raise `met`, an earlier error, where no time was left to look again."""
        try:
            return await self._looked(key, end)
        except Unavailable as error:
            if met is None or monotonic() < end:
                raise
            raise met from error

    async def _looked(self, key: str, end: float) -> ReadState | Closed:
        """Return the state on a primary whose shard is open, hydrated, or what is behind its closed gate."""
        shard, redis_key = self._keys.place(key)
        asked, arguments = [self._keys.meta(shard), redis_key], [self._settings.fence, *FIELDS]
        while True:
            seconds = end - monotonic()
            if seconds <= 0:
                raise Unavailable("timeout", detail=f"{key!r} could not be read in time")
            sent = boottime()
            try:
                ((verdict, *rest),) = await self._redis.read_script("fenced_read", asked, arguments, seconds=seconds)
            except ResponseError as error:
                raise refusal(error, redis_key) from error
            if verdict == b"FOREIGN":
                raise found_at(rest[0].decode("utf-8", "replace"), rest[1].decode("utf-8", "replace"))
            if verdict == b"CLOSED":
                self.closed_gates.met(shard)
                return Closed((int(rest[0] or 0), int(rest[1] or 0)))
            self.closed_gates.opened(shard)
            self._redis.clock.heard(rest[3], sent)
            record = record_of(redis_key, key, rest[2])
            if record is None:
                record = (await self._hydrator.load([key], end=end)).get(key)
            if record is not None:
                return ReadState(self._redis.clock.lived(record), int(rest[0]), rest[1].decode())

    async def _behind_the_gate(
        self, key: str, here: tuple[int, int], begun: float, end: float
    ) -> tuple[Record | None, Unavailable]:
        """Return what Postgres holds while the shard's gate is closed, or the reason why nothing can be given yet.

        A gate that was just found closed is left a moment to open.
        """
        shard, now = self._keys.shard(key), monotonic()
        closed = f"the gate of shard {shard} is closed"
        if now < min(self.closed_gates.patient_until([shard]), begun + (end - begun) / 4):
            return None, Unavailable("epoch", detail=closed)
        given = await self._behind_gates.records({key: here}, end=end)
        why = f"{closed}: {given.why[key]}" if key in given.why else closed
        return given.records.get(key), Unavailable("epoch", detail=why)

    async def behind_gates(self, keys: Sequence[str], *, end: float) -> dict[str, Record]:
        """Return what may be given of states whose gates were found closed, and were left their moment to open.

        What may not be, and what is behind a gate that is open by now, is left out: it is to be read by itself.
        """
        try:
            here = await self._behind_gates.places(keys, seconds=max(end - monotonic(), 0.001))
        except RedisUnavailable:
            return {}
        return (await self._behind_gates.records(here, end=end)).records

    async def local(self, key: str, *, end: float, least: int = 0, max_stale: float | None = None) -> Record:
        """Return the record by way of the tracked connection, so that it is here the next time; else the primary's."""
        if not (self._near.keeps and self._tracked.is_up()):
            return await self.primary(key, end=end, least=least)
        now = boottime()
        reading, mine = self._near.reserve(key, self._redis.io.signal(), now)
        if not mine and max_stale is not None and now - reading.begun > max_stale:
            return await self.primary(key, end=end, least=least)
        patience = min(max(end - monotonic(), 0.001), self._settings.near_window_s / 2)
        try:
            if mine:
                await self._tracked.ask(reading, seconds=patience)
            answered = await self._tracked.answered(reading, patience)
        except RedisUnavailable:
            answered = False
        record = self._brought(reading) if answered else None
        if answered and record is None and reading.error is None:
            record = await self._hydrator.load_missed(key, self._tracked, end=end)
        if record is not None and record.version >= least and self._near.seen(key, (record.epoch, record.version)):
            return self._redis.clock.lived(record)
        return await self.primary(key, end=end, least=least)

    def _brought(self, reading: Reading) -> Record | None:
        """Return what a read brought; None where the primary has to be read, or the state loaded."""
        if isinstance(reading.error, ForeignData):
            raise reading.error
        return reading.record

    async def fenced(self, key: str, *, end: float, least: int = 0) -> Record:
        """Return the record of the lineage that Postgres says is current; raise Unavailable where it cannot be had."""
        if self._settings.fence != "on":
            raise ConfigurationError("a fenced read needs the fence", hint="Set fence=on, or read the primary.")
        backoff, unavailable, again = Backoff(0.005, 0.25), None, False
        while True:
            found = await self._found(key, end, unavailable)
            if isinstance(found, Closed):
                unavailable = Unavailable("epoch", detail=f"the gate of shard {self._keys.shard(key)} is closed")
            else:
                seconds = max(end - monotonic(), 0.001)
                rows = await self._postgres.fetch("shards", {"shards": [self._keys.shard(key)]}, seconds=seconds)
                record, epoch = found.record, found.epoch
                current = bool(rows) and tuple(rows[0][1:3]) == (epoch, found.replid)
                if current:
                    self._opener.epochs.prove(self._keys.shard(key), epoch)
                believed = current and self.is_believed(record, epoch)
                if current and again and not believed:  # what was seen is proven to be gone
                    self._near.lowered(key, (record.epoch, record.version))
                    believed = True
                if believed and record.version >= least:
                    return record
                again = current
                detail = f"the Redis that answers, in epoch {epoch}, is not the current one"
                unavailable = Unavailable("epoch", detail=detail)
                if current:
                    unavailable = Unavailable("version", detail=f"{key!r} has not reached version {least}")
                else:
                    await self._redis.pool.drop_idle(all_of_them=True)
            if backoff.outlasts(end):
                raise unavailable
            await self._redis.io.sleep(backoff.take())

"""What leaves Redis: flushed entries past their retention, and what readers and holders of locks left that are gone.

Entries stay for `retention_s` from when Postgres came to hold them, and at most `retention_bytes_max` in all, and only
ever leave behind the watermark (`stream_retention`). With them goes the reason to keep their states. Each shard has the
list of the keys that were written, by the n of their newest change: a key stays on it until its state was given a time
to live, so that it may be evicted, which is when that n may leave. Nothing depends on a moment that could be missed,
and nothing on what an entry looks like. A state whose change Postgres did not take gets no time to live.

The work is done in small steps between flushes: a few shards, a few hundred states, two round trips. So is the packing
of what an earlier release left (`packing`). What policies let go of histories goes beside the flush (`prune_passes`),
and so are vectors indexed (`vector_indexing`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from statecache.clock import monotonic as real_monotonic
from statecache_workers.database import Call, Database
from statecache_workers.owned_shards import Holding, misplaced, set_apart
from statecache_workers.packing import Packing
from statecache_workers.prune_passes import PrunePasses
from statecache_workers.stream_places import StreamPlace, place_of
from statecache_workers.stream_retention import StreamRetention
from statecache_workers.vector_indexing import VectorIndexing

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache.resp import Command
    from statecache.settings import Settings
    from statecache_workers.flusher import Flusher

ROUND_S = 1.0
SWEEP_S = 30.0
SHARDS_PER_STEP = 8
STATES_PER_STEP = 250
ENTRIES_PER_STEP = 1000
TOKEN_GRACE_MS = 60_000
_BEGINNING = [b"0", b"0"]


class Janitor:
    """The tidying of one worker's shards."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        flusher: Flusher,
        *,
        owner: str,
        monotonic: Callable[[], float] = real_monotonic,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._streams = flusher.streams
        self._histories = flusher.histories
        self._monotonic = monotonic
        self._round: deque[int] = deque()
        self._next_round = self._next_sweep = monotonic()
        self._cursors: dict[int, bytes] = {}
        self._lease_cursors: dict[int, list[bytes]] = {}
        self._left: dict[int, bytes] = {}
        self.trimmed = self.marked = 0
        self.packing = Packing(owner=owner, monotonic=monotonic)
        self.prunes = PrunePasses(settings, keys, by=owner, monotonic=monotonic)
        self.vectors = VectorIndexing(settings, keys, by=owner, monotonic=monotonic)

    @property
    def due(self) -> bool:
        """Whether there is something to do now."""
        return self._monotonic() >= self.next_due

    @property
    def next_due(self) -> float:
        """The moment at which there is something to do again, on the monotonic clock."""
        return min(self._next_step, self.packing.next_due)

    @property
    def _next_step(self) -> float:
        return 0.0 if self._round else self._next_round

    def retention(self) -> StreamRetention:
        """Return the retention of a shard that was just taken."""
        return StreamRetention(self._settings.retention_s, self._settings.retention_bytes_max // self._settings.shards)

    async def step(self, link: Link, database: Database, holdings: dict[int, Holding]) -> None:
        """Tidy a few shards, and pack a little; a shard with more to leave has another turn in the same round."""
        if self._monotonic() >= self._next_step:
            await self._tidy(link, database, holdings)
        await self.packing.step(database, [shard for shard, one in holdings.items() if one.phase == "open"])
        if self._histories.bounded:
            self.prunes.ask()
        await self.vectors.step(database)

    async def stop(self) -> None:
        """End what is under way beside the flush."""
        await asyncio.gather(self.prunes.stop(), self.vectors.stop())

    async def _tidy(self, link: Link, database: Database, holdings: dict[int, Holding]) -> None:
        now = self._monotonic()
        if not self._round:
            self._round.extend(shard for shard, one in holdings.items() if one.phase == "open")
            self._next_round = now + ROUND_S
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            await self._sweep(link, [one for one in holdings.values() if one.phase == "open"])
        some = [self._round.popleft() for _ in range(min(SHARDS_PER_STEP, len(self._round)))]
        open_ones = [holdings[shard] for shard in some if shard in holdings and holdings[shard].phase == "open"]
        self._round.extend(await self.retire(link, database, open_ones))

    async def retire(self, link: Link, database: Database, holdings: Sequence[Holding]) -> list[int]:
        """Let states of these shards be evicted and entries leave, and return the shards that have more."""
        now = self._monotonic()
        leaving = [one.retention.leaving(now) for one in holdings]
        asked = [self._written(one.shard, place) for one, place in zip(holdings, leaving, strict=True)]
        calls: list[tuple[list[str], list[Any]]] = []
        order: list[tuple[Holding, StreamPlace, bool]] = []
        replies = await self._streams.run(link, asked) if asked else []
        for one, place, reply in zip(holdings, leaving, replies, strict=True):
            if isinstance(reply, Exception):
                set_apart(one, "foreign_data", f"{self._keys.unflushed(one.shard)}: {reply}")
            elif place is not None:
                named = [(key, int(float(n))) for key, n in zip(reply[::2], reply[1::2], strict=True)]
                all_named = len(named) < STATES_PER_STEP
                if named or self._left.get(one.shard) != place.after:
                    calls.append(await self._call(database, one, place, named, trim=all_named))
                    order.append((one, place, all_named))
        more = []
        for (one, place, all_named), reply in zip(
            order, await self._streams.pipeline(link, "retire", calls), strict=True
        ):
            if not isinstance(reply, list) or not reply:
                continue
            marked, left, goes_on = reply
            self.marked += marked
            self.trimmed += left
            if goes_on or not all_named:
                more.append(one.shard)
            else:
                self._left[one.shard] = place.after
        return more

    def _written(self, shard: int, place: StreamPlace | None) -> Command:
        """Return the command for the keys whose newest change may leave, oldest first, with its n."""
        last = place.n if place is not None else 0
        return ("ZRANGEBYSCORE", self._keys.unflushed(shard), 0, last, "WITHSCORES", "LIMIT", 0, STATES_PER_STEP)

    async def _call(
        self, database: Database, one: Holding, place: StreamPlace, named: Sequence[tuple[bytes, int]], *, trim: bool
    ) -> tuple[list[str], list[Any]]:
        """Return the call that lets states be evicted and, with `trim`, the entries up to the place leave."""
        last = place_of(place.after)
        excepted = await self._excepted(database, one, named[0][1], named[-1][1]) if named else ""
        keys = [self._keys.meta(one.shard), self._keys.changes(one.shard), self._keys.unflushed(one.shard)]
        arguments = [
            one.row.epoch, one.row.flushed, place.n, f"{last.epoch}-{last.n + 1}" if trim else "", ENTRIES_PER_STEP,
            round(self._settings.redis_ttl_s * 1000), excepted, *(key for key, _ in named),
        ]  # fmt: skip
        return [*keys, *(self._state_of(key, one.shard) for key, _ in named)], arguments

    def _state_of(self, key: bytes, shard: int) -> str:
        """Return the Redis key of a state; another program's name on the list gets the stream's, and leaves it."""
        name = key.decode("utf-8", "replace")
        return self._keys.changes(shard) if misplaced(name, shard, self._keys) else self._keys.state(name)

    async def _excepted(self, database: Database, one: Holding, first: int, last: int) -> str:
        """Return the positions between two n that Postgres did not take, in one text."""
        if one.row.excepted < first:
            return ""
        async with database.transaction() as transaction:
            (rows,) = await transaction.run(
                Call("exceptions_between", {"shard": one.shard, "first": first, "last": last})
            )
        return " ".join(f"{epoch}-{n}" for epoch, n in rows)

    async def _sweep(self, link: Link, holdings: Sequence[Holding]) -> None:
        """Remove tokens, leases and waiters' places long past their deadline, a page of each shard's at a time."""
        calls = [
            ([self._keys.hydrating(one.shard)], [self._cursors.get(one.shard, b"0"), TOKEN_GRACE_MS])
            for one in holdings
        ]
        for one, reply in zip(holdings, await self._streams.pipeline(link, "sweep", calls), strict=True):
            self._cursors[one.shard] = b"0" if isinstance(reply, Exception) else reply[0]
        calls = [
            (
                [self._keys.leases(one.shard), self._keys.waiters(one.shard)],
                [TOKEN_GRACE_MS, *self._lease_cursors.get(one.shard, _BEGINNING)],
            )
            for one in holdings
        ]
        for one, reply in zip(holdings, await self._streams.pipeline(link, "lease_sweep", calls), strict=True):
            self._lease_cursors[one.shard] = _BEGINNING if isinstance(reply, Exception) else reply[:2]

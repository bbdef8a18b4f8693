"""What leaves Redis: flushed entries past their retention, and what readers and holders of locks left that are gone.

Entries stay for `retention_s` by their own time, and at most `retention_bytes_max` in all, and only ever leave behind
the watermark. With an entry goes the reason to keep its states: one that is still as the entry left it gets its time to
live, so that it may be evicted; it is in Postgres. A state whose change Postgres did not take gets none.

The work is done in small steps between flushes: a few shards, a few hundred states, two round trips.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from statecache.clock import monotonic as real_monotonic
from statecache.model import Position
from statecache.records import text_of
from statecache_workers.database import Call, Database
from statecache_workers.holdings import Holding
from statecache_workers.logs import whisper
from statecache_workers.strays import place_of

if TYPE_CHECKING:
    from statecache._async.connect import AsyncLink
    from statecache.keys import KeySpace
    from statecache.settings import Settings
    from statecache_workers.streams import Streams

ROUND_S = 1.0
SWEEP_S = 30.0
SHARDS_PER_STEP = 8
STATES_PER_STEP = 250
BYTES_PER_STEP = 4 * 2**20
TOKEN_GRACE_MS = 60_000
_BEGINNING = [b"0", b"0"]
_START = datetime(1970, 1, 1, tzinfo=UTC)

_Leaving = list[bytes]


class Janitor:
    """This tidies the shards of one worker."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        streams: Streams,
        *,
        monotonic: Callable[[], float] = real_monotonic,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._streams = streams
        self._monotonic = monotonic
        self._round: deque[int] = deque()
        self._next_round = self._next_sweep = monotonic()
        self._cursors: dict[int, bytes] = {}
        self._lease_cursors: dict[int, list[bytes]] = {}
        self.trimmed = self.marked = 0

    @property
    def due(self) -> bool:
        """This says whether there is something to do now."""
        return self._monotonic() >= self.next_due

    @property
    def next_due(self) -> float:
        """This is when there is something to do again."""
        return 0.0 if self._round else self._next_round

    async def step(self, link: AsyncLink, database: Database, holdings: dict[int, Holding], *, now_ms: int) -> None:
        """This tidies a few shards; a shard with more to leave has another turn in the same round."""
        now = self._monotonic()
        if not self._round:
            self._round.extend(shard for shard, one in holdings.items() if one.standing == "open")
            self._next_round = now + ROUND_S
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            await self._sweep(link, [one for one in holdings.values() if one.standing == "open"])
        some = [self._round.popleft() for _ in range(min(SHARDS_PER_STEP, len(self._round)))]
        open_ones = [holdings[shard] for shard in some if shard in holdings and holdings[shard].standing == "open"]
        self._round.extend(await self.retire(link, database, open_ones, now_ms=now_ms))

    async def retire(
        self, link: AsyncLink, database: Database, holdings: Sequence[Holding], *, now_ms: int
    ) -> list[int]:
        """This lets entries of these shards leave, a few hundred states each, and gives the shards that have more."""
        cutoff = text_of(_START + timedelta(milliseconds=now_ms) - timedelta(seconds=self._settings.retention_s))
        keep = self._settings.retention_bytes_max // self._settings.shards
        asked = [
            (
                [self._keys.meta(one.shard), self._keys.changes(one.shard), self._keys.unflushed(one.shard)],
                [one.row.epoch, one.row.flushed, cutoff, keep, STATES_PER_STEP, BYTES_PER_STEP],
            )
            for one in holdings
        ]
        calls: list[tuple[list[str], list[Any]]] = []
        leaving: list[int] = []
        more = []
        for one, reply in zip(holdings, await self._streams.pipeline(link, "retired", asked), strict=True):
            goes_on, *entries = (0,) if isinstance(reply, Exception) else reply
            if entries:
                calls.append(await self._call(database, one, entries))
                leaving.append(len(entries))
                if goes_on:
                    more.append(one.shard)
                whisper("retired", shard=one.shard, entries=len(entries))
        for count, marked in zip(leaving, await self._streams.pipeline(link, "retire", calls), strict=True):
            if isinstance(marked, int) and marked >= 0:
                self.trimmed += count
                self.marked += marked
        return more

    async def _call(self, database: Database, one: Holding, leaving: Sequence[_Leaving]) -> tuple[list[str], list[Any]]:
        """This asks for entries to leave, and for each of their states that Postgres took to be marked."""
        first, last = place_of(leaving[0][0]), place_of(leaving[-1][0])
        kept = await self._excepted(database, one, first.n, last.n)
        default = round(self._settings.redis_ttl_s * 1000)
        marks: dict[str, tuple[bytes, int]] = {}
        for entry_id, change_id, *states in leaving:
            for key, ttl in zip(states[::2], states[1::2], strict=True):
                name = key.decode("utf-8", "replace")
                marks.pop(name, None)
                if place_of(entry_id) not in kept and "/" in name:
                    marks[name] = (change_id, int(ttl) if ttl.isdigit() and int(ttl) > 0 else default)
        fixed = [self._keys.meta(one.shard), self._keys.changes(one.shard), self._keys.unflushed(one.shard)]
        arguments: list[Any] = [one.row.epoch, one.row.flushed, leaving[-1][0]]
        for name, (change_id, ttl_ms) in marks.items():
            arguments += (name, change_id, ttl_ms)
        return [*fixed, *(self._keys.state(name) for name in marks)], arguments

    async def _excepted(self, database: Database, one: Holding, first: int, last: int) -> set[Position]:
        if one.row.excepted < first:
            return set()
        async with database.transaction() as transaction:
            (rows,) = await transaction.run(
                Call("exceptions_between", {"shard": one.shard, "first": first, "last": last})
            )
        return {Position(*row) for row in rows}

    async def _sweep(self, link: AsyncLink, holdings: Sequence[Holding]) -> None:
        """This removes tokens, leases and places long past their deadline, a page of each shard's at a time."""
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

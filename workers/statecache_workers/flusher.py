"""The flusher: moves changes from the shards' streams into Postgres, in order, position and rows in one transaction.

One cycle, on one connection to Redis and one to Postgres:

    heads      epoch, replid and n of every shard, strictly before the entries
    entries    after each watermark, contiguous in n
    BEGIN      shard rows FOR UPDATE: owner, epoch, replid and watermark must be what they are believed to be
    judge      what continues its key's tip, what repeats, what forks
    INSERT     changes, tips, conflicts, watermarks; with them COMMIT, whose tag and warnings are looked at
    ack        one script a shard tells Redis the watermark, forward only, and only for this epoch

A shard that does not fit is dropped from the batch and looked at anew: its row is read again in a transaction that
commits, so that a watermark which an earlier COMMIT left unreplicated is never acknowledged before it is safe. A crash
anywhere repeats at most this cycle, and repeating it changes nothing, for the watermark is in the transaction.

Data that Postgres refuses is parked (`quarantine`), and a shard of which it refuses a change for another reason, while
it takes others, is set apart (`batch_transactions`). Everything else that goes wrong is an outage: nothing is
acknowledged, what is remembered is forgotten, and it is tried again later, after a timeout by halves (`sizing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from statecache.clock import monotonic
from statecache.errors import PostgresUnavailable, RedisUnavailable, Unavailable
from statecache_workers.acknowledgement import Acknowledgement
from statecache_workers.batch_transactions import Batches
from statecache_workers.batch_writing import WriteResult, mark_of
from statecache_workers.counters import Counters
from statecache_workers.database import Database
from statecache_workers.foreign_entries import StreamEnds, find_foreign_entries
from statecache_workers.kept_histories import KeptHistories
from statecache_workers.logs import alarm, warn
from statecache_workers.owned_shards import (
    Head,
    Heads,
    Holding,
    agree,
    set_apart,
)
from statecache_workers.postgres_errors import HELD
from statecache_workers.read_ahead import UNREAD_PART, Lookout, still_next
from statecache_workers.recall import Recall
from statecache_workers.repair import Repair
from statecache_workers.sizing import BatchSize
from statecache_workers.slices import Slice
from statecache_workers.stream_places import StreamPlace
from statecache_workers.streams import Streams, Wanted
from statecache_workers.tip_cache import TipCache
from statecache_workers.values_ahead import ValuesAhead

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache.settings import Settings

TOO_LARGE = ("57014", "timeout", "53200", "53400")
"""Why a batch could not be written that may be too large: Postgres ran out of time, or this side did.

Or it ran out of memory, or of what a setting allows, as `temp_file_limit` does.
"""

_CUT_OFF = ("connection", "timeout")
"""How Redis refuses to let out much at once: it has a limit for that, or the network is slow."""


class Progress(msgspec.Struct, kw_only=True):
    """What one cycle did and found."""

    entries: int = 0
    changes: int = 0
    unsure: list[int] = []
    """Shards whose row must be read again before they go on."""
    newer: list[int] = []
    """Shards that only a newer worker can flush."""
    foreign_entries: list[int] = []
    """Shards whose stream may hold entries of another program."""
    waiting: bool = False
    """Whether something was begun that goes on with the next turn."""


class Flusher:
    """The flusher of one worker's shards."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        *,
        owner: str,
        monotonic: Callable[[], float] = monotonic,
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._keys = keys
        self._owner = owner
        self.streams = Streams(settings, keys)
        self.tips = TipCache(settings.tips_max, settings.history_values_bytes_max)
        self.histories = KeptHistories()
        self.values = ValuesAhead(self.tips)
        self.counters = Counters()
        self.recall = Recall(keys, self.streams)
        self.acknowledgement = Acknowledgement(keys, self.streams)
        self.batches = Batches(settings, keys, self.tips, self.values, self.histories, owner=owner, monotonic=monotonic)
        self._repair = Repair(settings, keys, self.streams)
        self.size = BatchSize(settings.flush_batch_max, settings.flush_bytes_max, timeout_s=settings.timeout_s)
        self._lookout = Lookout(settings, self.streams, self.size, self.values)
        self._ends = StreamEnds(self.streams, keys, monotonic=monotonic)

    async def look(self, link: Link, holdings: dict[int, Holding], woken: Sequence[int] = ()) -> Heads:
        """Return the heads of the shards, as they were before the entries that the next cycle writes were read."""
        return await self._lookout.look(link, holdings, woken)

    async def cycle(
        self,
        link: Link,
        database: Database,
        holdings: dict[int, Holding],
        *,
        heads: Heads,
        woken: Sequence[int] = (),
    ) -> Progress:
        """Flush at most one batch of the open shards; `heads` is what `look` returned just before."""
        progress = Progress()
        ahead = self._lookout.taken()
        fits = ahead is not None and ahead.heads is heads and self.size.whole
        slices = still_next(ahead, holdings) if ahead is not None and fits else []
        more = ahead is not None and ahead.more
        if not slices:
            wanted, more = self._wanted(holdings, heads, set(woken), progress)
            slices = await self._read(link, wanted) if wanted else []
        for one in slices:
            await self._prepare(link, one, progress)
        if progress.waiting:
            await self.recall.go_on(link, [one for one in holdings.values() if one.phase == "open"])
        slices = [one for one in slices if one.end.n > one.start.n]
        if slices:
            await self._flush(link, database, holdings, slices, heads, progress, more=more)
        progress.foreign_entries += await self._ends.beyond(link, holdings, heads)
        return progress

    async def _read(self, link: Link, wanted: Sequence[Wanted]) -> list[Slice]:
        """Read entries; where the connection ends over that, they may be more than Redis lets out at once."""
        try:
            return await self.streams.read(link, wanted)
        except RedisUnavailable as error:
            if error.reason in _CUT_OFF:
                self._halve(sum(one.most for one in wanted), 0, error)
            raise

    def _wanted(
        self, holdings: dict[int, Holding], heads: Heads, woken: set[int], progress: Progress
    ) -> tuple[list[Wanted], bool]:
        """Decide how many entries to read of which shard, and whether there are more."""
        able: dict[int, tuple[Holding, Head, StreamPlace]] = {}
        for shard, holding in holdings.items():
            head = heads.of.get(shard)
            if holding.phase != "open" or head is None:
                continue
            if isinstance(head, str):
                set_apart(holding, "foreign_data", f"{self._keys.meta(shard)}: {head}")
            elif agree(holding.row, head, heads.server):
                able[shard] = holding, head, holding.place
            else:
                self._doubt(holding, progress)
        return self._lookout.share_out(able, woken, UNREAD_PART)

    def _doubt(self, holding: Holding, progress: Progress) -> None:
        holding.doubt()
        self.tips.drop(holding.shard)
        progress.unsure.append(holding.shard)

    async def _prepare(self, link: Link, one: Slice, progress: Progress) -> None:
        """See to a slice that is not a plain run of entries: gaps, foreign entries, a newer format."""
        if one.plain:
            return
        if one.cut == "newer":
            progress.newer.append(one.shard)
            alarm("newer_format", shard=one.shard, reason=one.reason)
        elif one.cut == "gap":
            if self.recall.done(one.holding):
                await self._repair.fill(link, one, self.size.entries)
            else:
                one.end, progress.waiting = one.start, True
            return
        elif one.cut == "foreign" or (
            one.cut == "beyond" and (await find_foreign_entries(link, self.streams, self._keys, one.shard, most=1)).last
        ):
            progress.foreign_entries.append(one.shard)

    async def _flush(
        self,
        link: Link,
        database: Database,
        holdings: dict[int, Holding],
        slices: list[Slice],
        heads: Heads,
        progress: Progress,
        *,
        more: bool,
    ) -> None:
        """Write a batch and acknowledge it; while it is written, read the next one where there are more."""
        server, begun = heads.server, monotonic()
        written = asyncio.Event()
        behind = slices if more else []
        reading = asyncio.ensure_future(
            self._lookout.read_behind(link, holdings, behind, latest=self.histories.latest, written=written)
        )
        try:
            done = await self.batches.write(database, slices, server)
            written.set()
            self.size.written(monotonic() - begun)
            self.counters.committed(done, begun=begun, written=monotonic(), heads=heads)
            self._lookout.ahead = await reading
        except PostgresUnavailable as error:
            self._shrink(slices, error, monotonic() - begun)
            raise
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        kept = {one.shard for one, _ in done}
        for one in slices:
            if one.shard not in kept and one.end.n > one.start.n:
                self._doubt(one.holding, progress)
        await self._acknowledge(link, done, progress)
        self._lookout.pace.flushed(progress.entries, begun=begun, ended=monotonic())

    def _shrink(self, slices: Sequence[Slice], error: PostgresUnavailable, seconds: float) -> None:
        """Make the next batch smaller where this one may have been too large.

        One that takes longer than a lease is, unless it has waited for a lock: whoever owns the shards then may have
        ended it, in whatever way.
        """
        if error.reason not in TOO_LARGE and (seconds < self._settings.lease_s or error.reason == HELD):
            return
        entries = sum(len(one.entries) for one in slices)
        self._halve(entries, sum(max(0, one.end.bytes - one.start.bytes) for one in slices), error)

    def _halve(self, entries: int, size: int, error: Unavailable) -> None:
        self.size.too_large(entries, size)
        if entries > 1:  # of one entry nothing smaller could be tried: the server is late, or away
            warn("batch_too_large", entries=entries, next_entries_max=self.size.entries, reason=error.reason)

    async def _acknowledge(self, link: Link, done: Sequence[tuple[Slice, WriteResult]], progress: Progress) -> None:
        """Move what is remembered to the batch's end, and then Redis' copy of the watermarks."""
        forks: dict[int, list[tuple[str, str]]] = {}
        for one, outcome in done:
            one.holding.move(one.end, excepted=mark_of(one, outcome).excepted)
            self._note_places(one)
            self.tips.put(one.shard, outcome.tips, outcome.parents)
            progress.entries += len(one.entries)
            progress.changes += sum(len(entry.change_set.changes) for entry in one.entries if entry.change_set)
            forks[one.shard] = [(fork.change.key, fork.change.change_id) for fork in outcome.forked]
            for fork in outcome.forked[:10]:
                alarm("forked", shard=one.shard, key=fork.change.key, change_id=fork.change.change_id, cause=fork.cause)
        self.counters.changes += progress.changes
        progress.unsure += await self.acknowledgement.tell(link, [one.holding for one, _ in done], forks)

    def _note_places(self, one: Slice) -> None:
        """Let the retention of what was flushed begin now."""
        retention, now = one.holding.retention, self._monotonic()
        for place in one.places(retention.step_bytes):
            retention.reached(now, place)

    def opened(self, holding: Holding) -> None:
        """Let the retention of what is flushed of a shard that was opened begin now, unless it has begun already."""
        holding.retention.reached(self._monotonic(), holding.place)

    def forget(self, holdings: dict[int, Holding]) -> None:
        """Forget all that is believed, as after an outage."""
        self.tips.clear()
        self.recall.forget()
        self._lookout.ahead = None
        self.values.forget()
        for holding in holdings.values():
            holding.look_again()

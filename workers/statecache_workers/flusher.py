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

Data that Postgres refuses is parked (`quarantine`); everything else that goes wrong is an outage: nothing is
acknowledged, what is remembered is forgotten, and it is tried again later, after a timeout by halves (`sizing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.clock import monotonic
from statecache.concurrency import TASKS
from statecache.errors import PostgresUnavailable
from statecache.rules.reconcile import NOTHING, Tip
from statecache_workers.acknowledgement import Acknowledgement
from statecache_workers.batch_writing import Judged, WriteResult, judged, mark_of, watermarks, writes
from statecache_workers.counters import Counters
from statecache_workers.database import Call, Database
from statecache_workers.foreign_entries import find_foreign_entries
from statecache_workers.kept_histories import KeptHistories
from statecache_workers.logs import alarm, warn, whisper
from statecache_workers.lost_tails import gap_calls
from statecache_workers.owned_shards import (
    Head,
    Heads,
    Holding,
    OwnedRow,
    agree,
    misplaced,
    set_apart,
)
from statecache_workers.postgres_arrays import integers, texts
from statecache_workers.postgres_errors import Poison
from statecache_workers.quarantine import tell_parked, write_carefully
from statecache_workers.read_ahead import UNREAD_PART, Lookout, still_next
from statecache_workers.recall import Recall
from statecache_workers.repair import Repair
from statecache_workers.sizing import BatchSize, PieceSize
from statecache_workers.stream_places import StreamPlace
from statecache_workers.streams import Entry, Slice, Streams, Wanted
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
        self._piece, self._placed_last = PieceSize(), -1
        """How large the pieces are where Postgres refuses some of a batch, and of which shard one was written last."""
        self._repair = Repair(settings, keys, self.streams)
        self.size = BatchSize(settings.flush_batch_max, settings.flush_bytes_max, timeout_s=settings.timeout_s)
        self._lookout = Lookout(settings, self.streams, self.size, self.values)

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
            slices = await self.streams.read(link, wanted) if wanted else []
        for one in slices:
            await self._prepare(link, one, progress)
        if progress.waiting:
            await self.recall.go_on(link, [one for one in holdings.values() if one.phase == "open"])
        slices = [one for one in slices if one.end.n > one.start.n]
        if slices:
            await self._flush(link, database, holdings, slices, heads, progress, more=more)
        return progress

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
            one.cut == "beyond" and await find_foreign_entries(link, self.streams, self._keys, one.shard, most=1)
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
        tips, missing = self._remembered(slices)
        written = asyncio.Event()
        behind = slices if more else []
        reading = asyncio.ensure_future(
            self._lookout.read_behind(link, holdings, behind, latest=self.histories.latest, written=written)
        )
        try:
            try:
                if any(entry.fault for one in slices for entry in one.entries):
                    raise Poison("entry", "an entry cannot be read")
                done = await self._write(database, slices, server, tips, missing)
            except Poison:
                done = await self._write_carefully(database, slices, server)
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

        One that takes longer than a lease is: whoever owns the shards then may have ended it, in whatever way.
        """
        if error.reason not in TOO_LARGE and seconds < self._settings.lease_s:
            return
        entries = sum(len(one.entries) for one in slices)
        self.size.too_large(entries, sum(max(0, one.end.bytes - one.start.bytes) for one in slices))
        warn("batch_too_large", entries=entries, next_entries_max=self.size.entries, reason=error.reason)

    def _remembered(self, slices: Sequence[Slice]) -> tuple[dict[str, Tip], set[str]]:
        """Return the remembered tips and the keys without one; mark an entry with another shard's key as faulty."""
        tips: dict[str, Tip] = {}
        missing: set[str] = set()
        for one in slices:
            here: set[str] = set()
            for at, entry in enumerate(one.entries):
                for change in entry.change_set.changes if entry.change_set is not None else ():
                    key = change.key
                    if key in here:
                        continue
                    tip = self.tips.get(one.shard, key)
                    if tip is None and (fault := misplaced(key, one.shard, self._keys)):
                        one.entries[at] = Entry(entry.fields, entry.position, entry.change_set, fault)
                        continue
                    here.add(key)
                    if tip is not None:
                        tips[key] = tip
            missing |= here
        missing -= tips.keys()
        return tips, missing

    async def _write(
        self, database: Database, slices: Sequence[Slice], server: str, tips: dict[str, Tip], missing: set[str]
    ) -> list[tuple[Slice, WriteResult]]:
        """Write a batch in two round trips; raise Poison where Postgres refuses any of its data."""
        asked = sorted(missing)
        tips |= dict.fromkeys(asked, NOTHING)
        calls = [Call("flush_tips", {"keys": texts(asked)})] if asked else []
        async with database.transaction(of_data=True) as transaction:
            rows, *found = await transaction.run(self._lock(slices), *calls)
            tips |= {key: Tip(*tip) for one in found for key, *tip in one}
            good = self._still_ours(slices, rows, server)
            if not good:
                return []
            judgements: list[Judged] = []
            done: list[tuple[Slice, WriteResult]] = []
            for one in good:
                await TASKS.sleep(0)  # so that Redis is asked for what is read ahead, and goes through it meanwhile
                sets = [entry.change_set for entry in one.entries if entry.change_set is not None]
                latest = self.histories.latest
                verdict = await judged(transaction, one.shard, sets, tips, self.values, latest)
                judgements.append(verdict)
                done.append((one, WriteResult.of(verdict)))
            self.values.writing({one.shard: one.parents for one in judgements})
            marks = watermarks([mark_of(*pair) for pair in done], database.lease)
            await transaction.commit(*writes(judgements), *self._gaps(good), marks)
        return done

    async def _write_carefully(
        self, database: Database, slices: Sequence[Slice], server: str
    ) -> list[tuple[Slice, WriteResult]]:
        """Write a batch piece by piece, trust no remembered tip, and park what Postgres refuses.

        After the time in which a lease is renewed each shard still gets its next piece done, and after twice that no
        other has its turn: what is left comes with the next batches, beginning behind the shard that was the last one.
        """
        for one in slices:
            self.tips.drop(one.shard)
        over = self._monotonic() + self._settings.lease_renew_s
        done: list[tuple[Slice, WriteResult]] = []
        sent = False
        try:
            async with database.transaction(of_data=True) as transaction:
                (rows,) = await transaction.run(self._lock(slices))
                good = self._still_ours(slices, rows, server)
                if not good:
                    return []
                for one in sorted(good, key=self._turn_of):
                    if done and self._monotonic() > over + self._settings.lease_renew_s:
                        one.entries, one.end = [], one.start
                        continue
                    outcome, placed = await write_carefully(
                        transaction, one.shard, one.entries, self.histories.latest, size=self._piece,
                        is_over=partial(self._is_over, one, over),
                    )  # fmt: skip
                    one.keep(placed)
                    done.append((one, outcome))
                    self._placed_last = one.shard
                marks = watermarks([mark_of(*pair) for pair in done], database.lease)
                sent = True
                await transaction.commit(*self._gaps([one for one, _ in done]), marks)
        except (
            Poison
        ) as error:  # parking it is refused as well: that is for a person to see, and nothing is lost meanwhile
            alarm("not_quarantined", shards=[one.shard for one in slices], sqlstate=error.sqlstate)
            sent = False
            raise PostgresUnavailable(error.sqlstate, detail="what it refuses cannot be parked either") from error
        finally:
            for one, outcome in done if sent else ():  # where no answer came to COMMIT it may be parked, too
                tell_parked(one.shard, outcome.parked)
        return done

    def _turn_of(self, one: Slice) -> tuple[bool, bool, int]:
        """Return by what shards are sorted: gaps first, which are told of each time, then those behind the last one."""
        return one.cut != "gap", one.shard <= self._placed_last, one.shard

    def _is_over(self, one: Slice, end: float) -> bool:
        """Return whether the time is up; a gap is closed as a whole."""
        return one.cut != "gap" and not one.gaps and self._monotonic() > end

    def _gaps(self, slices: Sequence[Slice]) -> list[Call]:
        return [call for one in slices for gap in one.gaps for call in gap_calls(one, gap, by=self._owner)]

    def _lock(self, slices: Sequence[Slice]) -> Call:
        return Call("flush_lock", {"shards": integers(sorted(one.shard for one in slices)), "owner": self._owner})

    def _still_ours(self, slices: Sequence[Slice], rows: Sequence[tuple[Any, ...]], server: str) -> list[Slice]:
        """Leave out shards whose row is not as it was believed to be: owner, epoch, server, watermark."""
        now = {shard: OwnedRow(*rest) for shard, *rest, _ in rows}
        for shard, *_, moved in rows:
            self.tips.moved(shard, moved)
        good = []
        for one in slices:
            row = now.get(one.shard)
            if row is not None and row.flushed == one.start.n and agree(row, one.head, server):
                good.append(one)
            else:
                (whisper if row is None else warn)("fenced", shard=one.shard, dropped=len(one.entries))
        return good

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

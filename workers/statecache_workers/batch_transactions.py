"""In which transactions a batch is committed: in one, and where Postgres refuses that, in more.

Where it refuses data, the slices are written piece by piece, and what it refuses is parked (`quarantine`).

Where it refuses to have that parked, or for a reason that blames neither the data nor the server, such as a damaged
page or an error of a trigger's own, each shard's slice gets a transaction of its own. A shard that is refused while
others are taken is suspected from then on, and written by itself: half of what was refused, twice what was taken, as
far as the one entry that stands in its way. Then it is set apart with an alarm that names that entry, and tried again
with the next renewal of the leases. Where all are refused, that is an outage like others. So it goes too where somebody
else's transaction holds a row, which is waited for just once as long as any lock may take.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from statecache.concurrency import TASKS
from statecache.entries import salvaged
from statecache.errors import PostgresUnavailable
from statecache.rules.reconcile import NOTHING, Tip
from statecache_workers.batch_writing import Judged, WriteResult, judged, mark_of, watermarks, writes
from statecache_workers.database import Call, Database, Transaction
from statecache_workers.logs import alarm, warn, whisper
from statecache_workers.lost_tails import gap_calls, tell_gap
from statecache_workers.owned_shards import OwnedRow, agree, misplaced, set_apart
from statecache_workers.postgres_arrays import integers, texts
from statecache_workers.postgres_errors import HELD, Poison, blames_server
from statecache_workers.quarantine import NotParked, tell_parked, write_carefully
from statecache_workers.sizing import PieceSize
from statecache_workers.slices import Entry, Slice

if TYPE_CHECKING:
    from statecache.keys import KeySpace
    from statecache.settings import Settings
    from statecache_workers.kept_histories import KeptHistories
    from statecache_workers.tip_cache import TipCache
    from statecache_workers.values_ahead import ValuesAhead

_KEYS_SHOWN = 3
_PAUSE = 10
"""After how many times as long as an attempt took a shard is tried again that was set apart."""
_HELD_WAIT_S = 0.2
"""How long a lock is waited for where it was waited for in vain: others wait for that shard to have its turn."""
Written = list[tuple[Slice, WriteResult]]
"""The slices that were committed, each as far as it was, and what became of them."""


class _Suspect:
    """A shard of which Postgres refused a change: how many entries to try next, and when, and what was told last."""

    def __init__(self) -> None:
        self.size, self.told, self.not_before = PieceSize(), "", 0.0


class Batches:
    """The transactions of one worker's batches."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        tips: TipCache,
        values: ValuesAhead,
        histories: KeptHistories,
        *,
        owner: str,
        monotonic: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._tips = tips
        self._values = values
        self._histories = histories
        self._owner = owner
        self._monotonic = monotonic
        self._piece, self._placed_last = PieceSize(), -1
        """How large the pieces are where Postgres refuses some of a batch, and of which shard one was written last."""
        self._suspects: dict[int, _Suspect] = {}
        self._held: set[int] = set()
        """Shards for whose rows was waited in vain."""

    async def write(self, database: Database, slices: Sequence[Slice], server: str) -> Written:
        """Commit a batch, and return what was committed of it; of a slice that was cut short the rest comes later."""
        suspected = [one for one in slices if one.shard in self._suspects]
        others = [one for one in slices if one.shard not in self._suspects]
        done: Written = []
        try:
            try:
                done += await self._write(database, others, server) if others else []
            except PostgresUnavailable as error:
                if _is_outage(error, database):
                    raise
                if error.reason == HELD:
                    self._held |= {one.shard for one in others}
                done += await self._write_each(database, others, server)
            for one in suspected:
                if self._monotonic() < self._suspects[one.shard].not_before:
                    self._set_apart(one)
            return done + await self._write_each(database, suspected, server)
        finally:
            self._held &= self._suspects.keys()

    @property
    def refused(self) -> dict[int, str]:
        """The shards of which Postgres refuses a change, and which one that is."""
        return {shard: suspect.told for shard, suspect in self._suspects.items() if suspect.told}

    def suspect_only(self, shards: Collection[int]) -> None:
        """Suspect none but these shards."""
        for shard in self._suspects.keys() - shards:
            del self._suspects[shard]

    async def _write(self, database: Database, slices: Sequence[Slice], server: str) -> Written:
        """Commit slices together; park what Postgres refuses of their data."""
        try:
            return await self._write_at_once(database, slices, server)
        except Poison:
            return await self._write_carefully(database, slices, server)

    async def _write_each(self, database: Database, slices: Sequence[Slice], server: str) -> Written:
        """Commit a piece of each slice by itself, and set those apart of which none is taken.

        Raises where that is so of all, unless they were suspected before. After the time in which a lease is renewed,
        what is left comes with the next batches.
        """
        over = self._monotonic() + self._settings.lease_renew_s
        done: Written = []
        refused: list[tuple[Slice, PostgresUnavailable, float]] = []
        some = [one for one in slices if one.end.n > one.start.n]  # others were left when it was tried carefully
        for at, one in enumerate(some):
            if at and self._monotonic() > over:
                one.put_off()
                continue
            begun = self._monotonic()
            try:
                done += await self._write_piece(database, one, server, over)
            except PostgresUnavailable as error:
                if _is_outage(error, database):
                    raise
                refused.append((one, error, self._monotonic() - begun))
        for one, met, took_s in refused:
            why = f"{_named(one)} is refused: {met.reason}, {met.detail}"
            event = "not_quarantined" if isinstance(met.__cause__, NotParked) else "not_written"
            if not done and one.shard not in self._suspects:
                if event == "not_quarantined":
                    alarm(event, shard=one.shard, reason=why)
                if met.reason == HELD and len(some) == 1:  # what others have next time does not wait for it
                    self._suspects[one.shard] = _Suspect()
                raise PostgresUnavailable(met.reason, detail=why) from met
            suspect = self._suspects.setdefault(one.shard, _Suspect())
            suspect.size.refused(len(one.entries))
            if len(one.entries) > 1:
                one.put_off()
                continue
            suspect.not_before = self._monotonic() + _PAUSE * took_s
            self._set_apart(one, why, event)
        return done

    def _set_apart(self, one: Slice, why: str = "", event: str = "") -> None:
        """Leave a suspected shard for later, with an alarm where something new is to be told."""
        suspect = self._suspects[one.shard]
        one.holding.reason = suspect.told  # it may have been opened since
        suspect.told = why or suspect.told
        set_apart(one.holding, event, suspect.told)
        one.put_off()

    async def _write_piece(self, database: Database, one: Slice, server: str, over: float) -> Written:
        """Commit the first entries of a slice, as many as Postgres takes.

        Raises what it says of a single one, or of those that were tried last when the time was up.
        """
        suspect, most = self._suspects.get(one.shard) or _Suspect(), len(one.entries)
        size = suspect.size
        while True:
            one.keep(size.entries)
            try:
                done = await self._write(database, [one], server)
            except PostgresUnavailable as error:
                if len(one.entries) <= 1 or _is_outage(error, database) or self._monotonic() > over:
                    raise
                size.refused(len(one.entries))
                continue
            size.taken(len(one.entries))
            if len(one.entries) < most:
                self._suspects[one.shard] = suspect
            else:
                self._suspects.pop(one.shard, None)
            return done

    async def _write_at_once(self, database: Database, slices: Sequence[Slice], server: str) -> Written:
        """Write slices in two round trips; raise Poison where Postgres refuses any of their data."""
        tips, missing = self._remembered(slices)
        if any(entry.fault for one in slices for entry in one.entries):
            raise Poison("entry", "an entry cannot be read")
        asked = sorted(missing)
        tips |= dict.fromkeys(asked, NOTHING)
        calls = [Call("flush_tips", {"keys": texts(asked)})] if asked else []
        async with database.transaction(of_data=True, lock_s=self._lock_s(slices)) as transaction:
            rows, *found = await transaction.run(self._lock(slices), *calls)
            tips |= {key: Tip(*tip) for one in found for key, *tip in one}
            good = self._still_ours(slices, rows, server)
            if not good:
                return []
            judgements: list[Judged] = []
            done: Written = []
            for one in good:
                await TASKS.sleep(0)  # so that Redis is asked for what is read ahead, and goes through it meanwhile
                sets = [entry.change_set for entry in one.entries if entry.change_set is not None]
                verdict = await judged(transaction, one.shard, sets, tips, self._values, self._histories.latest)
                judgements.append(verdict)
                done.append((one, WriteResult.of(verdict)))
            self._values.writing({one.shard: one.parents for one in judgements})
            await self._commit(database, transaction, done, *writes(judgements))
        return done

    async def _write_carefully(self, database: Database, slices: Sequence[Slice], server: str) -> Written:
        """Write slices piece by piece, trust no remembered tip, and park what Postgres refuses.

        After the time in which a lease is renewed each shard still gets its next piece done, and after twice that no
        other has its turn: what is left comes with the next batches, beginning behind the shard that was the last one.
        """
        for one in slices:
            self._tips.drop(one.shard)
        over = self._monotonic() + self._settings.lease_renew_s
        done: Written = []
        try:
            async with database.transaction(of_data=True, lock_s=self._lock_s(slices)) as transaction:
                (rows,) = await transaction.run(self._lock(slices))
                good = self._still_ours(slices, rows, server)
                if not good:
                    return []
                for one in sorted(good, key=lambda one: (one.shard <= self._placed_last, one.shard)):
                    if done and self._monotonic() > over + self._settings.lease_renew_s:
                        one.put_off()
                        continue
                    outcome, placed = await write_carefully(
                        transaction, one.shard, one.entries, self._histories.latest, size=self._piece,
                        is_over=lambda: self._monotonic() > over,
                    )  # fmt: skip
                    one.keep(placed)
                    done.append((one, outcome))
                    self._placed_last = one.shard
                await self._commit(database, transaction, done)
        except Poison as error:  # it refuses what can be parted no further: for a person to see, and nothing is lost
            raise PostgresUnavailable(error.sqlstate, detail=error.reason) from error
        return done

    async def _commit(self, database: Database, transaction: Transaction, done: Written, *calls: Call) -> None:
        """Commit what was written, with the last calls, and raise the alarms about it.

        They are raised as well where no answer came to the COMMIT, for it may have been carried out.
        """
        gaps = [call for one, _ in done for gap in one.gaps for call in gap_calls(one, gap, by=self._owner)]
        committed = False
        try:
            await transaction.commit(*calls, *gaps, watermarks([mark_of(*pair) for pair in done], database.lease))
            committed = True
        finally:
            for one, outcome in done if committed or not database.alive else ():
                tell_parked(one.shard, outcome.parked)
                if one.cut == "gap":
                    tell_gap(one)

    def _lock_s(self, slices: Sequence[Slice]) -> float | None:
        """Return how many seconds a lock is waited for, if not for as long as any may take."""
        return _HELD_WAIT_S if self._held.issuperset(one.shard for one in slices) else None

    def _lock(self, slices: Sequence[Slice]) -> Call:
        return Call("flush_lock", {"shards": integers(sorted(one.shard for one in slices)), "owner": self._owner})

    def _still_ours(self, slices: Sequence[Slice], rows: Sequence[tuple[Any, ...]], server: str) -> list[Slice]:
        """Leave out shards whose row is not as it was believed to be: owner, epoch, server, watermark."""
        now = {shard: OwnedRow(*rest) for shard, *rest, _ in rows}
        for shard, *_, moved in rows:
            self._tips.moved(shard, moved)
        good = []
        for one in slices:
            row = now.get(one.shard)
            if row is not None and row.flushed == one.start.n and agree(row, one.head, server):
                good.append(one)
            else:
                (whisper if row is None else warn)("fenced", shard=one.shard, dropped=len(one.entries))
        return good

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
                    tip = self._tips.get(one.shard, key)
                    if tip is None and (fault := misplaced(key, one.shard, self._keys)):
                        one.entries[at] = Entry(entry.fields, entry.position, entry.change_set, fault)
                        continue
                    here.add(key)
                    if tip is not None:
                        tips[key] = tip
            missing |= here
        missing -= tips.keys()
        return tips, missing


def _is_outage(error: PostgresUnavailable, database: Database) -> bool:
    return blames_server(error) or not database.alive


def _named(one: Slice) -> str:
    """Return what names the entry of a slice, or the first one of more."""
    if not one.entries:
        return f"the gap behind {one.start.n}"
    first = one.entries[0]
    if len(one.entries) > 1:
        return f"one of {len(one.entries)} changes from {first.position} on"
    change_id, keys = salvaged(first.fields)
    if first.change_set is not None:  # one that was rebuilt has nothing else
        change_id, keys = first.change_set.change_id, tuple(change.key for change in first.change_set.changes)
    more = ", …" if len(keys) > _KEYS_SHOWN else ""
    return f"the change at {first.position} ({change_id}, {', '.join(keys[:_KEYS_SHOWN])}{more})"

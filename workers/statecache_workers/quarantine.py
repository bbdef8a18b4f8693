"""The careful way to write a shard's entries, for when Postgres refuses the data of some or an entry cannot be read.

Entries are written in order behind a savepoint, and constraints that wait for the COMMIT are checked with each piece,
for that does not tell which change it means. Where Postgres refuses, the piece is halved until one change-set stands
alone, and what is taken lets the next one be twice as large. The one that is refused is parked raw, in the same
transaction, and counts as flushed. Its keys' tips are marked as quarantined at its version, so that what comes behind
it continues the chain, with the gap recorded. One that would have forked marks nothing: it is remembered as a fork, and
so is what descends from it.

Where many are refused that takes long. So whoever asks says when its time is over, and commits what has found a place:
a worker that goes through a whole batch would lose its lease meanwhile, and all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.entries import INTEGER_MAX, salvaged, storable
from statecache.rules.reconcile import NOTHING, Applied, Judgement, Tip
from statecache_workers.batch_writing import Judged, Raw, WriteResult, judged, writes
from statecache_workers.database import CHECK, Call, Control, Transaction
from statecache_workers.logs import alarm
from statecache_workers.postgres_arrays import texts
from statecache_workers.postgres_errors import Poison
from statecache_workers.sizing import PieceSize

if TYPE_CHECKING:
    from statecache.model import ChangeRecord, ChangeSet
    from statecache_workers.slices import Entry

UNREADABLE = "entry"
"""Stands in place of an SQLSTATE where the entry itself could not be read."""


class NotParked(Poison):
    """Raised where what Postgres refuses cannot be parked either."""

    def __init__(self, error: Poison) -> None:
        super().__init__(error.sqlstate, f"what it refuses cannot be parked either: {error.reason}")


ALARMS_MAX = 10
"""How many of the entries that are parked together are named in the log."""


async def tips_of(transaction: Transaction, keys: Sequence[str], *before: Control) -> dict[str, Tip]:
    """Ask Postgres for the keys' tips, behind what is `before`, in the same round trip."""
    *_, rows = await transaction.run(*before, Call("flush_tips", {"keys": texts(keys)}))
    tips = dict.fromkeys(keys, NOTHING)
    tips.update((key, Tip(*tip)) for key, *tip in rows)
    return tips


async def write_carefully(
    transaction: Transaction,
    shard: int,
    entries: Sequence[Entry],
    latest: Collection[str] = (),
    *,
    size: PieceSize,
    is_over: Callable[[], bool],
) -> tuple[WriteResult, int]:
    """Write what Postgres takes, park the rest, and return what became of all, and of how many entries.

    `latest` are the namespaces of whose history only the latest values are kept. Once `is_over` says so, it ends behind
    the first piece that found a place.
    """
    outcome, at = WriteResult(), 0
    while at < len(entries) and not (at and is_over()):
        piece = _readable(entries[at : at + size.entries])
        if not piece:
            await _park(transaction, shard, entries[at], Poison(UNREADABLE, entries[at].fault), outcome)
            at += 1
        elif await _placed(transaction, shard, piece, outcome, latest):
            at += len(piece)
            size.taken(len(piece))
        else:
            at += len(piece) == 1
            size.refused(len(piece))
    return outcome, at


def _readable(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries up to the first that cannot be read."""
    return [*takewhile(lambda entry: entry.change_set is not None and not entry.fault, entries)]


async def _placed(
    transaction: Transaction, shard: int, entries: Sequence[Entry], outcome: WriteResult, latest: Collection[str]
) -> bool:
    """Write a piece, and return whether Postgres took it; where it refuses a single entry, park that."""
    sets = [entry.change_set for entry in entries if entry.change_set is not None]
    verdict: Judged | None = None
    try:
        tips = await tips_of(transaction, sorted({change.key for one in sets for change in one.changes}), "SAVEPOINT")
        verdict = await judged(transaction, shard, sets, tips, latest=latest)
        await transaction.run(*writes([verdict]), *CHECK, "RELEASE")
    except Poison as error:
        await transaction.run("ROLLBACK TO", "RELEASE")
        if len(entries) == 1:
            await _park(transaction, shard, entries[0], error, outcome, verdict and verdict.judgement)
        return False
    judgement = verdict.judgement
    outcome.tips |= judgement.tips
    outcome.forked += judgement.forked
    outcome.excepted = max(outcome.excepted, judgement.excepted)
    outcome.hashed &= verdict.hashed
    return True


async def _park(
    transaction: Transaction, shard: int, entry: Entry, error: Poison, outcome: WriteResult,
    ruled: Judgement | None = None,
) -> None:  # fmt: skip
    """Park an entry; `ruled` is what was decided on it, where Postgres refused to write just that."""
    change_id, keys = salvaged(entry.fields)
    if entry.change_set is not None:
        change_id = storable(entry.change_set.change_id)
        keys = tuple(storable(change.key) for change in entry.change_set.changes)
        if not entry.fault:
            ruled = ruled or await _ruled(transaction, shard, entry.change_set)
    ruled = ruled or Judgement()
    raw = Raw(entry.position, entry.fields, change_id, keys, error, bool(ruled.forked))
    try:
        await park_raw(transaction, shard, [raw])
    except Poison as again:
        raise NotParked(again) from again
    outcome.parked.append(raw)
    outcome.excepted = max(outcome.excepted, entry.position.n)
    outcome.forked += ruled.forked
    outcome.tips |= await _mark(transaction, shard, ruled.applied)


async def park_raw(transaction: Transaction, shard: int, entries: Sequence[Raw]) -> None:
    """Park entries as they are, in one round trip."""
    await transaction.run(*(Call("quarantine_park", {
        "shard": shard,
        "epoch": min(one.position.epoch, INTEGER_MAX),
        "n": one.position.n,
        "change_id": one.change_id,
        "keys": list(one.keys),
        "entry": msgspec.msgpack.encode([bytes(field) for field in one.fields]),
        "sqlstate": one.error.sqlstate,
        "error": storable(one.error.reason),
        "forked": one.forked,
    }) for one in entries), *CHECK)  # fmt: skip


def tell_parked(shard: int, entries: Sequence[Raw]) -> None:
    """Raise the alarm about entries that are parked, each by itself as long as they are few."""
    for one in entries[:ALARMS_MAX]:
        why = {"reason": one.error.reason} if one.error.sqlstate == UNREADABLE else {}
        alarm("quarantined", shard=shard, position=str(one.position), change_id=one.change_id,
              keys=list(one.keys)[:10], sqlstate=one.error.sqlstate, **why)  # fmt: skip
    if len(entries) > ALARMS_MAX:
        alarm("quarantined", shard=shard, more=len(entries) - ALARMS_MAX, upto=str(entries[-1].position))


async def _ruled(transaction: Transaction, shard: int, parked: ChangeSet) -> Judgement:
    """Decide on a parked change-set as a whole; on one that Postgres cannot even be asked about nothing is decided."""
    try:
        tips = await tips_of(transaction, [change.key for change in parked.changes], "SAVEPOINT")
        ruled = (await judged(transaction, shard, [parked], tips)).judgement
    except Poison:
        await transaction.run("ROLLBACK TO", "RELEASE")
        return Judgement()
    await transaction.run("RELEASE")
    return ruled


async def _mark(transaction: Transaction, shard: int, continuing: Sequence[Applied]) -> dict[str, Tip]:
    """Mark the tips that a parked change-set's changes would have continued, and return the marked ones.

    Of a key whose state Postgres refuses too, or whose name it cannot hold, there can be no such tip.
    """
    possible = [(parked, change) for parked, change, _ in continuing if _can_be_held(change)]
    if not possible:
        return {}
    marks = msgspec.json.encode([_mark_of(shard, *one) for one in possible]).decode()
    given, made = Call("quarantine_marks_given", {"marks": marks}), Call("quarantine_marks_made", {})
    try:
        *_, keys, _ = await transaction.run("SAVEPOINT", given, Call("quarantine_mark", {}), made, "RELEASE")
    except Poison:
        await transaction.run("ROLLBACK TO", "RELEASE")
        return {}
    marked = {key for (key,) in keys}
    tips = {change.key: Tip(change.version, change.change_id, broken=True) for _, change in possible}
    return {key: tip for key, tip in tips.items() if key in marked}


def _can_be_held(change: ChangeRecord) -> bool:
    return all(text == storable(text) for text in (change.key, change.change_id))


def _mark_of(shard: int, parked: ChangeSet, change: ChangeRecord) -> dict[str, Any]:
    return {
        "key": change.key,
        "shard": shard,
        "version": change.version,
        "epoch": parked.position.epoch,
        "n": parked.position.n,
        "change_id": change.change_id,
        "parent_change_id": storable(change.parent_change_id),
        "writer": storable(parked.writer),
        "at": parked.at,
    }

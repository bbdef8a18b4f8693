"""The careful way to write a shard's entries, for when Postgres refuses the data of some or an entry cannot be read.

Entries are written in order behind a savepoint; where Postgres refuses, the piece is halved until one change-set stands
alone. That one is parked raw, in the same transaction, and counts as flushed. Its keys' tips are marked as quarantined
at its version, so that what comes behind it continues the chain, with the gap recorded. One that would have forked
marks nothing: it is remembered as a fork, and so is what descends from it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from statecache.entries import INTEGER_MAX, salvaged, storable
from statecache.model import ChangeSet, Position
from statecache.rules.reconcile import NOTHING, Applied, Judgement, Tip
from statecache_workers.batch_writing import WriteResult, judged, keep_tips, writes
from statecache_workers.database import Call, Transaction
from statecache_workers.logs import alarm
from statecache_workers.postgres_arrays import texts
from statecache_workers.postgres_errors import Poison

if TYPE_CHECKING:
    from statecache_workers.streams import Entry

UNREADABLE = "entry"
"""Stands in place of an SQLSTATE where the entry itself could not be read."""


ALARMS_MAX = 10
"""How many of the entries that are parked together are named in the log."""


class Raw(NamedTuple):
    """An entry that is to be parked, what can be told of it, and why; `forked` says that it would have forked."""

    position: Position
    fields: Sequence[bytes]
    change_id: str
    keys: Sequence[str]
    error: Poison
    forked: bool = False


async def tips_of(transaction: Transaction, keys: Sequence[str]) -> dict[str, Tip]:
    """Ask Postgres for the keys' tips."""
    (rows,) = await transaction.run(Call("flush_tips", {"keys": texts(keys)}))
    tips = dict.fromkeys(keys, NOTHING)
    tips.update((key, Tip(*tip)) for key, *tip in rows)
    return tips


async def write_carefully(
    transaction: Transaction, shard: int, entries: Sequence[Entry], latest: Collection[str] = ()
) -> WriteResult:
    """Write what Postgres takes, park the rest, and return what became of all.

    `latest` are the namespaces of whose history only the latest values are kept.
    """
    outcome = WriteResult()
    readable: list[Entry] = []
    for entry in entries:
        if entry.change_set is not None and not entry.fault:
            readable.append(entry)
            continue
        await _place(transaction, shard, readable, outcome, latest)
        readable = []
        await _park(transaction, shard, entry, Poison(UNREADABLE, entry.fault), outcome)
    await _place(transaction, shard, readable, outcome, latest)
    return outcome


async def _place(
    transaction: Transaction, shard: int, entries: Sequence[Entry], outcome: WriteResult, latest: Collection[str]
) -> None:
    if not entries:
        return
    sets = [entry.change_set for entry in entries if entry.change_set is not None]
    await transaction.mark("SAVEPOINT")
    try:
        tips = await tips_of(transaction, sorted({change.key for one in sets for change in one.changes}))
        verdict = await judged(transaction, shard, sets, tips, latest=latest)
        await transaction.run(*writes([verdict]))
    except Poison as error:
        await transaction.mark("ROLLBACK TO")
        await transaction.mark("RELEASE")
        if len(entries) == 1:
            await _park(transaction, shard, entries[0], error, outcome)
            return
        middle = len(entries) // 2
        await _place(transaction, shard, entries[:middle], outcome, latest)
        await _place(transaction, shard, entries[middle:], outcome, latest)
        return
    await transaction.mark("RELEASE")
    judgement = verdict.judgement
    outcome.tips |= judgement.tips
    outcome.forked += judgement.forked
    outcome.excepted = max(outcome.excepted, judgement.excepted)
    outcome.hashed &= verdict.hashed


async def _park(transaction: Transaction, shard: int, entry: Entry, error: Poison, outcome: WriteResult) -> None:
    change_id, keys = salvaged(entry.fields)
    ruled = Judgement()
    if entry.change_set is not None:
        change_id = storable(entry.change_set.change_id)
        keys = tuple(storable(change.key) for change in entry.change_set.changes)
        if not entry.fault:
            ruled = await _ruled(transaction, shard, entry.change_set)
    forked = bool(ruled.forked)
    await park_raw(transaction, shard, [Raw(entry.position, entry.fields, change_id, keys, error, forked)])
    outcome.parked += 1
    outcome.excepted = max(outcome.excepted, entry.position.n)
    outcome.forked += ruled.forked
    outcome.tips |= await _mark(transaction, shard, ruled.applied)


async def park_raw(transaction: Transaction, shard: int, entries: Sequence[Raw]) -> None:
    """Park entries as they are, in one round trip, and raise the alarm."""
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
    }) for one in entries))  # fmt: skip
    for one in entries[:ALARMS_MAX]:
        why = {"reason": one.error.reason} if one.error.sqlstate == UNREADABLE else {}
        alarm("quarantined", shard=shard, position=str(one.position), change_id=one.change_id,
              keys=list(one.keys)[:10], sqlstate=one.error.sqlstate, **why)  # fmt: skip


async def _ruled(transaction: Transaction, shard: int, parked: ChangeSet) -> Judgement:
    """Decide on a parked change-set as a whole; on one that Postgres cannot even be asked about nothing is decided."""
    await transaction.mark("SAVEPOINT")
    try:
        tips = await tips_of(transaction, [change.key for change in parked.changes])
        ruled = (await judged(transaction, shard, [parked], tips)).judgement
    except Poison:
        await transaction.mark("ROLLBACK TO")
        ruled = Judgement()
    await transaction.mark("RELEASE")
    return ruled


async def _mark(transaction: Transaction, shard: int, continuing: Sequence[Applied]) -> dict[str, Tip]:
    """Mark the tips that a parked change-set's changes would have continued, and return the marked ones."""
    marked: dict[str, Tip] = {}
    for parked, change, _ in continuing:
        parameters = {
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
        await transaction.mark("SAVEPOINT")
        try:
            await transaction.run(keep_tips([change.key], [False]), Call("quarantine_mark", parameters))
            marked[change.key] = Tip(change.version, change.change_id, broken=True)
        except Poison:
            await transaction.mark("ROLLBACK TO")  # Postgres refuses the key's state too: it can have no such tip
        await transaction.mark("RELEASE")
    return marked

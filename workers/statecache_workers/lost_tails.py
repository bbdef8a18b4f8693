"""What is known to be lost, recorded in Postgres: the tails of epochs that ended, and gaps that nothing filled.

A worker sees how far its shards have come. Where a later epoch began before that, what came behind its start went with
the Redis that held it, and whoever was told a position of it can look it up (`statecache lost`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from statecache.entries import storable
from statecache.errors import PostgresUnavailable
from statecache_workers.database import Call, Database
from statecache_workers.logs import alarm, warn
from statecache_workers.postgres_arrays import texts
from statecache_workers.stream_places import KEYS_MAX

if TYPE_CHECKING:
    from statecache_workers.slices import Slice
    from statecache_workers.stream_places import Gap


async def tell_of_tails(
    database: Database, ended: dict[tuple[int, int], int], shards: Collection[int], *, by: str
) -> None:
    """Tell Postgres how far these shards had come in epochs that have ended, once; an alarm where that is lost.

    A role that may not do it goes on flushing.
    """
    told = [(*place, n, "", "") for place, n in ended.items() if place[0] in shards]
    if not told:
        return
    try:
        async with database.transaction() as transaction:
            (rows,) = await transaction.run(Call("report_lost", _columns(told) | {"by": by}))
            await transaction.commit()
    except PostgresUnavailable as error:
        warn("lost_tail_not_told", reason=error.reason, detail=error.detail, shards=sorted({one[0] for one in told}))
        if not database.alive:
            raise
        return
    for shard, epoch, *_ in told:
        ended.pop((shard, epoch), None)
    for shard, _, n, _, _, epoch, start_n, *_ in rows:
        alarm("lost_tail", shard=shard, epoch=epoch, first=start_n + 1, last=n)


def gap_calls(one: Slice, gap: Gap, *, by: str) -> list[Call]:
    """Return the calls that record what is lost in a gap, in the transaction that passes it."""
    facts = {"shard": one.shard, "epoch": one.holding.row.epoch, "first": gap.first, "last": gap.last}
    calls = [Call("record_gap", facts | {"positions": gap.lost, "keys": texts(gap.keys), "by": by})]
    if gap.changes:
        told = [
            (one.shard, change.epoch, change.n, storable(change.change_id), storable(change.key))
            for change in gap.changes
        ]
        calls.append(Call("report_lost", _columns(told) | {"by": by}))
    return calls


def tell_gap(one: Slice) -> None:
    """Raise the alarm about a gap that is passed."""
    first, last, lost = one.start.n + 1, one.end.n, sum(gap.lost for gap in one.gaps)
    keys = list(dict.fromkeys(key for gap in one.gaps for key in gap.keys))[:KEYS_MAX]
    alarm("gap", shard=one.shard, first=first, last=last, repaired=last - first + 1 - lost, lost=lost,
          missing_bytes=one.missing_bytes, keys=keys)  # fmt: skip


def _columns(told: Sequence[tuple[int, int, int, str, str]]) -> dict[str, Any]:
    shards, epochs, ns, change_ids, keys = (list(column) for column in zip(*told, strict=True))
    return {"shards": shards, "epochs": epochs, "ns": ns, "change_ids": change_ids, "keys": keys}

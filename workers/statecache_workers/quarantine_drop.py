"""Giving parked entries up, in three steps; whichever is the last, another `drop` of the entry goes on from there.

    claim    under the shard's lock the entry is noted as being dropped, and no `retry` takes it in from then on; before
             that Postgres has to take what was before it, in writes that are rolled back
    restore  where a key still ends with the parked change, the value before it is committed anew, as the next version,
             by the ordinary path and only if nobody was quicker
    record   when Postgres holds what the keys have instead, the entry is noted as dropped, with who, when and why

Nothing changes what agents have committed since. A key's version never goes down, and the gap in its history stays
visible. Of two drops at once one commits, both wait for Postgres, and one makes the record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache._async.client import AsyncStateCache
from statecache.clock import monotonic, wall
from statecache.concurrency import TASKS
from statecache.core.history.values import HistoryValues, VersionAt
from statecache.entries import storable
from statecache.errors import Quarantined, VersionConflict
from statecache.model import Write
from statecache.settings import writer_of
from statecache_workers.database import CHECK, Call, Transaction
from statecache_workers.parked_entries import Parked, ParkedAt, Unfit, reason_text
from statecache_workers.postgres_errors import Poison
from statecache_workers.quarantine_release import NOT_THERE, Done, Quarantine, dropped_before, not_there, opened

if TYPE_CHECKING:
    from statecache.settings import Settings

TAKEN_IN = f"{NOT_THERE} any more: it was taken in meanwhile"
NOT_NOTED = "Postgres refuses to note that it is being dropped: {why}"
REFUSED_TOO = (
    "Postgres refuses what was before it as well: {why}; remove the cause, or write {keys} anew, and drop it then"
)
REFUSED_SINCE = (
    "{keys} ends with another change behind it that Postgres has refused, {change_id}: take that in or write the key "
    "anew, and drop it then"
)
NOT_YET = "{keys} was written since, and Postgres does not hold that yet: see that a worker runs, and drop it then"
_LOOK_AGAIN_S = 0.1
"""How long is waited before Postgres is asked again whether it holds what a key has instead, in seconds."""


class Tip(NamedTuple):
    """The parked change with which a key ends, and the last change before it that is there; version 0 is none."""

    key: str
    change_id: str
    version: int
    parent_change_id: str
    op: str
    encoding: str
    schema: str
    before: int


class Drop(NamedTuple):
    """What is said of entries that are given up."""

    actor: str
    reason: str
    durability: str

    @property
    def about(self) -> str:
        """Who gives them up, and why."""
        return f"by {self.actor}" + (f": {self.reason}" if self.reason else "")

    def reason_at(self, place: ParkedAt) -> str:
        """Return the reason of the commit that restores what was before one of them."""
        return f"quarantine drop {place} {self.about}"[:500]


class Claim(NamedTuple):
    """An entry that is being dropped: the writes that restore what was before it, and what was parked behind it."""

    parked: Parked
    writes: list[Write]
    behind: Collection[str]


async def drop(
    settings: Settings, places: Sequence[ParkedAt], *, actor: str, reason: str, durability: str
) -> list[Done]:
    """Give the named entries up, and commit anew what was before them."""
    asked = Drop(actor, reason, durability)
    async with opened(settings) as quarantine, AsyncStateCache(settings=settings) as cache:
        return [await _dropped(quarantine, cache, place, asked) for place in dict.fromkeys(places)]


async def _dropped(quarantine: Quarantine, cache: AsyncStateCache, place: ParkedAt, asked: Drop) -> Done:
    restored: list[str] = []
    try:
        claim = await _claimed(quarantine, place, asked)
        if isinstance(claim, Done):
            return claim
        restored = await _restored(cache, place, claim.writes, asked)
        if asked.durability == "postgres":
            await _until_held(quarantine, claim)
    except Unfit as error:
        return Done(id=str(place), done=False, why=str(error), restored=restored)
    except Poison as error:
        why = NOT_NOTED.format(why=f"{reason_text(error.sqlstate)}: {error.reason}")
        return Done(id=str(place), done=False, why=why, restored=restored)
    return await _recorded(quarantine, place, asked, restored)


async def _claimed(quarantine: Quarantine, place: ParkedAt, asked: Drop) -> Claim | Done:
    """Note that an entry is being dropped; or return what became of it before, or raise Unfit where it has to stay."""
    async with quarantine.database.transaction(of_data=True) as transaction:
        await transaction.run(Call("quarantine_lock", place._asdict()))
        parked = await quarantine.read(transaction, place)
        if parked is None:
            return not_there(place)
        if parked.dropped:
            return Done(id=str(place), done=True, why=dropped_before(parked))
        tips = await _tips(transaction, parked)
        mine = [tip for tip in tips if tip.change_id == parked.change_id]
        behind = [tip for tip in tips if tip.change_id != parked.change_id]
        if parked.being_dropped and behind:  # what a drop that was cut short has committed may be one of them
            raise _refused_since(behind)
        writes = await _before(transaction, quarantine.settings, mine)
        await _try(transaction, quarantine.settings, place, mine, writes, asked)
        await transaction.commit(Call("quarantine_claim", place._asdict()))
    return Claim(parked, writes, {tip.change_id for tip in behind})


async def _tips(transaction: Transaction, parked: Parked) -> list[Tip]:
    """Return the keys that still end with the parked change, or with a parked one right behind it."""
    if not parked.change_id:
        return []
    (rows,) = await transaction.run(Call("quarantine_marked", {"keys": parked.keys, "change_id": parked.change_id}))
    return [Tip(*row) for row in rows]


async def _before(transaction: Transaction, settings: Settings, tips: Sequence[Tip]) -> list[Write]:
    """Return, for each key that ends with the parked change, the write of what was before it."""

    async def fetch(name: str, parameters: Mapping[str, Any], **_: float) -> Sequence[tuple[Any, ...]]:
        return (await transaction.run(Call(name, parameters)))[0]

    asked = [VersionAt(tip.key, tip.before) for tip in tips if tip.op == "set"]
    values = await HistoryValues(fetch).read(asked, seconds=settings.timeout_s)
    writes = []
    for tip in tips:
        if tip.op != "set":
            writes.append(Write(key=tip.key, op="delete", expected=tip.change_id))
            continue
        value = values.get(VersionAt(tip.key, tip.before))
        if value is None:
            raise Unfit(f"version {tip.before} of {tip.key!r}, which was before it, is not kept; write its value anew")
        writes.append(
            Write(
                key=tip.key, op="set", expected=tip.change_id, value=value, encoding=tip.encoding, schema=tip.schema
            )
        )  # fmt: skip
    return writes


async def _try(
    transaction: Transaction, settings: Settings, place: ParkedAt, tips: Sequence[Tip], writes: Sequence[Write],
    asked: Drop,
) -> None:  # fmt: skip
    """Write what was before in place of the parked change, and roll that back; raise Unfit where it is refused."""
    if not writes:
        return
    await transaction.run("SAVEPOINT")
    try:
        await transaction.run(
            *(_row(settings, place, *one, asked) for one in zip(tips, writes, strict=True)),
            Call("quarantine_unmark", {"change_id": tips[0].change_id}),
            *CHECK,
        )
    except Poison as error:
        why = f"{reason_text(error.sqlstate)}: {error.reason}"
        raise Unfit(REFUSED_TOO.format(why=why, keys=_some(tips))) from error
    await transaction.run("ROLLBACK TO")
    await transaction.run("RELEASE")


def _row(settings: Settings, place: ParkedAt, tip: Tip, write: Write, asked: Drop) -> Call:
    return Call("quarantine_take", {
        "key": tip.key, "version": tip.version, "change_id": tip.change_id, "parent_change_id": tip.parent_change_id,
        "shard": place.shard, "epoch": place.epoch, "n": place.n, "op": write.op, "value": write.value,
        "encoding": write.encoding, "schema": write.schema, "writer": writer_of(settings), "actor": asked.actor[:200],
        "reason": asked.reason_at(place), "gap": True, "at": wall(), "digest": sha256(write.value).digest(),
        "hash": None,
    })  # fmt: skip


async def _restored(cache: AsyncStateCache, place: ParkedAt, writes: Sequence[Write], asked: Drop) -> list[str]:
    """Commit what was before, together, but for keys that somebody has written meanwhile; return the keys committed."""
    left = list(writes)
    while left:
        commit = cache._runtime.committer.new(
            left, place.shard, durability=cache._view.durability_of(asked.durability), actor=asked.actor[:200],
            reason=asked.reason_at(place), end=cache._view.end_of(None), change_id=None,
        )  # fmt: skip
        try:
            await cache._runtime.committer.commit(commit)
        except VersionConflict as error:
            left = [write for write in left if write.key != error.key]
            continue
        except Quarantined as error:  # Postgres took it when it was tried
            raise Unfit(REFUSED_SINCE.format(keys=repr(error.key), change_id=error.change_id)) from error
        break
    return [write.key for write in left]


async def _until_held(quarantine: Quarantine, claim: Claim) -> None:
    """Wait until Postgres holds what each key has in place of the parked change; raise Unfit where it does not."""
    end = monotonic() + quarantine.settings.timeout_s
    while True:
        async with quarantine.database.transaction() as transaction:
            tips = await _tips(transaction, claim.parked)
        if behind := [tip for tip in tips if tip.change_id not in (claim.parked.change_id, *claim.behind)]:
            raise _refused_since(behind)
        left = [tip for tip in tips if tip.change_id == claim.parked.change_id]
        if not left:
            return
        if monotonic() > end:
            raise Unfit(NOT_YET.format(keys=_some(left)))
        await TASKS.sleep(_LOOK_AGAIN_S)


async def _recorded(quarantine: Quarantine, place: ParkedAt, asked: Drop, restored: list[str]) -> Done:
    """Record that an entry was given up, or return what became of it meanwhile."""
    async with quarantine.database.transaction() as transaction:
        _, noted = await transaction.run(
            Call("quarantine_lock", place._asdict()),
            Call("quarantine_drop", {**place._asdict(), "about": storable(asked.about)}),
        )
        if noted:
            await transaction.commit()
            return Done(id=str(place), done=True, restored=restored)
        parked = await quarantine.read(transaction, place)
    if parked is None:
        return Done(id=str(place), done=False, why=TAKEN_IN, restored=restored)
    return Done(id=str(place), done=True, why=dropped_before(parked), restored=restored)


def _refused_since(behind: Sequence[Tip]) -> Unfit:
    return Unfit(REFUSED_SINCE.format(keys=_some(behind[:1]), change_id=behind[0].change_id))


def _some(tips: Sequence[Tip]) -> str:
    return ", ".join(repr(tip.key) for tip in tips[:3]) + (f" and {len(tips) - 3} more" if len(tips) > 3 else "")

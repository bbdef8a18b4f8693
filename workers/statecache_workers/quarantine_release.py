"""Taking parked entries back in: transactions under the shard's lock. Giving them up is `quarantine_drop`.

`retry` writes the change rows at their own versions, gives marked states their values, closes the gaps behind, and
ends the quarantine, all in one transaction. Whatever Postgres still refuses, it refuses here too, and nothing is done.
Redis is told afterwards: states that were loaded as quarantined are loaded again. Watermarks stay where they are.
What was dropped, or is being dropped, is taken in only where that is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.clock import wall
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.tier import RedisTier
from statecache.errors import ConfigurationError, PostgresUnavailable, RedisUnavailable
from statecache.history import begins_anew, link
from statecache.keys import KeySpace
from statecache.lua import script
from statecache.rules.reconcile import Applied
from statecache_workers.database import Call, Database, Transaction
from statecache_workers.origins import link_call, linked
from statecache_workers.parked_entries import (
    Parked,
    ParkedAt,
    Spot,
    TooEarly,
    Unfit,
    newest_first,
    plan,
    readable,
    reason_text,
    together,
)
from statecache_workers.postgres_errors import Poison

if TYPE_CHECKING:
    from statecache.model import ChangeSet
    from statecache.settings import Settings

LIST_MAX = 10_000
AFTER_ALL = "for what is parked behind it did not go in"
NOT_THERE = "it is not in quarantine"
DROPPED_BEFORE = "it was dropped before"
BEING_DROPPED = (
    "it is being dropped: `statecache quarantine drop` finishes what was cut short, --dropped takes it in all the same"
)
RIGHTS = "42501"
"""The SQLSTATE of a missing right."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one parked entry: `done`, or why not."""

    id: str
    done: bool
    why: str = ""
    taken: int = 0
    """Changes that are in their chains now."""
    unmarked: list[str] = []
    """Keys whose state has its value again."""
    mended: list[str] = []
    """Keys with a gap that is closed."""
    restored: list[str] = []
    """Keys whose value before the dropped change was committed anew."""


def not_there(place: ParkedAt) -> Done:
    """Return what becomes of an entry that is not in quarantine."""
    return Done(id=str(place), done=False, why=NOT_THERE)


def dropped_before(parked: Parked) -> str:
    """Return in words when an entry was given up, by whom and why."""
    return f"{DROPPED_BEFORE}: {parked.error}"


def _given_up(parked: Parked) -> str:
    """Return why an entry is not to be taken in unasked; of one that was erased nothing is left that could be."""
    if parked.dropped and parked.fields():
        return f"{dropped_before(parked)}; --dropped takes it in all the same"
    return BEING_DROPPED if parked.being_dropped else ""


class Quarantine:
    """One deployment's quarantine, to read and to change."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings
        self.keys = KeySpace(settings.prefix, settings.shards)
        self.database = database

    async def listed(self, *, dropped: bool, limit: int | None = LIST_MAX) -> list[Parked]:
        """Return what is parked, newest first, without the entries themselves; a limit of None is none."""
        async with self.database.transaction() as transaction:
            (rows,) = await transaction.run(Call("quarantine_list", {"dropped": dropped, "limit": limit}))
        return [_parked(row) for row in rows]

    async def found(self, place: ParkedAt) -> Parked | None:
        """Return one parked entry whole, or None where it is not in quarantine."""
        async with self.database.transaction() as transaction:
            return await self.read(transaction, place)

    async def read(self, transaction: Transaction, place: ParkedAt) -> Parked | None:
        """Return the same in a transaction that is under way."""
        (rows,) = await transaction.run(Call("quarantine_entry", place._asdict()))
        return _parked(rows[0]) if rows else None

    async def take_in(self, place: ParkedAt, *, dropped: bool = False) -> Done:
        """Take an entry in, or return why it cannot be; raise TooEarly where another has to go in first.

        One that was dropped, or is being dropped, stays as it is unless `dropped` asks for it.
        """
        try:
            async with self.database.transaction(of_data=True) as transaction:
                await transaction.run(Call("quarantine_lock", place._asdict()))
                parked = await self.read(transaction, place)
                if parked is None:
                    return not_there(place)
                if not dropped and (why := _given_up(parked)):
                    return Done(id=str(place), done=False, why=why)
                change_set = readable(parked, self.keys)
                spots = await _spots(transaction, change_set)
                takings = plan(change_set, spots)
                await transaction.run(*(_row(place, change_set, spots, *taking) for taking in takings))
                links = await linked(transaction, [Applied(change_set, *taking) for taking in takings], [])
                if links:
                    await transaction.run(link_call(links))
                unmarked, mended, _ = await transaction.run(
                    Call("quarantine_unmark", {"change_id": change_set.change_id}),
                    Call("quarantine_mend", {"change_id": change_set.change_id}),
                    Call("quarantine_remove", place._asdict()),
                )
                await transaction.commit()
        except TooEarly:
            raise
        except Unfit as error:
            return Done(id=str(place), done=False, why=str(error))
        except Poison as error:
            why = f"Postgres still refuses it: {reason_text(error.sqlstate)}: {error.reason}"
            return Done(id=str(place), done=False, why=why)
        return Done(
            id=str(place), done=True, taken=len(takings), unmarked=[row[0] for row in unmarked],
            mended=[row[0] for row in mended], why=f"it had been {parked.error}" if parked.dropped else "",
        )  # fmt: skip


@contextlib.asynccontextmanager
async def opened(settings: Settings, *, cluster: str = "") -> AsyncIterator[Quarantine]:
    """Open the quarantine of the Postgres that the settings mean, which must be of `cluster` if given, and close it."""
    keys = KeySpace(settings.prefix, settings.shards)
    session = await PostgresTier(settings, keys, cluster=lambda: cluster).session()
    database = Database(session, settings)
    try:
        yield Quarantine(settings, database)
    except PostgresUnavailable as error:
        if error.reason != RIGHTS:
            raise
        hint = "Use the schema owner's role: retry and drop write to change, state and quarantine."
        raise ConfigurationError(f"Postgres: {error.detail}", hint=hint) from error
    finally:
        await database.close()


async def retry(settings: Settings, places: Sequence[ParkedAt] | None, *, dropped: bool = False) -> list[Done]:
    """Take in the named entries, or all, newest first; what was dropped only where `dropped` asks for it."""
    tier = RedisTier(settings, KeySpace(settings.prefix, settings.shards))
    link = await tier.link()
    try:
        async with opened(settings, cluster=tier.cluster) as quarantine:
            asked = await _asked(quarantine, places, dropped=dropped)
            done, behind, left = [], None, list[Parked]()
            for parked in newest_first(asked):
                try:
                    one = await quarantine.take_in(parked.place, dropped=dropped)
                except TooEarly as error:
                    if places is not None and behind is None:
                        behind = await quarantine.listed(dropped=dropped, limit=None)
                    last = _holds(left, parked, error.key)
                    more = AFTER_ALL if last else together(parked.place, error.key, behind or [])
                    one = Done(id=str(parked.place), done=False, why=f"{error}, {more}")
                if one.unmarked:
                    one = await _told(link, quarantine.keys, parked, one)
                if not one.done:
                    left.append(parked)
                done.append(one)
            return done
    finally:
        await link.close()


def _holds(left: Sequence[Parked], parked: Parked, key: str) -> bool:
    """Return whether one that was tried before this entry, and did not go in, is of the key."""
    return any(one.place.shard == parked.place.shard and key in one.keys for one in left)


async def _asked(quarantine: Quarantine, places: Sequence[ParkedAt] | None, *, dropped: bool) -> list[Parked]:
    if places is None:
        return await quarantine.listed(dropped=dropped, limit=None)
    found = {place: await quarantine.found(place) for place in dict.fromkeys(places)}
    return [parked or _nothing(place) for place, parked in found.items()]


async def _told(link: Any, keys: KeySpace, parked: Parked, done: Done) -> Done:
    """Make Redis load the states again; where it is away, readers see their values when what it holds expires."""
    shard = parked.place.shard
    names = [keys.hydrating(shard), keys.unflushed(shard), *(keys.state(key) for key in done.unmarked)]
    try:
        await link.script(script("reread"), names, [parked.change_id, *done.unmarked], seconds=5.0)
    except RedisUnavailable as error:
        why = f"Redis could not be told, and may call it quarantined for a while: {error}"
        return msgspec.structs.replace(done, why="; ".join(filter(None, (done.why, why))))
    return done


async def missing(settings: Settings, places: Sequence[ParkedAt]) -> list[Done]:
    """Return those of the named entries that are not in quarantine."""
    async with opened(settings) as quarantine:
        found = {place: await quarantine.found(place) for place in dict.fromkeys(places)}
    return [not_there(place) for place, parked in found.items() if parked is None]


async def _spots(transaction: Transaction, change_set: ChangeSet) -> dict[str, Spot]:
    changes = change_set.changes
    asked = {
        "keys": [change.key for change in changes],
        "versions": [change.version for change in changes],
        "parents": [change.parent_change_id for change in changes],
    }
    (rows,) = await transaction.run(Call("quarantine_places", asked))
    return {key: Spot(version or 0, tip or "", op or "", here or "", behind or "", there, parent_hash if there else b"")
            for key, version, tip, op, here, behind, there, parent_hash in rows}  # fmt: skip


def _row(place: ParkedAt, change_set: ChangeSet, spots: Mapping[str, Spot], change: Any, gap: bool) -> Call:
    before, digest = spots[change.key].parent_hash, sha256(change.value).digest()
    if begins_anew(change_set, change):
        before = b""
    return Call("quarantine_take", {
        "key": change.key, "version": change.version, "change_id": change.change_id,
        "parent_change_id": change.parent_change_id, "shard": place.shard, "epoch": place.epoch, "n": place.n,
        "op": change.op, "value": change.value, "encoding": change.encoding, "schema": change.schema,
        "writer": change_set.writer, "actor": change_set.actor, "reason": change_set.reason, "gap": gap,
        "at": change_set.at, "digest": digest,
        "hash": None if before is None else link(before, change, change_set, digest),
    })  # fmt: skip


def _parked(row: Sequence[Any]) -> Parked:
    shard, epoch, n, change_id, keys, size, sqlstate, error, recorded_at, *entry = row
    return Parked(
        place=ParkedAt(shard, epoch, n), change_id=change_id, keys=keys, size=size, sqlstate=sqlstate, error=error,
        recorded_at=recorded_at, entry=bytes(entry[0]) if entry else b"",
    )  # fmt: skip


def _nothing(place: ParkedAt) -> Parked:
    return Parked(place=place, change_id="", keys=[], size=0, sqlstate="", error="", recorded_at=wall())

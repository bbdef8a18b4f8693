"""Who flushes which shard: a row a shard in Postgres, shared evenly over the workers that live.

A worker says every `lease_renew_s` that it lives, renews its shards, takes its part of those that nobody owns, and
gives back what is more than its part: ceil(shards / workers that share). Workers that avoid shards (`avoidance`) do not
count among those, so that the others have room for what they avoid. Who comes, gives or leaves rings a bell in Redis,
so that the others need not find out by themselves. A lease only settles who should flush; that two
never do is settled by the row's lock in each flush.

A row that another session holds is not waited for: it is left out of this turn, and the other shards go on.

Rows are read nowhere else but here and in the flush itself, in transactions that commit cleanly. A watermark that an
earlier COMMIT wrote without its synchronous standby is therefore with the standby before anybody acknowledges it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.entries import storable
from statecache.errors import RedisUnavailable
from statecache_workers.database import Call, Database, Transaction
from statecache_workers.logs import warn
from statecache_workers.owned_shards import Head, Holding, OwnedRow, agree, set_apart
from statecache_workers.postgres_arrays import integers

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.settings import Settings
    from statecache_workers.avoided_shards import Avoidance
    from statecache_workers.streams import Streams


TROUBLE_MAX = 1000
"""How much is told of what hinders a worker, in characters: a command that mends it is to be whole."""


class Share(msgspec.Struct, kw_only=True):
    """What the worker owns now, and how things stand with the others.

    `held` are shards whose row another session holds: they were this worker's when that session locked them. `sharing`
    counts the workers among which the shards are shared out: those that serve all that they get, and this one. `able`
    counts them without this one.
    """

    rows: dict[int, OwnedRow] = {}
    held: set[int] = set()
    live: int = 1
    sharing: int = 1
    able: int = 0
    unowned: int = 0
    reaped: list[str] = []
    ended: list[tuple[int, list[int], str]] = []
    """Sessions of workers that are gone, with the shards whose rows they held: they were ended."""


class Ownership:
    """The taking, renewing and giving back of one worker's shards."""

    def __init__(self, settings: Settings, *, owner: str) -> None:
        self._shards = settings.shards
        self._owner = owner

    async def tend(
        self, database: Database, *, avoid: Avoidance | None = None, take: bool = True, trouble: str = ""
    ) -> Share:
        """Renew, take and give back, in one transaction, and return what the worker owns then."""
        mine = {"owner": self._owner, "lease": database.lease}
        avoided = avoid.shards if avoid is not None else []
        worker = self._worker(database, avoids=len(avoided), trouble=trouble)
        async with database.transaction() as transaction:
            _, reaped, rows, census = await transaction.run(
                Call("worker_heartbeat", worker),
                Call("worker_reap", worker),
                Call("shards_renew", mine),
                Call("worker_census", {}),
            )
            live, unowned, sharing = census[0]
            share = Share(live=max(1, live), unowned=unowned, reaped=[row[0] for row in reaped])
            share.sharing = max(1, sharing + bool(avoided))
            share.able = share.sharing - 1
            share.rows = _rows([row for row in rows if row[1] is not None])
            share.held = {row[0] for row in rows if row[1] is None}
            if take:
                never = avoid.strictly if avoid is not None else []
                await self._even_out(transaction, share, mine | {"avoid": integers(avoided), "never": integers(never)})
            if share.held or share.unowned:
                (share.ended,) = await transaction.run(Call("sessions_end", {"owner": self._owner}))
            await transaction.commit()
        return share

    async def tell(self, database: Database, share: Share, trouble: str) -> None:
        """Say that the worker lives, leaves all shards to the others, and why; note in `share` how many those are.

        It renews nothing: who cannot use Redis serves no shard, and the others take its own once its leases have ended.
        """
        worker = self._worker(database, avoids=self._shards, trouble=trouble)
        async with database.transaction() as transaction:
            _, census = await transaction.run(Call("worker_heartbeat", worker), Call("worker_census", {}))
            await transaction.commit()
        share.live, share.unowned = max(1, census[0][0]), census[0][1]

    def _worker(self, database: Database, *, avoids: int, trouble: str) -> dict[str, Any]:
        return {
            "id": self._owner, "host": socket.gethostname(), "pid": os.getpid(), "lease": database.lease,
            "avoids": avoids, "trouble": _shown(storable(trouble)),
        }  # fmt: skip

    async def _even_out(self, transaction: Transaction, share: Share, mine: dict[str, Any]) -> None:
        room = -(-self._shards // share.sharing) - len(share.rows) - len(share.held)
        if room > 0 and share.unowned > 0:
            (rows,) = await transaction.run(Call("shards_take", mine | {"room": room}))
            share.rows |= _rows(rows)
            share.unowned -= len(rows)
        surplus = sorted(share.rows)[room:] if room < 0 else []
        if surplus:
            await transaction.run(Call("shards_give", {**mine, "shards": integers(surplus)}))
            for shard in surplus:
                del share.rows[shard]

    async def holders(self, database: Database, shards: Collection[int]) -> dict[int, str]:
        """Return who holds the rows of these shards in Postgres, in words, as far as this role may see."""
        async with database.transaction() as transaction:
            (rows,) = await transaction.run(Call("row_holders", {"shards": integers(sorted(shards))}))
        return {shard: _holder(*rest) for shard, *rest in rows}

    async def rows(self, database: Database, shards: Collection[int]) -> dict[int, OwnedRow]:
        """Return the rows of these shards, whoever owns them."""
        async with database.transaction() as transaction:
            (rows,) = await transaction.run(Call("shard_rows", {"shards": integers(sorted(shards))}))
        return _rows(rows)

    async def give_back(self, database: Database, shards: Collection[int]) -> None:
        """Give some shards back."""
        async with database.transaction() as transaction:
            await transaction.run(Call("shards_give", {"owner": self._owner, "shards": integers(sorted(shards))}))
            await transaction.commit()

    async def leave(self, database: Database) -> None:
        """Give everything back and sign the worker off."""
        everything = integers(range(self._shards))
        async with database.transaction() as transaction:
            await transaction.run(
                Call("shards_give", {"owner": self._owner, "shards": everything}),
                Call("worker_leave", {"id": self._owner}),
            )
            await transaction.commit()


def _shown(trouble: str) -> str:
    """Return what hinders a worker, with a mark where it is cut off."""
    return trouble if len(trouble) <= TROUBLE_MAX else f"{trouble[: TROUBLE_MAX - 1]}…"


def _holder(
    pid: int | None, user: str, name: str, state: str | None, wait: str | None, age: float | None, standbys: str
) -> str:
    """Return in words which session, if one does, holds a row, and what it waits for, as far as this role may see."""
    if pid is None:
        return "a prepared transaction: see pg_prepared_xacts"
    who = f"pid {pid}, {user} with {name or 'no application_name'}"
    if state is None or age is None:
        return f"{who}, of which this role may see no more (pg_read_all_stats)"
    told = f"{who}, {state}/{wait or 'busy'} for {age:.0f} s"
    if wait == "SyncRep":
        told += f": its COMMIT waits for a synchronous standby (synchronous_standby_names = '{standbys}')"
    return told


def _rows(rows: Collection[tuple[Any, ...]]) -> dict[int, OwnedRow]:
    return {shard: OwnedRow(*rest) for shard, *rest in rows}


async def leave_held(
    ownership: Ownership, database: Database, held: Sequence[Holding], now: float, *, long_s: float
) -> None:
    """Leave shards for later whose row another session holds, and tell who does where that goes on."""
    for holding in held:
        holding.hold_off(now)
    long = [one for one in held if now - (one.held_since or now) >= long_s]
    who = await ownership.holders(database, [one.shard for one in long]) if long else {}
    for holding in long:
        told = who.get(holding.shard, "a session that this role may not see (pg_read_all_stats)")
        if not holding.reason:
            set_apart(holding, "row_held", f"its row in Postgres is held by {told}")


async def look_again(
    avoidance: Avoidance, ownership: Ownership, streams: Streams, link: Link, database: Database, now: float
) -> None:
    """End the avoiding of shards that were avoided for long enough, where this Redis agrees with their rows."""
    ripe = avoidance.ripe(now)
    if not ripe:
        return
    avoidance.go_on(ripe, now)
    rows = await ownership.rows(database, ripe)
    try:
        heads = await streams.heads(link, ripe)
    except RedisUnavailable as error:
        warn("still_avoided", shards=ripe, reason=str(error))
        return
    fit = {
        shard for shard in ripe
        if isinstance(head := heads.of[shard], Head) and agree(rows[shard], head, heads.server)
    }  # fmt: skip
    avoidance.end(fit)
    if left := sorted(set(ripe) - fit):
        warn("still_avoided", shards=left, reason="their gates are closed on this Redis")

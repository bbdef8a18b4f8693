"""Who flushes which shard: a row a shard in Postgres, shared evenly over the workers that live.

A worker says every `lease_renew_s` that it lives, renews its shards, takes its part of those that nobody owns, and
gives back what is more than its part: ceil(shards / live workers). Who comes, gives or leaves rings a bell in Redis,
so that the others need not find out by themselves. A lease only settles who should flush; that two
never do is settled by the row's lock in each flush.

A row that another session holds is not waited for: it is left out of this turn, and the other shards go on.

Rows are read nowhere else but here and in the flush itself, in transactions that commit cleanly. A watermark that an
earlier COMMIT wrote without its synchronous standby is therefore with the standby before anybody acknowledges it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from statecache_workers.arrays import integers
from statecache_workers.database import Call, Database, Transaction
from statecache_workers.holdings import Row

if TYPE_CHECKING:
    from statecache.settings import Settings


class Share(msgspec.Struct, kw_only=True):
    """This is what the worker owns now, and how things stand with the others.

    `held` are shards whose row another session holds: they were this worker's when that session locked them.
    """

    rows: dict[int, Row] = {}
    held: set[int] = set()
    live: int = 1
    unowned: int = 0
    reaped: list[str] = []
    ended: list[tuple[int, list[int], str]] = []
    """Sessions of workers that are gone, with the shards whose rows they held: they were ended."""


class Ownership:
    """This takes, renews and gives back the shards of one worker."""

    def __init__(self, settings: Settings, *, owner: str) -> None:
        self._shards = settings.shards
        self._owner = owner

    async def tend(self, database: Database, *, avoid: Collection[int] = (), take: bool = True) -> Share:
        """This renews, takes and gives back, in one transaction, and gives the rows of what the worker owns."""
        mine = {"owner": self._owner, "lease": database.lease}
        worker = {"id": self._owner, "host": socket.gethostname(), "pid": os.getpid(), "lease": database.lease}
        async with database.transaction() as transaction:
            _, reaped, rows, census = await transaction.run(
                Call("worker_beat", worker),
                Call("worker_reap", worker),
                Call("shards_renew", mine),
                Call("worker_census", {}),
            )
            share = Share(live=max(1, census[0][0]), unowned=census[0][1], reaped=[row[0] for row in reaped])
            share.rows = _rows([row for row in rows if row[1] is not None])
            share.held = {row[0] for row in rows if row[1] is None}
            if take:
                await self._even_out(transaction, share, sorted(avoid), mine)
            if share.held or share.unowned:
                (share.ended,) = await transaction.run(Call("sessions_end", {"owner": self._owner}))
            await transaction.commit()
        return share

    async def _even_out(self, transaction: Transaction, share: Share, avoid: list[int], mine: dict[str, Any]) -> None:
        room = -(-self._shards // share.live) - len(share.rows) - len(share.held)
        if room > 0 and share.unowned > 0:
            asked = {**mine, "avoid": integers(avoid), "room": room}
            (rows,) = await transaction.run(Call("shards_take", asked))
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
        return {
            shard: f"pid {pid}, {user} with {name or 'no application_name'}, {state}/{wait or 'busy'} for {age:.0f} s"
            for shard, pid, user, name, state, wait, age in rows
        }

    async def give_back(self, database: Database, shards: Collection[int]) -> None:
        """This gives some shards back."""
        async with database.transaction() as transaction:
            await transaction.run(Call("shards_give", {"owner": self._owner, "shards": integers(sorted(shards))}))
            await transaction.commit()

    async def leave(self, database: Database) -> None:
        """This gives everything back and signs the worker off."""
        everything = integers(range(self._shards))
        async with database.transaction() as transaction:
            await transaction.run(
                Call("shards_give", {"owner": self._owner, "shards": everything}),
                Call("worker_leave", {"id": self._owner}),
            )
            await transaction.commit()


def _rows(rows: Collection[tuple[Any, ...]]) -> dict[int, Row]:
    return {shard: Row(*rest) for shard, *rest in rows}

"""Packing what an earlier release kept whole, shard by shard, beside the flush: see `statecache.rules.packing`.

A page is read and reckoned without any lock. Then, in one short transaction, the shard's row is locked, as every flush
locks it, and all of the page is written with the place up to which the shard's changes have their hashes; or nothing,
where anything is not as it was read. So the flusher sees the hash of a tip before its transaction or after it, and
whoever is killed loses a page's work and nothing else. It is done on the worker's own connection, between two flushes:
they never wait for each other. At most half of the time is spent on it, less where flushes have something to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from statecache.clock import monotonic as real_monotonic
from statecache.errors import PostgresUnavailable
from statecache.history import Damage
from statecache.model import ChangeRecord, ChangeSet, Position
from statecache.rules.packing import Packed, Unpacked, pack
from statecache_workers.database import Call, Database
from statecache_workers.logs import alarm, say, warn
from statecache_workers.origins import link_call, links_of
from statecache_workers.postgres_arrays import (
    blobs,
    integers,
    optional_blobs,
    optional_integers,
    texts,
    truths,
)
from statecache_workers.postgres_errors import Poison
from statecache_workers.tip_cache import TipCache

LOOK_S = 30.0
"""How often it is looked for shards that have something to pack."""
ROWS = 500
"""How many changes are looked at at once; more than a commit can have."""
BYTES = 2 * 1024 * 1024
"""Values are packed at once up to this many bytes, and the commit that exceeds it."""
VALUES_BYTES = 16 * 1024 * 1024
"""How many bytes of values are remembered, so that the next ones become deltas."""


class Packing:
    """The packing of one worker's shards."""

    def __init__(self, *, owner: str, monotonic: Callable[[], float] = real_monotonic) -> None:
        self._owner = owner
        self._monotonic = monotonic
        self._parents = TipCache(1, VALUES_BYTES)
        self._pending: deque[int] = deque()
        self.next_due = self._next_look = monotonic()
        self.packed = self.bytes = 0
        """How many changes it has packed, and how many bytes fewer they take."""

    async def step(self, database: Database, shards: Sequence[int]) -> None:
        """Pack a page of one of these shards, if it is time and there is any."""
        begun = self._monotonic()
        if begun < self.next_due:
            return
        try:
            await self._step(database, shards)
        except (PostgresUnavailable, Poison, Damage) as error:
            self._pending.clear()
            self._parents.clear()
            self._next_look = self._monotonic() + LOOK_S
            (alarm if isinstance(error, Damage) else warn)("not_packed", detail=str(error))
            if not database.alive:
                raise
        now = self._monotonic()
        self.next_due = now + (now - begun) if self._pending else max(self._next_look, now)

    async def _step(self, database: Database, shards: Sequence[int]) -> None:
        if not self._pending and self._monotonic() >= self._next_look:
            self._next_look = self._monotonic() + LOOK_S
            async with database.transaction() as transaction:
                (rows,) = await transaction.run(Call("pack_pending", {"shards": [*shards]}))
            self._pending.extend(row[0] for row in rows)
        if self._pending:
            shard = self._pending.popleft()
            if shard not in shards or await self._page(database, shard):
                self._parents.drop(shard)
            else:
                self._pending.appendleft(shard)

    async def _page(self, database: Database, shard: int) -> bool:
        """Pack a page of a shard and return whether there is no more of it, or no going on now."""
        async with database.transaction() as transaction:
            (rows,) = await transaction.run(Call("pack_page", {"shard": shard, "rows": ROWS, "bytes": BYTES}))
        begin, upto = rows[0][:2]
        if upto <= begin:
            return True
        unpacked = [_unpacked(row) for row in rows if row[2] is not None]
        packed, parents = await asyncio.to_thread(pack, unpacked, lambda key: self._parents.parent(shard, key))
        async with database.transaction() as transaction:
            asked = {"shards": integers([shard]), "owner": self._owner}
            (held,) = await transaction.run(Call("flush_lock", asked))
            if not held:
                return True
            bounds = {"shard": shard, "begin": begin, "upto": upto}
            ((found,),) = await transaction.run(Call("pack_write", {**_columns(packed), **bounds}))
            if found != (len(packed), len(packed), 1):
                self._parents.drop(shard)  # somebody took changes in, or erased some: it is read again
                return False
            if links := await links_of(transaction, [(one.row.change_set, one.row.change) for one in packed]):
                await transaction.run(link_call(links))
            await transaction.commit()
        self._parents.put(shard, {}, parents)
        self._note(shard, packed, upto)
        return False

    def _note(self, shard: int, packed: Sequence[Packed], upto: int) -> None:
        kept = [(len(one.row.change.value), one.kept) for one in packed if one.kept is not None]
        self.packed += len(kept)
        self.bytes += sum(size - len(how.packed) for size, how in kept if how.packed is not None)
        if packed:
            say("packed", shard=shard, changes=len(packed), upto=upto)


def _unpacked(row: Sequence[Any]) -> Unpacked:
    key, version, change_id, parent, epoch, n, op, value, encoding, schema, writer, actor, reason, gap, at = row[2:17]
    digest, before_id, before_hash = row[17:]
    change = ChangeRecord(
        change_id=change_id, key=key, op=op, version=version, parent_change_id=parent, value=bytes(value or b""),
        encoding=encoding, schema=schema,
    )  # fmt: skip
    commit = ChangeSet(
        position=Position(epoch, n), change_id=change_id, at=at, writer=writer, actor=actor, reason=reason, entries=0,
        bytes=0, changes=(change,),
    )  # fmt: skip
    return Unpacked(
        commit, change, gap, None if digest is None else bytes(digest), before_id,
        None if before_hash is None else bytes(before_hash),
    )  # fmt: skip


def _columns(packed: Sequence[Packed]) -> dict[str, Any]:
    kept = [one.kept for one in packed]
    return {
        "key": texts([one.row.change.key for one in packed]),
        "version": integers([one.row.change.version for one in packed]),
        "change_id": texts([one.row.change.change_id for one in packed]),
        "packs": truths([how is not None for how in kept]),
        "packed": optional_blobs([None if how is None else how.packed for how in kept]),
        "keyframe": optional_integers([None if how is None else how.keyframe for how in kept]),
        "size": integers([len(one.row.change.value) for one in packed]),
        "digest": blobs([one.digest for one in packed]),
        "hash": blobs([one.hash for one in packed]),
    }

"""Walking the chains that Postgres keeps, a page at a time: see `statecache.rules.chains` for what is asked of them.

All pages of a key are read of one moment, so that workers may flush, pack and prune meanwhile. A moment ends behind a
key, once it has lasted for a second. Only so much is in memory: a page, and the last value of the key. Whoever is cut
off goes on behind the last whole key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.clock import monotonic
from statecache.core.history.values import HistoryValues, VersionAt
from statecache.core.postgres.tier import PostgresTier
from statecache.history_errors import HistoryDamaged
from statecache.keys import KeySpace, beyond_prefix
from statecache.model import ChangeRecord, ChangeSet, Position
from statecache.rules.chains import ChainRow, Counts, Fault, StateRow, Walk
from statecache_workers.database import Call, Database, Transaction

if TYPE_CHECKING:
    from statecache.settings import Settings

ROWS = 2000
"""How many changes, or states, are read at once at most."""
BYTES = 8 * 1024 * 1024
"""What is kept of values is read up to this many bytes, and the one that exceeds it."""
MOMENT_S = 1.0
VERSION_MAX = 2**63 - 1
Row = Sequence[Any]


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that were walked: what is wrong with them, the last of them, and how much was walked by now."""

    faults: list[Fault]
    after: str
    counts: Counts


class Verification:
    """The walk along the chains of all keys under a prefix."""

    def __init__(self, settings: Settings, database: Database, prefix: str, *, after: str = "") -> None:
        self._seconds = settings.timeout_s
        self._database = database
        self._bounds = {"prefix": prefix, "beyond": beyond_prefix(prefix)}
        self._begins_after = after
        self._walk = Walk()
        self._key = ""
        self._version = 0
        self._state: StateRow | None = None

    @property
    def counts(self) -> Counts:
        """How much was walked by now."""
        return self._walk.counts

    async def changes(self) -> AsyncIterator[Checked]:
        """Walk the chains, and yield what is wrong, some keys at a time."""
        after, whole = self._begins_after, False
        while not whole:
            faults, after, whole = await self._moment(after)
            yield Checked(faults=faults, after=after, counts=self._walk.counts)

    async def _moment(self, after: str) -> tuple[list[Fault], str, bool]:
        """Walk whole keys for a while, of one moment; return what is wrong, the last key, and whether all is walked."""
        faults: list[Fault] = []
        at, over, ends = (after, VERSION_MAX), False, monotonic() + MOMENT_S
        async with self._database.transaction(snapshot=True) as transaction:
            while not over and (page := await self._page(transaction, at)):
                if self._key and monotonic() >= ends:  # what is left of this key, and no more
                    over = page[-1][0] != self._key
                    page = [row for row in page if row[0] == self._key]
                if page:
                    origins = await self._origins(transaction, page)
                    faults += await asyncio.to_thread(self._take, page, origins)
                    at = page[-1][0], page[-1][1]
        faults += self._end()
        return faults, at[0], not over

    async def _page(self, transaction: Transaction, at: tuple[str, int]) -> list[Row]:
        asked = {**self._bounds, "after": at[0], "after_version": at[1], "rows": ROWS, "bytes": BYTES}
        (rows,) = await transaction.run(Call("verify_changes", asked))
        return [*rows]

    async def _origins(self, transaction: Transaction, page: Sequence[Row]) -> dict[VersionAt, bytes | None]:
        """Return the values of other keys that branches began with, as far as they can be read."""

        async def fetch(name: str, parameters: Mapping[str, Any], **_: float) -> Sequence[Row]:
            return (await transaction.run(Call(name, parameters)))[0]

        values, read = HistoryValues(fetch), dict[VersionAt, bytes | None]()
        for place in dict.fromkeys(VersionAt(row[20], row[21]) for row in page if row[20] is not None):
            with contextlib.suppress(HistoryDamaged):  # which is told where it is
                read |= await values.read([place], seconds=self._seconds)
        return read

    def _take(self, page: Sequence[Row], origins: Mapping[VersionAt, bytes | None]) -> list[Fault]:
        """Walk the rows of a page."""
        faults: list[Fault] = []
        for row in page:
            if row[0] != self._key:
                faults += self._end()
                self._key = row[0]
                self._walk.begin()
            origin = None if row[20] is None else origins.get(VersionAt(row[20], row[21]))
            faults += self._walk.take(_chain_row(row, origin))
            self._state = None if row[25] is None else StateRow(row[25], row[26], row[27], _bytes(row[28]))
        return faults

    def _end(self) -> list[Fault]:
        """End the key that is being walked."""
        faults = [] if not self._key else [*self._walk.end(self._state, self._key)]
        self._key, self._state = "", None
        return faults

    async def states(self) -> AsyncIterator[Checked]:
        """Look for states that have no changes, and yield what is wrong, some keys at a time."""
        after = self._begins_after
        while True:
            async with self._database.transaction(snapshot=True) as transaction:
                (rows,) = await transaction.run(Call("verify_states", {**self._bounds, "after": after, "rows": ROWS}))
            faults = [
                Fault(key=key, version=version, what="state", detail="none of its changes is there")
                for key, version in rows
                if version is not None
            ]
            after = rows[-1][0] if rows else after
            yield Checked(faults=faults, after=after, counts=self._walk.counts)
            if len(rows) < ROWS:
                return


@contextlib.asynccontextmanager
async def opened(settings: Settings, prefix: str, *, after: str = "") -> AsyncIterator[Verification]:
    """Open a connection for the walk, and close it."""
    session = await PostgresTier(settings, KeySpace(settings.prefix, settings.shards), standby_too=True).session()
    database = Database(session, settings)
    try:
        yield Verification(settings, database, prefix, after=after)
    finally:
        await database.close()


async def verify(settings: Settings, prefix: str = "", *, after: str = "") -> tuple[Counts, list[Fault]]:
    """Walk all chains under a prefix, and return how much that was and what is wrong."""
    async with opened(settings, prefix, after=after) as walk:
        found = [one async for one in walk.changes()] + [one async for one in walk.states()]
        return walk.counts, list(chain.from_iterable(one.faults for one in found))


def _chain_row(row: Row, origin: bytes | None) -> ChainRow:
    key, version, change_id, parent, epoch, n, op, value, packed, keyframe, size, digest, its_hash, *more = row
    encoding, schema, writer, actor, reason, gap, at, _, _, erased, hashed, kept_after = more[:12]
    change = ChangeRecord(
        change_id=change_id, key=key, op=op, version=version, parent_change_id=parent, value=b"", encoding=encoding,
        schema=schema,
    )  # fmt: skip
    commit = ChangeSet(
        position=Position(epoch, n), change_id=change_id, at=at, writer=writer, actor=actor, reason=reason, entries=0,
        bytes=0, changes=(change,),
    )  # fmt: skip
    return ChainRow(
        commit, change, _bytes(value), _bytes(packed), keyframe, size, _bytes(digest), _bytes(its_hash), gap, erased,
        hashed, kept_after, origin,
    )  # fmt: skip


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)

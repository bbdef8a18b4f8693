"""Walking the chains that Postgres keeps, a page at a time: see `statecache.rules.chains` for what is asked of them.

All pages of a key are read of one moment, so that workers may flush, pack and prune meanwhile. A moment ends behind a
key, once it has lasted for a second. Only so much is in memory: a page, and the last value of the key. Whoever is cut
off goes on behind the last whole key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from statecache.clock import monotonic
from statecache.core.history.values import HistoryValues, VersionAt
from statecache.core.postgres.tier import PostgresTier
from statecache.history import is_delta_to_origin
from statecache.keys import KeySpace, beyond_prefix
from statecache.model import ChangeRecord, ChangeSet, Position
from statecache.rules.chains import ChainRow, Counts, Fault, MadePin, StateRow, Walk
from statecache.rules.links import Due, Linked
from statecache.rules.pins import checkpoints_of, pin_of, prefix_of
from statecache.rules.retention import RecordedPolicy, retention_of
from statecache_workers.database import Call, Database, Transaction
from statecache_workers.origins import made_from
from statecache_workers.postgres_arrays import integers, texts

if TYPE_CHECKING:
    from statecache.settings import Settings

ROWS = 2000
"""How many changes, or states, are read at once at most."""
BYTES = 8 * 1024 * 1024
"""What is kept of values is read up to this many bytes, and the one that exceeds it."""
MOMENT_S = 1.0
VERSION_MAX = 2**63 - 1


class Row(NamedTuple):
    """A row of `verify_changes`: a change, what it is recorded to be made from, and its key's state."""

    key: str
    version: int
    change_id: str
    parent_change_id: str
    epoch: int
    n: int
    op: str
    value: Any
    packed: Any
    keyframe: int | None
    size: int | None
    digest: Any
    hash: Any
    encoding: str
    schema: str
    writer: str
    actor: str
    reason: str
    gap: bool
    at: datetime
    shard: int
    erased: bool
    hashed: int
    kept_after: int
    origin: str | None
    origin_version: Any
    origin_change_id: Any
    linked_at: Any
    state_version: int | None
    state_change_id: Any
    state_op: Any
    state_value: Any
    state_shard: Any
    state_epoch: Any
    state_n: Any
    state_parent: Any
    state_encoding: Any
    state_schema: Any
    state_writer: Any
    state_at: Any
    gap_known: bool
    same_at: bool
    read_at: datetime

    @property
    def begins_at(self) -> VersionAt | None:
        """The version of another key that its value is kept as a delta to."""
        if self.origin is None or self.packed is None or not is_delta_to_origin(bytes(self.packed)):
            return None
        return VersionAt(self.origin, self.origin_version)

    @property
    def is_gone(self) -> bool:
        """Whether its value is not kept with it."""
        return self.op == "set" and self.value is None and self.packed is None and not self.erased


class Found(NamedTuple):
    """What was read for the rows of a page: values that branches began with, what changes were made from, and pins.

    Where values are gone, also the policies of their namespaces.
    """

    origins: Mapping[VersionAt, bytes | None]
    due: Mapping[VersionAt, Due]
    pins: Mapping[str, Sequence[MadePin]]
    policies: Mapping[str, RecordedPolicy]


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that were walked: what is wrong with them, the last of them, and how much was walked by now."""

    faults: list[Fault]
    after: str
    counts: Counts


class Verification:
    """The walk along the chains of all keys under a prefix."""

    def __init__(self, settings: Settings, database: Database, prefix: str, *, after: str = "") -> None:
        self._seconds = settings.timeout_s
        self._keys = KeySpace(settings.prefix, settings.shards)
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
                    over = page[-1].key != self._key
                    page = [row for row in page if row.key == self._key]
                if page:
                    found = Found(
                        await self._origins(transaction, page), await self._due(transaction, page),
                        *await self._let_go(transaction, page),
                    )  # fmt: skip
                    faults += await asyncio.to_thread(self._take, page, found)
                    at = page[-1].key, page[-1].version
        faults += self._end()
        return faults, at[0], not over

    async def _page(self, transaction: Transaction, at: tuple[str, int]) -> list[Row]:
        asked = {**self._bounds, "after": at[0], "after_version": at[1], "rows": ROWS, "bytes": BYTES}
        (rows,) = await transaction.run(Call("verify_changes", asked))
        return [Row(*row) for row in rows]

    async def _origins(self, transaction: Transaction, page: Sequence[Row]) -> dict[VersionAt, bytes | None]:
        """Return the values of other keys that branches began with; what is wrong with one is told where it is."""

        async def fetch(name: str, parameters: Mapping[str, Any], **_: float) -> Sequence[Sequence[Any]]:
            return (await transaction.run(Call(name, parameters)))[0]

        asked = list(dict.fromkeys(row.begins_at for row in page if row.begins_at is not None))
        bases = await HistoryValues(fetch).bases(asked, seconds=self._seconds)
        return {place: base.value for place, base in bases.items()}

    async def _due(self, transaction: Transaction, page: Sequence[Row]) -> dict[VersionAt, Due]:
        """Return what changes say that they were made from, and what of that is there."""
        made = [(row, said) for row in page if (said := made_from(row.reason)) is not None]
        if not made:
            return {}
        (rows,) = await transaction.run(Call("verify_origins", {
            "keys": texts([said.origin_of(row.key) for row, said in made]),
            "versions": integers([said.version or VERSION_MAX for _, said in made]),
            "ns": integers([VERSION_MAX if said.position is None else said.position.n for _, said in made]),
            "linked": integers([row.origin_version or 0 for row, _ in made]),
        }))  # fmt: skip
        due: dict[VersionAt, Due] = {}
        for at, newest, linked_id in rows:
            row, said = made[at - 1]
            due[VersionAt(row.key, row.version)] = Due(said.origin_of(row.key), said.version, newest, linked_id)
        return due

    async def _let_go(
        self, transaction: Transaction, page: Sequence[Row]
    ) -> tuple[dict[str, list[MadePin]], dict[str, RecordedPolicy]]:
        """Return what checkpoints pin of keys of which values are gone, and the policies of all namespaces."""
        keys = dict.fromkeys(row.key for row in page if row.is_gone)
        if not keys:
            return {}, {}
        prefixes = {key: checkpoints_of(key) for key in keys}
        asked = list(dict.fromkeys(prefix for some in prefixes.values() for prefix in some))
        rows, checkpoints = await transaction.run(
            Call("history_policies", {}),
            Call("prune_pins", {"prefixes": texts(asked), "beyond": texts([beyond_prefix(one) for one in asked])}),
        )
        policies = {
            name: RecordedPolicy(retention_of(*policy), since, page[0].read_at) for name, *policy, _, since in rows
        }
        pins: dict[str, list[MadePin]] = {}
        for key, op, schema, value, n in checkpoints:
            if (pin := pin_of(key, op, schema, bytes(value), n)) is not None:
                made = n if key.partition("/")[0] in policies else None
                pins.setdefault(prefix_of(key), []).append(MadePin(pin, made))
        pinned = {key: [pin for prefix in some for pin in pins.get(prefix, ())] for key, some in prefixes.items()}
        return pinned, policies

    def _take(self, page: Sequence[Row], found: Found) -> list[Fault]:
        """Walk the rows of a page."""
        faults: list[Fault] = []
        for row in page:
            if row.key != self._key:
                faults += self._end()
                self._key = row.key
                self._walk.begin()
            faults += self._walk.take(_chain_row(row, found, self._keys.shard(row.key)))
            self._state = _state_row(row)
        return faults

    def _end(self) -> list[Fault]:
        """End the key that is being walked."""
        faults = [] if not self._key else [*self._walk.end(self._state, self._key)]
        self._key, self._state = "", None
        return faults

    async def states(self) -> AsyncIterator[Checked]:
        """Look for states that have no changes, and yield what is wrong, some keys at a time.

        Where there is neither, the watermarks say whether there should be.
        """
        after = self._begins_after
        while True:
            async with self._database.transaction(snapshot=True) as transaction:
                (rows,) = await transaction.run(Call("verify_states", {**self._bounds, "after": after, "rows": ROWS}))
            faults = [
                Fault(key=key, version=version, what="state", detail="none of its changes is there")
                for key, version in rows
                if version is not None
            ]
            if len(rows) < ROWS:
                faults += await self._missing(all_empty=not (rows or after or self._walk.counts.keys))
            after = rows[-1][0] if rows else after
            yield Checked(faults=faults, after=after, counts=self._walk.counts)
            if len(rows) < ROWS:
                return

    async def _missing(self, *, all_empty: bool) -> list[Fault]:
        """Return which tables lack rows that others say were there: of shards, and where there is nothing, of any."""
        async with self._database.transaction(snapshot=True) as transaction:
            (rows,) = await transaction.run(Call("rows_missing", {}))
        told = "are not there, though others say that they were written: restore the backup again, all of it"
        names = [name for (name,) in rows if all_empty or name.startswith("the rows of shard")]
        return [Fault(key="", version=0, what="missing", detail=f"{name} {told}") for name in names]

    async def links(self) -> AsyncIterator[Checked]:
        """Look for what is recorded of changes that are not there, and yield what is wrong, some keys at a time."""
        at = (self._begins_after, VERSION_MAX)
        while True:
            asked = {**self._bounds, "after": at[0], "after_version": at[1], "rows": ROWS}
            async with self._database.transaction(snapshot=True) as transaction:
                (rows,) = await transaction.run(Call("verify_links", asked))
            faults = [
                Fault(
                    key=key, version=version, what="branch",
                    detail=f"it is recorded as made from {origin}@{origin_version}, and is not there",
                )
                for key, version, origin, origin_version, alone in rows
                if alone
            ]  # fmt: skip
            at = (rows[-1][0], rows[-1][1]) if rows else at
            yield Checked(faults=faults, after=at[0], counts=self._walk.counts)
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
        found = [one for some in (walk.changes(), walk.states(), walk.links()) async for one in some]
        return walk.counts, list(chain.from_iterable(one.faults for one in found))


def _chain_row(row: Row, found: Found, key_shard: int) -> ChainRow:
    change = ChangeRecord(
        change_id=row.change_id, key=row.key, op=row.op, version=row.version, parent_change_id=row.parent_change_id,
        value=b"", encoding=row.encoding, schema=row.schema,
    )  # fmt: skip
    commit = ChangeSet(
        position=Position(row.epoch, row.n), change_id=row.change_id, at=row.at, writer=row.writer, actor=row.actor,
        reason=row.reason, entries=0, bytes=0, changes=(change,),
    )  # fmt: skip
    link = None if row.origin is None else Linked(row.origin, row.origin_version, row.origin_change_id, row.linked_at)
    return ChainRow(
        commit, change, _bytes(row.value), _bytes(row.packed), row.keyframe, row.size, _bytes(row.digest),
        _bytes(row.hash), row.gap, row.erased, row.hashed, row.kept_after,
        origin=None if row.begins_at is None else found.origins.get(row.begins_at), shard=row.shard,
        key_shard=key_shard, link=link, due=found.due.get(VersionAt(row.key, row.version)),
        pins=found.pins.get(row.key, ()), policy=found.policies.get(row.key.partition("/")[0]),
        gap_known=row.gap_known, same_at=row.same_at, newest=row.state_version,
    )  # fmt: skip


def _state_row(row: Row) -> StateRow | None:
    if row.state_version is None:
        return None
    return StateRow(
        row.state_version, row.state_change_id, row.state_op, _bytes(row.state_value), row.state_shard,
        row.state_epoch, row.state_n, row.state_parent, row.state_encoding, row.state_schema, row.state_writer,
        row.state_at,
    )  # fmt: skip


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)

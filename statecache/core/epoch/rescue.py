"""What a data set holds that belongs to no lineage: kept in Postgres before it is taken out, never silently dropped.

Beyond the common point a returning old branch holds changes that somebody was acknowledged; they go to `conflict`,
unless their writer, not knowing, applied them again in the lineage. So do those of an old primary that goes on by
itself beside the lineage, as long as a worker reaches it: once it is made a replica, they are gone from it. To their
writers, if they still wait, they count as lost, and may be applied again in the lineage.
What cannot be read as a change (of a newer release, or damaged) goes to `quarantine` as it is. Beyond the newest commit
stand entries of other programs; they go to `quarantine` too, at -1 - n, apart from the shard's own numbering.

Again is the same: what was kept already stays as it is, so whoever dies in the middle leaves no harm.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import psycopg
from psycopg import errors as pg

from statecache.core.epoch.evicted_meta import beyond
from statecache.core.postgres.connection import committed
from statecache.entries import (
    INTEGER_MAX,
    ForeignEntry,
    NewerFormat,
    change_set,
    change_set_of_states,
    salvaged,
    storable,
)
from statecache.model import ChangeRecord, ChangeSet, Position
from statecache.rules.epochs import BRANCH
from statecache.rules.looks import Look, Totals
from statecache.sql import statement

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache.settings import Settings

_PAGE = 100
_PAGE_BYTES = 4 * 2**20
"""About how many bytes a page of entries has at most, by what the shard's entries have had on average."""
_UNREADABLE = "entry"


class _Entry(NamedTuple):
    """A stream entry at its place; one without a change-set could not be read, and `fault` says why."""

    entry_id: bytes
    fields: Sequence[bytes]
    epoch: int
    n: int
    read: ChangeSet | None
    fault: str


class Branch(msgspec.Struct):
    """What was found by going through a stream.

    `keys` are those of changes beyond the common point, `entry_ids` those of the entries to take out. `dirty` gives for
    the keys of entries before that point that are still to be flushed the newest n, and `head` the totals there.
    """

    conflicts: int = 0
    keys: set[str] = set()
    entry_ids: list[bytes] = []
    dirty: dict[str, int] = {}
    head: Totals | None = None


class Rescue:
    """One shard's stream as it was when it was reserved, to be gone through."""

    def __init__(
        self, link: Link, connection: psycopg.AsyncConnection[Any], settings: Settings, *, seconds: float
    ) -> None:
        self._link = link
        self._connection = connection
        self._settings = settings
        self._seconds = seconds

    async def set_aside(
        self, shard: int, keys: KeySpace, look: Look, *, common: int, flushed: int, states_too: bool = False
    ) -> Branch:
        """Keep in Postgres what stands beyond the common point, and return what there is on either side of it.

        With `states_too` what has left the stream is looked for among the states.
        """
        last = b"%d-%d" % look.last  # what comes behind it was written by whoever opened the shard meanwhile
        pages = self._pages(keys.changes(shard), b"-", last)
        branch = await self._set_aside(shard, pages, look, common=common, flushed=flushed)
        if states_too:
            found = await self.set_aside_states(keys, shard, look, common=common, flushed=flushed, but=branch.entry_ids)
            branch.keys |= found.keys
            branch.conflicts += found.conflicts
        return branch

    async def set_aside_states(
        self, keys: KeySpace, shard: int, look: Look, *, common: int, flushed: int, but: Collection[bytes] = ()
    ) -> Branch:
        """Do the same for what has left the stream, by what the hashes of the states hold."""
        pages = self._states(keys, shard, min(common, flushed), {*but})
        return await self._set_aside(shard, pages, look, common=common, flushed=flushed)

    async def _set_aside(
        self, shard: int, pages: AsyncIterator[list[_Entry]], look: Look, *, common: int, flushed: int
    ) -> Branch:
        branch = Branch()
        async for page in pages:
            aside: list[_Entry] = []
            for entry in page:
                if (entry.epoch, entry.n) > (look.own, look.n):
                    if entry.read is not None:  # a commit that was refused in its middle may have written states
                        branch.keys.update(_keys_of(entry))
                    aside.append(entry._replace(n=-1 - entry.n, read=None, fault="no commit wrote it"))
                elif entry.n > common:
                    aside.append(entry)
                    branch.keys.update(_keys_of(entry))
                elif entry.read is not None and entry.n > flushed:
                    branch.dirty.update((change.key, entry.n) for change in entry.read.changes)
                    branch.head = Totals(entry.read.entries, entry.read.bytes)
            if aside:
                await self._keep(shard, aside)
                branch.entry_ids += [entry.entry_id for entry in aside]
                branch.conflicts += _changes_in(aside)
        return branch

    async def keep(self, shard: int, changes: str, look: Look, *, common: int, start: bytes) -> tuple[int, bytes, bool]:
        """Keep a page of what stands beyond the common point of a data set that goes on by itself, and leave it there.

        Returns how many changes were not kept before, where to continue, and whether that was the last page.
        """
        count = _page_of(look.totals)
        page = await self._page(changes, start, b"%d-%d" % (look.own, look.n), count)
        aside = [entry for entry in page if entry.n > common]
        kept = await self._keep(shard, aside) if aside else 0
        return kept, b"(" + page[-1].entry_id if page else start, len(page) < count

    async def _pages(self, changes: str, start: bytes, last: bytes) -> AsyncIterator[list[_Entry]]:
        while True:
            page = await self._page(changes, start, last, _PAGE)
            if page:
                yield page
            if len(page) < _PAGE:
                return
            start = b"(" + page[-1].entry_id

    async def _page(self, changes: str, start: bytes, last: bytes, count: int) -> list[_Entry]:
        (reply,) = await self._link.run([("XRANGE", changes, start, last, "COUNT", count)], seconds=self._seconds)
        if isinstance(reply, Exception):
            raise reply
        return [_read(entry_id, fields) for entry_id, fields in reply]

    async def _states(self, keys: KeySpace, shard: int, n: int, but: Set[bytes]) -> AsyncIterator[list[_Entry]]:
        async for page in beyond(self._link, keys, shard, n, seconds=self._seconds):
            entries = [_of_state(position, state) for position, state in page]
            yield [entry for entry in entries if entry.entry_id not in but]

    async def _keep(self, shard: int, entries: Sequence[_Entry]) -> int:
        """Keep entries, and return how many of their changes were not kept before.

        Where Postgres refuses the data of some, each is kept by itself, and those raw.
        """
        try:
            return await self._write(shard, entries)
        except (pg.DataError, pg.ProgramLimitExceeded) as error:
            if len(entries) > 1:
                return sum([await self._keep(shard, [entry]) for entry in entries])
            if entries[0].read is None:
                raise
            return await self._write(shard, [entries[0]._replace(read=None, fault=str(error).partition("\n")[0])])

    async def _write(self, shard: int, entries: Sequence[_Entry]) -> int:
        changes = [(entry.read, change) for entry in entries if entry.read is not None for change in entry.read.changes]
        new = 0
        async with (
            self._link.io.timeout(self._seconds, self._connection),
            committed(self._connection, self._settings, seconds=self._seconds),
        ):
            if changes:
                new = await self._run("rescue_branch", _columns(shard, changes))
            for entry in entries:
                if entry.read is None:
                    await self._run("quarantine_park", _parked(shard, entry))
        return new

    async def _run(self, name: str, parameters: dict[str, Any]) -> int:
        return (await self._connection.execute(statement(name, self._settings.postgres_schema), parameters)).rowcount


def _read(entry_id: bytes, fields: Sequence[bytes]) -> _Entry:
    epoch, _, n = entry_id.partition(b"-")
    read, fault = None, ""
    try:
        read = change_set(entry_id, fields)
    except (ForeignEntry, NewerFormat) as error:
        fault = str(error)
    return _Entry(entry_id, fields, int(epoch), int(n), read, fault)


def _of_state(position: Position, state: Mapping[str, bytes]) -> _Entry:
    fields = [part for name, value in state.items() for part in (name.encode(), value)]
    fields[:0] = [b"key1", state.get("key", b"")]  # as an entry names it
    read, fault = None, ""
    try:
        read = change_set_of_states(position, (0, 0), [state])
    except ForeignEntry as error:
        fault = str(error)
    return _Entry(b"%d-%d" % position, fields, *position, read, fault)


def _page_of(totals: Totals | None) -> int:
    """Return how many entries to ask for at once, of a shard that has had so many of so many bytes."""
    if totals is None or not totals.bytes:
        return _PAGE
    return max(1, min(_PAGE, _PAGE_BYTES * totals.entries // totals.bytes))


def _changes_in(entries: Sequence[_Entry]) -> int:
    return sum(len(entry.read.changes) for entry in entries if entry.read is not None)


def _keys_of(entry: _Entry) -> Sequence[str]:
    if entry.read is not None:
        return [change.key for change in entry.read.changes]
    return [key for key in salvaged(entry.fields)[1] if "/" in key]


def _parked(shard: int, entry: _Entry) -> dict[str, Any]:
    change_id, keys = salvaged(entry.fields)
    if entry.n < 0:  # nobody's change: whoever repeats one that was refused may still apply it
        change_id = ""
    return {
        "shard": shard,
        "epoch": min(entry.epoch, INTEGER_MAX),
        "n": max(min(entry.n, INTEGER_MAX), -INTEGER_MAX),
        "change_id": change_id,
        "keys": list(keys),
        "entry": msgspec.msgpack.encode([bytes(field) for field in entry.fields]),
        "sqlstate": _UNREADABLE,
        "error": storable(entry.fault),
        "forked": False,
    }


def _columns(shard: int, changes: Sequence[tuple[ChangeSet, ChangeRecord]]) -> dict[str, Any]:
    return {
        "shard": shard,
        "cause": BRANCH,
        "change_id": [change.change_id for _, change in changes],
        "key": [change.key for _, change in changes],
        "epoch": [entry.position.epoch for entry, _ in changes],
        "n": [entry.position.n for entry, _ in changes],
        "op": [change.op for _, change in changes],
        "version": [change.version for _, change in changes],
        "parent_change_id": [change.parent_change_id for _, change in changes],
        "value": [change.value for _, change in changes],
        "encoding": [change.encoding for _, change in changes],
        "schema": [change.schema for _, change in changes],
        "writer": [entry.writer for entry, _ in changes],
        "actor": [entry.actor for entry, _ in changes],
        "reason": [entry.reason for entry, _ in changes],
        "at": [entry.at for entry, _ in changes],
    }

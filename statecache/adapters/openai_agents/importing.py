"""Taking in what the SDK's own SQLite sessions hold: `statecache import openai-sqlite FILE`.

A session is read from its first item, and added to the one of the same id in lots. What is there already is passed over
where it is the same, so an import that was cut off, or is made again later, adds what is missing. A session that holds
anything else, or that anybody but an import has written last, was changed here or in the file: it is left alone, and
named. One that cannot be taken in is named too, and those after it are taken in.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from statecache import OutcomeUnknown, VersionConflict
from statecache.adapters.applied import is_applied
from statecache.adapters.filling import lots
from statecache.adapters.imported import IMPORT, NOT_READ, Unreadable, may_go_on, proven, refuse_larger, take_in
from statecache.adapters.items import kept, same
from statecache.adapters.openai_agents.pages import Place, added
from statecache.adapters.openai_agents.session import NAMESPACE
from statecache.adapters.pages import PAGE_FRAME_BYTES, Found, read_pages
from statecache.adapters.plans import arun
from statecache.adapters.segments import refuse_parted
from statecache.adapters.sqlite_files import names, reading

if TYPE_CHECKING:
    from statecache import AsyncNamespace, AsyncStateCache, Durability
    from statecache.adapters.items import Kept


class ImportedSessions(msgspec.Struct, kw_only=True):
    """What an import did: items by what became of them, sessions that were left alone, and why others were refused."""

    sessions: int = 0
    written: int = 0
    same: int = 0
    unreadable: int = 0
    kept: list[str] = []
    failed: dict[str, str] = {}


class StoredSession(NamedTuple):
    """A session's id, its items, and how many there are that are no JSON."""

    session_id: str
    items: list[Any]
    unreadable: int


async def import_sessions(
    sessions: Iterable[StoredSession | Unreadable], cache: AsyncStateCache, *, progress: Callable[[int], object],
    namespace: str = NAMESPACE, durability: Durability | None = None, dry_run: bool = False,
) -> ImportedSessions:  # fmt: skip
    """Add what sessions hold to those of the same id; `progress` is told how many items it has gone through.

    Items that are no JSON are counted as `unreadable`, and left out, as the SDK leaves them out.
    """
    refuse_parted(namespace, "a session")
    view = cache.namespace(namespace, durability=durability)
    taking = _Taking(view, cache.settings.value_bytes_max, dry_run=dry_run, progress=progress)
    for one in sessions:
        taking.done.sessions += 1
        if isinstance(one, Unreadable):
            one.note(taking.done)
        else:
            taking.done.unreadable += one.unreadable
            await take_in(one.session_id, partial(taking.session, one), taking.done)
    return taking.done


class _Taking:
    """One import, and what it has done so far."""

    def __init__(
        self, view: AsyncNamespace[Any], bytes_max: int, *, dry_run: bool, progress: Callable[[int], object]
    ) -> None:
        self.done = ImportedSessions()
        self._view, self._bytes_max, self._dry_run, self._progress = view, bytes_max, dry_run, progress

    async def session(self, one: StoredSession) -> None:
        """Take in what is missing of a session: nothing of it where one item is too large."""
        place = Place(one.session_id)
        found = await arun(self._view, read_pages(place, None, head="primary", pages="primary"))
        there = found.items()
        new = [kept(item, at) for at, item in enumerate(one.items[len(there) :], len(there))]
        begins_so = same(one.items[: len(there)], there)
        if not begins_so or (new and not await may_go_on(self._view, place.head, found.head)):
            self.done.kept.append(one.session_id)
            return
        refuse_larger("an item", (item.size + PAGE_FRAME_BYTES for item in new), self._bytes_max)
        if not (new or self._dry_run):
            await proven(self._view, found.head)
        self.done.same += len(there)
        revision = found.known.revision
        for lot in lots(new, lambda item: item.size):
            if not self._dry_run:
                revision = await self._add(place, lot, revision)
            self.done.written += len(lot)
            self._progress(self.done.same + self.done.written)

    async def _add(self, place: Place, lot: list[Kept], before: str) -> str:
        """Add items to a session that is of a revision still, and return the one that it then has."""
        found: Found = await arun(self._view, read_pages(place, 0, head="primary", pages="primary"))
        if found.known.revision != before:
            raise VersionConflict(place.head, before, found.known.revision)
        revision = token_hex(8)
        try:
            await self._view.commit(added(place, found, lot, revision, self._bytes_max), reason=IMPORT)
        except OutcomeUnknown as error:
            if not await arun(self._view, is_applied(error, place.head)):
                raise
        return revision


def sqlite_sessions(source: Path) -> Iterator[StoredSession | Unreadable]:
    """Yield what the sessions in a file of SQLite hold, or why that cannot be read; nothing is written there.

    Raises UsageError where the file is not there, and ConfigurationError where it holds no sessions of the SDK.
    """
    hint = "SQLiteSession(session_id, FILE) writes such files; tables with other names are not known here."
    with reading(source, what="sessions of the OpenAI Agents SDK", hint=hint) as rows:
        with names(rows):
            every = rows.execute("SELECT session_id FROM agent_sessions ORDER BY session_id").fetchall()
        for (session_id,) in every:
            yield _session(rows, session_id)


def _session(rows: sqlite3.Connection, session_id: object) -> StoredSession | Unreadable:
    if not isinstance(session_id, str):
        return Unreadable(repr(session_id), TypeError("its id is no text"))
    asked = "SELECT message_data FROM agent_messages WHERE session_id = ? ORDER BY id"
    try:
        texts = [text for (text,) in rows.execute(asked, (session_id,))]
        items = [*_read(texts)]
    except NOT_READ as error:
        return Unreadable(session_id, error)
    return StoredSession(session_id, items, len(texts) - len(items))


def _read(texts: list[str]) -> Iterator[Any]:
    for text in texts:
        with suppress(json.JSONDecodeError, TypeError):  # as the SDK does
            yield json.loads(text)

"""Taking in what ADK's own services keep: `statecache import adk-sqlite FILE`, and `adk-database URL`.

A session is read with all of its events, and added to the one of the same names in lots. What is there already is
passed over where it is the same, so an import that was cut off, or is made again later, adds what is missing. A session
that holds any other events was gone on with here: it is left alone, and named. So is the state of an app or of a user
that was written by anybody but an import.
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from statecache import AlreadyExists, Create, NotFound, Set, VersionConflict
from statecache.adapters.adk.documents import appended, event_data, place_of, read_shared
from statecache.adapters.adk.service import NAMESPACE
from statecache.adapters.adk.shared import resolve
from statecache.adapters.filling import lots
from statecache.adapters.items import given, kept
from statecache.adapters.pages import Found, read_pages
from statecache.adapters.plans import arun

if TYPE_CHECKING:
    from google.adk.sessions.session import Session

    from statecache import AsyncNamespace, AsyncStateCache, Durability
    from statecache.adapters.adk.documents import Of, Place
    from statecache.adapters.adk.sources import Stored
    from statecache.adapters.items import Kept

IMPORT = "import"
"""The reason of what an import writes."""


class ImportedSessions(msgspec.Struct, kw_only=True):
    """What an import did: events by what became of them, states of apps and users, and what was left alone here."""

    sessions: int = 0
    written: int = 0
    same: int = 0
    states: int = 0
    kept: list[str] = []


async def import_sessions(
    stored: Stored, cache: AsyncStateCache, *, progress: Callable[[int], object],
    namespace: str = NAMESPACE, durability: Durability | None = None, dry_run: bool = False,
) -> ImportedSessions:  # fmt: skip
    """Add what is stored to what is there; `progress` is told how many events it has gone through."""
    view = cache.namespace(namespace, durability=durability)
    taking = _Taking(view, cache.settings.value_bytes_max, dry_run=dry_run, progress=progress)
    for place, of, state in stored.states:
        await taking.state(place, of, state)
    for session in stored.sessions:
        await taking.session(session)
    return taking.done


class _Taking:
    """One import, and what it has done so far."""

    def __init__(
        self, view: AsyncNamespace[Any], bytes_max: int, *, dry_run: bool, progress: Callable[[int], object]
    ) -> None:
        self.done = ImportedSessions()
        self._view, self._bytes_max, self._dry_run, self._progress = view, bytes_max, dry_run, progress

    async def state(self, place: Place, of: Of, state: dict[str, Any]) -> None:
        """Take in the state of an app or of a user."""
        name = place.app if of == "app" else place.user
        new = msgspec.structs.replace(place.shared(of), state=kept(state, 0, nul=False).data)
        there = await self._view.get(name, read="primary")
        if there is not None:
            shared = read_shared(there)
            if not shared.prepared and given(shared.state) == state:
                return
            if shared.prepared or not await self._is_imported(name):
                self.done.kept.append(name)
                return
        try:
            if not self._dry_run:
                write = Set(name, msgspec.to_builtins(new), expected=there)
                await self._view.commit([write], reason=IMPORT)
            self.done.states += 1
        except (VersionConflict, AlreadyExists, NotFound):  # somebody has written it just now
            self.done.kept.append(name)

    async def session(self, session: Session) -> None:
        """Take in a session: what is missing of its events, and its state."""
        self.done.sessions += 1
        place = place_of(session.app_name, session.user_id, session.id)
        events, state = [event_data(one) for one in session.events], kept(session.state, 0, nul=False).data
        found = await arun(self._view, read_pages(place, None, head="primary", pages="primary"))
        there = found.items()
        if [given(one.data) for one in events[: len(there)]] != there:
            self.done.kept.append(place.head)
            return
        self.done.same += len(there)
        try:
            if found.head is None:
                await self._begin(place, state, session.last_update_time)
            elif len(there) < len(events) and not self._dry_run:
                await resolve(self._view, place, found.known.revision, found.known.prepared)
            for lot in lots(events[len(there) :], lambda event: event.size):
                if not self._dry_run:
                    await self._append(place, lot, state, session.last_update_time)
                self.done.written += len(lot)
                self._progress(self.done.same + self.done.written)
        except (VersionConflict, AlreadyExists, NotFound):  # somebody goes on with it just now
            self.done.kept.append(place.head)

    async def _begin(self, place: Place, state: Any, updated: float) -> None:
        head = msgspec.structs.replace(place.begun({}, updated, token_hex(4), token_hex(8)), state=state)
        if not self._dry_run:
            await self._view.commit([Create(place.head, msgspec.to_builtins(head))], reason=IMPORT)

    async def _append(self, place: Place, lot: list[Kept], state: Any, updated: float) -> None:
        found: Found = await arun(self._view, read_pages(place, 0, head="primary", pages="primary"))
        if found.head is None:
            raise NotFound(place.head)
        head = msgspec.structs.replace(
            found.known, state=state, last_update_time=updated, revision=token_hex(8), prepared=[]
        )
        await self._view.commit(appended(place, found, lot, head, self._bytes_max), reason=IMPORT)

    async def _is_imported(self, name: str) -> bool:
        return [change.reason async for change in self._view.history(name, limit=1, reverse=True)] == [IMPORT]

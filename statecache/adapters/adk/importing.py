"""Taking in what ADK's own services keep: `statecache import adk-sqlite FILE`, and `adk-database URL`.

A session is read with all of its events, and added to the one of the same names in lots. What is there already is
passed over where it is the same, so an import that was cut off, or is made again later, adds what is missing. A session
that holds anything else, or that anybody but an import has written last, was changed here or there: it is left alone,
and named. So is the state of an app or of a user. What cannot be taken in is named too, and what follows is taken in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from statecache import Create, NotFound, Set, VersionConflict
from statecache.adapters.adk.documents import Place, appended, event_data, place_of, read_shared
from statecache.adapters.adk.service import NAMESPACE
from statecache.adapters.filling import lots
from statecache.adapters.imported import IMPORT, Unreadable, may_go_on, proven, refuse_larger, take_in
from statecache.adapters.items import given, kept, same
from statecache.adapters.pages import PAGE_FRAME_BYTES, Found, head_value, read_pages
from statecache.adapters.plans import arun

if TYPE_CHECKING:
    from google.adk.sessions.session import Session

    from statecache import AsyncNamespace, AsyncStateCache, Durability
    from statecache.adapters.adk.documents import Head
    from statecache.adapters.adk.sources import OfAppOrUser, Stored
    from statecache.adapters.items import Kept


class ImportedSessions(msgspec.Struct, kw_only=True):
    """What an import did: events by what became of them, states of apps and users, what was left alone, and refused."""

    sessions: int = 0
    written: int = 0
    same: int = 0
    states: int = 0
    kept: list[str] = []
    failed: dict[str, str] = {}


async def import_sessions(
    stored: Stored, cache: AsyncStateCache, *, progress: Callable[[int], object],
    namespace: str = NAMESPACE, durability: Durability | None = None, dry_run: bool = False,
) -> ImportedSessions:  # fmt: skip
    """Add what is stored to what is there; `progress` is told how many events it has gone through."""
    view = cache.namespace(namespace, durability=durability)
    taking = _Taking(view, cache.settings.value_bytes_max, dry_run=dry_run, progress=progress)
    for state in stored.states:
        if isinstance(state, Unreadable):
            state.note(taking.done)
        else:
            await take_in(state.name, partial(taking.state, state), taking.done)
    for session in stored.sessions:
        taking.done.sessions += 1
        if isinstance(session, Unreadable):
            session.note(taking.done)
        else:
            place = Place(session.app_name, session.user_id, session.id)
            await take_in(place.head, partial(taking.session, place, session), taking.done)
    return taking.done


class _Taking:
    """One import, and what it has done so far."""

    def __init__(
        self, view: AsyncNamespace[Any], bytes_max: int, *, dry_run: bool, progress: Callable[[int], object]
    ) -> None:
        self.done = ImportedSessions()
        self._view, self._bytes_max, self._dry_run, self._progress = view, bytes_max, dry_run, progress

    async def state(self, stored: OfAppOrUser) -> None:
        """Take in the state of an app or of a user."""
        place, of, state = stored
        name = stored.name
        place_of(*place)  # which refuses a NUL
        new = msgspec.to_builtins(msgspec.structs.replace(place.shared(of), state=kept(state, 0, nul=False).data))
        there = await self._view.get(name, read="primary")
        if there is not None:
            shared = read_shared(there)
            if not shared.prepared and same(given(shared.state), state):
                if not self._dry_run:
                    await proven(self._view, there)
                return
        if not await may_go_on(self._view, name, there):
            self.done.kept.append(name)
            return
        refuse_larger("the state", [len(msgspec.json.encode(new))], self._bytes_max)
        if not self._dry_run:
            await self._view.commit([Set(name, new, expected=there)], reason=IMPORT)
        self.done.states += 1

    async def session(self, place: Place, session: Session) -> None:
        """Take in a session: what is missing of its events, and its state."""
        place_of(*place)  # which refuses a NUL
        events, state = [event_data(one) for one in session.events], kept(session.state, 0, nul=False).data
        found: Found = await arun(self._view, read_pages(place, None, head="primary", pages="primary"))
        there = found.items()
        has_state = found.head is not None and same(given(found.known.state), session.state)
        is_whole = len(there) == len(events) and has_state
        may_be_added_to = is_whole or await may_go_on(self._view, place.head, found.head)
        if not may_be_added_to or not same([given(one.data) for one in events[: len(there)]], there):
            self.done.kept.append(place.head)
            return
        head = msgspec.structs.replace(
            place.begun({}, session.last_update_time, token_hex(4), token_hex(8)), state=state
        )  # fmt: skip
        refuse_larger("an event", (one.size + PAGE_FRAME_BYTES for one in events[len(there) :]), self._bytes_max)
        refuse_larger("the session's state", [len(msgspec.json.encode(head))], self._bytes_max)
        self.done.same += len(there)
        if found.head is None and not self._dry_run:
            await self._view.commit([Create(place.head, head_value(head))], reason=IMPORT)
        revision = head.revision if found.head is None else found.known.revision
        new: list[list[Kept]] = [*lots(events[len(there) :], lambda event: event.size)]
        if not (new or has_state or found.head is None):
            new = [[]]  # the state alone
        if not (new or self._dry_run):
            await proven(self._view, found.head)
        for lot in new:
            if not self._dry_run:
                revision = await self._append(place, lot, head, revision)
            self.done.written += len(lot)
            self._progress(self.done.same + self.done.written)

    async def _append(self, place: Place, lot: list[Kept], new: Head, before: str) -> str:
        """Append events to a session that is of a revision still, and return the one that it then has."""
        found: Found = await arun(self._view, read_pages(place, 0, head="primary", pages="primary"))
        if found.head is None:
            raise NotFound(place.head)
        if found.known.revision != before:
            raise VersionConflict(place.head, before, found.known.revision)
        revision = token_hex(8)
        head = msgspec.structs.replace(
            found.known, state=new.state, last_update_time=new.last_update_time, revision=revision, prepared=[]
        )
        await self._view.commit(appended(place, found, lot, head, self._bytes_max), reason=IMPORT)
        return revision

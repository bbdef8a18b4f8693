"""A service's verbs, carried out by a client: read, decide, and commit what was decided if nobody was first.

A writer decides on what this process has first, in one exchange if that is still so. Each later attempt reads the
primary, and only there a session object is found to be old. What an event changes in the states of its app and its
user is prepared before the commit of the session, and resolved after it (`shared`): then the first attempt reads the
primary too.
"""

from __future__ import annotations

from contextlib import contextmanager
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.platform import time as platform_time
from google.adk.sessions.session import Session

from statecache import (
    AlreadyExists,
    Create,
    Delete,
    DurabilityNotMet,
    NotFound,
    OutcomeUnknown,
    Set,
    StateCacheError,
    UsageError,
    VersionConflict,
)
from statecache.adapters.adk.documents import (
    OF_SESSION,
    Deltas,
    Head,
    Place,
    appended,
    deltas_of,
    event_data,
    event_of,
    listed,
    merged,
    read_head,
    sessions_of,
)
from statecache.adapters.adk.shared import prepare, resolve, states_of, withdraw
from statecache.adapters.applied import is_applied, nothing_written
from statecache.adapters.items import given, kept, same
from statecache.adapters.pages import ATTEMPTS_MAX, Found, head_value, read_pages
from statecache.adapters.plans import arun
from statecache.adapters.remains import delete_remains

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from google.adk.events.event import Event

    from statecache import AsyncNamespace, Durability, ReadMode, State
    from statecache.adapters.adk.documents import Of

    Writes = Sequence[Set | Create | Delete]

_PAGES_A_COMMIT = 255
_LOOKED_BACK = 500
"""Among so many of the last events, or a few more, one is looked for that may have been appended before."""
_NOT_PROVEN = "not known to be as durable as it has to be"
_SHARED = "what its app and its user share is not up to date"


class _Done(NamedTuple):
    """A commit that is applied: its change_id, and the error of one that is not yet as durable as it was to be."""

    change_id: str
    lacking: DurabilityNotMet | None = None

    @classmethod
    def of(cls, state: State[Any] | None) -> Self:
        """Return the commit that a state is of."""
        return cls("" if state is None else state.change_id)


class Appended(NamedTuple):
    """What an append came to: the revision of the session object, and whether the event was `there` already."""

    revision: str | None
    there: bool


class Sessions:
    """All sessions of a namespace, seen from one client."""

    def __init__(self, view: AsyncNamespace[Any], *, bytes_max: int) -> None:
        self._view, self._bytes_max = view, bytes_max

    async def create(self, place: Place, state: Mapping[str, Any]) -> Session:
        """Create a session; raise AlreadyExistsError where there is one of its name."""
        deltas, revision = deltas_of(state), token_hex(8)
        head = place.begun(deltas.session, platform_time.get_time(), token_hex(4), revision)
        exists = AlreadyExistsError(f"Session with id {place.session_id} already exists.")
        with nothing_written("create_session"):
            prepared = await prepare(self._view, place, "", revision, deltas)
        head = msgspec.structs.replace(head, prepared=prepared)
        try:
            done = await self._committed(place, [Create(place.head, head_value(head))], "create_session")
        except OutcomeUnknown:
            raise
        except StateCacheError as error:
            await withdraw(self._view, place, revision, prepared)
            if isinstance(error, AlreadyExists):
                raise exists from None
            raise
        with self._applied(place, done, _SHARED):
            await resolve(self._view, place, revision, prepared)
            if done.lacking is not None:
                raise done.lacking
            return await self._session(place, head, [])

    async def get(self, place: Place, limit: int | None, since: float | None) -> Session | None:
        """Return a session, with its last events and those since a time, or None where there is none."""
        found = await arun(self._view, read_pages(place, limit, head="primary", pages="local"))
        if found.head is None:
            return None
        data = found.items() if limit is None else found.items()[-limit:] if limit else []
        events = [event_of(one, place) for one in data]
        events = [one for one in events if since is None or one.timestamp >= since]
        return await self._session(place, found.known, events)

    async def sessions(self, app_name: str, user_id: str | None) -> list[Session]:
        """Return the sessions of an app, or of one of its users, without events: those updated last come last."""
        prefix = sessions_of(app_name, user_id)
        found = [listed(state) async for state in self._view.list(prefix, where={"of": OF_SESSION})]
        names = [name for place, _ in found for name in (place.app, place.user)]
        states = await states_of(self._view, names)
        sessions = [_made(place, head, [], states) for place, head in found]
        return sorted(sessions, key=lambda one: (one.last_update_time, one.user_id, one.id))

    async def user_state(self, place: Place) -> dict[str, Any]:
        """Return the state of a user, under keys without a prefix."""
        return (await states_of(self._view, [place.user]))[place.user]

    async def append(self, place: Place, session: Session, event: Event) -> Appended:
        """Append an event to a session that is as the session object says, or find that it was appended before.

        Raises StaleSessionError where it is another one, DurabilityNotMet for one that is appended and not yet at the
        level that was asked for, and DurabilityRefused where nothing was appended for that.
        """
        data, deltas, revision = event_data(event), deltas_of(event.actions.state_delta), token_hex(8)
        prepared: list[Of] = []
        failed, there = _given_up(), False
        try:
            for attempt in range(ATTEMPTS_MAX):
                mode: ReadMode = "primary" if attempt or deltas.app or deltas.user else "local"
                found = await arun(self._view, read_pages(place, 0, head=mode, pages=mode))
                known: Head = found.known
                current = found.head is not None and _is_current(session, found)
                held = any(one.id == event.id for one in session.events)
                there = await self._holds(place, found, data.data, back=held or not (current or mode == "local"))
                if there:
                    proven = await self._proven(place, found)
                    if proven is None:
                        continue
                    done, revision, prepared = proven, known.revision, known.prepared
                    break
                if not current:
                    if mode == "local":
                        continue
                    raise _refused(place, found)
                with nothing_written("append_event"):
                    await resolve(self._view, place, known.revision, known.prepared)
                    # Again at each attempt: who saw the session at another revision meanwhile has given it up.
                    prepared = await prepare(self._view, place, known.revision, revision, deltas)
                head = _next(known, deltas, event.timestamp, revision, prepared)
                writes = appended(place, found, [data], head, self._bytes_max)
                try:
                    done = await self._committed(place, writes, "append_event")
                    break
                except (VersionConflict, NotFound) as error:
                    failed = error
            else:
                raise failed
        except (StaleSessionError, SessionNotFoundError, StateCacheError) as error:
            if prepared and not isinstance(error, OutcomeUnknown):
                await withdraw(self._view, place, revision, prepared)
            raise
        with self._applied(place, done, _SHARED):
            await resolve(self._view, place, revision, prepared)
        if done.lacking is not None:
            raise done.lacking
        goes_on = not there or current or _joins(session, found, data.data)
        return Appended(revision if goes_on else session._storage_update_marker, there=there)

    async def _holds(self, place: Place, found: Found, event: Any, *, back: bool) -> bool:
        """Return whether an event was appended before; with `back` of more than the last page, too.

        Its answer was lost, and others may have gone on with the session since.
        """
        if found.head is None or _is_among(found.items(), event):
            return found.head is not None
        if not back:
            return False
        found = await arun(self._view, read_pages(place, _LOOKED_BACK, head="primary", pages="primary"))
        return _is_among(found.items(), event)

    async def _proven(self, place: Place, found: Found) -> _Done | None:
        """Prove that a session that has its event is as durable as it has to be, and return what it is then of.

        Its head is written once more where that takes a proof; returns None where another one was first.
        """
        if self._view._view.durability_of(None) == "memory":
            return _Done.of(found.head)
        head = Set(place.head, head_value(found.known), expected=found.head)
        with self._applied(place, _Done.of(found.head), _NOT_PROVEN):
            try:
                return await self._committed(place, [head], "append_event")
            except (VersionConflict, NotFound):
                return None

    async def delete(self, place: Place) -> None:
        """Delete a session and its events; what one commit has no room for is deleted after it.

        Who was killed before that has left it: it is looked for where there is no session.
        """
        gone, failed = set[str](), _given_up()
        for _ in range(ATTEMPTS_MAX):
            state = await self._view.get(place.head, read="primary")
            if state is None:
                await arun(self._view, delete_remains(place.head, place.pages, "delete_session"))
                return
            head = read_head(state)
            with nothing_written("delete_session"):
                await resolve(self._view, place, head.revision, head.prepared)
            pages = [place.page(head, number) for number in range(1, head.pages + 1)]
            now = [Delete(page) for page in pages[:_PAGES_A_COMMIT] if page not in gone]
            try:
                done = await self._committed(place, [Delete(place.head, expected=state), *now], "delete_session")
            except (VersionConflict, NotFound) as error:
                failed = error
                if isinstance(error, NotFound):
                    gone.add(error.key.partition("/")[2])
                continue
            if pages[_PAGES_A_COMMIT:]:
                level: Durability | None = None if done.lacking is None else "memory"
                with self._applied(place, done, "some of its pages were not deleted"):
                    await self._view.delete_many(pages[_PAGES_A_COMMIT:], reason="delete_session", durability=level)
            if done.lacking is not None:
                raise done.lacking
            return
        raise failed

    async def _committed(self, place: Place, writes: Writes, reason: str) -> _Done:
        """Commit, and where the answer is lost, find out what became of it; what was not applied is sent again.

        What is applied, but not yet at the level that was asked for, is returned with that error: it counts.
        """
        again = False
        while True:
            try:
                states = await self._view.commit(writes, reason=reason)
            except DurabilityNotMet as error:
                return _Done(error.change_id, error)
            except OutcomeUnknown as error:
                if again:
                    raise
                if await arun(self._view, is_applied(error, place.head)):
                    return _Done(error.change_id)
                again = True
            else:
                return _Done.of(states[0])

    @contextmanager
    def _applied(self, place: Place, done: _Done, what: str) -> Iterator[None]:
        """Have what fails behind a commit end the call as one that is applied, and of which `what` is the rest."""
        try:
            yield
        except DurabilityNotMet:
            raise
        except StateCacheError as error:
            if isinstance(error, OutcomeUnknown) and OutcomeUnknown.awaited in error.reason:
                raise
            key, why = self._view._view.full(place.head), f"it is applied, but {what}: {error.problem}"
            raise OutcomeUnknown(done.change_id, keys=(key,), reason=why) from error

    async def _session(self, place: Place, head: Head, events: list[Event]) -> Session:
        return _made(place, head, events, await states_of(self._view, [place.app, place.user]))


def _made(place: Place, head: Head, events: list[Event], states: dict[str, dict[str, Any]]) -> Session:
    """Return a session object that knows the revision that it is of."""
    session = Session(
        app_name=place.app_name, user_id=place.user_id, id=place.session_id, events=events,
        state=merged(head, states[place.app], states[place.user]), last_update_time=head.last_update_time,
    )  # fmt: skip
    session._storage_update_marker = head.revision
    return session


def _next(known: Head, deltas: Deltas, at: float, revision: str, prepared: list[Of]) -> Head:
    """Return the head of a session with an event more, but for its pages."""
    state = {**given(known.state), **deltas.session}
    return msgspec.structs.replace(
        known, state=kept(state, 0, nul=False).data, last_update_time=at, revision=revision, prepared=prepared
    )


def _is_current(session: Session, found: Found) -> bool:
    """Return whether a session object is as the session is.

    One that no service gave, or went through JSON, knows no revision: its last event counts, or its time without one.
    """
    head: Head = found.known
    if session._storage_update_marker is not None:
        return session._storage_update_marker == head.revision
    last = [one["id"] for one in found.items()[-1:]]
    if session.events:
        return last == [session.events[-1].id]
    return not last or head.last_update_time <= session.last_update_time


def _joins(session: Session, found: Found, event: Any) -> bool:
    """Return whether an event is the last one, and stands behind all that a session object has."""
    before, last = found.items()[-2:-1], found.items()[-1:]
    return _is_among(last, event) and [one["id"] for one in before] == [one.id for one in session.events[-1:]]


def _is_among(events: Sequence[Any], data: Any) -> bool:
    """Return whether an event is one of these."""
    new = given(data)
    return any(one == new and same(one, new) for one in events)  # the first tells most apart sooner


def _given_up() -> StateCacheError:
    return UsageError(f"nothing came of {ATTEMPTS_MAX} attempts")


def _refused(place: Place, found: Found) -> ValueError:
    if found.head is None:
        return SessionNotFoundError(f"Session {place.session_id} not found.")
    return StaleSessionError(
        "The session has been modified in storage since it was loaded. Please reload the session before appending "
        "more events."
    )

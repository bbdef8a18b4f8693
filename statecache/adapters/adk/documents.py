"""What the states of apps, users and sessions hold, and their names.

    orders                 the state of an app
    orders:alice           the state of a user
    orders:alice:42        a session, and below it its pages

A `:` in a name is spelled `%3A`, as `/` is `%2F`, so no two of them meet. The number in a page's name is drawn when a
session is created: what is left of an earlier one of its name is never taken for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from google.adk.events.event import Event
from google.adk.sessions.state import State as Prefixes
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from statecache import CodecError, Create, Set, State
from statecache.adapters.items import Kept, given, kept, same
from statecache.adapters.pages import Found, added_pages, converted, head_value, log_of
from statecache.adapters.segments import refuse_nul, segment, spelled_out

OF_SESSION: Literal["adk session"] = "adk session"
APP_BYTES_MAX, USER_BYTES_MAX, SESSION_BYTES_MAX = 80, 120, 120
"""How many UTF-8 bytes of each stand in a name."""
_BETWEEN = ":"
Of = Literal["app", "user"]


class Head(msgspec.Struct, frozen=True):
    """What the head of a session holds; `prepared` says where the last event was to take effect beyond the session."""

    of: Literal["adk session"]
    app_name: Any
    user_id: Any
    session_id: Any
    state: Any
    last_update_time: float
    log: str
    items: int
    pages: int
    revision: str
    prepared: list[Of] = []
    logs: dict[str, str] = {}
    grown_as: str = ""


class Prepared(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change that takes effect once the session goes from one revision to the other; `at` is when it was prepared.

    `over` is the change that the state with it was last written over; None where an earlier release has prepared it.
    """

    session: str
    before: str
    at: float
    state: Any
    over: str | None = None


class Shared(msgspec.Struct, frozen=True):
    """What the state of an app or of a user holds; what is prepared stands there by the revision that it waits for."""

    of: Literal["adk app", "adk user"]
    app_name: Any
    user_id: Any = None
    state: Any = {}
    prepared: dict[str, Prepared] = {}


class Deltas(NamedTuple):
    """A change of state by what it concerns, as plain data; `temp:` concerns nothing that is kept."""

    app: dict[str, Any]
    user: dict[str, Any]
    session: dict[str, Any]


class Place(NamedTuple):
    """A session, and the names of its states, of its user's and of its app's."""

    app_name: str
    user_id: str
    session_id: str

    @property
    def app(self) -> str:
        """The name of the app's state."""
        return app_segment(self.app_name)

    @property
    def user(self) -> str:
        """The name of the user's state."""
        return f"{self.app}{_BETWEEN}{_spelled(self.user_id, USER_BYTES_MAX)}"

    @property
    def head(self) -> str:
        """The name of the head."""
        return f"{self.user}{_BETWEEN}{_spelled(self.session_id, SESSION_BYTES_MAX)}"

    @property
    def pages(self) -> str:
        """How the names of all pages begin."""
        return f"{self.head}/events/"

    def page(self, known: Head, number: int) -> str:
        """Return the name of a page."""
        return f"{self.pages}{log_of(known, number)}/{number:06}"

    def read(self, state: State[Any]) -> Head:
        """Return the head that a state holds; raise CodecError where it is none."""
        return read_head(state)

    def nothing(self) -> Found:
        """Return what is found where there is no session."""
        return Found(None, self.begun({}, 0.0, "", ""), ())

    def begun(self, state: dict[str, Any], at: float, log: str, revision: str) -> Head:
        """Return the head of a session without events."""
        app_name, user_id, session_id = (kept(one, 0, nul=False).data for one in self)
        return Head(
            OF_SESSION, app_name, user_id, session_id, kept(state, 0, nul=False).data, at, log, 0, 0, revision
        )  # fmt: skip

    def shared(self, of: Of) -> Shared:
        """Return the state of the app or of the user before anything is in it."""
        app_name = kept(self.app_name, 0, nul=False).data
        if of == "app":
            return Shared("adk app", app_name)
        return Shared("adk user", app_name, kept(self.user_id, 0, nul=False).data)


def place_of(app_name: str, user_id: str, session_id: str) -> Place:
    """Return the place of a session; raise UsageError for a name that Postgres cannot hold."""
    place = Place(app_name, user_id, session_id)
    for what, name in place._asdict().items():
        refuse_nul(what, name)
    return place


def sessions_of(app_name: str, user_id: str | None) -> str:
    """Return how the names begin of all sessions of an app, or of a user."""
    app = f"{app_segment(app_name)}{_BETWEEN}"
    return app if user_id is None else f"{app}{_spelled(user_id, USER_BYTES_MAX)}{_BETWEEN}"


def app_segment(app_name: str) -> str:
    """Return the segment of a name that stands for an app."""
    return _spelled(app_name, APP_BYTES_MAX)


def is_of(shared: str, session: str) -> bool:
    """Return whether a session is one of the app, or the user, whose state has that name."""
    return session.startswith(shared + _BETWEEN)


def _spelled(text: str, bytes_max: int) -> str:
    return segment(text, bytes_max, also=_BETWEEN)


def read_head(state: State[Any]) -> Head:
    """Return the head that a state holds; raise CodecError where it is none."""
    head: Head = converted(state, Head, "head of a session of ADK")
    return head


def read_shared(state: State[Any]) -> Shared:
    """Return the state of an app or of a user; raise CodecError where it is none."""
    shared: Shared = converted(state, Shared, "state of an app or of a user of ADK")
    return shared


def listed(state: State[Any]) -> tuple[Place, Head]:
    """Return the place and the head of a session; one that was copied with its group is called as that is."""
    head, name = read_head(state), state.key.partition("/")[2]
    place = Place(*(str(given(one)) for one in (head.app_name, head.user_id, head.session_id)))
    parts = name.split(_BETWEEN)
    if place.head == name or len(parts) != len(place):
        return place, head
    return Place(*map(spelled_out, parts)), head


def deltas_of(state: Mapping[str, Any]) -> Deltas:
    """Part a change of state by the prefixes of its keys, as ADK's own services do.

    What is no JSON becomes what pydantic has for it, and at last a text. Raises CodecError where that fails too.
    """
    try:
        plain = to_jsonable_python(state)
    except ValueError:
        plain = _as_text(state)
    deltas = Deltas({}, {}, {})
    for key, value in plain.items():
        if key.startswith(Prefixes.APP_PREFIX):
            deltas.app[key.removeprefix(Prefixes.APP_PREFIX)] = value
        elif key.startswith(Prefixes.USER_PREFIX):
            deltas.user[key.removeprefix(Prefixes.USER_PREFIX)] = value
        elif not key.startswith(Prefixes.TEMP_PREFIX):
            deltas.session[key] = value
    return deltas


def _as_text(state: Mapping[str, Any]) -> Any:
    try:
        return to_jsonable_python(state, serialize_unknown=True)
    except (ValueError, RecursionError) as error:
        raise CodecError(path="$", reason=f"the state cannot be written as JSON: {error}") from error


def merged(head: Head, app: dict[str, Any], user: dict[str, Any]) -> dict[str, Any]:
    """Return a session's state with those of its app and its user, under their prefixes."""
    state: dict[str, Any] = {**given(head.state)}
    state |= {f"{Prefixes.APP_PREFIX}{key}": value for key, value in app.items()}
    return state | {f"{Prefixes.USER_PREFIX}{key}": value for key, value in user.items()}


def event_data(event: Event) -> Kept:
    """Return an event as it is kept; raise CodecError for one that is no JSON."""
    try:
        data = event.model_dump(mode="json", exclude_none=True)
    except (ValueError, RecursionError) as error:
        raise CodecError(path="$", reason=f"the event cannot be written as JSON: {error}") from error
    return kept(data, 0)


def is_same(one: Event, other: Event) -> bool:
    """Return whether two events are the same as they are kept: an id alone does not tell, for others may carry it."""
    if one is other or one.id != other.id:
        return one is other
    try:
        return same(given(event_data(one).data), given(event_data(other).data))
    except CodecError:  # of one that was changed since
        return False


def event_of(data: Any, place: Place) -> Event:
    """Return the event that was kept."""
    try:
        return Event.model_validate(data)
    except ValidationError as error:
        raise CodecError(key=place.head, verb="decoded", reason=f"it holds what is no event: {error}") from error


def appended(place: Place, found: Found, events: Sequence[Kept], head: Head, bytes_max: int) -> list[Set | Create]:
    """Return what adds events to a session of which the last page was read; `head` says all but its pages."""
    writes, known = added_pages(place, found, events, head.revision, bytes_max)
    grown = msgspec.structs.replace(
        head, items=known.items + len(events), pages=known.pages, logs=known.logs, grown_as=known.grown_as
    )
    return [Set(place.head, head_value(grown), expected=found.head), *writes]

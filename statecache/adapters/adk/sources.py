"""What ADK's own services keep, read as it is: a `SqliteSessionService`'s file, a `DatabaseSessionService`'s tables.

Nothing is written there, and one session is in memory at a time.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from google.adk.events.event import Event
from google.adk.sessions.session import Session
from pydantic import Field

from statecache import ConfigurationError, StateCacheError, Unavailable, UsageError
from statecache.adapters.adk.documents import Of, Place
from statecache.adapters.imported import NOT_READ, Unreadable
from statecache.adapters.sqlite_files import moment, names, reading, refusal, refuse_no_file, refuse_no_text

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy import orm as sqlalchemy_orm
    from sqlalchemy.exc import DBAPIError

T = TypeVar("T")
_DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+pysqlite", "mysql": "mysql+pymysql"}
"""What reads a database without an event loop, by what its URL begins with."""
_NO_COLUMN = 1054
"""How MySQL says that a column is missing, which its driver takes for an error of operation."""
_EARLY = "`adk migrate session` brings the tables of early releases up to date."


class OfAppOrUser(NamedTuple):
    """The state of an app or of a user."""

    place: Place
    of: Of
    state: dict[str, Any]

    @property
    def name(self) -> str:
        """What it is named here."""
        return self.place.app if self.of == "app" else self.place.user


class _StoredEvent(Event):
    """An event as ADK stores it: of one without an id or a time it would make another at each read."""

    id: str = Field(min_length=1)
    timestamp: float


class Stored(NamedTuple):
    """What is taken in: states of apps and users by whose they are, and sessions, whose state is their own alone."""

    states: Iterable[OfAppOrUser | Unreadable]
    sessions: Iterable[Session | Unreadable]


@contextmanager
def sqlite_sessions(source: Path) -> Iterator[Stored]:
    """Yield what ADK's `SqliteSessionService` keeps in a file.

    Raises UsageError where the file is not there, and ConfigurationError where it holds no sessions of ADK.
    """
    hint = f"SqliteSessionService(FILE) writes such files. {_EARLY}"
    with reading(source, what="sessions of ADK", hint=hint) as rows:
        yield Stored(_states(rows), _sessions(rows))


def _states(rows: sqlite3.Connection) -> Iterator[OfAppOrUser | Unreadable]:
    with names(rows):
        apps = rows.execute("SELECT app_name FROM app_states ORDER BY 1").fetchall()
        users = rows.execute("SELECT app_name, user_id FROM user_states ORDER BY 1, 2").fetchall()
    of_app = "SELECT state FROM app_states WHERE app_name = ?"
    for (app_name,) in apps:
        yield from _state(Place(app_name, "", ""), "app", partial(_stored_states, rows, of_app, (app_name,)))
    of_user = "SELECT state FROM user_states WHERE (app_name, user_id) = (?, ?)"
    for app_name, user_id in users:
        read = partial(_stored_states, rows, of_user, (app_name, user_id))
        yield from _state(Place(app_name, user_id, ""), "user", read)


def _stored_states(rows: sqlite3.Connection, asked: str, key: tuple[str, ...]) -> list[Any]:
    """Return the state that a query is for, or nothing where it is gone."""
    return [json.loads(state) for (state,) in rows.execute(asked, key).fetchall()]


def _sessions(rows: sqlite3.Connection) -> Iterator[Session | Unreadable]:
    with names(rows):
        every = rows.execute("SELECT app_name, user_id, id FROM sessions ORDER BY 1, 2, 3").fetchall()
    for row in every:
        place = Place(*row)
        session = _session(place, partial(_session_of, rows, place))
        if session is not None:
            yield session


def _session_of(rows: sqlite3.Connection, place: Place) -> Session | None:
    """Return a session with its events; None where it is gone."""
    session = "SELECT state, update_time FROM sessions WHERE (app_name, user_id, id) = (?, ?, ?)"
    events = "SELECT event_data FROM events WHERE (app_name, user_id, session_id) = (?, ?, ?) ORDER BY timestamp, rowid"
    with moment(rows):
        stored = rows.execute(session, place).fetchone()
        found = rows.execute(events, place).fetchall()
    if stored is None:
        return None
    state, updated = stored
    return Session(
        app_name=place.app_name, user_id=place.user_id, id=place.session_id,
        state=json.loads(state), last_update_time=updated,
        events=[_StoredEvent.model_validate_json(event) for (event,) in found],
    )  # fmt: skip


def _state(place: Place, of: Of, read: Callable[[], list[Any]]) -> Iterator[OfAppOrUser | Unreadable]:
    """Yield the state of an app or of a user, or why it cannot be read; nothing where it is gone."""
    found = OfAppOrUser(place, of, {})
    try:
        every = [found._replace(state=_object(state)) for state in read()]
    except NOT_READ as error:
        yield Unreadable(found.name, error)
    else:
        yield from every


def _object(state: Any) -> dict[str, Any]:
    """Return a state as a dictionary of its own; raise TypeError for one that is none."""
    if not isinstance(state, dict):
        raise TypeError("a state is an object of JSON")
    return dict(state)


def _session(place: Place, read: Callable[[], T]) -> T | Unreadable:
    """Return what is read of a session, or why it cannot be."""
    try:
        return read()
    except NOT_READ as error:
        return Unreadable(place.head, error)


@contextmanager
def database_sessions(url: str) -> Iterator[Stored]:
    """Yield what ADK's `DatabaseSessionService` keeps in a database.

    Raises UsageError for what is no URL, ConfigurationError where a package or the tables are missing, and Unavailable.
    """
    engine = _engine(url)
    from sqlalchemy import exc, orm

    try:
        with orm.Session(engine) as rows:
            yield Stored(_states_of(rows), _sessions_of(rows))
    except (exc.DatabaseError, exc.InterfaceError) as error:
        raise _refusal(error) from error
    finally:
        engine.dispose()


def _refusal(error: DBAPIError) -> StateCacheError:
    """Return what an error of a driver says about a database that is taken in."""
    from sqlalchemy import exc

    reason, hint = error.orig, f"Name the database of a DatabaseSessionService. {_EARLY}"
    if isinstance(reason, sqlite3.Error):
        return refusal(reason, "this database", what="sessions of ADK", hint=hint)
    is_told = reason is not None and reason.args[:1] == (_NO_COLUMN,)
    if not is_told and (error.connection_invalidated or isinstance(error, (exc.OperationalError, exc.InterfaceError))):
        return Unavailable("connect", detail=f"what is taken in: {reason}")
    return ConfigurationError(f"this database holds no sessions of ADK: {reason}", hint=hint)


def _engine(url: str) -> Engine:
    """Return what reads a database; a file of SQLite has to be there."""
    try:
        from sqlalchemy import create_engine, event, exc, make_url
    except ModuleNotFoundError as error:
        what = "an import from a database of ADK needs the package SQLAlchemy"
        raise ConfigurationError(what, hint="pip install 'google-adk[db]'") from error
    try:
        named = make_url(url)
        backend = named.get_backend_name()
        if backend == "sqlite":
            refuse_no_file(Path(named.database or ":memory:"))
        engine = create_engine(named.set(drivername=_DRIVERS.get(backend, named.drivername)))
        if backend != "sqlite":
            return engine.execution_options(isolation_level="REPEATABLE READ")
        event.listen(engine, "connect", lambda driver, _: refuse_no_text(driver))
        event.listen(engine, "begin", lambda rows: rows.exec_driver_sql("BEGIN"))  # its driver does not for a read
        return engine
    except exc.ArgumentError as error:
        raise UsageError("this is no URL of a database", hint="postgresql://USER@HOST/DATABASE") from error
    except ModuleNotFoundError as error:
        what = f"an import from this database needs the package {error.name}"
        raise ConfigurationError(what, hint=f"pip install {error.name}") from error


def _states_of(rows: sqlalchemy_orm.Session) -> Iterator[OfAppOrUser | Unreadable]:
    from google.adk.sessions.schemas.v1 import StorageAppState, StorageUserState
    from sqlalchemy import select

    key = StorageUserState.app_name, StorageUserState.user_id
    with _moment_of(rows), _names_of(rows):
        apps = rows.scalars(select(StorageAppState.app_name).order_by(StorageAppState.app_name)).all()
        users = rows.execute(select(*key).order_by(*key)).all()
    for app_name in apps:
        yield from _state(Place(app_name, "", ""), "app", partial(_states_at, rows, StorageAppState, app_name))
    for app_name, user_id in users:
        read = partial(_states_at, rows, StorageUserState, (app_name, user_id))
        yield from _state(Place(app_name, user_id, ""), "user", read)


def _states_at(rows: sqlalchemy_orm.Session, table: type[Any], key: Any) -> list[Any]:
    """Return the state of that key, or nothing where it is gone."""
    with _moment_of(rows):
        found = rows.get(table, key)
        return [] if found is None else [found.state]


@contextmanager
def _moment_of(rows: sqlalchemy_orm.Session) -> Iterator[None]:
    """Have what is read in a block be of one moment, and not remembered."""
    try:
        yield
    finally:
        rows.expunge_all()
        rows.rollback()


@contextmanager
def _names_of(rows: sqlalchemy_orm.Session) -> Iterator[None]:
    """Have names be read in a block whatever they are: SQLite's may be no UTF-8."""
    driver = rows.connection().connection.driver_connection
    with names(driver) if isinstance(driver, sqlite3.Connection) else nullcontext():
        yield


def _sessions_of(rows: sqlalchemy_orm.Session) -> Iterator[Session | Unreadable]:
    from google.adk.sessions.schemas.v1 import StorageSession
    from sqlalchemy import select

    key = StorageSession.app_name, StorageSession.user_id, StorageSession.id
    with _moment_of(rows), _names_of(rows):
        places = [Place(*row) for row in rows.execute(select(*key).order_by(*key))]
    for place in places:
        session = _session(place, partial(_stored_session, rows, place))
        if session is not None:
            yield session


def _stored_session(rows: sqlalchemy_orm.Session, place: Place) -> Session | None:
    """Return a session with its events; None where it is gone."""
    from google.adk.sessions.schemas.v1 import StorageEvent, StorageSession
    from sqlalchemy import select

    with _moment_of(rows):
        session = rows.get(StorageSession, tuple(place))
        if session is None:
            return None
        events = rows.scalars(
            select(StorageEvent)
            .filter_by(app_name=place.app_name, user_id=place.user_id, session_id=place.session_id)
            .order_by(StorageEvent.timestamp, StorageEvent.id)
        )
        found = [event.to_event() for event in events]
        return session.to_session(state=dict(session.state), events=found)

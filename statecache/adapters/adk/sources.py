"""What ADK's own services keep, read as it is: a `SqliteSessionService`'s file, a `DatabaseSessionService`'s tables.

Nothing is written there, and one session is in memory at a time.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from google.adk.events.event import Event
from google.adk.sessions.session import Session
from pydantic import ValidationError

from statecache import ConfigurationError, Unavailable, UsageError
from statecache.adapters.adk.documents import Of, Place
from statecache.adapters.sqlite_files import reading

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy import orm as sqlalchemy_orm

_DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+pysqlite", "mysql": "mysql+pymysql"}
"""What reads a database without an event loop, by what its URL begins with."""
_EARLY = "`adk migrate session` brings the tables of early releases up to date."


class Stored(NamedTuple):
    """What is taken in: states of apps and users by whose they are, and sessions, whose state is their own alone."""

    states: Iterable[tuple[Place, Of, dict[str, Any]]]
    sessions: Iterable[Session]


@contextmanager
def sqlite_sessions(source: Path) -> Iterator[Stored]:
    """Yield what ADK's `SqliteSessionService` keeps in a file.

    Raises UsageError where the file is not there, and ConfigurationError where it holds no sessions of ADK.
    """
    hint = f"SqliteSessionService(FILE) writes such files. {_EARLY}"
    with reading(source, what="sessions of ADK", hint=hint, unreadable=(ValidationError,)) as rows:
        yield Stored(_states(rows), _sessions(rows))


def _states(rows: sqlite3.Connection) -> Iterator[tuple[Place, Of, dict[str, Any]]]:
    for app_name, state in rows.execute("SELECT app_name, state FROM app_states ORDER BY 1"):
        yield Place(app_name, "", ""), "app", json.loads(state)
    for app_name, user_id, state in rows.execute("SELECT app_name, user_id, state FROM user_states ORDER BY 1, 2"):
        yield Place(app_name, user_id, ""), "user", json.loads(state)


def _sessions(rows: sqlite3.Connection) -> Iterator[Session]:
    every = "SELECT app_name, user_id, id, state, update_time FROM sessions ORDER BY 1, 2, 3"
    events = "SELECT event_data FROM events WHERE (app_name, user_id, session_id) = (?, ?, ?) ORDER BY timestamp, rowid"
    for app_name, user_id, session_id, state, updated in rows.execute(every):
        found = rows.execute(events, (app_name, user_id, session_id))
        yield Session(
            app_name=app_name, user_id=user_id, id=session_id, state=json.loads(state), last_update_time=updated,
            events=[Event.model_validate_json(event) for (event,) in found],
        )  # fmt: skip


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
    except (exc.DatabaseError, ValidationError, json.JSONDecodeError) as error:
        reason = getattr(error, "orig", error)
        if isinstance(error, exc.OperationalError) and engine.dialect.name != "sqlite":
            raise Unavailable("connect", detail=f"what is taken in: {reason}") from error
        hint = f"Name the database of a DatabaseSessionService. {_EARLY}"
        raise ConfigurationError(f"this database holds no sessions of ADK: {reason}", hint=hint) from error
    finally:
        engine.dispose()


def _engine(url: str) -> Engine:
    """Return what reads a database; a file of SQLite has to be there."""
    try:
        from sqlalchemy import create_engine, exc, make_url
    except ModuleNotFoundError as error:
        what = "an import from a database of ADK needs the package SQLAlchemy"
        raise ConfigurationError(what, hint="pip install 'google-adk[db]'") from error
    try:
        named = make_url(url)
        backend = named.get_backend_name()
        if backend == "sqlite" and not (named.database and Path(named.database).is_file()):
            raise UsageError(f"{named.database} does not exist")
        return create_engine(named.set(drivername=_DRIVERS.get(backend, named.drivername)))
    except exc.ArgumentError as error:
        raise UsageError("this is no URL of a database", hint="postgresql://USER@HOST/DATABASE") from error
    except ModuleNotFoundError as error:
        what = f"an import from this database needs the package {error.name}"
        raise ConfigurationError(what, hint=f"pip install {error.name}") from error


def _states_of(rows: sqlalchemy_orm.Session) -> Iterator[tuple[Place, Of, dict[str, Any]]]:
    from google.adk.sessions.schemas.v1 import StorageAppState, StorageUserState
    from sqlalchemy import select

    for app in rows.scalars(select(StorageAppState).order_by(StorageAppState.app_name)):
        yield Place(app.app_name, "", ""), "app", dict(app.state)
    for user in rows.scalars(select(StorageUserState).order_by(StorageUserState.app_name, StorageUserState.user_id)):
        yield Place(user.app_name, user.user_id, ""), "user", dict(user.state)


def _sessions_of(rows: sqlalchemy_orm.Session) -> Iterator[Session]:
    from google.adk.sessions.schemas.v1 import StorageEvent, StorageSession
    from sqlalchemy import select

    key = StorageSession.app_name, StorageSession.user_id, StorageSession.id
    names = [tuple(row) for row in rows.execute(select(*key).order_by(*key))]
    for app_name, user_id, session_id in names:
        session = rows.get(StorageSession, (app_name, user_id, session_id))
        if session is None:
            continue
        events = rows.scalars(
            select(StorageEvent)
            .filter_by(app_name=app_name, user_id=user_id, session_id=session_id)
            .order_by(StorageEvent.timestamp, StorageEvent.id)
        )
        found = [event.to_event() for event in events]
        yield session.to_session(state=dict(session.state), events=found)
        rows.expunge_all()

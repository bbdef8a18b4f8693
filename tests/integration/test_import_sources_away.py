"""Sources of an import that another process has locked, or that go away: they are unreachable, and not empty."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from agents.memory import SQLiteSession
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from statecache import ConfigurationError, Settings, Unavailable
from statecache.adapters import sqlite_files
from statecache.adapters.adk import sources
from statecache.adapters.openai_agents.importing import sqlite_sessions
from tests.support.command_line import CommandLine
from tests.support.openai_sessions import items
from tests.support.vendor_schemas import vendor_schema

# ADK's own service for SQLite lets a connection go open, and binds by numbers that newer releases of Python warn of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Binding 1 :DeprecationWarning"),
]
KINDS = ["adk-sqlite", "adk-database", "openai-sqlite"]


@pytest.fixture
def cli(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on the test's deployment, which waits for no lock of SQLite."""
    monkeypatch.setattr(sqlite_files, "_LOCKED_S_MAX", 0)
    return CommandLine(settings, monkeypatch, capsys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a session of ADK's own service, and one of the Agents SDK's."""
    file = tmp_path / "sessions.db"
    asyncio.run(_filled(SqliteSessionService(str(file)), "1"))
    with closing(SQLiteSession("1", file.with_suffix(".openai"))) as session:
        asyncio.run(session.add_items(items(2)))
    return file


async def _filled(service: BaseSessionService, *names: str) -> None:
    for name in names:
        await service.create_session(app_name="orders", user_id="alice", session_id=name)


def _words(kind: str, file: Path) -> list[str]:
    where = {"adk-database": f"sqlite:///{file}?timeout=0", "openai-sqlite": str(file.with_suffix(".openai"))}
    return ["import", kind, where.get(kind, str(file))]


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with closing(sqlite3.connect(file, isolation_level=None)) as rows:
        rows.execute("PRAGMA journal_mode = DELETE")
        rows.execute("BEGIN EXCLUSIVE")
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_another_process_has_locked_is_told_as_that(cli: CommandLine, file: Path, kind: str) -> None:
    with _locked(file), _locked(file.with_suffix(".openai")):
        held = cli(*_words(kind, file))
        told = cli(*_words(kind, file), "--json").json
    assert held.status == 4, held
    assert "database is locked" in held.err
    assert "Repeat the import" in held.err
    assert "holds no" not in held.err
    assert (told["error"], told["reason"]) == ("Unavailable", "locked")
    taken = cli(*_words(kind, file))
    assert (taken.status, taken.err) == (0, ""), taken


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_opened_is_not_said_to_hold_nothing(cli: CommandLine, file: Path, kind: str) -> None:
    for one in (file, file.with_suffix(".openai")):
        with closing(sqlite3.connect(one)) as rows:
            rows.execute("PRAGMA journal_mode = WAL")
        one.with_name(f"{one.name}-wal").unlink(missing_ok=True)
        one.with_name(f"{one.name}-wal").mkdir()
    refused = cli(*_words(kind, file))
    assert refused.status == 3, refused
    assert "cannot be read: unable to open database file" in refused.err
    assert "holds no" not in refused.err


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [(sqlite3.SQLITE_IOERR_READ, Unavailable, "wrong"), (sqlite3.SQLITE_BUSY_SNAPSHOT, Unavailable, "wrong"),
     (sqlite3.SQLITE_CORRUPT, ConfigurationError, "cannot be read: wrong"),
     (sqlite3.SQLITE_NOTADB, ConfigurationError, "holds no sessions of the"), (None, ConfigurationError, "read")],
)  # fmt: skip
def test_what_sqlite_says_is_told_apart(
    file: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, kind: type[Exception], words: str
) -> None:
    error = sqlite3.OperationalError("wrong")
    if code is not None:
        error.sqlite_errorcode = code

    def refused(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(sqlite3, "connect", refused)
    with pytest.raises(kind, match=words):
        next(sqlite_sessions(file))


@pytest.fixture
def vendors(settings: Settings) -> Iterator[str]:
    """The URL of a schema with three sessions of ADK's own service."""

    async def fill(url: str) -> None:
        service = DatabaseSessionService(url)
        await _filled(service, "1", "2", "3")
        await service.close()

    with vendor_schema(settings) as url:
        asyncio.run(fill(url.replace("postgresql://", "postgresql+psycopg://", 1)))
        yield f"{url}&application_name=taken_in"


def _ended(settings: Settings) -> None:
    with psycopg.connect(settings.postgres_url, autocommit=True) as rows:
        ended = rows.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'taken_in'"
        ).fetchall()
        assert ended == [(True,)]


def test_a_postgres_that_goes_away_in_the_middle_is_unreachable(settings: Settings, vendors: str) -> None:
    def read() -> None:
        with sources.database_sessions(vendors) as stored:
            sessions = iter(stored.sessions)
            next(sessions)
            _ended(settings)
            next(sessions)

    with pytest.raises(Unavailable, match="what is taken in: "):
        read()


def _raised_by(name: str, *args: object) -> Callable[[], Exception]:
    import sqlalchemy

    return lambda: getattr(sqlalchemy.exc, name)("SELECT 1", {}, Exception(*args))


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(_raised_by("InterfaceError", 0, "closed"), Unavailable),
     (_raised_by("OperationalError", 2013, "lost"), Unavailable),
     (_raised_by("OperationalError", 1054, "Unknown column"), ConfigurationError),
     (_raised_by("ProgrammingError", 1146, "no such table"), ConfigurationError)],
)  # fmt: skip
def test_what_a_driver_says_is_told_apart(vendors: str, raised: Callable[[], Exception], kind: type[Exception]) -> None:
    with pytest.raises(kind), sources.database_sessions(vendors):
        raise raised()

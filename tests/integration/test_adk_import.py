"""`statecache import adk-sqlite` and `adk-database`: what ADK's own services keep, once, again and gone on with."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from statecache import AsyncStateCache, Settings
from statecache.adapters import filling
from statecache.adapters.adk import StateCacheSessionService, importing, sources
from tests.support.adk_services import event
from tests.support.command_line import CommandLine
from tests.support.polling import pause
from tests.support.vendor_schemas import vendor_schema

WHOSE = [("orders", "alice", "42"), ("orders", "bob:b", "a/1"), ("other", "alice", "42")]
EVERY: list[dict[str, Any]] = [dict(zip(("app_name", "user_id", "session_id"), one, strict=True)) for one in WHOSE]

# ADK's own service for SQLite lets a connection go open, and binds by numbers that newer releases of Python warn of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Binding 1 :DeprecationWarning"),
]


class Vendor:
    """One of ADK's own services, and how an import from it is asked for."""

    def __init__(self, make: Callable[[], Any], *words: str) -> None:
        self._make, self.words = make, words

    @asynccontextmanager
    async def service(self) -> AsyncIterator[Any]:
        """Open the service."""
        made = self._make()
        yield made
        if isinstance(made, DatabaseSessionService):
            await made.close()


@pytest.fixture(params=["sqlite", "postgres", "file of a database service"])
def vendor(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Iterator[Vendor]:
    """ADK's own services on all that an import is tested with."""
    file = tmp_path / "ses sions?.db"
    if request.param == "sqlite":
        yield Vendor(lambda: SqliteSessionService(str(file)), "adk-sqlite", str(file))
    elif request.param == "postgres":
        with vendor_schema(settings) as url:
            driven = url.replace("postgresql://", "postgresql+psycopg://", 1)
            yield Vendor(lambda: DatabaseSessionService(driven), "adk-database", url)
    else:
        plain = f"sqlite+aiosqlite:///{tmp_path / 'sessions.db'}"
        yield Vendor(lambda: DatabaseSessionService(plain), "adk-database", plain)


@pytest.fixture
def cli(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on the test's deployment."""
    return CommandLine(settings, monkeypatch, capsys)


def _events(count: int, since: int = 0) -> list[Event]:
    deltas: list[dict[str, Any]] = [{}, {"n": 1, "app:last": 1.5}, {"user:name": "ä 😀", "list": [None]}]
    return [
        event(f"event {number}", changes=deltas[number % 3], timestamp=1e9 + number + 0.125)
        for number in range(since, count)
    ]  # fmt: skip


async def _append(service: BaseSessionService, which: dict[str, Any], events: list[Event]) -> None:
    session = await service.get_session(**which)
    if session is None:
        session = await service.create_session(**which, state={"begun": True, "app:of": which["app_name"]})
    for one in events:
        await service.append_event(session, one)


async def _told(service: BaseSessionService) -> list[Any]:
    """Return all that a service tells of the sessions."""
    found = [await service.get_session(**one) for one in EVERY]
    return [session and session.model_dump() for session in found]


async def _ours(settings: Settings, namespace: str = "adk") -> list[Any]:
    async with AsyncStateCache(settings=settings) as cache:
        return await _told(StateCacheSessionService(cache, namespace=namespace))


async def _filled(vendor: Vendor, count: int = 5) -> list[Any]:
    async with vendor.service() as service:
        for which in EVERY:
            await _append(service, which, _events(count))
        return await _told(service)


def test_sessions_are_taken_in_as_they_are_once_and_what_is_new_later(
    cli: CommandLine, settings: Settings, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = asyncio.run(_filled(vendor))
    tried = cli("import", *vendor.words, "--dry-run")
    assert tried.status == 0, tried
    assert asyncio.run(_ours(settings)) == [None] * 3
    monkeypatch.setattr(filling, "_ITEMS_A_LOT", 2)
    taken = cli("import", *vendor.words)
    assert (taken.status, taken.out) == (0, "15 events of 3 sessions written, 0 there already\n"), taken
    assert taken.err == "statecache: 5 states of apps and users written\n"
    assert (tried.out, tried.err) == (
        taken.out.replace("written", "would be written"), taken.err.replace("written", "would be written"),
    )  # fmt: skip
    assert asyncio.run(_ours(settings)) == theirs
    again = cli("import", *vendor.words, "--json")
    assert again.json == {"sessions": 3, "written": 0, "same": 15, "states": 0, "kept": [], "failed": {}}

    async def goes_on() -> list[Any]:
        async with vendor.service() as service:
            await _append(service, EVERY[0], [event("later", changes={"app:last": 2, "n": 3}, timestamp=2e9)])
            return await _told(service)

    theirs = asyncio.run(goes_on())
    assert cli("import", *vendor.words, "--json").json == {
        "sessions": 3, "written": 1, "same": 15, "states": 1, "kept": [], "failed": {},
    }  # fmt: skip
    assert asyncio.run(_ours(settings)) == theirs


def test_what_was_gone_on_with_here_is_left_alone_and_named(
    cli: CommandLine, settings: Settings, vendor: Vendor
) -> None:
    asyncio.run(_filled(vendor))
    assert cli("import", *vendor.words).status == 0

    async def both_go_on() -> None:
        async with vendor.service() as theirs, AsyncStateCache(settings=settings) as cache:
            ours = StateCacheSessionService(cache)
            await _append(ours, EVERY[0], [event("here", changes={"app:last": "here"}, timestamp=2e9)])
            await _append(theirs, EVERY[0], [event("there", changes={"app:last": "there"}, timestamp=2e9)])
            await _append(theirs, EVERY[1], [event("there", timestamp=2e9)])

    asyncio.run(both_go_on())
    there = cli("import", *vendor.words)
    assert there.status == 1
    assert there.out == "1 event of 3 sessions written, 10 there already\n"
    for name in ("orders", "orders:alice:42"):
        left = "left alone, in whole or in part, for it was changed or deleted, here or at its source"
        assert f"statecache: {name}: {left}\n" in there.err
    ours = asyncio.run(_ours(settings))
    assert ours[0]["events"][-1]["content"]["parts"][0]["text"] == "here"
    assert ours[0]["state"]["app:last"] == "here"
    assert ours[1]["events"][-1]["content"]["parts"][0]["text"] == "there"
    assert cli("import", *vendor.words, "--json").json["kept"] == ["orders", "orders:alice:42"]


def test_an_import_that_was_cut_off_goes_on(
    cli: CommandLine, settings: Settings, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = asyncio.run(_filled(vendor, 7))
    monkeypatch.setattr(filling, "_ITEMS_A_LOT", 2)
    append, left = importing._Taking._append, [None] * 5

    async def cut(self: Any, *args: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return await append(self, *args)

    monkeypatch.setattr(importing._Taking, "_append", cut)
    assert cli("import", *vendor.words).status == 130
    monkeypatch.setattr(importing._Taking, "_append", append)
    assert cli("import", *vendor.words, "--json").json["written"] == 21 - 9
    assert asyncio.run(_ours(settings)) == theirs


def test_what_was_undone_or_begun_here_is_left_alone_and_named(
    cli: CommandLine, settings: Settings, vendor: Vendor
) -> None:
    own: dict[str, Any] = {"app_name": "own", "user_id": "alice", "session_id": "1"}

    async def begins() -> None:
        async with vendor.service() as theirs, AsyncStateCache(settings=settings) as cache:
            ours = StateCacheSessionService(cache)
            await ours.create_session(**own, state={"from": "here", "budget": 7})
            await theirs.create_session(**own, state={"from": "there"})

    async def undoes() -> None:
        async with vendor.service() as theirs, AsyncStateCache(settings=settings) as cache:
            ours = StateCacheSessionService(cache)
            await ours.delete_session(**EVERY[0])
            await cache.undo(ours.group_of(**EVERY[1]), group=True)
            await cache.rollback(ours.group_of(**EVERY[2]), 1)
            await cache.delete("adk/orders")
            for one in (*EVERY, own):
                changes = {"app:last": "there"} if one["app_name"] == "orders" else {}
                await _append(theirs, one, [event("there", changes=changes, timestamp=2e9)])

    asyncio.run(_filled(vendor, 2))
    asyncio.run(begins())
    first = cli("import", *vendor.words, "--json")
    assert (first.status, first.json["kept"]) == (1, ["own:alice:1"])
    asyncio.run(undoes())
    left = asyncio.run(_ours(settings))
    assert [session and len(session["events"]) for session in left] == [None, 0, 0]
    names = ["orders", "orders:alice:42", "orders:bob%3Ab:a%2F1", "other:alice:42", "own:alice:1"]
    for words in (["--dry-run"], [], []):
        again = cli("import", *vendor.words, "--json", *words)
        assert (again.status, again.json["kept"], again.json["written"]) == (1, names, 0), again
        assert asyncio.run(_ours(settings)) == left

    async def of_its_own() -> Any:
        async with AsyncStateCache(settings=settings) as cache:
            session = await StateCacheSessionService(cache).get_session(**own)
            return session and session.state

    state = asyncio.run(of_its_own())
    assert (state["from"], state["budget"]) == ("here", 7)


@pytest.mark.parametrize("poison", ["an event that is too large", "a state that is too large", "a NUL in an id"])
def test_a_session_that_cannot_be_taken_in_is_named_and_those_after_it_are_taken_in(
    cli: CommandLine, settings: Settings, tmp_path: Path, poison: str
) -> None:
    file = tmp_path / "sessions.db"
    vendor = Vendor(lambda: SqliteSessionService(str(file)), "adk-sqlite", str(file))
    large, nul, events = "x" * (9 << 20), "NUL" in poison, [event("hello", timestamp=1e9)]

    async def fill() -> None:
        async with vendor.service() as service:
            for number, which in enumerate(EVERY):
                if number == 1:
                    which = {**which, "session_id": "a\0"} if nul else which
                    state = {"text": large} if "state" in poison else {}
                    session = await service.create_session(**which, state=state)
                    await service.append_event(session, event(large if "event" in poison else "hi", timestamp=1e9))
                else:
                    await _append(service, which, events)

    asyncio.run(fill())
    for words in (["--dry-run"], [], []):
        taken = cli("import", *vendor.words, "--json", *words)
        assert taken.status == 1, taken
        assert (taken.json["written"] + taken.json["same"], taken.json["kept"]) == (2, [])
        ((name, why),) = taken.json["failed"].items()
        assert name == ("orders:bob%3Ab:a\0" if nul else "orders:bob%3Ab:a%2F1")
        assert ("holds a NUL" if nul else "more than the limit of 8,388,608 bytes") in why
    ours = asyncio.run(_ours(settings))
    assert [session is not None and len(session["events"]) for session in ours] == [1, False, 1]


@pytest.mark.parametrize("damage", ["an event", "a session's state", "the states of a user and an app"])
def test_what_is_not_stored_as_it_should_be_is_named_and_the_rest_is_taken_in(
    cli: CommandLine, settings: Settings, vendor: Vendor, damage: str
) -> None:
    asyncio.run(_filled(vendor, 3))
    url, where = vendor.words[-1], "WHERE app_name = 'orders' AND user_id = 'bob:b'"
    text = "7" if url.startswith("postgresql") else "{no JSON"
    changes = {
        "an event": [f"UPDATE events SET event_data = '{{\"author\": 7}}' {where}"],
        "a session's state": [f"UPDATE sessions SET state = '{text}' {where}"],
        "the states of a user and an app": [
            f"UPDATE user_states SET state = '{text}' {where}",
            "UPDATE app_states SET state = '7' WHERE app_name = 'orders'",
        ],
    }
    on = psycopg.connect(url) if url.startswith("postgresql") else sqlite3.connect(url.partition(":///")[2] or url)
    with on:
        for change in changes[damage]:
            assert on.execute(change).rowcount > 0
    on.close()
    names = ["orders", "orders:bob%3Ab"] if "user" in damage else ["orders:bob%3Ab:a%2F1"]
    for words in (["--dry-run"], [], []):
        taken = cli("import", *vendor.words, "--json", *words)
        assert (taken.status, taken.json["kept"]) == (1, []), taken
        assert list(taken.json["failed"]) == names
        assert all(why.startswith("what is stored cannot be read: ") for why in taken.json["failed"].values())
        assert taken.json["written"] + taken.json["same"] == (9 if "user" in damage else 6)
    ours = asyncio.run(_ours(settings))
    assert [session is not None for session in ours] == [True, "user" in damage, True]


@pytest.mark.parametrize(
    "data", ["{}", '{"author": "user", "timestamp": 1.5}', '{"id": "", "timestamp": 1}', '{"id": "e"}']
)
def test_an_event_that_would_be_another_at_each_read_cannot_be_read(
    cli: CommandLine, settings: Settings, tmp_path: Path, data: str
) -> None:
    file = tmp_path / "sessions.db"
    vendor = Vendor(lambda: SqliteSessionService(str(file)), "adk-sqlite", str(file))
    asyncio.run(_filled(vendor, 1))
    with sqlite3.connect(file) as rows:
        rows.execute("UPDATE events SET event_data = ? WHERE user_id = 'bob:b'", (data,))
    rows.close()
    for _ in range(2):
        taken = cli("import", *vendor.words, "--json").json
        assert (list(taken["failed"]), taken["kept"]) == (["orders:bob%3Ab:a%2F1"], [])


@pytest.mark.parametrize("pairs", ['[["a", 2]]', "[]"])
def test_a_state_that_is_no_object_cannot_be_read_though_pairs_would_make_one(
    cli: CommandLine, settings: Settings, vendor: Vendor, pairs: str
) -> None:
    asyncio.run(_filled(vendor, 1))
    url = vendor.words[-1]
    on = psycopg.connect(url) if url.startswith("postgresql") else sqlite3.connect(url.partition(":///")[2] or url)
    with on:
        for table in ("app_states", "sessions"):
            on.execute(f"UPDATE {table} SET state = '{pairs}' WHERE app_name = 'other'")
    on.close()
    for _ in range(2):
        taken = cli("import", *vendor.words, "--json").json
        assert (list(taken["failed"]), taken["kept"]) == (["other", "other:alice:42"], [])


@pytest.mark.parametrize("vendor", ["sqlite", "file of a database service"], indirect=True)
@pytest.mark.parametrize(
    ("stored", "names"),
    [
        ("[" * 5000, ["orders", "orders:bob%3Ab", "orders:bob%3Ab:a%2F1"]),
        (b'{"text": "\xff"}', ["orders", "orders:bob%3Ab", "orders:bob%3Ab:a%2F1"]),
        (b"\xff", ["%ED%B3%BF", "orders:%ED%B3%BF", "orders:bob%3Ab:%ED%B3%BF"]),
    ],
    ids=["nested too deep", "no UTF-8", "names that are no UTF-8"],
)
def test_what_is_nested_too_deep_or_is_no_text_is_named_and_the_rest_is_taken_in(
    cli: CommandLine, settings: Settings, vendor: Vendor, stored: str | bytes, names: list[str]
) -> None:
    asyncio.run(_filled(vendor, 3))
    columns = {"app_states": "state", "user_states": "state", "events": "event_data"}
    if stored == b"\xff":
        columns = {"app_states": "app_name", "user_states": "user_id", "sessions": "id"}
    with sqlite3.connect(vendor.words[-1].partition(":///")[2] or vendor.words[-1]) as rows:
        for table, column in columns.items():
            which = "app_name = 'orders'" if table == "app_states" else "user_id = 'bob:b'"
            assert rows.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE {which}", (stored,)).rowcount
    rows.close()
    for words in (["--dry-run"], [], []):
        taken = cli("import", *vendor.words, "--json", *words)
        assert (taken.status, taken.json["kept"]) == (1, []), taken
        assert list(taken.json["failed"]) == names
        assert all(why.startswith("what is stored cannot be read: ") for why in taken.json["failed"].values())
        assert taken.json["written"] + taken.json["same"] == 6
    assert [session is not None for session in asyncio.run(_ours(settings))] == [True, False, True]


async def test_a_session_is_taken_in_as_it_was_at_one_moment_though_somebody_goes_on_with_it_there(
    settings: Settings, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is who goes on with it there held up by an import that has more to take in."""
    await _filled(vendor, 2)
    kind, where = vendor.words
    opened = sources.sqlite_sessions(Path(where)) if kind == "adk-sqlite" else sources.database_sessions(where)
    with opened as stored:
        async with AsyncStateCache(settings=settings) as cache, asyncio.timeout(30):
            sessions = iter(stored.sessions)
            first = next(sessions)
            async with vendor.service() as service:
                for which in EVERY:
                    await _append(service, which, [event("later", changes={"n": 7}, timestamp=2e9)])
            rest = sources.Stored([], [first, *sessions])
            done = await importing.import_sessions(rest, cache, progress=lambda _: None)
    assert (done.written, done.kept, done.failed) == (2 + 3 + 3, [], {})
    states = [(session["state"].get("n"), len(session["events"])) for session in await _ours(settings)]
    assert states == [(1, 2), (7, 3), (7, 3)]


async def test_state_and_events_are_read_as_of_one_moment(settings: Settings) -> None:
    with vendor_schema(settings) as url:
        driven = url.replace("postgresql://", "postgresql+psycopg://", 1)
        vendor = Vendor(lambda: DatabaseSessionService(driven), "adk-database", url)
        await _filled(vendor, 2)
        with sources.database_sessions(url) as stored, psycopg.connect(url) as rows:
            rows.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")  # so that events are read later than the state
            reading = asyncio.create_task(asyncio.to_thread(lambda: next(iter(stored.sessions))))
            async with asyncio.timeout(30):
                while not rows.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
                    await pause()
            rows.execute("DELETE FROM events")
            rows.execute("UPDATE sessions SET state = '{}'")
            rows.commit()
            session = await reading
    assert isinstance(session, Session)
    assert (len(session.events), session.state.get("n")) == (2, 1)


def test_a_state_that_was_older_than_its_events_is_brought_up_to_them(
    cli: CommandLine, settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "sessions.db"
    vendor = Vendor(lambda: SqliteSessionService(str(file)), "adk-sqlite", str(file))
    theirs = asyncio.run(_filled(vendor, 2))
    for changes in (["ADD COLUMN actual", "SET actual = state, state = '{}'"], ["SET state = actual"]):
        with sqlite3.connect(file) as rows:
            for change in changes:
                rows.execute(f"{'ALTER TABLE' if 'ADD' in change else 'UPDATE'} sessions {change}")
        rows.close()
        assert cli("import", *vendor.words).status == 0
    again = cli("import", *vendor.words, "--json").json
    assert (again["written"], again["same"], again["kept"]) == (0, 6, [])
    assert asyncio.run(_ours(settings)) == theirs


def test_a_namespace_may_be_another(cli: CommandLine, settings: Settings, vendor: Vendor) -> None:
    theirs = asyncio.run(_filled(vendor, 2))
    assert cli("import", *vendor.words, "--namespace", "mine").status == 0
    assert asyncio.run(_ours(settings)) == [None] * 3
    assert asyncio.run(_ours(settings, "mine")) == theirs


def test_a_long_session_is_taken_in_by_lots_and_read_in_order(
    cli: CommandLine, settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "sessions.db"
    vendor = Vendor(lambda: SqliteSessionService(str(file)), "adk-sqlite", str(file))
    theirs = asyncio.run(_filled(vendor, 1203))
    assert cli("import", *vendor.words, "--json").json["written"] == 3 * 1203
    assert asyncio.run(_ours(settings)) == theirs


def test_a_source_that_cannot_be_read_is_told(cli: CommandLine, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database, but a text that is long enough to be taken for one" * 9)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (n)").connection.close()
    for words in (("adk-sqlite", str(tmp_path / "none.db")), ("adk-database", f"sqlite:///{tmp_path}/none.db")):
        gone = cli("import", *words)
        assert (gone.status, "does not exist" in gone.err) == (2, True), gone
    for words in (("adk-sqlite", str(tmp_path)), ("adk-database", f"sqlite:///{tmp_path}")):
        directory = cli("import", *words)
        assert (directory.status, f"{tmp_path} is no file" in directory.err) == (2, True), directory
    for name in ("text.db", "other.db"):
        for words in (("adk-sqlite", str(tmp_path / name)), ("adk-database", f"sqlite:///{tmp_path / name}")):
            strange = cli("import", *words)
            assert (strange.status, "holds no sessions of ADK" in strange.err) == (3, True), strange
    with vendor_schema(settings) as url:
        empty = cli("import", "adk-database", url)
        assert (empty.status, "holds no sessions of ADK" in empty.err) == (3, True), empty
    for url, status in (("nonsense", 2), ("postgresql://u:secret@127.0.0.1:1/d", 4), ("no+such://u:secret@h/d", 2)):
        away = cli("import", "adk-database", url)
        assert away.status == status, away
        assert "secret" not in away.err
        assert away.err.startswith("statecache: ")
    assert not (tmp_path / "none.db").exists()


def test_tables_of_an_early_release_are_told(cli: CommandLine, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "early.db") as rows:
        for name, columns in {
            "app_states": "app_name, state, update_time", "user_states": "app_name, user_id, state, update_time",
            "sessions": "app_name, user_id, id, state, create_time, update_time",
            "events": "id, app_name, user_id, session_id, invocation_id, author, actions BLOB, timestamp",
        }.items():  # fmt: skip
            rows.execute(f"CREATE TABLE {name} ({columns})")
        rows.execute("INSERT INTO sessions VALUES ('a', 'u', 's', '{}', 1, 1)")
    rows.close()
    for words in (
        ("adk-sqlite", str(tmp_path / "early.db")), ("adk-database", f"sqlite:///{tmp_path / 'early.db'}"),
    ):  # fmt: skip
        early = cli("import", *words)
        assert (early.status, "adk migrate session" in early.err) == (3, True), early

"""`statecache import adk-sqlite` and `adk-database`: what cannot be read or taken in is named with the reason."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from statecache import Settings
from tests.support.adk_imports import EVERY, KINDS, Vendor, append_to, filled, told_here, vendor_of
from tests.support.adk_services import event
from tests.support.command_line import CommandLine
from tests.support.vendor_schemas import vendor_schema

# ADK's own service for SQLite lets a connection go open, and binds by numbers that newer releases of Python warn of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Binding 1 :DeprecationWarning"),
]


@pytest.fixture(params=KINDS)
def vendor(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Iterator[Vendor]:
    """ADK's own services on all that an import is tested with."""
    with vendor_of(request.param, settings, tmp_path) as made:
        yield made


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
                    await append_to(service, which, events)

    asyncio.run(fill())
    for words in (["--dry-run"], [], []):
        taken = cli("import", *vendor.words, "--json", *words)
        assert taken.status == 1, taken
        assert (taken.json["written"] + taken.json["same"], taken.json["kept"]) == (2, [])
        ((name, why),) = taken.json["failed"].items()
        assert name == ("orders:bob%3Ab:a\0" if nul else "orders:bob%3Ab:a%2F1")
        assert ("holds a NUL" if nul else "more than the limit of 8,388,608 bytes") in why
    ours = asyncio.run(told_here(settings))
    assert [session is not None and len(session["events"]) for session in ours] == [1, False, 1]


@pytest.mark.parametrize("damage", ["an event", "a session's state", "the states of a user and an app"])
def test_what_is_not_stored_as_it_should_be_is_named_and_the_rest_is_taken_in(
    cli: CommandLine, settings: Settings, vendor: Vendor, damage: str
) -> None:
    asyncio.run(filled(vendor, 3))
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
    ours = asyncio.run(told_here(settings))
    assert [session is not None for session in ours] == [True, "user" in damage, True]


@pytest.mark.parametrize(
    "data", ["{}", '{"author": "user", "timestamp": 1.5}', '{"id": "", "timestamp": 1}', '{"id": "e"}']
)
def test_an_event_that_would_be_another_at_each_read_cannot_be_read(
    cli: CommandLine, settings: Settings, tmp_path: Path, data: str
) -> None:
    file = tmp_path / "sessions.db"
    vendor = Vendor(lambda: SqliteSessionService(str(file)), "adk-sqlite", str(file))
    asyncio.run(filled(vendor, 1))
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
    asyncio.run(filled(vendor, 1))
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
    asyncio.run(filled(vendor, 3))
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
    assert [session is not None for session in asyncio.run(told_here(settings))] == [True, False, True]


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

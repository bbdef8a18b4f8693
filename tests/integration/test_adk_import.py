"""`statecache import adk-sqlite` and `adk-database`: what ADK's own services keep, once, again and gone on with."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from statecache import AsyncStateCache, Settings
from statecache.adapters import filling
from statecache.adapters.adk import StateCacheSessionService, importing, sources
from tests.support.adk_imports import EVERY, KINDS, Vendor, append_to, filled, told_by, told_here, vendor_of
from tests.support.adk_services import event
from tests.support.command_line import CommandLine
from tests.support.polling import pause
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


def test_sessions_are_taken_in_as_they_are_once_and_what_is_new_later(
    cli: CommandLine, settings: Settings, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = asyncio.run(filled(vendor))
    tried = cli("import", *vendor.words, "--dry-run")
    assert tried.status == 0, tried
    assert asyncio.run(told_here(settings)) == [None] * 3
    monkeypatch.setattr(filling, "_ITEMS_A_LOT", 2)
    taken = cli("import", *vendor.words)
    assert (taken.status, taken.out) == (0, "15 events of 3 sessions written, 0 there already\n"), taken
    assert taken.err == "statecache: 5 states of apps and users written\n"
    assert (tried.out, tried.err) == (
        taken.out.replace("written", "would be written"), taken.err.replace("written", "would be written"),
    )  # fmt: skip
    assert asyncio.run(told_here(settings)) == theirs
    again = cli("import", *vendor.words, "--json")
    assert again.json == {"sessions": 3, "written": 0, "same": 15, "states": 0, "kept": [], "failed": {}}

    async def goes_on() -> list[Any]:
        async with vendor.service() as service:
            await append_to(service, EVERY[0], [event("later", changes={"app:last": 2, "n": 3}, timestamp=2e9)])
            return await told_by(service)

    theirs = asyncio.run(goes_on())
    assert cli("import", *vendor.words, "--json").json == {
        "sessions": 3, "written": 1, "same": 15, "states": 1, "kept": [], "failed": {},
    }  # fmt: skip
    assert asyncio.run(told_here(settings)) == theirs


def test_what_was_gone_on_with_here_is_left_alone_and_named(
    cli: CommandLine, settings: Settings, vendor: Vendor
) -> None:
    asyncio.run(filled(vendor))
    assert cli("import", *vendor.words).status == 0

    async def both_go_on() -> None:
        async with vendor.service() as theirs, AsyncStateCache(settings=settings) as cache:
            ours = StateCacheSessionService(cache)
            await append_to(ours, EVERY[0], [event("here", changes={"app:last": "here"}, timestamp=2e9)])
            await append_to(theirs, EVERY[0], [event("there", changes={"app:last": "there"}, timestamp=2e9)])
            await append_to(theirs, EVERY[1], [event("there", timestamp=2e9)])

    asyncio.run(both_go_on())
    there = cli("import", *vendor.words)
    assert there.status == 1
    assert there.out == "1 event of 3 sessions written, 10 there already\n"
    for name in ("orders", "orders:alice:42"):
        left = "left alone, in whole or in part, for it was changed or deleted, here or at its source"
        assert f"statecache: {name}: {left}\n" in there.err
    ours = asyncio.run(told_here(settings))
    assert ours[0]["events"][-1]["content"]["parts"][0]["text"] == "here"
    assert ours[0]["state"]["app:last"] == "here"
    assert ours[1]["events"][-1]["content"]["parts"][0]["text"] == "there"
    assert cli("import", *vendor.words, "--json").json["kept"] == ["orders", "orders:alice:42"]


def test_an_import_that_was_cut_off_goes_on(
    cli: CommandLine, settings: Settings, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = asyncio.run(filled(vendor, 7))
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
    assert asyncio.run(told_here(settings)) == theirs


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
                await append_to(theirs, one, [event("there", changes=changes, timestamp=2e9)])

    asyncio.run(filled(vendor, 2))
    asyncio.run(begins())
    first = cli("import", *vendor.words, "--json")
    assert (first.status, first.json["kept"]) == (1, ["own:alice:1"])
    asyncio.run(undoes())
    left = asyncio.run(told_here(settings))
    assert [session and len(session["events"]) for session in left] == [None, 0, 0]
    names = ["orders", "orders:alice:42", "orders:bob%3Ab:a%2F1", "other:alice:42", "own:alice:1"]
    for words in (["--dry-run"], [], []):
        again = cli("import", *vendor.words, "--json", *words)
        assert (again.status, again.json["kept"], again.json["written"]) == (1, names, 0), again
        assert asyncio.run(told_here(settings)) == left

    async def of_its_own() -> Any:
        async with AsyncStateCache(settings=settings) as cache:
            session = await StateCacheSessionService(cache).get_session(**own)
            return session and session.state

    state = asyncio.run(of_its_own())
    assert (state["from"], state["budget"]) == ("here", 7)


async def test_a_session_is_taken_in_as_it_was_at_one_moment_though_somebody_goes_on_with_it_there(
    settings: Settings, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is who goes on with it there held up by an import that has more to take in."""
    await filled(vendor, 2)
    kind, where = vendor.words
    opened = sources.sqlite_sessions(Path(where)) if kind == "adk-sqlite" else sources.database_sessions(where)
    with opened as stored:
        async with AsyncStateCache(settings=settings) as cache, asyncio.timeout(30):
            sessions = iter(stored.sessions)
            first = next(sessions)
            async with vendor.service() as service:
                for which in EVERY:
                    await append_to(service, which, [event("later", changes={"n": 7}, timestamp=2e9)])
            rest = sources.Stored([], [first, *sessions])
            done = await importing.import_sessions(rest, cache, progress=lambda _: None)
    assert (done.written, done.kept, done.failed) == (2 + 3 + 3, [], {})
    states = [(session["state"].get("n"), len(session["events"])) for session in await told_here(settings)]
    assert states == [(1, 2), (7, 3), (7, 3)]


async def test_state_and_events_are_read_as_of_one_moment(settings: Settings) -> None:
    with vendor_schema(settings) as url:
        driven = url.replace("postgresql://", "postgresql+psycopg://", 1)
        vendor = Vendor(lambda: DatabaseSessionService(driven), "adk-database", url)
        await filled(vendor, 2)
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
    theirs = asyncio.run(filled(vendor, 2))
    for changes in (["ADD COLUMN actual", "SET actual = state, state = '{}'"], ["SET state = actual"]):
        with sqlite3.connect(file) as rows:
            for change in changes:
                rows.execute(f"{'ALTER TABLE' if 'ADD' in change else 'UPDATE'} sessions {change}")
        rows.close()
        assert cli("import", *vendor.words).status == 0
    again = cli("import", *vendor.words, "--json").json
    assert (again["written"], again["same"], again["kept"]) == (0, 6, [])
    assert asyncio.run(told_here(settings)) == theirs


def test_a_namespace_may_be_another(cli: CommandLine, settings: Settings, vendor: Vendor) -> None:
    theirs = asyncio.run(filled(vendor, 2))
    assert cli("import", *vendor.words, "--namespace", "mine").status == 0
    assert asyncio.run(told_here(settings)) == [None] * 3
    assert asyncio.run(told_here(settings, "mine")) == theirs


def test_a_long_session_is_taken_in_by_lots_and_read_in_order(
    cli: CommandLine, settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "sessions.db"
    vendor = Vendor(lambda: SqliteSessionService(str(file)), "adk-sqlite", str(file))
    theirs = asyncio.run(filled(vendor, 1203))
    assert cli("import", *vendor.words, "--json").json["written"] == 3 * 1203
    assert asyncio.run(told_here(settings)) == theirs

"""`statecache import openai-sqlite`: what the SDK's own sessions hold, once, again, in part and gone on with."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from agents.memory import SQLiteSession

from statecache import AsyncNamespace, AsyncStateCache, Settings, StateCache
from statecache.adapters import filling
from statecache.adapters.openai_agents import StateCacheSession
from tests.support.command_line import CommandLine
from tests.support.openai_sessions import items

LEFT_ALONE = "left alone, in whole or in part, for it was changed or deleted, here or at its source"


def _add(source: Path, session: str, added: list[Any]) -> None:
    one = SQLiteSession(session, source)
    asyncio.run(one.add_items(added))
    one.close()


def _there(settings: Settings, session: str) -> list[Any]:
    async def read() -> list[Any]:
        async with StateCacheSession(session, settings) as one:
            return await one.get_items()

    return asyncio.run(read())


def test_sessions_are_taken_in_once_and_what_is_new_later(
    cli: CommandLine, settings: Settings, sync_cache: StateCache, tmp_path: Path
) -> None:
    source = tmp_path / "conversations.db"
    _add(source, "long", items(1203))
    _add(source, "a/b", [*items(3), {"role": "user", "content": "half \ud83d"}])
    with sqlite3.connect(source) as rows:
        rows.execute("INSERT INTO agent_messages (session_id, message_data) VALUES ('a/b', '{not json')")
    rows.close()

    async def gone_on(session: str) -> None:
        async with StateCacheSession(session, settings) as one:
            await one.add_items([{"role": "user", "content": "here"}])

    tried = cli("import", "openai-sqlite", str(source), "--dry-run", "--json")
    assert tried.json == {"sessions": 2, "written": 1207, "same": 0, "unreadable": 1, "kept": [], "failed": {}}
    assert _there(settings, "long") == []
    taken = cli("import", "openai-sqlite", str(source))
    assert (taken.status, taken.out) == (0, "1,207 items of 2 sessions written, 0 there already\n")
    assert taken.err == "statecache: 1 item left out: no JSON\n"
    for session in ("long", "a/b"):
        one = SQLiteSession(session, source)
        assert _there(settings, session) == asyncio.run(one.get_items())
        one.close()
    _add(source, "long", items(1205, since=1203))
    assert cli("import", "openai-sqlite", str(source)).out == "2 items of 2 sessions written, 1,207 there already\n"
    asyncio.run(gone_on("long"))
    _add(source, "long", items(1206, since=1205))
    again = cli("import", "openai-sqlite", str(source))
    assert again.status == 1
    assert f"statecache: long: {LEFT_ALONE}\n" in again.err
    assert _there(settings, "long")[:-1] == items(1205)
    assert cli("import", "openai-sqlite", str(source), "--json").json["kept"] == ["long"]


def test_what_was_taken_out_of_sessions_here_is_not_brought_back(
    cli: CommandLine, settings: Settings, tmp_path: Path
) -> None:
    source, changed = tmp_path / "conversations.db", ["cleared", "ended", "popped", "undone"]
    for session in (*changed, "same"):
        _add(source, session, items(3))
    _add(source, "undone", items(5, since=3))
    assert cli("import", "openai-sqlite", str(source)).status == 0

    async def change() -> None:
        async with AsyncStateCache(settings=settings) as cache:
            cleared, ended, popped, undone = (StateCacheSession(one, cache) for one in changed)
            await cleared.clear_session()
            for _ in range(3):
                await ended.pop_item()
            await popped.pop_item()
            await undone.add_items([{"role": "user", "content": "here"}])
            await cache.undo(undone.group, group=True)

    asyncio.run(change())
    _add(source, "undone", items(6, since=5))
    for words in (["--dry-run"], [], []):
        again = cli("import", "openai-sqlite", str(source), *words)
        assert (again.status, "0 items of 5 sessions" in again.out) == (1, True), again
        for session in changed:
            assert f"statecache: {session}: {LEFT_ALONE}\n" in again.err
        assert [_there(settings, one) for one in changed] == [[], [], items(2), items(5)]


def test_a_session_that_was_changed_at_its_source_is_not_said_to_be_changed_here(
    cli: CommandLine, settings: Settings, tmp_path: Path
) -> None:
    source = tmp_path / "conversations.db"
    _add(source, "s", items(3))
    assert cli("import", "openai-sqlite", str(source)).status == 0
    one = SQLiteSession("s", source)
    asyncio.run(one.pop_item())
    one.close()
    for added in ([], [{"role": "user", "content": "another"}]):
        _add(source, "s", added)
        again = cli("import", "openai-sqlite", str(source))
        assert (again.status, again.err) == (1, f"statecache: s: {LEFT_ALONE}\n"), again
    assert _there(settings, "s") == items(3)


def test_an_import_of_sessions_that_was_cut_off_goes_on(
    cli: CommandLine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "conversations.db"
    _add(source, "long", items(7))
    monkeypatch.setattr(filling, "_ITEMS_A_LOT", 2)
    commit, left = AsyncNamespace.commit, [None] * 2

    async def cut(self: Any, *args: Any, **options: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return await commit(self, *args, **options)

    monkeypatch.setattr(AsyncNamespace, "commit", cut)
    assert cli("import", "openai-sqlite", str(source)).status == 130
    monkeypatch.setattr(AsyncNamespace, "commit", commit)
    assert _there(settings, "long") == items(4)
    again = cli("import", "openai-sqlite", str(source))
    assert (again.status, again.out) == (0, "3 items of 1 session written, 4 there already\n")
    assert _there(settings, "long") == items(7)


@pytest.mark.parametrize(
    ("column", "value"),
    [("message_data", "[" * 5000), ("message_data", b'{"a":"\xff"}'), ("session_id", b"m\xff")],
    ids=["an item that is nested too deep", "an item that is no UTF-8", "an id that is no UTF-8"],
)
def test_a_session_that_cannot_be_read_is_named_and_those_after_it_are_taken_in(
    cli: CommandLine, settings: Settings, tmp_path: Path, column: str, value: str | bytes
) -> None:
    source, is_id = tmp_path / "conversations.db", column == "session_id"
    for one in ("a", "m", "z"):
        _add(source, one, items(2))
    with sqlite3.connect(source) as rows:
        for table in ("agent_messages", *["agent_sessions"] * is_id):
            rows.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE session_id = 'm'", (value,))
    rows.close()
    name = "m\udcff" if is_id else "m"
    for words in (["--dry-run"], [], []):
        taken = cli("import", "openai-sqlite", str(source), "--json", *words)
        assert (taken.status, taken.json["sessions"], taken.json["unreadable"]) == (1, 3, 0), taken
        assert (taken.json["written"] + taken.json["same"], taken.json["kept"]) == (4, [])
        assert list(taken.json["failed"]) == [name]
        assert taken.json["failed"][name].startswith("what is stored cannot be read: ")
    assert [_there(settings, one) for one in ("a", "m", "z")] == [items(2), [], items(2)]
    told = cli("import", "openai-sqlite", str(source)).err
    assert f"statecache: {'m' + chr(92) + 'udcff' if is_id else 'm'}: not taken in: what is stored" in told


@pytest.mark.parametrize("strange", [None, b"m"], ids=["NULL", "a BLOB"])
def test_a_session_whose_id_is_no_text_is_named_and_the_others_are_taken_in(
    cli: CommandLine, settings: Settings, tmp_path: Path, strange: bytes | None
) -> None:
    source = tmp_path / "conversations.db"
    _add(source, "a", items(2))
    with sqlite3.connect(source) as rows:
        rows.execute("INSERT INTO agent_sessions (session_id) VALUES (?)", (strange,))
    rows.close()
    for words in (["--dry-run"], [], []):
        taken = cli("import", "openai-sqlite", str(source), "--json", *words)
        assert (taken.status, taken.json["written"] + taken.json["same"], taken.json["kept"]) == (1, 2, []), taken
        assert taken.json["failed"] == {repr(strange): "what is stored cannot be read: its id is no text"}
    assert _there(settings, "a") == items(2)


@pytest.mark.parametrize(
    ("session", "content", "why"),
    [("m", "x" * (9 << 20), "an item is 9,437,265 bytes, more than the limit of 8,388,608 bytes"),
     ("m\0", "x", "session_id 'm\\x00' holds a NUL")],
    ids=["an item that is too large", "a NUL in the id"],
)  # fmt: skip
def test_a_session_that_cannot_be_taken_in_is_named_and_those_after_it_are_taken_in(
    cli: CommandLine, settings: Settings, tmp_path: Path, session: str, content: str, why: str
) -> None:
    source = tmp_path / "conversations.db"
    for one in ("a", session, "z"):
        _add(source, one, items(2))
    _add(source, session, [{"role": "user", "content": content}])
    for words, told in ((["--dry-run"], "4 items of 3 sessions would be written, 0 there already\n"),
                        ([], "4 items of 3 sessions written, 0 there already\n"),
                        ([], "0 items of 3 sessions written, 4 there already\n")):  # fmt: skip
        taken = cli("import", "openai-sqlite", str(source), *words)
        assert (taken.status, taken.out) == (1, told), taken
        assert "statecache: m" in taken.err
        assert f": not taken in: {why}" in taken.err
        assert "used wrongly" not in taken.err
    assert [_there(settings, one) for one in ("a", "m", "z")] == [items(2), [], items(2)]
    assert cli("import", "openai-sqlite", str(source), "--json").json["failed"].keys() == {session}

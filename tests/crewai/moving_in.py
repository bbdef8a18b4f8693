"""What an import from CrewAI's own persistence takes in, run as the contract is."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crewai.flow.persistence.sqlite import SQLiteFlowPersistence

from statecache import AsyncStateCache, ConfigurationError, UsageError
from statecache.adapters.crewai.importing import import_flows, sqlite_flows
from tests.crewai.flows import Told, context
from tests.crewai.persistences import CONFIGURATION, Both

UNDOING = ["delete", "rollback", "undo", *(["erase"] if CONFIGURATION != "paused" else [])]
"""What is done to a flow that was taken in; an erasure waits for a worker."""


def _taken(source: Path, **more: Any) -> Any:
    if CONFIGURATION == "cold":
        more["durability"] = "postgres"

    async def run() -> Any:
        async with AsyncStateCache() as cache:
            return await import_flows(sqlite_flows(source), cache, progress=lambda _: None, **more)

    return msgspec.to_builtins(asyncio.run(run()))


def test_what_sqlite_holds_is_taken_in_once_and_what_is_new_later(both: Both, flow_id: str, tmp_path: Path) -> None:
    source = tmp_path / "flows.db"
    theirs, other = SQLiteFlowPersistence(str(source)), f"{flow_id}/other"
    for number in range(5):
        theirs.save_state(flow_id, f"step{number}", {"id": flow_id, "number": number, "half": "\ud83d"})
    theirs.save_pending_feedback(other, context(other, metadata={"at": 1}), Told(id=other, said="asked"))
    assert _taken(source, dry_run=True) == {"flows": 2, "written": 6, "same": 0, "kept": [], "failed": {}}
    assert both.next().load_state(flow_id) is None
    assert _taken(source) == {"flows": 2, "written": 6, "same": 0, "kept": [], "failed": {}}
    assert both.next().load_state(flow_id) == theirs.load_state(flow_id)
    reasons = [one.reason for one in both.clients[0].history(both.next().group_of(flow_id))]
    assert reasons == [f"step{number}" for number in range(5)]
    ours, there = both.next().load_pending_feedback(other), theirs.load_pending_feedback(other)
    assert ours is not None
    assert there is not None
    assert (ours[0], ours[1].to_dict()) == (there[0], there[1].to_dict())
    theirs.save_state(flow_id, "later", {"id": flow_id, "number": 5})
    assert _taken(source) == {"flows": 2, "written": 1, "same": 6, "kept": [], "failed": {}}
    assert both.next().load_state(flow_id) == {"id": flow_id, "number": 5}


def test_a_flow_is_taken_in_whatever_its_methods_are_called(both: Both, flow_id: str, tmp_path: Path) -> None:
    source = tmp_path / "flows.db"
    theirs, methods = SQLiteFlowPersistence(str(source)), ["begin", "expired", "erased", "x" * 2000, "end"]
    for number, method in enumerate(methods):
        theirs.save_state(flow_id, method, {"id": flow_id, "number": number})
    assert _taken(source, dry_run=True) == {"flows": 1, "written": 5, "same": 0, "kept": [], "failed": {}}
    for written, same in ((5, 0), (0, 5)):
        assert _taken(source) == {"flows": 1, "written": written, "same": same, "kept": [], "failed": {}}
    for number, method in enumerate(["expired", "y" * 2000]):
        theirs.save_state(flow_id, method, {"id": flow_id, "number": 5 + number})
        assert _taken(source) == {"flows": 1, "written": 1, "same": 5 + number, "kept": [], "failed": {}}
    assert both.next().load_state(flow_id) == {"id": flow_id, "number": 6}


def test_imports_at_once_take_in_all_of_it_between_them(flow_id: str, tmp_path: Path) -> None:
    source, saves = tmp_path / "flows.db", 5
    theirs = SQLiteFlowPersistence(str(source))
    for number in range(saves):
        theirs.save_state(flow_id, f"step{number}", {"id": flow_id, "number": number})
    theirs.save_pending_feedback(flow_id, context(flow_id, metadata={"at": 1}), Told(id=flow_id, said="asked"))

    async def run() -> Any:
        async with AsyncStateCache() as one, AsyncStateCache() as other:
            imports = [import_flows(sqlite_flows(source), on, progress=lambda _: None) for on in (one, other)]
            return await asyncio.gather(*imports)

    done = asyncio.run(run())
    assert [(one.kept, one.failed, one.written + one.same) for one in done] == [([], {}, saves + 1)] * 2
    assert sum(one.written for one in done) == saves + 1


def test_a_flow_waits_for_what_it_waits_for_at_the_last_import(both: Both, flow_id: str, tmp_path: Path) -> None:
    source = tmp_path / "flows.db"
    theirs, other = SQLiteFlowPersistence(str(source)), f"{flow_id}-other"
    for one in (flow_id, other):
        theirs.save_pending_feedback(one, context(one, metadata={"at": 1}), Told(id=one, said="first"))
    assert _taken(source)["written"] == 2
    for one in (flow_id, other):
        theirs.clear_pending_feedback(one)
        theirs.save_state(one, "resumed", {"id": one, "said": "resumed"})
    theirs.save_pending_feedback(flow_id, context(flow_id, metadata={"at": 2}), Told(id=flow_id, said="second"))
    for _ in range(2):
        assert _taken(source)["kept"] == []
        assert both.next().load_pending_feedback(other) is None
        waits = both.next().load_pending_feedback(flow_id)
        assert waits is not None
        assert (waits[0]["said"], waits[1].metadata) == ("second", {"at": 2})
    theirs.save_pending_feedback(other, context(other, metadata={"at": 3}), Told(id=other, said="third"))
    assert _taken(source)["kept"] == []
    waits = both.next().load_pending_feedback(other)
    assert waits is not None
    assert (waits[0]["said"], waits[1].metadata) == ("third", {"at": 3})


def test_a_flow_waits_with_what_differs_though_python_takes_it_for_equal(
    both: Both, flow_id: str, tmp_path: Path
) -> None:
    source = tmp_path / "flows.db"
    theirs = SQLiteFlowPersistence(str(source))
    theirs.save_pending_feedback(flow_id, context(flow_id, metadata={"at": 1, "off": 0}), Told(id=flow_id))
    assert _taken(source)["written"] == 1
    with sqlite3.connect(source) as rows:
        changes = "'$.metadata.at', json('true'), '$.metadata.off', json('false')"
        rows.execute(f"UPDATE pending_feedback SET context_json = json_set(context_json, {changes})")
    rows.close()
    for _ in range(2):
        assert _taken(source)["kept"] == []
        waits = both.next().load_pending_feedback(flow_id)
        assert waits is not None
        assert repr(waits[1].metadata) == "{'at': True, 'off': False}"


def test_a_save_that_became_another_has_its_flow_named(both: Both, flow_id: str, tmp_path: Path) -> None:
    source = tmp_path / "flows.db"
    SQLiteFlowPersistence(str(source)).save_state(flow_id, "step", {"id": flow_id, "done": 0})
    assert _taken(source)["written"] == 1
    with sqlite3.connect(source) as rows:
        rows.execute("UPDATE flow_states SET state_json = json_set(state_json, '$.done', json('false'))")
    rows.close()
    assert _taken(source)["kept"] == [flow_id]
    assert repr((both.next().load_state(flow_id) or {})["done"]) == "0"


def test_a_flow_that_was_gone_on_with_here_is_left_alone(both: Both, flow_id: str, tmp_path: Path) -> None:
    source = tmp_path / "flows.db"
    theirs, other = SQLiteFlowPersistence(str(source)), f"{flow_id}-other"
    theirs.save_state(flow_id, "first", {"id": flow_id})
    theirs.save_pending_feedback(other, context(other), Told(id=other))
    assert _taken(source)["written"] == 2
    both.next().save_state(flow_id, "here", {"id": flow_id, "here": True})
    theirs.save_state(flow_id, "there", {"id": flow_id, "there": True})
    both.next().clear_pending_feedback(other)
    assert _taken(source) == {"flows": 2, "written": 0, "same": 1, "kept": [flow_id], "failed": {}}
    assert both.next().load_state(flow_id) == {"id": flow_id, "here": True}
    assert both.next().load_pending_feedback(other) is None, "what was resumed here is not to be resumed again"


@pytest.mark.parametrize("undoing", UNDOING)
def test_what_was_undone_here_is_left_alone_and_named(both: Both, flow_id: str, tmp_path: Path, undoing: str) -> None:
    source = tmp_path / "flows.db"
    theirs, other = SQLiteFlowPersistence(str(source)), f"{flow_id}-other"
    for number in range(3):
        theirs.save_state(flow_id, f"step{number}", {"id": flow_id, "number": number % 2})
    assert _taken(source)["written"] == 3
    cache, group = both.clients[0], both.next().group_of(flow_id)
    if undoing == "delete":
        cache.delete(group)
    elif undoing == "erase":
        cache.erase(group, group=True)
    elif undoing == "rollback":
        cache.rollback(group, 2)
    else:
        cache.undo(group)
    left = both.next().load_state(flow_id)
    assert left == (None if undoing in ("delete", "erase") else {"id": flow_id, "number": 1})
    theirs.save_state(flow_id, "later", {"id": flow_id, "number": 1})
    theirs.save_state(flow_id, "latest", {"id": flow_id, "number": 0})
    theirs.save_state(other, "first", {"id": other})
    for written, same in ((1, 0), (0, 1)):
        assert _taken(source) == {"flows": 2, "written": written, "same": same, "kept": [flow_id], "failed": {}}
        assert both.next().load_state(flow_id) == left
    assert both.next().load_state(other) == {"id": other}


def test_a_flow_that_cannot_be_taken_in_is_named_and_those_after_it_are_taken_in(
    both: Both, flow_id: str, tmp_path: Path
) -> None:
    source = tmp_path / "flows.db"
    theirs, large, last = SQLiteFlowPersistence(str(source)), f"{flow_id}-large", f"{flow_id}-last"
    theirs.save_state("\0", "step", {"id": "it has a NUL"})
    theirs.save_state(large, "step", {"id": large})
    theirs.save_state(large, "step", {"id": large, "text": "x" * (9 << 20)})
    theirs.save_state(last, "step", {"id": last})
    for dry_run, written, same in ((True, 1, 0), (False, 1, 0), (False, 0, 1)):
        taken = _taken(source, dry_run=dry_run)
        assert (taken["flows"], taken["written"], taken["same"], taken["kept"]) == (3, written, same, [])
        assert taken["failed"].keys() == {"\0", large}
        assert "holds a NUL" in taken["failed"]["\0"]
        assert "a save is 9,437," in taken["failed"][large]
        assert (both.next().load_state(last) is None) == dry_run
    assert both.next().load_state(large) is None, "nothing of a flow is taken in that cannot be as a whole"


@pytest.mark.parametrize("stored", ["{no JSON", "[" * 5000, b'{"id": "\xff"}'], ids=["no JSON", "too deep", "no UTF-8"])
@pytest.mark.parametrize("what", ["a save", "what it waits for"])
def test_a_flow_that_is_no_json_is_named_and_those_after_it_are_taken_in(
    both: Both, flow_id: str, tmp_path: Path, what: str, stored: str | bytes
) -> None:
    source = tmp_path / "flows.db"
    theirs, last = SQLiteFlowPersistence(str(source)), f"{flow_id}-last"
    for one in (flow_id, last):
        theirs.save_pending_feedback(one, context(one), Told(id=one))
    with sqlite3.connect(source) as rows:
        table, column = ("flow_states", "state_json") if what == "a save" else ("pending_feedback", "context_json")
        rows.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE flow_uuid = ?", (stored, flow_id))
    rows.close()
    for dry_run, written, same in ((True, 1, 0), (False, 1, 0), (False, 0, 1)):
        taken = _taken(source, dry_run=dry_run)
        assert (taken["flows"], taken["written"], taken["same"], taken["kept"]) == (2, written, same, [])
        assert list(taken["failed"]) == [flow_id]
        assert taken["failed"][flow_id].startswith("what is stored cannot be read: ")
    assert both.next().load_state(flow_id) is None
    assert both.next().load_pending_feedback(last) is not None


def test_a_flow_whose_id_is_no_utf_8_is_named_and_those_after_it_are_taken_in(
    both: Both, flow_id: str, tmp_path: Path
) -> None:
    source = tmp_path / "flows.db"
    theirs = SQLiteFlowPersistence(str(source))
    for one in ("damaged", flow_id):
        theirs.save_state(one, "step", {"id": one})
    with sqlite3.connect(source) as rows:
        rows.execute("UPDATE flow_states SET flow_uuid = CAST(? AS TEXT) WHERE flow_uuid = 'damaged'", (b"\xff",))
    rows.close()
    taken = _taken(source)
    assert (taken["flows"], taken["written"], list(taken["failed"])) == (2, 1, ["\udcff"])
    assert both.next().load_state(flow_id) == {"id": flow_id}


@pytest.mark.parametrize("text", ["", "no database, but a text that is long enough to be taken for one" * 9])
def test_a_file_without_flows_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text(text)
    with pytest.raises(ConfigurationError, match="holds no flows of CrewAI"):
        _taken(tmp_path / "text.db")
    with pytest.raises(UsageError, match="does not exist"):
        _taken(tmp_path / "none.db")

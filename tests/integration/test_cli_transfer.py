"""Exports and imports: every state as it is stored, and both can be interrupted and repeated."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statecache import OutcomeUnknown, Settings, StateCache
from statecache.cli.states.transfer import _said
from statecache.concurrency import run
from statecache.model import VALUE_BYTES_MAX
from statecache.testing.deployments import ThreadWorker
from tests.support.command_line import CommandLine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where an export goes."""
    return tmp_path / "runs.jsonl"


@pytest.fixture
def stored(sync_cache: StateCache) -> dict[str, bytes]:
    """States in every encoding, and what is stored of each."""
    sync_cache.set("runs/json", {"text": "é\n", "n": 12345678901234567890, "none": None})
    sync_cache.namespace("runs", encoding="msgpack").set("packed", {"bytes": b"\x00\xff"})
    sync_cache.namespace("runs", encoding="raw").set("raw", b"\x00 as it is")
    sync_cache.set_many({f"runs/{number:04d}": number for number in range(600)})
    sync_cache.set("runs/gone", 1)
    sync_cache.delete("runs/gone")
    sync_cache.set("other/1", 1)
    return _stored(sync_cache)


def _stored(cache: StateCache) -> dict[str, bytes]:
    names = [state.key for state in cache.list("runs/", values=False)]
    return {name: run(cache._runtime.reader.record(name, end=cache._view.end_of(None))).value for name in names}


@pytest.fixture
def working(settings: Settings) -> Iterator[ThreadWorker]:
    """A worker of the test's deployment, which goes on by itself."""
    worker = ThreadWorker(settings)
    yield worker
    worker.stop()


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def test_what_was_exported_and_deleted_is_imported_as_it_was(
    cli: CommandLine, sync_cache: StateCache, stored: dict[str, bytes], file: Path
) -> None:
    done = cli("export", "runs", "-o", str(file))
    assert (done.status, done.out, done.err) == (0, "", "statecache: 603 states exported\n")
    lines = {line["key"]: line for line in _lines(file)}
    assert list(lines) == sorted(stored)
    assert lines["runs/json"]["value"] == {"text": "é\n", "n": 12345678901234567890, "none": None}
    assert base64.b64decode(lines["runs/raw"]["base64"]) == b"\x00 as it is"
    assert (lines["runs/raw"]["encoding"], lines["runs/packed"]["encoding"]) == ("raw", "msgpack")
    assert cli("rm", "--prefix", "runs/", "--json").json == {"deleted": 603}
    assert cli("import", str(file), "--dry-run", "--json").json["written"] == 603
    assert _stored(sync_cache) == {}
    assert cli("import", str(file)).out == "603 states written, 0 there already\n"
    assert _stored(sync_cache) == stored
    assert cli("import", str(file)).out == "0 states written, 603 there already\n"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_shows_how_far_each_has_come_and_clears_that_away(
    cli: CommandLine, stored: dict[str, bytes], file: Path, width: int
) -> None:
    for arguments, doing in (
        (["export", "runs/", "-o", str(file)], "exporting runs/"),
        (["rm", "--prefix", "runs/", "--yes"], "deleting"),
        (["import", str(file)], "importing"),
    ):
        screen, inside = pty.openpty()
        done = subprocess.run(
            [sys.executable, "-m", "statecache", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=inside, env=cli.environment() | {"COLUMNS": str(width)}, timeout=60, check=False,
        )  # fmt: skip
        os.close(inside)
        seen = os.read(screen, 1 << 20).decode()
        os.close(screen)
        assert (done.returncode, doing in seen) == (0, True), seen
        assert f"{len(stored)}" in seen
        assert b"\x1b" not in done.stdout
        assert max(map(len, re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)))) <= width
        assert seen.rindex("\x1b[2K") > seen.rindex(doing), "the count is still there at the end"
        assert "\x1b[?25l" not in seen or seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")


def test_checkpoints_are_left_out_for_what_they_name_is_not_taken_along(
    cli: CommandLine, sync_cache: StateCache, file: Path, working: ThreadWorker
) -> None:
    for value in ("first", "second", "third"):
        sync_cache.set("runs/1", value)
        sync_cache.checkpoint("runs/1", f"at {value}")
    sync_cache.checkpoint("runs/1", "all", group=True)
    assert cli("export", "runs/", "-o", str(file)).err == "statecache: 5 states exported\n"
    sync_cache.delete_many(prefix="runs/")
    dry = cli("import", str(file), "--dry-run", "--json").json
    assert (dry["written"], dry["checkpoints"]) == (1, 4)
    done = cli("import", str(file))
    assert (done.status, done.out) == (0, "1 state written, 0 there already\n")
    assert done.err == "statecache: 4 checkpoints left out: each names a point of a history that does not come along\n"
    assert sync_cache.checkpoints("runs/1") == []
    assert [state.key for state in sync_cache.list("runs/")] == ["runs/1"]
    assert sync_cache.checkpoint("runs/1", "at first").version == 5


def test_an_export_that_was_cut_off_goes_on(cli: CommandLine, stored: dict[str, bytes], file: Path) -> None:
    assert cli("export", "runs/", "-o", str(file)).status == 0
    whole = file.read_bytes()
    assert cli("export", "runs/", "-o", str(file)).status == 2
    assert file.read_bytes() == whole
    for length in (0, 10, len(whole) // 2, len(whole) - 1, len(whole)):
        file.write_bytes(whole[:length])
        assert cli("export", "runs/", "-o", str(file), "--resume").status == 0
        assert file.read_bytes() == whole
    assert "of something else" in cli("export", "other/", "-o", str(file), "--resume").err
    assert file.read_bytes() == whole


def test_an_import_leaves_alone_what_has_another_value_unless_it_is_to_replace_it(
    cli: CommandLine, sync_cache: StateCache, stored: dict[str, bytes], file: Path
) -> None:
    cli("export", "runs/", "-o", str(file))
    sync_cache.set("runs/0001", "newer")
    sync_cache.delete("runs/0002")
    done = cli("import", str(file))
    assert (done.status, done.out) == (1, "1 state written, 601 there already\n")
    assert "1 key left alone" in done.err
    assert "  runs/0001\n" in done.err
    assert cli("import", str(file), "--json").json == {
        "written": 0, "same": 602, "ended": 0, "checkpoints": 0, "kept": ["runs/0001"], "failed": {},
    }  # fmt: skip
    assert cli("import", str(file), "--replace").status == 0
    assert _stored(sync_cache) == stored


def test_a_key_that_cannot_be_written_is_told_and_the_others_are_written(
    cli: CommandLine, sync_cache: StateCache, file: Path
) -> None:
    file.write_text('{"key":"runs/1","value":1}\n{"key":"runs/2","value":2}\n')
    with sync_cache.namespace("runs", locking="enforced").lock("2"):
        done = cli("import", str(file), "--json")
    assert done.status == 1
    assert done.json["written"] == 1
    assert list(done.json["failed"]) == ["runs/2"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nonsense", "JSON is malformed"),
        ("[]", "Expected `object`"),
        ('{"value":1}', "missing required field `key`"),
        ('{"key":"runs/2"}', "no value"),
        ('{"key":"runs/2","value":1,"base64":"AA=="}', "two"),
        ('{"key":"runs/2","base64":"AA=="}', "what is stored as JSON"),
        ('{"key":"runs/2","base64":"?","encoding":"raw"}', "base64"),
        ('{"key":"runs/2","value":1,"encoding":"pickle"}', "no known encoding"),
        ('{"key":"alone","value":1}', "cannot be used"),
        ('{"key":"runs/2","value":"' + "x" * VALUE_BYTES_MAX + '"}', "bytes, more than"),
    ],
)
def test_a_line_that_is_none_ends_the_import_behind_those_before_it(
    cli: CommandLine, sync_cache: StateCache, file: Path, line: str, told: str
) -> None:
    file.write_text('{"key":"runs/1","value":1}\n\n' + line + '\n{"key":"runs/3","value":3}\n')
    done = cli("import", str(file))
    assert (done.status, sync_cache.exists("runs/1"), sync_cache.exists("runs/3")) == (2, True, False)
    assert done.err.startswith("statecache: line 3")
    assert told in done.err


def test_wrong_arguments_are_told(cli: CommandLine, tmp_path: Path) -> None:
    assert cli("export", "runs/", "--resume").status == 2
    for arguments, told in (
        (["import", str(tmp_path / "absent")], "absent cannot be opened: no such file or directory"),
        (["import", str(tmp_path)], "cannot be opened: is a directory"),
        (["export", "runs/", "-o", str(tmp_path / "absent" / "a")], "a cannot be opened: no such file or directory"),
        (["export", "runs/", "-o", str(tmp_path), "--resume"], "cannot be opened: is a directory"),
        (["import", "/proc/self/mem/a"], "cannot be opened: not a directory"),
    ):
        ended = cli(*arguments)
        assert (ended.status, ended.out) == (2, "")
        assert f"{told}.\n" in ended.err
    assert cli("rm").status == 2
    assert cli("rm", "runs/1", "--prefix", "runs/").status == 2
    assert cli("rm", "runs/1", "runs/2", "--change-id", "0" * 24).status == 2


def test_a_key_whose_outcome_is_not_known_is_told_in_commands() -> None:
    told = _said(OutcomeUnknown("c" * 24, keys=("runs/1",), reason="the reply was lost"))
    assert told.endswith(
        "the reply was lost. Run it again: what has come through is found there, and the rest is written."
    )


def test_many_are_removed_by_hand(cli: CommandLine, sync_cache: StateCache) -> None:
    sync_cache.set_many({"runs/1": 1, "runs/2": 1, "runs/3": 1})
    assert cli("rm", "runs/1", "runs/9", "--dry-run").out == "1 state\n"
    assert cli("rm", "runs/1", "runs/2", "runs/9").out == "2 states deleted\n"
    assert cli("rm", "--prefix", "runs", "--dry-run", "--json").json == {"would_delete": 1}
    assert cli("rm", "--prefix", "runs").out == "1 state deleted under 'runs/'\n"
    nothing = cli("rm", "--prefix", "runs")
    assert (nothing.status, nothing.out) == (1, "")
    assert "nothing to delete under 'runs/'" in nothing.err

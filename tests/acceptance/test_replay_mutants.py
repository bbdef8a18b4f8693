"""What holds the promise is taken out of a copy of the package, piece by piece, and the replay's audit sees it.

Each break is applied to a fresh copy that only this test's processes import. The fence, which stands before commits and
before reads, matters only in the short time between a restart of Redis and the opening of the next epoch, so that break
is given several seeds; the copy without any break passes with the same ones.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statecache
from statecache.settings import process_environment

PACKAGE = Path(statecache.__file__).parent
WORKERS = PACKAGE.parent / "workers"
RUNS, MESSAGES = 60, 40
SEEDS = (1, 2, 3)
SECONDS = 150


class Break(NamedTuple):
    """What to take out of files of the package: edits, what to kill, and words of the findings expected."""

    edits: dict[str, dict[str, str]]
    kill: str
    told: tuple[str, ...]


BREAKS = {
    "flusher skips changes": Break(
        {
            "statecache/sql/flush/flush_changes.sql": {
                "size, digest, hash\n    FROM batch\n": "size, digest, hash\n    FROM batch WHERE mod(n, 5) <> 3\n",
                "(SELECT count(*) FROM added)": "(SELECT count(*) FROM batch)",
            }
        },
        "",
        ("is lost",),
    ),
    "dedupe is gone": Break(
        {"statecache/lua/commit/commit.lua": {"if seen then\n": "if false then\n"}},
        "agent,redis",
        ("was applied when the cache denied it",),
    ),
    "fence is gone": Break(
        {
            "statecache/lua/commit/commit.lua": {"if not epoch or replid ~= server or": "if not epoch or"},
            "statecache/lua/read/fenced_read.lua": {"if not open then\n": "if not epoch then\n"},
        },
        "redis",
        ("is lost", "outside its epoch", "are in conflict"),
    ),
}


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of runs that keep many commits in flight."""
    path = tmp_path_factory.mktemp("load") / "runs.jsonl"
    roles = ("user", "assistant")
    runs = (
        {
            "id": f"run-{number}",
            "messages": [{"role": roles[at % 2], "content": f"{number}, {at}: and then?"} for at in range(MESSAGES)],
        }
        for number in range(RUNS)
    )
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    return path


def copied(folder: Path) -> Path:
    """Copy the packages, the generated files and what is compiled too."""
    for source in (PACKAGE, WORKERS):
        shutil.copytree(source, folder / source.name)
    return folder


def broken(folder: Path, broken_by: Break) -> Path:
    """Copy the packages and take pieces out; each must occur exactly once."""
    copied(folder)
    for name, edits in broken_by.edits.items():
        text = (folder / name).read_text()
        for old, new in edits.items():
            assert text.count(old) == 1, f"{name} has changed: adapt this break to it"
            text = text.replace(old, new)
        (folder / name).write_text(text)
    return folder


def replayed(copy: Path, load: Path, *, kill: str, seed: int) -> dict[str, Any]:
    """Run the replay from the copy and return what it reported."""
    clean = {name: value for name, value in process_environment().items() if not name.startswith("STATECACHE_")}
    command = [sys.executable, "-m", "statecache", "replay", load, "--kill", kill, "--seed", seed, "--think-ms", 0]
    done = subprocess.run(
        [*map(str, command), "--json", "--timeout", str(SECONDS), "--journals", str(copy / f"journals-{seed}")],
        capture_output=True,
        text=True,
        check=False,
        cwd=copy,
        env=clean | {"PYTHONPATH": f"{copy}:{copy / 'workers'}"},
        timeout=SECONDS + 60,
    )
    assert done.returncode in (0, 1), done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["audit_ok"] == (done.returncode == 0)
    return told


@pytest.mark.parametrize("name", BREAKS)
def test_the_audit_sees_the_break(tmp_path: Path, load: Path, name: str) -> None:
    one = BREAKS[name]
    copy = broken(tmp_path / "copy", one)
    found: list[str] = []
    for seed in SEEDS:
        told = replayed(copy, load, kill=one.kill, seed=seed)
        found = told["findings"]
        if not told["audit_ok"]:
            break
    assert any(words in finding for finding in found for words in one.told), found


def test_an_unbroken_copy_passes(tmp_path: Path, load: Path) -> None:
    told = replayed(copied(tmp_path / "copy"), load, kill="agent,redis", seed=SEEDS[0])
    assert told["audit_ok"], told["findings"]
    assert told["commits_acked"] == RUNS * MESSAGES

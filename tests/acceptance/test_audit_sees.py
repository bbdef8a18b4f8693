"""The audit is worth what it sees: a broken copy of the product is replayed under kills, and the audit must object.

Each sabotage takes one safeguard out of a copy of the source tree; the replay then runs from that copy, on the real
servers, with the real kills. Whether a kill lands where the safeguard was needed is a matter of moments, so several
seeds are tried; one objection is enough, and none at all fails the test.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from statecache.settings import process_environment

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (1, 2, 3, 4, 5, 6)


class Sabotage(NamedTuple):
    """This replaces one text of one file, and says what the audit then counts."""

    file: str
    text: str
    by: str
    kills: str
    counted: str


SABOTAGES = {
    "the flusher drops changes": Sabotage(
        "statecache/reconcile.py",
        "                applied.append(Applied(change_set, change, tip.broken))\n",
        "                applied += [Applied(change_set, change, False)] * (change.version != 5)\n",
        "agent",
        "lost",
    ),
    "the dedupe finds nothing": Sabotage(
        "statecache/lua/commit.lua",
        "if id == change_id then",
        "if id == 'nothing' then",
        "redis",
        "findings",
    ),
    "the fence lets everything pass": Sabotage(
        "statecache/lua/commit.lua",
        "if not head[1] or head[2] ~= replid then",
        "if not head[1] then",
        "redis",
        "findings",
    ),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package, below in (("statecache", ""), ("statecache_workers", "workers")):
        shutil.copytree(ROOT / below / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.parametrize("name", SABOTAGES)
def test_the_audit_sees_that(name: str, copy: Path) -> None:
    sabotage = SABOTAGES[name]
    file = copy / sabotage.file
    text = file.read_text()
    assert text.count(sabotage.text) >= 1, "the sabotage no longer fits the code"
    file.write_text(text.replace(sabotage.text, sabotage.by))
    for seed in SEEDS:
        status, result = replay(copy, sabotage.kills, seed)
        if status == 1:
            break
    assert status == 1
    assert result["audit_ok"] is False
    assert result[sabotage.counted]


def test_the_audit_passes_what_is_whole(copy: Path) -> None:
    status, result = replay(copy, "agent,redis", 1)
    assert (status, result["audit_ok"]) == (0, True)
    assert (result["lost"], result["duplicated"], result["forked"]) == (0, 0, 0)
    assert result["commits_acked"] == result["messages"]


def replay(copy: Path, kills: str, seed: int) -> tuple[int, dict[str, Any]]:
    """This replays the sample from the copied tree and gives the exit status and the last line."""
    done = subprocess.run(
        [sys.executable, "-m", "statecache", "replay", "--kill", kills, "--seed", str(seed), "--json"],
        env=process_environment() | {"PYTHONPATH": str(copy)},
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    assert lines, f"exit status {done.returncode}: {done.stderr[-2000:]}"
    return done.returncode, json.loads(lines[-1])

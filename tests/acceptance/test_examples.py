"""Every example does what it says, on servers that are given and, one of them, on its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statecache.testing import servers

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 120
NOT_RUN = ("where",)
"""What the examples share, which is none."""

Environment = dict[str, str]


@pytest.fixture(scope="module")
def somewhere() -> Iterator[Environment]:
    """The settings of servers that the examples share."""
    with servers(workers=1, fsync=False) as started:
        urls = {"STATECACHE_REDIS_URL": started.redis_url, "STATECACHE_POSTGRES_URL": started.postgres_url}
        yield _nowhere() | urls


def _nowhere() -> Environment:
    return {name: value for name, value in os.environ.items() if not name.startswith("STATECACHE_")}


def _printed(name: str, environment: Environment) -> list[str]:
    """Run an example and return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True, text=True, check=False, timeout=SECONDS, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def _tools(lines: list[str]) -> list[str]:
    return sorted(line.strip().partition(",")[0] for line in lines if "tool:" in line)


def test_an_agent_that_is_killed_is_taken_up(somewhere: Environment) -> None:
    lines = _printed("resume", somewhere)
    assert "The first agent was killed." in lines
    assert lines[-1] == "The second agent is done."
    assert _tools(lines) == [
        "tool: looking up order 7", "tool: refunding order 7", "tool: telling the customer about order 7",
    ]  # fmt: skip
    taken_up = lines[lines.index("The second agent starts.") :]
    assert "Steps (2 of 3 done):" in taken_up
    assert "  [ ] tell  <- next" in taken_up


def test_the_same_with_tasks(somewhere: Environment) -> None:
    lines = _printed("resume_async", somewhere)
    killed = lines.index("The first agent was killed.")
    assert len(_tools(lines)) == 9 == len(set(_tools(lines)))
    assert {line.split()[1] for line in _tools(lines[:killed])} == {"searching", "reading"}
    assert lines[-2:] == ["3 runs are complete.", "The second agent is done."]


def test_a_shared_budget_is_never_overspent(somewhere: Environment) -> None:
    lines = _printed("budget", somewhere)
    assert sorted(lines[:-1]) == [f"agent {number}: the budget is used up" for number in (1, 2, 3, 4)]
    assert lines[-1] == "4 agents, statuses [0, 0, 0, 0]: spent 98, left 2, 15 commits"


def test_a_person_approves(somewhere: Environment) -> None:
    lines = _printed("approval", somewhere)
    assert any(line.strip().startswith("statecache set approvals/example-") for line in lines)
    assert lines[-1] == "agent: ada has approved, in version 2; refunding"


def test_no_message_of_a_chat_is_lost_or_rewritten(somewhere: Environment) -> None:
    lines = _printed("chat", somewhere)
    assert lines[:2] == ["the head counts 30 messages, 30 are there", "each written once: True"]
    assert lines[2:5] == [f"{who}: 10, in order: True" for who in ("user", "model", "tool")]
    assert lines[5].startswith("the last one: /messages/000030: message 10 of ")


def test_a_paused_holder_is_refused(somewhere: Environment) -> None:
    lines = _printed("paused_holder", somewhere)
    assert lines[1] == "first: (paused)"
    assert lines[2].startswith("second: I hold the lock, token ")
    assert lines[3] in ("first: refused with LeaseLost", "first: refused with StaleToken")
    assert lines[4] == "what stands: the second's work"


def test_an_example_brings_its_own_servers_where_none_are_named() -> None:
    assert _printed("approval", _nowhere())[-1].startswith("agent: ada has approved")


def test_every_example_is_run_here_and_listed() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")} - {*NOT_RUN}
    tests = Path(__file__).read_text(encoding="utf-8")
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert names == {name for name in names if f'_printed("{name}"' in tests and f"[{name}.py]({name}.py)" in page}

"""Ctrl-C in the middle of a command: one that writes says that it may have been applied, another one nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from statecache import Settings
from statecache.keys import KeySpace
from tests.support.command_line import CommandLine
from tests.support.polling import pause_thread

KEY = "runs/42"
LIMIT_S = 60


@pytest.fixture
def cli(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on the test's deployment."""
    return CommandLine(settings, monkeypatch, capsys)


def _interrupted(cli: CommandLine, redis_raw: Any, name: str, *command: str) -> tuple[int, str]:
    """Interrupt a command once the state has another change_id, and return its status and what it said on stderr."""
    before = redis_raw.hget(name, "change_id")
    with subprocess.Popen(
        [sys.executable, "-m", "statecache", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=cli.environment(),
    ) as process:  # fmt: skip
        while redis_raw.hget(name, "change_id") == before and process.poll() is None:
            pause_thread()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=LIMIT_S)
    return process.returncode, told


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["set", KEY, "2", "--durability", "postgres"], "Look whether it was applied"),
        (["rm", KEY, "--yes", "--durability", "postgres"], "Look whether it was applied"),
        (["erase", KEY, "--yes"], "Begin it again with the same command"),
    ],
)
def test_a_command_that_writes_says_that_it_may_have_been_applied(
    cli: CommandLine, redis_raw: Any, keys: KeySpace, command: list[str], says: str
) -> None:
    """No worker runs, so it waits for Postgres."""
    assert cli("set", KEY, "1").status == 0
    status, told = _interrupted(cli, redis_raw, keys.state(KEY), *command)
    assert status == 130
    assert told.startswith("statecache: interrupted: whether it was applied is not known. ")
    assert says in told
    assert told.count("\n") == 1

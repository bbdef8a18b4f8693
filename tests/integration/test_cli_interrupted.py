"""Ctrl-C in the middle of a command: one that writes says that it may have been applied, another one nothing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statecache import AsyncStateCache
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.command_line import CommandLine
from tests.support.polling import pause_thread
from tests.support.terminals import in_terminal

KEY, SIDE = "runs/42", "runs/42-b"
LIMIT_S = 60


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


def _state(process: subprocess.Popen[bytes]) -> str:
    """Return a process's state: `S` where it waits for something, which a signal ends."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0]


def _interrupted_as_it_asks(cli: CommandLine, *command: str) -> tuple[int, bytes]:
    """Press Ctrl-C at a command's question, and return its status and what it said then."""
    with in_terminal(cli, *command) as terminal:
        terminal.until(lambda seen: b"[y/N]: " in seen)
        while _state(terminal.process) != "S":
            pause_thread()
        asked = len(terminal.written)
        terminal.press(b"\x03")
        status = terminal.process.wait(LIMIT_S)
        terminal.press(b"\n")
        terminal.until(lambda seen: b"\n" in seen)
    return status, terminal.written[asked:]


@pytest.mark.parametrize("command", ["rollback", "undo", "merge"])
async def test_a_command_that_asks_ends_at_the_question_and_says_nothing(
    cli: CommandLine, cache: AsyncStateCache, worker: Worker, command: str
) -> None:
    more = {"rollback": [KEY, "1"], "undo": [KEY], "merge": [SIDE, KEY]}[command]
    async with flushing(worker):
        await cache.set(KEY, {})
        await cache.branch(KEY, SIDE)
        await cache.set(SIDE, {"found": 1})
        await cache.set(KEY, {"step": 1}, durability="postgres")
        status, told = await asyncio.to_thread(_interrupted_as_it_asks, cli, command, *more)
    assert status == 130
    assert told.strip() in (b"", b"^C")

"""The worker's log: who reads it may stop reading, and nothing waits for that."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from time import monotonic

import pytest

from statecache_workers import logs
from tests.support.full_pipe import FullPipe
from tests.support.polling import pause_thread

WAIT_S = 60.0
ROOM = 3


@pytest.fixture(params=[True, False], ids=["blocking", "not blocking"])
def pipe(request: pytest.FixtureRequest) -> Iterator[FullPipe]:
    """A pipe that nobody reads for now."""
    made = FullPipe()
    os.set_blocking(made.end, request.param)
    yield made
    made.close()


@pytest.fixture
def handler(pipe: FullPipe, monkeypatch: pytest.MonkeyPatch) -> Iterator[logs.WaitingLines]:
    """A handler of the worker's log that writes into the pipe, and keeps `ROOM` lines."""
    monkeypatch.setattr(logs, "LINES_MAX", ROOM)
    logger, made = logging.getLogger(logs.LOGGER), logs.WaitingLines(pipe.end)
    level = logger.level
    logger.addHandler(made)
    logger.setLevel(logging.INFO)
    yield made
    logger.removeHandler(made)
    logger.setLevel(level)


def _stall(handler: logs.WaitingLines) -> None:
    """Log a line, and wait until the thread is about to write it."""
    logs.say("first")
    end = monotonic() + WAIT_S
    while not handler._writing:
        assert monotonic() < end
        pause_thread()


def test_lines_that_nobody_reads_wait_and_the_others_are_counted_where_they_are_missing(
    pipe: FullPipe, handler: logs.WaitingLines
) -> None:
    _stall(handler)
    for number in range(ROOM + 4):
        logs.alarm("told", number=number)
    assert pipe.line()["event"] == "first"
    assert [pipe.line()["number"] for _ in range(ROOM)] == [*range(ROOM)]
    dropped = pipe.line()
    assert (dropped["event"], dropped["level"], dropped["lines"]) == ("lines_dropped", "warning", 4)
    logs.say("later")
    assert pipe.line()["event"] == "later"


def test_a_crash_shows_where_it_happened(pipe: FullPipe, handler: logs.WaitingLines) -> None:
    try:
        raise ValueError("it broke")
    except ValueError:
        logs.crash("crashed", worker="w")
    told = pipe.line()
    assert (told["event"], told["alarm"], told["worker"]) == ("crashed", True, "w")
    assert "test_a_crash_shows_where_it_happened" in told["trace"]
    assert told["trace"].endswith("ValueError: it broke")


def _logged(stderr: int) -> subprocess.CompletedProcess[bytes]:
    """Run a process that logs and ends with 3."""
    code = "import sys; from statecache_workers.logs import log_to_stderr, say; log_to_stderr()\n"
    code += "for number in range(500): say('told', number=number)\nsys.exit(3)"
    return subprocess.run([sys.executable, "-c", code], stderr=stderr, timeout=WAIT_S, check=False)


def test_what_waits_is_written_at_the_end() -> None:
    done = _logged(subprocess.PIPE)
    assert done.returncode == 3
    assert done.stderr.count(b'"told"') == done.stderr.count(b"\n") == 500


def test_a_process_ends_though_nobody_reads_its_log(pipe: FullPipe) -> None:
    assert _logged(pipe.end).returncode == 3


def test_a_process_ends_as_it_would_though_its_log_cannot_be_written() -> None:
    with open("/dev/full", "wb") as full:
        assert _logged(full.fileno()).returncode == 3

"""Output that nobody reads, or that finds no room: neither is a finding."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
COMMANDS = (["--help"], ["version"], ["version", "--json"], ["get", "--help"])


def ended(arguments: list[str], stdout: int) -> tuple[int, str]:
    command = [sys.executable, "-m", "statecache", *arguments]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert ended(arguments, writing) == (0, "")
    finally:
        os.close(writing)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_output_that_finds_no_room_is_told_in_one_line_with_a_status_of_its_own(arguments: list[str]) -> None:
    with FULL.open("wb") as full:
        status, errors = ended(arguments, full.fileno())
    assert (status, errors) == (5, "statecache: the output could not be written: No space left on device.\n")


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_of_what_the_shell_has_closed_the_output_alone_is_missed(arguments: list[str], closed: str) -> None:
    """What cannot be written at all was not written, whatever else went well."""
    line = f"exec {shlex.join([sys.executable, '-m', 'statecache', *arguments])} {closed}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    missed = ">&-" in closed.replace("2>&-", "")
    told = ["statecache: the output could not be written: Bad file descriptor."] if missed and "2" not in closed else []
    assert (done.returncode, done.stderr.splitlines(), bool(done.stdout)) == (5 if missed else 0, told, not missed)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_what_is_told_beside_the_output_and_finds_no_room_is_no_error() -> None:
    line = f"exec {shlex.join([sys.executable, '-m', 'statecache', 'nonsense'])} 2>{FULL}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2


def test_a_call_that_ctrl_c_ends_before_it_was_awaited_shows_no_warning_of_python() -> None:
    program = """
import statecache.cli as cli

async def call():
    pass

def interrupted():
    call()
    raise KeyboardInterrupt

cli._status = interrupted
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")

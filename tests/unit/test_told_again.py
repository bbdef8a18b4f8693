"""A test that counts seconds is told again only where the machine stood still, and what it failed of is not hidden."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from tests.fixtures.stalls import STOOD_STILL_S, TIMES_MAX, Pulse

ROOT = Path(__file__).parents[2]
PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "tests.fixtures.stalls", "-p", "no:cacheprovider")
SHARED = """
import os, signal, pytest
from pathlib import Path

def stand_still():
    os.kill(os.getpid(), signal.SIGSTOP)

@pytest.fixture
def told():
    with open("told", "a") as file:
        file.write("*")
    return Path("told").read_text()

"""


def _ended(folder: Path, test: str, *, marked: bool = True) -> tuple[int, str]:
    """Run one test, continued a while after each stop of itself; return how often it ran, and the output."""
    mark = "@pytest.mark.counts_seconds\n" if marked else ""
    (folder / "test_it.py").write_text(SHARED + mark + test)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), *PLUGINS]
    with (folder / "shown").open("w") as shown:
        process = subprocess.Popen(
            [*command, "-o", "asyncio_mode=auto"],
            cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=shown, stderr=subprocess.STDOUT,
        )  # fmt: skip
        status = os.waitpid(process.pid, os.WUNTRACED)[1]
        while os.WIFSTOPPED(status):
            Event().wait(STOOD_STILL_S * 1.5)
            process.send_signal(signal.SIGCONT)
            status = os.waitpid(process.pid, os.WUNTRACED)[1]
        process.returncode = os.waitstatus_to_exitcode(status)
    return len((folder / "told").read_text()), (folder / "shown").read_text()


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_what_failed_while_the_machine_stood_still_is_told_again_and_shown(tmp_path: Path, kind: str) -> None:
    test = f"{kind} test_it(told):\n    if told == '*':\n        stand_still()\n    assert len(told) == 2, 'too late'\n"
    times, shown = _ended(tmp_path, test)
    assert (times, "1 passed" in shown) == (2, True), shown
    assert "told again, for the machine stood still" in shown
    assert "too late" in shown


def test_what_fails_every_time_fails(tmp_path: Path) -> None:
    times, shown = _ended(tmp_path, "def test_it(told):\n    stand_still()\n    assert False\n")
    assert (times, "1 failed" in shown) == (TIMES_MAX, True), shown


def test_what_fails_while_the_machine_goes_on_fails_at_once(tmp_path: Path) -> None:
    times, shown = _ended(tmp_path, "def test_it(told):\n    assert len(told) == 2\n")
    assert (times, "1 failed" in shown) == (1, True), shown


def test_a_test_without_the_mark_fails_at_once(tmp_path: Path) -> None:
    times, shown = _ended(tmp_path, "def test_it(told):\n    stand_still()\n    assert False\n", marked=False)
    assert (times, "1 failed" in shown) == (1, True), shown


def test_what_passes_is_told_once(tmp_path: Path) -> None:
    times, shown = _ended(tmp_path, "def test_it(told):\n    stand_still()\n")
    assert (times, "1 passed" in shown, "told again" in shown) == (1, True, False), shown


def test_a_pulse_sees_a_disk_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    sync, answers = os.fsync, iter([0.2])

    def slowly(descriptor: int) -> None:
        sync(descriptor)
        Event().wait(next(answers, 0))

    monkeypatch.setattr(os, "fsync", slowly)
    with Pulse() as pulse:
        pass
    assert pulse.longest_s >= 0.2

"""Stories that count seconds, on a machine that may stand still.

A lease of two seconds is lost, rightly, when its holder stands still for three; an answer within a second cannot come
from a machine that was away for two. A test whose story is of such seconds is marked `counts_seconds`: where it fails
and the machine was seen to stand still meanwhile, it is told again from the start, with fixtures of its own. What it
failed of is shown at the end of the run. A failure during which the machine did not stand still is a failure at once.
"""

from __future__ import annotations

import os
import tempfile
from threading import Event, Thread
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from statecache.clock import monotonic

TIMES_MAX = 5
BEAT_S = 0.05
STOOD_STILL_S = 0.5
"""Stories leave as much as this for a machine that is only slow."""
_told_again: list[str] = []


class Pulse:
    """A pulse that beats while threads run and writes reach the disk; `longest_s` is its longest pause, in seconds."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last = 0.0
        self._over = Event()
        self._thread = Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Pulse:
        self._last = monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            over = False
            while not over:
                over = self._over.wait(BEAT_S)
                os.pwrite(file.fileno(), b"beat", 0)
                os.fsync(file.fileno())
                before, self._last = self._last, monotonic()
                self.longest_s = max(self.longest_s, self._last - before)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", "counts_seconds: told again where it fails while the machine stands still")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a marked test, again where the machine stood still."""
    if item.get_closest_marker("counts_seconds") is None:
        return None
    hooks = item.ihook
    hooks.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    before: list[tuple[str, str]] = []
    for report in _told(item, nextitem, before):
        report.user_properties += before
        hooks.pytest_runtest_logreport(report=report)
    hooks.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _told(item: pytest.Item, nextitem: pytest.Item | None, before: list[tuple[str, str]]) -> list[pytest.TestReport]:
    """Return the reports of the run that counts; add to `before` what the runs before it failed of."""
    for left in reversed(range(TIMES_MAX)):
        with Pulse() as pulse:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = [report for report in reports if report.failed]
        if not failed or not left or pulse.longest_s < STOOD_STILL_S:
            break
        before.append(("told again", f"{pulse.longest_s:.1f} s in {item.nodeid}: {_last_line(failed[0])}"))
    return reports


def _last_line(report: pytest.TestReport) -> str:
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    return " ".join(str(crash or report.longrepr).split())[:300]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect what was told again, in the process that shows it."""
    if report.when == "teardown":
        _told_again.extend(str(told) for name, told in report.user_properties if name == "told again")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show what was told again."""
    if _told_again:
        terminalreporter.section("told again, for the machine stood still")
        for line in _told_again:
            terminalreporter.write_line(line)

"""Time that moves when a test says so. `ManualClock` has the shape of `statecache.clock`; nothing here waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest


class ManualClock:
    """A clock that stands still; sleeping on it, or `advance`, moves it at once."""

    def __init__(self, *, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._awake_s = 0.0
        self._suspended_s = 0.0
        self._stepped_s = 0.0

    def monotonic(self) -> float:
        """Return seconds, without those in which the machine was suspended."""
        return self._awake_s

    def boottime(self) -> float:
        """Return seconds, with those in which the machine was suspended."""
        return self._awake_s + self._suspended_s

    def wall(self) -> datetime:
        """Return the aware UTC time that records show."""
        return self._start + timedelta(seconds=self._awake_s + self._suspended_s + self._stepped_s)

    def sleep(self, seconds: float) -> None:
        """Take no time and move all three clocks."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError("time does not run backwards: use step() to set the wall clock")
        self._awake_s += seconds

    def suspend(self, seconds: float) -> None:
        """Let time pass that the monotonic clock does not see: a closed lid, a paused machine."""
        self._suspended_s += seconds

    def step(self, seconds: float) -> None:
        """Set the wall clock alone, forwards or backwards, as a time server does."""
        self._stepped_s += seconds


@pytest.fixture
def clock() -> ManualClock:
    """A clock of the test's own."""
    return ManualClock()

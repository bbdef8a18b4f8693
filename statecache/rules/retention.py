"""What a namespace's policy may say of its history."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from statecache.errors import UsageError
from statecache.retention import HISTORIES, History, Retention

_COUNT_MAX = 1_000_000_000
_AGE_MAX = timedelta(days=36_500)
HEEDED = timedelta(minutes=5)
"""So long after it was recorded a policy is heeded everywhere, where clocks differ by no more than some minutes."""


class RecordedPolicy(NamedTuple):
    """What is recorded of a namespace's history, since when, and when that was read, by the clock of Postgres."""

    retention: Retention
    since: datetime
    read_at: datetime

    def may_have_let_go(self, at: datetime, replaced_at: datetime | None, *, newer: int | None) -> bool:
        """Whether this policy, or one that was recorded before, may have let the value of a change go.

        The change was made and replaced at these times, and its key has had so many newer versions; None where it is
        the newest, or that is not known. Of an earlier policy nothing is known: it may have let go all that is older.
        """
        if at <= self.since + HEEDED or self.retention.history == "latest":
            return True
        if replaced_at is None or not self.retention.bounded:
            return False
        age, count = self.retention.max_age, self.retention.max_count
        if age is not None and replaced_at >= self.read_at - age + HEEDED:
            return False
        return newer is None or newer >= (count or 1)


def checked_retention(
    history: History | None, retention: timedelta | None, retention_count: int | None
) -> Retention | None:
    """Return what a namespace's policy says of its history, None where it says nothing; or raise UsageError."""
    if history is None and retention is None and retention_count is None:
        return None
    if history not in (None, *HISTORIES):
        raise UsageError(f"history {history!r} is not one of {', '.join(HISTORIES)}")
    if retention is not None and not (isinstance(retention, timedelta) and timedelta(0) < retention <= _AGE_MAX):
        hint = "Say retention=timedelta(days=90)."
        raise UsageError(f"retention={retention!r} is not a timedelta above 0, of at most 100 years", hint=hint)
    whole = isinstance(retention_count, int) and not isinstance(retention_count, bool)
    if retention_count is not None and not (whole and 1 <= retention_count <= _COUNT_MAX):
        raise UsageError(f"retention_count={retention_count!r} is not a number of values from 1 to {_COUNT_MAX}")
    if history == "latest" and (retention is not None or retention_count is not None):
        hint = "Leave out retention and retention_count, or say history='full'."
        raise UsageError("history='latest' keeps no value of a change that was replaced", hint=hint)
    return Retention(history=history or "full", max_age=retention, max_count=retention_count)


def retention_of(history: str, age_s: float | Decimal | None, count: int | None) -> Retention:
    """Return a policy as Postgres gives it, where an age may be above all that is given here."""
    age = None if age_s is None else timedelta(seconds=min(float(age_s), _AGE_MAX.total_seconds()))
    return Retention(history="latest" if history == "latest" else "full", max_age=age, max_count=count)

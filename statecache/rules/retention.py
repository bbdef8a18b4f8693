"""What a namespace's policy may say of its history."""

from __future__ import annotations

from datetime import timedelta

from statecache.errors import UsageError
from statecache.retention import HISTORIES, History, Retention

_COUNT_MAX = 1_000_000_000
_AGE_MAX = timedelta(days=36_500)


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

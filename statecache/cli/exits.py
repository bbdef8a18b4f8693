"""Exit statuses, and which error means which."""

from __future__ import annotations

from statecache.disk_space import NoRoom
from statecache.errors import (
    ConfigurationError,
    DurabilityRefused,
    InvalidKey,
    LimitExceeded,
    Unavailable,
    UsageError,
)
from statecache.history_errors import HistoryIncomplete

OK = 0
FINDING = 1
USAGE = 2
CONFIGURATION = 3
UNREACHABLE = 4
FULL_DISK = 5
INTERRUPTED = 130
_STATUS = (
    ((UsageError, InvalidKey, LimitExceeded), USAGE),
    ((ConfigurationError, DurabilityRefused), CONFIGURATION),
    ((Unavailable, HistoryIncomplete), UNREACHABLE),
    ((NoRoom,), FULL_DISK),
)


def status_of(error: BaseException) -> int:
    """Return the exit status that an error leads to; 1 for all that have none of their own."""
    if refuses_user(error):
        return CONFIGURATION
    return next((status for kinds, status in _STATUS if isinstance(error, kinds)), FINDING)


def refuses_user(error: BaseException) -> bool:
    """Return whether a server answered that it does not let this user in, which no waiting changes."""
    return isinstance(error, Unavailable) and error.reason == "authentication"

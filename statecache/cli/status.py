"""Exit statuses, and which error means which."""

from __future__ import annotations

from statecache.errors import ConfigurationError, DurabilityRefused, InvalidKey, Unavailable, UsageError

OK = 0
FINDING = 1
USAGE = 2
CONFIGURATION = 3
UNREACHABLE = 4
INTERRUPTED = 130

_STATUS = (
    ((UsageError, InvalidKey), USAGE),
    ((ConfigurationError, DurabilityRefused), CONFIGURATION),
    ((Unavailable,), UNREACHABLE),
)


def status_of(error: BaseException) -> int:
    """This gives the exit status that an error leads to; 1 for all that have none of their own."""
    return next((status for kinds, status in _STATUS if isinstance(error, kinds)), FINDING)


def line_of(error: BaseException) -> str:
    """This tells an error in one line; on the command line nobody needs to hear that a client was used wrongly."""
    text = str(error)
    if isinstance(error, UsageError):
        text = f"{error.reason.rstrip('.')}. {error.facts.get('hint') or ''}"
    return f"statecache: {' '.join(text.split()) or type(error).__name__}"

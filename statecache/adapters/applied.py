"""What became of a commit whose outcome its call did not learn."""

from __future__ import annotations

from statecache import OutcomeUnknown, StateCacheError
from statecache.adapters.plans import Plan, call, level, proven


def is_applied(unknown: OutcomeUnknown, name: str) -> Plan[bool]:
    """Return whether a commit whose answer was lost is applied; raise OutcomeUnknown where nobody knows.

    One that is not known to be as durable as it was to be is not known to be applied as it was to be.
    """
    try:
        outcome = yield from call("outcome", unknown.change_id, name)
    except StateCacheError as error:
        raise unknown from error
    if outcome.verdict not in ("applied", "not applied"):
        raise unknown
    if outcome.verdict == "not applied":
        return False
    if (yield from level()) == "postgres":
        if not outcome.durable:
            raise OutcomeUnknown(unknown.change_id, keys=unknown.keys, reason=OutcomeUnknown.awaited) from unknown
        return True
    try:
        yield from proven(name)
    except StateCacheError as error:
        raise unknown from error
    return True

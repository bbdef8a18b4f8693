"""What became of a commit whose outcome its call did not learn, or of what was done before one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from statecache import DurabilityNotMet, DurabilityRefused, OutcomeUnknown, RedisUnavailable, StateCacheError
from statecache.adapters.plans import Plan, call, level, proven

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_applied(unknown: OutcomeUnknown, name: str) -> Plan[bool]:
    """Return whether a commit whose answer was lost is applied; raise OutcomeUnknown where nobody knows.

    One that is not known to be as durable as it was to be is not known to be applied as it was to be: who has waited
    for that in vain does not wait for it again.
    """
    if OutcomeUnknown.awaited in unknown.reason:
        raise unknown
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


@contextmanager
def nothing_written(reason: str) -> Iterator[None]:
    """Have what is done before a commit that all depends on end the call as one that wrote nothing.

    It may lack durability, or its answer: nothing of it takes effect without the commit.
    """
    try:
        yield
    except DurabilityNotMet as error:
        why = f"{error.reached} of {error.wanted} copies acknowledged what goes before {reason}, so it did nothing"
        raise DurabilityRefused(error.level, reason=why, hint="Try again once the copies are there.") from error
    except OutcomeUnknown as error:
        if OutcomeUnknown.awaited not in error.reason:
            why = f"what goes before {reason} was not answered, so it did nothing: {error.reason}"
            raise RedisUnavailable("connection", detail=why, hint="Try again.") from error
        why = f"what goes before {reason} is not known to be in Postgres, so it did nothing"
        hint = "Try again once a worker runs: `statecache doctor`."
        raise DurabilityRefused("postgres", reason=why, hint=hint) from error

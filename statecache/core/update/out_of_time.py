"""What an update raises whose time is up: not that Redis is away, where it was others or the function that took it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from statecache.backoff import LATE_S
from statecache.clock import monotonic
from statecache.errors import RedisUnavailable, VersionConflict


@contextmanager
def unless_beaten(lost: VersionConflict | None, end: float) -> Iterator[None]:
    """Raise the last conflict in place of RedisUnavailable where what took the time was others, and not Redis."""
    begun = monotonic()
    try:
        yield
    except RedisUnavailable as error:
        if lost is not None and error.reason == "timeout" and begun + LATE_S > end:
            raise lost from error
        raise


def slow_function() -> RedisUnavailable:
    """Return the error of an update whose function took all of its time."""
    return RedisUnavailable(
        "timeout", detail="the function given to update took until the time was up, so nothing was sent",
        hint="Whether Redis is up is not known. Give the call more time, or read, work, and `set` with `expected=`.",
    )  # fmt: skip

"""What is noted of a call under way, for an observer, without a cost where there is none.

On the way down nothing is noted but in the branches that are taken when a first attempt was not enough: `note` finds
the call under way by a context variable, which tasks and threads have each their own.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from statecache import errors
from statecache.clock import monotonic
from statecache.errors import StateCacheError, VersionConflict
from statecache.model import Operation
from statecache.signal_errors import pass_on

if TYPE_CHECKING:
    from statecache.model import Observer

_logger = logging.getLogger("statecache")


class Observation:
    """A call under way: what was tried again, lost to others, and looked for in Postgres."""

    __slots__ = ("_observer", "_verb", "conflicts", "hydrations", "retries", "seconds")

    def __init__(self, observer: Observer, verb: str) -> None:
        self._observer = observer
        self._verb = verb
        self.retries = self.conflicts = self.hydrations = 0
        self.seconds = 0.0

    def end(self, error: BaseException | None) -> None:
        """Tell the observer; what it raises is logged."""
        conflicts = self.conflicts + isinstance(error, VersionConflict)
        operation = Operation(
            verb=self._verb,
            outcome=_outcome(error),
            seconds=self.seconds,
            attempts=1 + self.retries,
            conflicts=conflicts,
            hydrations=self.hydrations,
        )
        try:
            self._observer.ended(operation)
        except Exception as raised:  # the verb has done its work: what is wrong with the observer is not its failure
            pass_on(raised)
            _logger.warning("an observer failed", exc_info=True)


_current: ContextVar[Observation | None] = ContextVar("statecache_noted", default=None)


def note(*, retries: int = 0, conflicts: int = 0, hydrations: int = 0) -> None:
    """Add to what is noted of the call under way, if an observer wants to know."""
    noted = _current.get()
    if noted is not None:
        noted.retries += retries
        noted.conflicts += conflicts
        noted.hydrations += hydrations


@contextlib.contextmanager
def under_way(noted: Observation) -> Iterator[None]:
    """Run a stretch of a call: its time, and what is noted during it, belong to the call."""
    token, begun = _current.set(noted), monotonic()
    try:
        yield
    finally:
        noted.seconds += monotonic() - begun
        _current.reset(token)


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "ok"
    if isinstance(error, StateCacheError):
        kinds = (kind.__name__ for kind in type(error).__mro__)
        return next(kind for kind in kinds if hasattr(errors, kind))
    return "raised" if isinstance(error, Exception) else "cancelled"

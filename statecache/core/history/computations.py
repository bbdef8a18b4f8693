"""What is computed of large values, as their comparison, which takes seconds for lists of 100,000s of items."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic
from statecache.errors import Unavailable
from statecache.settings import variable_of
from statecache.signal_errors import pass_on_below

if TYPE_CHECKING:
    from collections.abc import Callable

    from statecache.concurrency import Concurrency

T = TypeVar("T")
_LARGE_BYTES = 4096
"""From what size of the values on an event loop goes on meanwhile: below it they take milliseconds."""


class Computations:
    """The computations of one client; in an event loop one long one is under way at a time."""

    def __init__(self, io: Concurrency) -> None:
        self._io = io
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, _: AbstractContextManager[Any]) -> None:
        """Forget the computation of a parent's thread, which a forked child does not have."""
        self._turns = self._io.slots(1)

    async def result(self, work: Callable[[], T], *, size: int, end: float, what: str) -> T:
        """Return what work on so many bytes comes to; raise Unavailable(reason="timeout") where it takes too long.

        A thread's own work cannot be interrupted: it is refused, in the end, what took too long.
        """
        if size < _LARGE_BYTES:
            return work()
        try:
            return await self._io.computed(work, self._turns, max(end - monotonic(), 0.0))
        except TimeoutError as error:
            pass_on_below(error)
            hint = f"Give it more time: timeout=, or {variable_of('timeout_s')}."
            raise Unavailable("timeout", detail=f"{what} takes longer than the call may", hint=hint) from None

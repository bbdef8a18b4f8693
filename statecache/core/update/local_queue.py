"""The update queue of one client: of its callers who update one state, each begins where the one before has ended.

Without it they would read the same state, and all but one would have done their work in vain. The one whose turn it is
starts from the state that the one before it committed, without reading it. A turn is a courtesy and no lock: the
compare-and-set of the commit decides, so whoever has waited long enough goes on without one (a function that takes its
time, or that updates its own state, holds nobody up for long).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from statecache.commit_protocol.in_flight import Call, InFlight
    from statecache.concurrency import Concurrency, Slot, Slots
    from statecache.model import Record

_PATIENCE_S = 1.0


class _Queue:
    """The callers who update one state; `record` is what the last of them has committed."""

    __slots__ = ("callers", "record", "slots")

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.callers = 0
        self.record: Record | None = None


class LocalQueues:
    """A queue for every state that is being updated."""

    def __init__(self, in_flight: InFlight, io: Concurrency) -> None:
        self._io = io
        self._in_flight = in_flight
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget the queues, in which a parent's tasks or threads wait."""
        self._mutex = mutex
        self._queues: dict[str, _Queue] = {}

    def of(self, key: str, *, end: float) -> LocalTurn:
        """Return a turn at the state, to be entered."""
        return LocalTurn(self, key, end, self._in_flight.call())

    def join(self, key: str) -> _Queue:
        """Put a caller into the state's queue, and return the queue."""
        with self._mutex:
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = _Queue(self._io.slots(1))
            queue.callers += 1
            return queue

    def leave(self, key: str, queue: _Queue) -> None:
        """Take a caller out of the queue, and drop the queue with the last one."""
        with self._mutex:
            queue.callers -= 1
            if queue.callers == 0 and self._queues.get(key) is queue:
                del self._queues[key]


class LocalTurn:
    """One caller's turn, from its entry to its exit."""

    __slots__ = ("_call", "_end", "_key", "_mine", "_queue", "_queues")

    def __init__(self, queues: LocalQueues, key: str, end: float, call: Call) -> None:
        self._call = call
        self._queues = queues
        self._key = key
        self._end = end
        self._mine: Slot | None = None

    @property
    def record(self) -> Record | None:
        """What the caller before has committed, if that is known."""
        return self._queue.record if self._mine is not None else None

    def committed(self, record: Record) -> None:
        """Tell the next caller where to begin."""
        self._queue.record = record

    async def __aenter__(self) -> LocalTurn:
        self._queue = self._queues.join(self._key)
        self._call.__enter__()
        slots, entered = self._queue.slots, False
        try:
            patience = min(_PATIENCE_S, max(self._end - monotonic(), 0.0))
            self._mine = slots.acquire_now() or await slots.acquire(patience)
            entered = True
        finally:
            if not entered:
                self._leave()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._mine is not None:
            self._mine.release()
        self._leave()

    def _leave(self) -> None:
        self._queues.leave(self._key, self._queue)
        self._call.__exit__()

"""How long to wait between attempts: exponential backoff with jitter, for everything that tries again.

Each pause is drawn at random, so that those who were hindered by one fault do not come back at one moment.
"""

from __future__ import annotations

from tenacity import RetryCallState, Retrying, wait_random_exponential

from statecache.clock import monotonic

LATE_S = 0.05
"""How long before the end of its time an attempt that fails may have been cut off by it, in seconds."""
_RETRYING = Retrying()


def pause_s(attempts: int, first_s: float, most_s: float) -> float:
    """Return how many seconds to wait after so many attempts.

    Drawn from a range whose upper end doubles from `first_s` up to `most_s`, and whose lower one is half of `first_s`.
    """
    state = RetryCallState(_RETRYING, None, (), {})
    state.attempt_number = attempts
    return wait_random_exponential(multiplier=first_s, max=most_s, min=first_s / 2)(state)


class Backoff:
    """The pauses between the attempts of one call."""

    __slots__ = ("_attempts", "_first_s", "_most_s", "_next_s")

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._attempts, self._next_s = 0, -1.0

    @property
    def next_s(self) -> float:
        """How many seconds the next pause lasts."""
        if self._next_s < 0:
            self._next_s = pause_s(self._attempts + 1, self._first_s, self._most_s)
        return self._next_s

    def outlasts(self, end: float) -> bool:
        """Return whether the next pause would end after a moment of the monotonic clock."""
        return monotonic() + self.next_s > end

    def take(self) -> float:
        """Return how many seconds to wait now; the next pause may be longer."""
        taken = self.next_s
        self._attempts, self._next_s = self._attempts + 1, -1.0
        return taken

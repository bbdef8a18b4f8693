"""How soon the next batch may begin: many who were answered together come back together, but not all in one moment.

A flush answers all who waited for it. They go on, and their next commits come in one after the other; a batch that
began with the first of them would have all the others wait for a whole batch more, and cost as much as one with all of
them. So where the batch before was a large one and little has come in yet, there is a pause, for a part of the time
that a batch takes. Whoever is alone waits for nobody.
"""

from __future__ import annotations

MANY = 8
"""How many entries a batch has whose waiters are waited for."""
PART = 0.2
"""What a pause may take, as a part of the time that the batch before it took."""
PAUSE_S_MAX = 0.002
BACK_S = 0.1
"""How soon after a batch those who waited for it come back, if they do."""


class Pace:
    """The pause before a batch, decided on by the one before it; moments are on the monotonic clock."""

    def __init__(self) -> None:
        self._entries = 0
        self._pause_s = 0.0
        self._until = 0.0

    def flushed(self, entries: int, *, begun: float, ended: float) -> None:
        """Note a batch."""
        self._entries = entries
        self._pause_s = min((ended - begun) * PART, PAUSE_S_MAX)
        self._until = ended + BACK_S

    def many(self, now: float) -> bool:
        """Return whether many of those who waited for the last batch may be about to come back."""
        return self._entries >= MANY and now <= self._until

    def pause(self, pending: int, now: float) -> float:
        """Return the seconds to wait before a batch of so many entries is begun; 0 for none, and for enough of them."""
        return self._pause_s if 0 < pending * 2 < self._entries and self.many(now) else 0.0

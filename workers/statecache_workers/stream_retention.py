"""How long flushed entries stay in a shard's stream, counted from when Postgres came to hold them.

The watermark's places are kept with the moment in which each was reached, on this worker's own clock. What was reached
`retention_s` ago may leave, and what has more than `retention_bytes_max` of changes behind it. A new owner begins anew,
which only keeps entries longer. The places are few: one that follows too soon takes the place of the one before it,
which does no more than keep that one's entries until the later moment.
"""

from __future__ import annotations

from typing import NamedTuple

from statecache_workers.stream_places import StreamPlace

STEPS = 16
"""Into how many steps time and bytes are divided: what is kept too long is a step's part."""
MARKS_MAX = 256


class Mark(NamedTuple):
    """The moment `at` from which on Postgres has held everything up to the place."""

    at: float
    place: StreamPlace


class StreamRetention:
    """The places of one shard's watermark, each with the moment at which it was reached."""

    def __init__(self, seconds: float, bytes_max: int) -> None:
        self._seconds = seconds
        self._bytes_max = bytes_max
        self._marks: list[Mark] = []

    @property
    def step_bytes(self) -> int:
        """How many bytes of a large batch one mark may stand for."""
        return max(1, self._bytes_max // STEPS)

    def reached(self, now: float, place: StreamPlace) -> None:
        """Note that Postgres holds everything up to the place, as of now."""
        marks = self._marks
        if marks and place.n <= marks[-1].place.n:
            return
        if len(marks) > 1 and self._is_near(*marks[-2:]):
            marks.pop()
        if len(marks) >= MARKS_MAX:
            del marks[:-1:2]
        marks.append(Mark(now, place))

    def went_back(self, n: int) -> None:
        """Forget what lies beyond n: Postgres holds it no more."""
        while self._marks and self._marks[-1].place.n > n:
            self._marks.pop()

    def leaving(self, now: float) -> StreamPlace | None:
        """Return the place up to which entries may leave, or None."""
        marks = self._marks
        for at in range(len(marks) - 1, -1, -1):
            mark = marks[at]
            behind = marks[-1].place.bytes - mark.place.bytes
            if now - mark.at >= self._seconds or behind >= self._bytes_max:
                del marks[:at]
                return mark.place
        return None

    def _is_near(self, earlier: Mark, later: Mark) -> bool:
        soon = later.at - earlier.at < self._seconds / STEPS
        return soon and later.place.bytes - earlier.place.bytes < self.step_bytes

"""How large a batch may be: as large as the settings say, until Postgres cannot write one in time.

A batch that takes too long is never repeated as it was: the next one is half of it, down to a single entry, and what
Postgres writes in a small part of its time lets the batches grow again.
"""

from __future__ import annotations

import sys

QUICK = 0.25
"""What part of its time a batch may take for the next one to be larger."""


class PieceSize:
    """How many entries are written at once where Postgres refuses some: half of what it refused, twice what it took."""

    def __init__(self) -> None:
        self.entries = sys.maxsize

    def taken(self, entries: int) -> None:
        """Let the next piece be twice as large as one that was taken, or as large as it might have been."""
        self.entries = max(self.entries, 2 * entries)

    def refused(self, entries: int) -> None:
        """Make the next piece half of one that was refused, down to a single entry."""
        self.entries = max(1, entries // 2)


class BatchSize:
    """How much may go into the next batch, as a part of what the settings allow."""

    def __init__(self, entries_max: int, bytes_max: int, *, timeout_s: float) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._timeout_s = timeout_s
        self._part = 1.0

    @property
    def entries(self) -> int:
        """How many entries the next batch may have."""
        return max(1, int(self._entries_max * self._part))

    @property
    def bytes(self) -> int:
        """How many bytes the next batch may have; one entry may have more."""
        return max(1, int(self._bytes_max * self._part))

    @property
    def whole(self) -> bool:
        """Whether batches are as large as the settings allow."""
        return self._part >= 1.0

    def too_large(self, entries: int, size: int) -> None:
        """Make the next batch half of one that could not be written."""
        tried = max(entries / self._entries_max, size / self._bytes_max)
        self._part = max(min(self._part, tried) / 2, 1 / self._entries_max)

    def written(self, seconds: float) -> None:
        """Let the next batch be twice as large where this one took a small part of its time."""
        if seconds <= self._timeout_s * QUICK:
            self._part = min(1.0, self._part * 2)

"""What a worker counts: plain numbers that only grow, kept where the work is done and read by whoever reports them.

One task writes, and threads may read: a number is replaced, never taken apart, so a reader finds the old one or the new
one. Only what Postgres has committed is counted as flushed, set aside or repaired: a batch that is rolled back and
written again counts once. Everything begins at zero in a new process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from statecache_workers.batch_writing import WriteResult
    from statecache_workers.owned_shards import Heads
    from statecache_workers.slices import Slice

CAUSES = ("behind", "sibling", "descendant", "companion", "branch")
"""Why a change becomes a conflict: the flusher's rulings, and `branch` for what an old branch brought back."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
ENTRIES = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 10_000.0)


class Buckets:
    """A histogram: how many values fell between each bound and the one before it, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def note(self, value: float) -> None:
        """Count one value; a negative one, from clocks that disagree, counts as zero."""
        value = max(value, 0.0)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulated(self) -> tuple[list[tuple[str, float]], float]:
        """Return (bound, values up to it) for each bound and `+Inf`, and the sum."""
        total, counts = self.total, list(self.counts)
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        up_to = 0
        found: list[tuple[str, float]] = []
        for name, count in zip(names, counts, strict=True):
            up_to += count
            found.append((name, up_to))
        return found, total


class Counters(msgspec.Struct, kw_only=True):
    """What the flusher of one worker has done since its process began."""

    entries: int = 0
    changes: int = 0
    bytes: int = 0
    quarantined: int = 0
    gaps: int = 0
    repaired: int = 0
    lost: int = 0
    conflicts: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    batch_entries: Buckets = msgspec.field(default_factory=lambda: Buckets(ENTRIES))
    transaction_s: Buckets = msgspec.field(default_factory=lambda: Buckets(SECONDS))
    lag_s: Buckets = msgspec.field(default_factory=lambda: Buckets(LAG_SECONDS))

    def committed(
        self, done: Sequence[tuple[Slice, WriteResult]], *, begun: float, written: float, heads: Heads
    ) -> None:
        """Count what Postgres has just committed."""
        entries = 0
        for one, outcome in done:
            entries += len(one.entries)
            self.bytes += max(0, one.end.bytes - one.start.bytes)
            self.quarantined += len(outcome.parked)
            for fork in outcome.forked:
                self.conflicts[fork.cause] = self.conflicts.get(fork.cause, 0) + 1
            if one.cut == "gap":
                self.gaps += 1
                lost = sum(gap.lost for gap in one.gaps)
                self.lost += lost
                self.repaired += one.end.n - one.start.n - lost
            oldest = next((entry.change_set for entry in one.entries if entry.change_set is not None), None)
            if oldest is not None:
                self.lag_s.note(heads.now_ms / 1000 - oldest.at.timestamp() + written - heads.seen)
        if done:
            self.entries += entries
            self.batch_entries.note(entries)
            self.transaction_s.note(written - begun)

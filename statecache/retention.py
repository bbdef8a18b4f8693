"""What is kept of a namespace's history, as values: which changes' values, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import msgspec

History = Literal["full", "latest"]
HISTORIES: tuple[History, ...] = ("full", "latest")


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Which values of a namespace's changes are kept.

    With `latest` those of the newest change of each key alone. With `full` all, but for those that are let go by each
    of the two that are given: `max_age` lets values go that were replaced so long ago, `max_count` all but the newest
    so many of each key. Changes themselves are kept: what, when, by whom, and the digest of the value.
    """

    history: History = "full"
    max_age: timedelta | None = None
    max_count: int | None = None

    @property
    def bounded(self) -> bool:
        """Whether any value is ever let go."""
        return self.history == "latest" or self.max_age is not None or self.max_count is not None

    def __str__(self) -> str:
        if self.history == "latest":
            return "the latest values alone"
        kept = []
        if self.max_age is not None:
            kept.append(f"values that were replaced in the last {span_text(self.max_age)}")
        if self.max_count is not None:
            kept.append(f"the newest {self.max_count} of each key")
        return " and ".join(kept) or "all values"


def span_text(span: timedelta) -> str:
    """Return a span of time in its largest whole unit: 90 d, 36 h."""
    seconds = span.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.15g} s"

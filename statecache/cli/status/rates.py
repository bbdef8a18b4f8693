"""What several looks at a deployment show: rates, and the keys that are written most. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.cli.sparkline import LOOKS_KEPT, Past
from statecache.cli.status.command import backlog_of, counts_of, lag_of

if TYPE_CHECKING:
    from statecache.cli.status.sample import Sample
    from statecache.settings import Settings

EVERY_S = 1.0
"""The time between two looks, in seconds."""
LOOKS_MAX = 10
HOT_MAX = 50
PAST = ("commits", "flushed", "lag")


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one refresh shows. Rates are per second; None where they are not known."""

    sample: Sample
    shards: dict[str, int | None]
    lag: dict[str, Any]
    backlog: dict[str, Any]
    commits_per_s: float | None
    flushed_per_s: float | None
    hot: list[tuple[str, int]]
    past: dict[str, Past]
    """How commits and flushes a second and the lag in entries went, by `commits`, `flushed` and `lag`."""


class Looks:
    """The last looks, for figures that take more than one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._last: Sample | None = None
        self._keys: deque[list[str]] = deque(maxlen=LOOKS_MAX)
        self._past: deque[tuple[float | None, ...]] = deque(maxlen=LOOKS_KEPT)
        self._newest = 0

    def add(self, sample: Sample) -> Figures:
        """Return the figures of a look, compared with the one before."""
        last, self._last = self._last, sample
        self._keys.append(sample.keys)
        counted = Counter(key for keys in self._keys for key in keys)
        shards = sample.shards
        lag = lag_of(shards, most=HOT_MAX)
        commits = _rate(last, sample, lambda one: one.committed_total)
        flushed = _rate(last, sample, lambda one: one.flushed_total)
        return Figures(
            sample=sample,
            shards=counts_of(sample),
            lag=lag,
            backlog=backlog_of(self._settings, shards),
            commits_per_s=commits,
            flushed_per_s=flushed,
            hot=sorted(counted.items(), key=lambda one: (-one[1], one[0]))[:HOT_MAX],
            past=self._past_with(commits, flushed, lag["entries"]),
        )

    def _past_with(self, *values: float | None) -> dict[str, Past]:
        self._past.append(values)
        self._newest += 1
        columns = zip(*self._past, strict=True)
        return {name: Past(column, self._newest) for name, column in zip(PAST, columns, strict=True)}


def _rate(last: Sample | None, now: Sample, total: Callable[[Sample], int | None]) -> float | None:
    """Return a total's growth per second; None where either look lacks it, or the total fell with its data set."""
    before, after = (None if last is None else total(last)), total(now)
    if last is None or before is None or after is None or after < before or now.at_s <= last.at_s:
        return None
    return (after - before) / (now.at_s - last.at_s)

"""Journals, folded: what became of every change that an agent ever sent.

Pure. The agent that comes back reads its predecessors' lines through this, the supervisor looks here for commits in
flight, and the audit takes it as the agents' sworn statement.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import ceil, inf

import msgspec

from statecache.replay.journal import Fail, Invoke, Level, Line, Ok, Resumed, Unknown


class Sent(msgspec.Struct, kw_only=True):
    """One change as its agent saw it.

    `refused` is the error of the last sending where that sending was the last word, and empty otherwise; `denied`
    says that the change was found applied after the cache had said that it was not, with no sending in between.
    """

    run: str
    index: int
    change_id: str
    expected: str
    first_at: float
    ok: Ok | None = None
    refused: str = ""
    denied: str = ""
    sendings: int = 0


class Ledger:
    """Journals folded into one: each journal in its own order, the lives of one agent one after the other."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.last: dict[str, Sent] = {}
        self.resumed: list[Resumed] = []
        self.levels: list[Level] = []
        self.acknowledged = 0
        self.contradictions: list[str] = []

    def take(self, lines: Iterable[Line]) -> None:
        """Fold in more lines."""
        for line in lines:
            if isinstance(line, Invoke):
                self._invoked(line)
            elif isinstance(line, Resumed):
                self.resumed.append(line)
            elif isinstance(line, Level):
                self.levels.append(line)
            elif isinstance(line, Ok | Unknown | Fail):
                self._completed(line)

    def acknowledged_steps(self, run: str) -> int:
        """Return how many messages of a run were acknowledged, as far as its last change tells."""
        last = self.last.get(run)
        return 0 if last is None else last.index + (last.ok is not None)

    def _invoked(self, line: Invoke) -> None:
        sent = self.sent.get(line.change_id)
        if sent is None:
            sent = self.sent[line.change_id] = Sent(
                run=line.run, index=line.index, change_id=line.change_id, expected=line.expected, first_at=line.at
            )
            self.last[line.run] = sent
        elif (sent.run, sent.index, sent.expected) != (line.run, line.index, line.expected):
            self.contradictions.append(f"{line.change_id} was sent for different messages or parents")
        sent.sendings += 1
        sent.refused = ""

    def _completed(self, line: Ok | Unknown | Fail) -> None:
        sent = self.sent.get(line.change_id)
        if sent is None:
            self.contradictions.append(f"{line.change_id} was answered and never sent")
        elif isinstance(line, Fail):
            sent.refused = line.error
        elif isinstance(line, Ok):
            if sent.ok is None:
                self.acknowledged += 1
            sent.denied, sent.refused = sent.refused or sent.denied, ""
            sent.ok = sent.ok or line


class Flights:
    """The sendings of one life of an agent, with the time at which each began and ended."""

    def __init__(self) -> None:
        self._open: dict[str, float] = {}
        self._began: list[float] = []
        self._ended: list[float] = []
        self.over_at = inf

    def take(self, lines: Iterable[Line]) -> None:
        """Take in lines of this life's journal."""
        for line in lines:
            if isinstance(line, Invoke):
                self._open[line.change_id] = line.at
            elif isinstance(line, Ok | Unknown | Fail) and line.change_id in self._open:
                self._began.append(self._open.pop(line.change_id))
                self._ended.append(line.at)

    @property
    def any_open(self) -> bool:
        """Whether a sending is in flight, as far as the journal tells."""
        return bool(self._open) and self.over_at == inf

    def in_flight_at(self, at: float) -> int:
        """Return how many sendings were in flight at that time; none are after the agent's death."""
        if at > self.over_at:
            return 0
        landed = sum(1 for began, ended in zip(self._began, self._ended, strict=True) if began <= at < ended)
        return landed + sum(1 for began in self._open.values() if began <= at)


def percentile(values: list[float], share: float) -> float:
    """Return the percentile by nearest rank: at least `share` of the values are no larger; 0 without values."""
    if not values:
        return 0.0
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def flush_lags(acknowledged: Iterable[tuple[int, int, float]], seen: dict[int, list[tuple[int, float]]]) -> list[float]:
    """Return, for each (shard, n, acknowledged at), the seconds until the shard's watermark was seen at n or beyond.

    `seen` holds for each shard its watermarks with the time when each was first seen, rising. A change whose watermark
    was there before the acknowledgement has lag 0; one that was never covered is left out.
    """
    lags = []
    for shard, n, at in acknowledged:
        marks = seen.get(shard, [])
        first = bisect_right(marks, n - 1, key=lambda mark: mark[0])
        if first < len(marks):
            lags.append(max(0.0, marks[first][1] - at))
    return lags

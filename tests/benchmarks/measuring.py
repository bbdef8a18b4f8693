"""How things are measured: a subject and what it is held against take turns, call by call, in every round.

A shared machine is quick in one second and slow in the next, and what is measured in two runs is measured on two
machines. So both sides of a row meet the same moments, they are compared within a round, and the median of the rounds'
figures is what counts. The numbers beside it are medians of the rounds too, but for the longest wait.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, Literal

import msgspec

Call = Callable[[], Any]
Unit = Literal["", "µs", "ms", "KB", "MB"]
"""What a figure is counted in; a ratio has no unit. 1 KB = 1,024 bytes."""


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one side of a row; times in microseconds, None where nothing of the kind was measured."""

    name: str
    ops_s: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    longest_us: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A subject, what it is compared with, and how its figure keeps to the bound; some rows have no bound."""

    subject: Measure
    against: Measure | None = None
    figures: list[float]
    """One a round: the ratio of subject and what it is held against, or another number in `unit`."""
    unit: Unit = ""
    bound: float | None = None
    at_most: bool = True
    left_out: str = ""
    """Why nothing was measured, where there are no figures."""

    @property
    def figure(self) -> float | None:
        """The median of the rounds' figures; None where the row was left out."""
        return median(self.figures) if self.figures else None

    @property
    def met(self) -> bool | None:
        """Whether the bound is kept; None where there is none, or no figure."""
        if self.bound is None or self.figure is None:
            return None
        return self.figure <= self.bound if self.at_most else self.figure >= self.bound


def in_turns(
    subject: tuple[str, Call],
    against: tuple[str, Call],
    *,
    bound: float,
    rounds: int,
    calls: int,
    unit: Literal["", "ms"] = "",
    alone: bool = False,
) -> Row:
    """Time two calls in turns; the figure is the ratio of their p50, or their difference in milliseconds.

    Of a subject that stands `alone` it is its own p50: the other side says what the machine gave at that moment.
    """
    sides = (subject, against)
    for _, call in sides:
        for _ in range(calls // 4):
            call()
    times: tuple[list[list[float]], list[list[float]]] = ([], [])
    for _ in range(rounds):
        gc.collect()
        for side, spent in zip(times, _one_round(subject[1], against[1], calls), strict=True):
            side.append(spent)
    medians = [(median(ours), median(theirs)) for ours, theirs in zip(*times, strict=True)]
    return Row(
        subject=measure(subject[0], times[0]),
        against=measure(against[0], times[1]),
        figures=[
            1e3 * (ours if alone else ours - theirs) if unit == "ms" else ours / theirs for ours, theirs in medians
        ],
        unit=unit,
        bound=bound,
    )


def _one_round(first: Call, second: Call, calls: int) -> tuple[list[float], list[float]]:
    of_first: list[float] = []
    of_second: list[float] = []
    pair = ((first, of_first), (second, of_second))
    for turn in range(calls):
        for call, spent in pair if turn % 2 else reversed(pair):
            started = perf_counter()
            call()
            spent.append(perf_counter() - started)
    return of_first, of_second


def measure(name: str, rounds: Sequence[Sequence[float]], *, ops_s: Sequence[float] | None = None) -> Measure:
    """Sum up the seconds that each round's calls took; `ops_s` gives the rates where calls overlapped."""
    rates_of_rounds = [len(spent) / sum(spent) for spent in rounds] if ops_s is None else ops_s
    return Measure(
        name=name,
        ops_s=median(rates_of_rounds),
        p50_us=1e6 * median(percentile(spent, 50) for spent in rounds),
        p99_us=1e6 * median(percentile(spent, 99) for spent in rounds),
        longest_us=1e6 * max(max(spent) for spent in rounds),
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest of the values that at least `percent` percent of them do not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def rates(subject: tuple[str, list[float]], against: tuple[str, list[float]], *, bound: float) -> Row:
    """Make a row of rates, one per round on either side; more is better."""
    return Row(
        subject=Measure(name=subject[0], ops_s=median(subject[1])),
        against=Measure(name=against[0], ops_s=median(against[1])),
        figures=[ours / theirs for ours, theirs in zip(subject[1], against[1], strict=True)],
        bound=bound,
        at_most=False,
    )


def times_faster(
    name: str, against: str, spent: tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]], *, bound: float | None
) -> Row:
    """Make a row of how many times as long the other side takes, by the p50 of each round; more is better."""
    return Row(
        subject=measure(name, spent[0]),
        against=measure(against, spent[1]),
        figures=[median(theirs) / median(ours) for ours, theirs in zip(*spent, strict=True)],
        bound=bound,
        at_most=False,
    )


def left_out(name: str, why: str) -> Row:
    """Make the row of what could not be measured here."""
    return Row(subject=Measure(name=name), figures=[], left_out=why)

"""How things are measured: a subject and what it is held against take turns, call by call, in every round.

A shared machine is quick in one second and slow in the next, and what is measured in two runs is measured on two
machines. So both sides of a row meet the same moments, the ratio is taken within a round, and the median of the
rounds' ratios is what counts. The numbers beside it are medians of the rounds too, but for the longest wait.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import msgspec

Call = Callable[[], Any]


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """This is what one side of a row did; times in microseconds, None where a round is one long piece of work."""

    name: str
    ops_s: float
    p50_us: float | None = None
    p99_us: float | None = None
    longest_us: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """This is a subject, what it is held against, and how its ratio keeps to the bound."""

    subject: Measure
    against: Measure
    ratios: list[float]
    bound: float
    at_most: bool = True

    @property
    def ratio(self) -> float:
        """This is the median of the rounds' ratios."""
        return median(self.ratios)

    @property
    def met(self) -> bool:
        """This says whether the bound is kept."""
        return self.ratio <= self.bound if self.at_most else self.ratio >= self.bound


def in_turns(subject: tuple[str, Call], against: tuple[str, Call], *, bound: float, rounds: int, calls: int) -> Row:
    """This times two calls in turns; the ratio is that of their p50."""
    sides = (subject, against)
    for _, call in sides:
        for _ in range(calls // 4):
            call()
    times: tuple[list[list[float]], list[list[float]]] = ([], [])
    for _ in range(rounds):
        gc.collect()
        for side, spent in zip(times, _one_round(subject[1], against[1], calls), strict=True):
            side.append(spent)
    return Row(
        subject=_measure(subject[0], times[0]),
        against=_measure(against[0], times[1]),
        ratios=[median(ours) / median(theirs) for ours, theirs in zip(*times, strict=True)],
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


def _measure(name: str, rounds: Sequence[list[float]]) -> Measure:
    return Measure(
        name=name,
        ops_s=median(len(spent) / sum(spent) for spent in rounds),
        p50_us=1e6 * median(median(spent) for spent in rounds),
        p99_us=1e6 * median(sorted(spent)[len(spent) * 99 // 100] for spent in rounds),
        longest_us=1e6 * max(max(spent) for spent in rounds),
    )


def rates(subject: tuple[str, list[float]], against: tuple[str, list[float]], *, bound: float) -> Row:
    """This makes a row of rates, one a round on either side; more is better."""
    return Row(
        subject=Measure(name=subject[0], ops_s=median(subject[1])),
        against=Measure(name=against[0], ops_s=median(against[1])),
        ratios=[ours / theirs for ours, theirs in zip(subject[1], against[1], strict=True)],
        bound=bound,
        at_most=False,
    )

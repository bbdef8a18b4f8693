"""Sixteen processes that increment one state at once, each with a synchronous client of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from time import monotonic
from typing import NamedTuple

from statecache import Settings
from tests.benchmarks.contention import BY_HAND, KEY, MANY, Adder, Burst, Side
from tests.benchmarks.processes import Processes


class Answer(NamedTuple):
    """The answer of one process: the seconds of each increment, all attempts, and when it was done."""

    spent: list[float]
    attempts: int
    ended: float


class Contenders:
    """The processes; a context manager."""

    def __init__(self, settings: Settings) -> None:
        self._reader = Adder(settings)
        self._reader.cache.set(KEY, 0)
        self._reader.bare.set(BY_HAND, 0)
        self._processes = Processes(adding, settings, count=MANY)

    def __enter__(self) -> Contenders:
        self._processes.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.__exit__(None, None, None)
        self._reader.close()

    def burst(self, side: Side, each: int) -> Burst:
        """Let all of them begin at once, and wait until the last is done."""
        start, answers = self._processes.all((side, each))
        return together(start, answers)

    def sums(self) -> dict[Side, int]:
        """Return what the increments add up to."""
        return self._reader.sums()


def together(start: float, answers: list[Answer]) -> Burst:
    """Make one burst of the answers of all processes."""
    return Burst(
        spent=[seconds for answer in answers for seconds in answer.spent],
        attempts=sum(answer.attempts for answer in answers),
        seconds=max(answer.ended for answer in answers) - start,
    )


@contextmanager
def adding(number: int, settings: Settings) -> Iterator[Callable[[tuple[Side, int]], Answer]]:
    """Open a process's clients and yield its job: increments on the side that is ordered."""
    with closing(Adder(settings)) as adder:
        adder.sums()  # all connections stand now

        def work(order: tuple[Side, int]) -> Answer:
            side, each = order
            adder.attempts = 0
            spent: list[float] = []
            for _ in range(each):
                begun = monotonic()
                adder.increment(side)
                spent.append(monotonic() - begun)
            return Answer(spent, adder.attempts, monotonic())

        yield work

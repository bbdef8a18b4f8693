"""Processes that do what they are told over a pipe: all begin at one moment, each answers when it is done.

A job is a function of a module, called once in each process with its number; what it gives takes the orders, one after
the other. The processes end with this one, or with the `with` block. All processes of a machine read the same
monotonic clock.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection, wait
from select import select
from time import monotonic
from types import TracebackType
from typing import Any, Self

READY_S = 120.0
ANSWER_S = 300.0
LEAD_S = 0.02
LEAD_S_EACH = 0.002
"""How far ahead of their beginning orders are given, and how much further for each process."""

Work = Callable[[Any], Any]
Job = Callable[..., AbstractContextManager[Work]]


class Processes:
    """Processes with one job each; a context manager that waits until all are ready."""

    def __init__(self, job: Job, *arguments: Any, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_process, args=(theirs, job, number, arguments), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        for number in range(len(self._pipes)):
            self._answer(number, READY_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(READY_S)

    def all(self, order: Any) -> tuple[float, list[Any]]:
        """Send all of them the same order; return the moment at which they began, and their answers."""
        return self.each([order] * len(self._pipes))

    def each(self, orders: Sequence[Any]) -> tuple[float, list[Any]]:
        """Send the first of them an order each; return the moment at which they began, and their answers."""
        start = monotonic() + LEAD_S + LEAD_S_EACH * len(orders)
        for number, order in enumerate(orders):
            self.send(number, order, start=start)
        return start, [self.answer(number) for number in range(len(orders))]

    def send(self, number: int, order: Any, *, start: float = 0.0) -> None:
        """Send one of them an order, to be done at `start` or at once."""
        self._pipes[number].send((start, order))

    def answer(self, number: int) -> Any:
        """Wait for the answer of one of them."""
        return self._answer(number, ANSWER_S)

    def first(self, numbers: Iterable[int]) -> int:
        """Wait until one of these has an answer, and return its number."""
        asked = {self._pipes[number]: number for number in numbers}
        ready = wait(list(asked), ANSWER_S)
        if not ready:
            raise TimeoutError(f"none of {len(asked)} processes answered within {ANSWER_S:.0f} s")
        return next(number for pipe, number in asked.items() if pipe in ready)

    def _answer(self, number: int, seconds: float) -> Any:
        if not self._pipes[number].poll(seconds):
            raise TimeoutError(f"process {number} did not answer within {seconds:.0f} s")
        try:
            return self._pipes[number].recv()
        except EOFError:
            raise RuntimeError(f"process {number} ended; what it wrote to stderr says why") from None


def _process(pipe: Connection, job: Job, number: int, arguments: Sequence[Any]) -> None:
    """Run one process until its pipe ends."""
    with job(number, *arguments) as work, suppress(EOFError, ConnectionResetError, KeyboardInterrupt):
        gc.freeze()
        pipe.send("ready")
        while True:
            start, order = pipe.recv()
            if (early := start - monotonic()) > 0:
                select([], [], [], early)
            pipe.send(work(order))

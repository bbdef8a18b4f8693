"""Calls of one event loop, carried out in batches: what is asked for at one moment shares an exchange.

A queue begins a batch as soon as there is anything, unless as many are in flight as it may have; so calls that come
meanwhile are the next batch, thousands of them in a few exchanges, and no call waits for more than those before it.
Every call gets an answer or an error of its own. One that is no longer waited for is left out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Generic, TypeVar

from statecache import StateCacheError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

A = TypeVar("A")
R = TypeVar("R")


class Queue(Generic[A, R]):
    """Calls that wait for their batch; `carry_out` returns for each call of one its answer, or what it raises."""

    def __init__(
        self, carry_out: Callable[[list[A]], Awaitable[Sequence[R | Exception]]], *, batch_max: int, in_flight_max: int
    ) -> None:
        self._carry_out, self._batch_max, self._in_flight_max = carry_out, batch_max, in_flight_max
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._is_woken = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and nothing is in flight."""
        return not (self._waiting or self._in_flight)

    async def ask(self, calls: Sequence[A]) -> list[R]:
        """Return the answers to these calls once all have been carried out, or raise the first error."""
        if not calls:
            return []
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[R]] = [loop.create_future() for _ in calls]
        self._waiting.extend(zip(calls, futures, strict=True))
        if not self._is_woken:  # once all who are about to ask have done so
            self._is_woken = True
            loop.call_soon(self._begin)
        if len(futures) == 1:
            return [await futures[0]]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        for one in answers:
            if isinstance(one, BaseException):
                raise one
        return answers  # type: ignore[return-value]

    def _begin(self) -> None:
        self._is_woken = False
        while self._waiting and len(self._in_flight) < self._in_flight_max:
            batch: list[tuple[A, asyncio.Future[R]]] = []
            while self._waiting and len(batch) < self._batch_max:
                call, future = self._waiting.popleft()
                if not future.done():
                    batch.append((call, future))
            if batch:
                task = asyncio.get_running_loop().create_task(self._batch(batch))
                self._in_flight.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        if self._waiting and not self._is_woken:
            self._begin()

    async def _batch(self, batch: Sequence[tuple[A, asyncio.Future[R]]]) -> None:
        """Carry out a batch; whatever happens, nobody is left waiting."""
        answers: Sequence[R | Exception] = ()
        try:
            answers = await self._carry_out([call for call, _ in batch])
        except Exception as error:  # whatever it is, it is raised to those who wait
            answers = [error] * len(batch)
        finally:
            for (_, future), answer in zip(batch, answers, strict=False):
                if future.done():
                    continue
                if isinstance(answer, Exception):  # to each one of its own, where that can be
                    future.set_exception(copy(answer) if isinstance(answer, StateCacheError) else answer)
                else:
                    future.set_result(answer)
            for _, future in batch[len(answers) :]:
                future.cancel()

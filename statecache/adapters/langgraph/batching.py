"""Calls of one event loop, carried out in batches: what is asked for at one moment shares an exchange.

A queue begins a batch as soon as there is anything, unless as many are in flight as it may have; so calls that come
meanwhile are the next batch, thousands of them in a few exchanges, and no call waits for more than those before it.
Every call gets an answer or an error of its own. One that is no longer waited for is left out, until the batch begins
to write: from then on who is cancelled waits for its end, so that nothing of the call is written later. A batch that
does not write is cancelled once nobody waits for any of its calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Generic, TypeVar

from statecache import StateCacheError
from statecache.adapters.given_up import until_ended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

A = TypeVar("A")
R = TypeVar("R")


class Again(Exception):
    """The answer to a call that is to be carried out once more, before those that wait; no caller is told it."""


class Batch(Generic[A, R]):
    """Calls that are carried out together; `writes` says whether it has begun to write."""

    def __init__(self, calls: Sequence[tuple[A, asyncio.Future[R]]]) -> None:
        self._calls = calls
        self.writes = False

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for one of its calls."""
        return not all(future.done() for _, future in self._calls)

    @property
    def left(self) -> list[A]:
        """The calls that are carried out: all that it writes, or else those that somebody waits for."""
        return [call for call, future in self._calls if self.writes or not future.done()]

    def wanted(self) -> list[A]:
        """Leave out the calls that nobody waits for any more, and return the others: these are to be answered."""
        self._calls = [(call, future) for call, future in self._calls if not future.done()]
        return [call for call, _ in self._calls]

    def begin_to_write(self) -> list[A]:
        """Do what `wanted` does; who is cancelled from now on waits until the batch has ended.

        It may be called in the thread that writes: whoever asks whether the batch writes has given up before.
        """
        self.writes = True
        return self.wanted()

    def holds(self, futures: Collection[asyncio.Future[R]]) -> bool:
        """Return whether one of its calls waits for one of these."""
        return any(future in futures for _, future in self._calls)

    def answer(self, answers: Sequence[R | Exception]) -> list[tuple[A, asyncio.Future[R]]]:
        """Answer who still waits, and return the calls that are to be carried out again, which it no longer holds."""
        again: list[tuple[A, asyncio.Future[R]]] = []
        for (call, future), answer in zip(self._calls, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Again):
                again.append((call, future))
            elif isinstance(answer, Exception):  # to each one of its own, where that can be
                future.set_exception(copy(answer) if isinstance(answer, StateCacheError) else answer)
            else:
                future.set_result(answer)
        self._calls = [one for one in self._calls if one[1].done()]
        return again

    def fail(self, error: Exception) -> None:
        """Answer who still waits with an error."""
        self.answer([error] * len(self._calls))

    def end(self) -> None:
        """Cancel the calls that have no answer."""
        for _, future in self._calls:
            future.cancel()


class Queue(Generic[A, R]):
    """Calls that wait for their batch; `carry_out` returns for each call of one its answer, or what it raises."""

    def __init__(
        self, carry_out: Callable[[Batch[A, R]], Awaitable[Sequence[R | Exception]]], *, batch_max: int,
        in_flight_max: int,
    ) -> None:  # fmt: skip
        self._carry_out, self._batch_max, self._in_flight_max = carry_out, batch_max, in_flight_max
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._in_flight: dict[asyncio.Task[None], Batch[A, R]] = {}
        self._is_woken = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and nothing is in flight."""
        return not (self._waiting or self._in_flight)

    async def ask(self, calls: Sequence[A]) -> list[R]:
        """Return the answers to these calls once all have been carried out, or raise the first error."""
        return await ask({self: calls})

    async def until_none(self, is_meant: Callable[[A], bool]) -> None:
        """Wait until no call that is meant waits or is being carried out."""
        while any(is_meant(call) for call in self._left()):
            if not self._in_flight:
                self._begin()
            await asyncio.wait([*self._in_flight], return_when=asyncio.FIRST_COMPLETED)

    def take(self, calls: Sequence[A]) -> list[asyncio.Future[R]]:
        """Have these calls wait for their batch, and return what their answers come to."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[R]] = [loop.create_future() for _ in calls]
        self._waiting.extend(zip(calls, futures, strict=True))
        if calls and not self._is_woken:  # once all who are about to ask have done so
            self._is_woken = True
            loop.call_soon(self._begin)
        return futures

    def give_up(self, futures: Collection[asyncio.Future[R]]) -> list[asyncio.Task[None]]:
        """Cancel the batches that nobody waits for any more, and return those that write calls of these futures."""
        mine = [(task, batch) for task, batch in self._in_flight.items() if batch.holds(futures)]
        for task, batch in mine:
            if not (batch.writes or batch.is_wanted):
                task.cancel()
        return [task for task, batch in mine if batch.writes]

    def _left(self) -> Iterator[A]:
        """Yield the calls that are being carried out, and those that wait."""
        for batch in self._in_flight.values():
            yield from batch.left
        yield from (call for call, future in self._waiting if not future.done())

    def _begin(self) -> None:
        self._is_woken = False
        while self._waiting and len(self._in_flight) < self._in_flight_max:
            batch: list[tuple[A, asyncio.Future[R]]] = []
            while self._waiting and len(batch) < self._batch_max:
                call, future = self._waiting.popleft()
                if not future.done():
                    batch.append((call, future))
            if batch:
                begun = Batch(batch)
                task = asyncio.get_running_loop().create_task(self._carried_out(begun))
                self._in_flight[task] = begun
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._in_flight.pop(task, None)
        if self._waiting and not self._is_woken:
            self._begin()

    async def _carried_out(self, batch: Batch[A, R]) -> None:
        """Carry out a batch; whatever happens, nobody is left waiting."""
        try:
            self._waiting.extendleft(reversed(batch.answer(await self._carry_out(batch))))
        except Exception as error:  # whatever it is, it is raised to those who wait
            batch.fail(error)
        finally:
            batch.end()


async def ask(asked: Mapping[Queue[A, R], Sequence[A]]) -> list[R]:
    """Return the answers of queues to calls once all have been carried out, or raise the first error.

    One task waits for all of them: a scope of anyio shields it alone, and cancels others at every turn.
    """
    futures = [future for queue, calls in asked.items() for future in queue.take(calls)]
    try:
        if len(futures) == 1:
            return [await futures[0]]
        answers = await asyncio.gather(*futures, return_exceptions=True)
    except asyncio.CancelledError:
        mine = {*futures}
        await until_ended([task for queue in asked for task in queue.give_up(mine)])
        raise
    for one in answers:
        if isinstance(one, BaseException):
            raise one
    return answers  # type: ignore[return-value]

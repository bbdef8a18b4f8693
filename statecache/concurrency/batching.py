"""Batches: what many tasks ask a server in one turn of their loop goes there together, and the answers come together.

    ask ──▶ a request in the batch that is being filled ──▶ sent when every task that is ready has run ──▶ answer

Each exchange costs both sides more than what is asked in it: a call to the system to send, one to be woken, one to
read. Nobody waits for others, though: a batch of one request is sent as it is. Whoever gives up before that is left
out of it; whoever gives up later is not waited for, and the others are told nothing of it. A batch is bounded by the
shortest of its requests' timeouts, so requests of very different timeouts stand in different batches.

A thread that asks has no such turn to share: its request is sent at once, alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, Generic, TypeVar

from statecache._process import begins_anew_after_fork
from statecache.errors import StateCacheError

Q = TypeVar("Q")
A = TypeVar("A")

REQUESTS_MAX = 64
WEIGHT_MAX = 256 * 1024
"""How much one batch carries, in bytes; what is heavier than that goes alone."""


class TaskRequest(Generic[Q, A]):
    """One question on its way, and the task that waits for its answer."""

    __slots__ = ("answer", "question")

    def __init__(self, question: Q, answer: asyncio.Future[A]) -> None:
        self.question = question
        self.answer = answer

    @property
    def gone(self) -> bool:
        """Whether whoever asked has stopped waiting."""
        return self.answer.done()

    def settle(self, answer: A | Exception) -> None:
        """Deliver the answer, or raise a copy of that error, where it is waited for."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(_own(answer))
        else:
            self.answer.set_result(answer)


def _own(error: Exception) -> Exception:
    """Return a copy of an error that several callers meet, for each of them may add to its own."""
    if not isinstance(error, StateCacheError):
        return error
    own = copy(error)
    own.__cause__ = error.__cause__
    return own


class _Batch(Generic[Q, A]):
    """A batch that is being filled."""

    __slots__ = ("patience_s", "requests", "weight")

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.requests: list[TaskRequest[Q, A]] = []
        self.weight = 0

    def takes(self, weight: int, patience_s: float) -> bool:
        """Return whether one more question may come along."""
        alike = self.patience_s <= patience_s * 2 and patience_s <= self.patience_s * 2
        return alike and len(self.requests) < REQUESTS_MAX and self.weight + weight <= WEIGHT_MAX


class TaskBatcher(Generic[Q, A]):
    """Batches of what tasks ask: `go` carries one out in so many seconds, with an answer or an error for each request.

    It is given the requests in their order, and leaves out who is gone when it sends. What it raises is raised for all.
    """

    def __init__(self, go: Callable[[Sequence[TaskRequest[Q, A]], float], Awaitable[Sequence[A | Exception]]]) -> None:
        self._go = go
        self._batch: _Batch[Q, A] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:  # noqa: ARG002
        """Forget the batches, which are sent by the parent."""
        self._batch, self._under_way = None, set()

    async def ask(self, question: Q, *, weight: int, seconds: float) -> A:
        """Return the answer, or raise the error of this request or of the whole batch."""
        loop, batch = asyncio.get_running_loop(), self._batch
        request: TaskRequest[Q, A] = TaskRequest(question, loop.create_future())
        fresh = batch is None or not batch.takes(weight, seconds)
        if batch is None or fresh:
            batch = self._batch = _Batch(seconds)
        batch.requests.append(request)
        batch.weight += weight
        batch.patience_s = min(batch.patience_s, seconds)
        if fresh:  # by no factory of the loop's: an eager task would not wait for what others ask in this turn
            task = asyncio.Task(self._send(batch), loop=loop, name="statecache-batch")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return await request.answer

    async def _send(self, batch: _Batch[Q, A]) -> None:
        if self._batch is batch:
            self._batch = None
        try:
            for request, answer in zip(batch.requests, await self._go(batch.requests, batch.patience_s), strict=True):
                request.settle(answer)
        except Exception as error:  # whatever it is, nobody waits for what does not come
            for request in batch.requests:
                request.settle(error)
        finally:
            for request in batch.requests:
                request.answer.cancel()  # the loop ends, and everyone in it


class ThreadRequest(Generic[Q, A]):
    """One question on its way."""

    __slots__ = ("question",)
    gone = False

    def __init__(self, question: Q) -> None:
        self.question = question


class ThreadBatcher(Generic[Q, A]):
    """A carrier of what a thread asks, at once and alone."""

    def __init__(
        self, go: Callable[[Sequence[ThreadRequest[Q, A]], float], Awaitable[Sequence[A | Exception]]]
    ) -> None:
        self._go = go

    async def ask(self, question: Q, *, weight: int, seconds: float) -> A:  # noqa: ARG002
        """Return the answer, or raise the error of this request or of the whole batch."""
        (answer,) = await self._go([ThreadRequest(question)], seconds)
        if isinstance(answer, Exception):
            raise answer
        return answer

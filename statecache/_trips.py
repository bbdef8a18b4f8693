"""Trips: what many tasks ask a server in one turn of their loop goes there together, and the answers come together.

    ask ──▶ a seat in the trip that is being filled ──▶ it leaves when every task that is ready has run ──▶ answer

Each exchange costs both sides more than what is asked in it: a call to the system to send, one to be woken, one to
read. Nobody waits for company, though: a trip that has one seat taken leaves with one. Whoever gives up before it
leaves is left out of it; whoever gives up later is not waited for, and the others hear nothing of it. A trip is bounded
by the least of its passengers' patience, so those of very different patience do not travel together.

A thread that asks has no such turn to share: it goes at once, alone.
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

SEATS_MAX = 64
WEIGHT_MAX = 256 * 1024
"""How much one trip carries, in bytes; what is heavier than that goes alone."""


class AsyncSeat(Generic[Q, A]):
    """This is one question on its way, and the task that waits for its answer."""

    __slots__ = ("answer", "question")

    def __init__(self, question: Q, answer: asyncio.Future[A]) -> None:
        self.question = question
        self.answer = answer

    @property
    def gone(self) -> bool:
        """This says whether whoever asked waits no more."""
        return self.answer.done()

    def settle(self, answer: A | Exception) -> None:
        """This gives the answer, or raises an error of its own like that one, where it is waited for."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(_own(answer))
        else:
            self.answer.set_result(answer)


def _own(error: Exception) -> Exception:
    """This makes an error for one of many who meet it, for each of them may add to it."""
    if not isinstance(error, StateCacheError):
        return error
    own = copy(error)
    own.__cause__ = error.__cause__
    return own


class _Trip(Generic[Q, A]):
    """This is a trip that is being filled."""

    __slots__ = ("patience_s", "seats", "weight")

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.seats: list[AsyncSeat[Q, A]] = []
        self.weight = 0

    def takes(self, weight: int, patience_s: float) -> bool:
        """This says whether one more may come along."""
        alike = self.patience_s <= patience_s * 2 and patience_s <= self.patience_s * 2
        return alike and len(self.seats) < SEATS_MAX and self.weight + weight <= WEIGHT_MAX


class AsyncTrips(Generic[Q, A]):
    """This carries what tasks ask; `go` makes a trip in so many seconds and gives an answer or an error for each seat.

    It gets the seats as they were taken, and looks who is gone when it spells the questions. What it raises is raised
    for all of them.
    """

    def __init__(self, go: Callable[[Sequence[AsyncSeat[Q, A]], float], Awaitable[Sequence[A | Exception]]]) -> None:
        self._go = go
        self._trip: _Trip[Q, A] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:  # noqa: ARG002
        """This forgets the trips, which leave in the parent."""
        self._trip, self._under_way = None, set()

    async def ask(self, question: Q, *, weight: int, seconds: float) -> A:
        """This gives the answer, or raises the error that the trip came to."""
        loop, trip = asyncio.get_running_loop(), self._trip
        seat: AsyncSeat[Q, A] = AsyncSeat(question, loop.create_future())
        if trip is None or not trip.takes(weight, seconds):
            trip = self._trip = _Trip(seconds)
            task = loop.create_task(self._leave(trip), name="statecache-trip")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        trip.seats.append(seat)
        trip.weight += weight
        trip.patience_s = min(trip.patience_s, seconds)
        return await seat.answer

    async def _leave(self, trip: _Trip[Q, A]) -> None:
        if self._trip is trip:
            self._trip = None
        try:
            for seat, answer in zip(trip.seats, await self._go(trip.seats, trip.patience_s), strict=True):
                seat.settle(answer)
        except Exception as error:  # whatever it is, nobody waits for what does not come
            for seat in trip.seats:
                seat.settle(error)
        finally:
            for seat in trip.seats:
                seat.answer.cancel()  # the loop ends, and everyone in it


class Seat(Generic[Q, A]):
    """This is one question on its way."""

    __slots__ = ("question",)
    gone = False

    def __init__(self, question: Q) -> None:
        self.question = question


class Trips(Generic[Q, A]):
    """This carries what a thread asks, at once and alone."""

    def __init__(self, go: Callable[[Sequence[Seat[Q, A]], float], Sequence[A | Exception]]) -> None:
        self._go = go

    def ask(self, question: Q, *, weight: int, seconds: float) -> A:  # noqa: ARG002
        """This gives the answer, or raises the error that the trip came to."""
        (answer,) = self._go([Seat(question)], seconds)
        if isinstance(answer, Exception):
            raise answer
        return answer

"""Client processes that commit at the same time, each with a synchronous client and states of its own.

Closed: each commits again as soon as it has its answer, which shows how much goes through. Open: each commits when a
schedule says so, whatever became of the commit before. One that comes late is made up for at once, and how long it was
due counts, so that a system that stalls does not also stop the clock (coordinated omission).

All processes of a machine read the same monotonic clock.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count, cycle, islice
from math import lcm
from multiprocessing.connection import Connection
from select import select
from time import monotonic
from types import TracebackType
from typing import NamedTuple, Self

from statecache import Settings, StateCache
from statecache.keys import KeySpace
from tests.benchmarks.values import Value

KEYS = 16
READY_S = 120.0
START_S = 0.05
START_S_EACH = 0.01
"""How far ahead an order is given, and how much further for each agent: all of them are to have it in time."""


class Order(NamedTuple):
    """The order for an agent: commit from `start` to `end`, without pause or every so many seconds."""

    start: float
    end: float
    every: float | None = None


class Commit(NamedTuple):
    """One commit: its shard and n, and when it was due, sent and answered, on the monotonic clock."""

    shard: int
    n: int
    due: float
    sent: float
    answered: float


def schedule(order: Order) -> Iterator[float]:
    """Yield the times at which commits are due, the last one before the end."""
    assert order.every is not None
    for number in count():
        due = order.start + number * order.every
        if due >= order.end:
            return
        yield due


def orders(clients: int, *, start: float, seconds: float, rate: float | None = None) -> list[Order]:
    """Share a rate out over clients, whose turns are spread evenly; without one they commit without a pause."""
    if rate is None:
        return [Order(start, start + seconds)] * clients
    return [Order(start + number / rate, start + seconds, clients / rate) for number in range(clients)]


class Agents:
    """The processes; they end with this one, or with the `with` block."""

    def __init__(self, settings: Settings, values: Sequence[Value], *, most: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(most):
            ours, theirs = context.Pipe()
            process = context.Process(target=_agent, args=(number, settings, values, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        for pipe in self._pipes:
            if not pipe.poll(READY_S):
                raise TimeoutError("an agent did not start")
            pipe.recv()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(READY_S)

    def send(self, clients: int, *, seconds: float, rate: float | None = None) -> Order:
        """Send that many of them their orders, and return the time span in which they carry them out."""
        start = monotonic() + START_S + START_S_EACH * clients
        for pipe, order in zip(self._pipes, orders(clients, start=start, seconds=seconds, rate=rate), strict=False):
            pipe.send(order)
        return Order(start, start + seconds)

    def answers(self, clients: int) -> list[Commit]:
        """Return their commits, when all of them are done."""
        return [commit for pipe in self._pipes[:clients] for commit in pipe.recv()]


def _agent(number: int, settings: Settings, values: Sequence[Value], pipe: Connection) -> None:
    """Run one process until its pipe ends."""
    with StateCache(settings=settings, writer=f"bench:{number}") as cache, suppress(EOFError, KeyboardInterrupt):
        space = KeySpace(settings.prefix, settings.shards)
        places = [(space.shard(key), key) for key in (f"bench/agent-{number}-{which}" for which in range(KEYS))]
        work = cycle(zip(cycle(places), islice(cycle(values), lcm(KEYS, len(values)))))
        for (_, key), value in islice(work, KEYS):
            cache.set(key, value)
        gc.freeze()
        pipe.send("ready")
        while True:
            pipe.send(_carried_out(cache, pipe.recv(), work, pipe))


def _carried_out(
    cache: StateCache, order: Order, work: Iterator[tuple[tuple[int, str], Value]], pipe: Connection
) -> list[Commit]:
    done = []
    for due in schedule(order) if order.every is not None else _at_once(order):
        if (early := due - monotonic()) > 0 and select([pipe], [], [], early)[0]:
            break  # whoever gave the order is gone
        (shard, key), value = next(work)
        sent = monotonic()
        state = cache.set(key, value)
        answered = monotonic()
        assert state.position is not None
        done.append(Commit(shard, state.position.n, due, sent, answered))
    return done


def _at_once(order: Order) -> Iterator[float]:
    """Yield the current time until the end."""
    yield order.start
    while (now := monotonic()) < order.end:
        yield now

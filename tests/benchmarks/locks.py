"""What a lock costs that nobody else wants, and how long it lies idle between its holder and the next of eight waiters.

Uncontended: lock and unlock, beside redis-py's `Lock`, which has no queue, no renewal and no fencing.

Handover: nine processes, one holds and eight wait. The holder is told to release after a few milliseconds, drawn by
chance; from the moment at which it begins to, until one of the eight has the lock, is what counts. Then the one that
released joins the waiters. redis-py's `Lock` polls, ten times a second as it comes: there the one that released joins
at any moment of such a tenth, else all would soon poll at the same moment, which is worse for it. The floor is a list:
BLPOP takes its one element, LPUSH puts it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from random import Random
from select import select
from time import monotonic
from typing import Any, Literal

import redis

from statecache import Settings, StateCache
from tests.benchmarks.measuring import Row, in_turns, measure, percentile
from tests.benchmarks.processes import Processes

CALLS = 200
WAITERS = 8
HANDOVERS, HANDOVERS_BY_POLLING = 60, 30
POLL_S = 0.1
ROUNDS_MAX = 5
HELD_S = (0.004, 0.012)
UNCONTENDED_MAX = 1.0
P50_MS_MAX, P99_MS_MAX = 1.5, 5.0
TTL_S, TIMEOUT_S = 30, 60
KEY, BY_HAND = "bench/lock", "by-hand:lock"

Side = Literal["ours", "redis-py", "floor"]
SIDES: tuple[Side, ...] = ("ours", "redis-py", "floor")

_NAMES: dict[Side, str] = {
    "ours": f"lock: to the next of {WAITERS} waiters",
    "redis-py": "redis-py's Lock, which polls",
    "floor": "the floor: LPUSH wakes a BLPOP",
}


class Locker:
    """One who locks and unlocks in each of the three ways, with clients of its own."""

    def __init__(self, settings: Settings) -> None:
        self.cache = StateCache(settings=settings)
        self.bare: Any = redis.Redis.from_url(settings.redis_url)
        self._lists: Any = redis.Redis.from_url(settings.redis_url, socket_timeout=None)
        self._held: AbstractContextManager[Any] | None = None

    def acquire(self, side: Side) -> None:
        """Wait until the lock is held."""
        if side == "floor":
            self._lists.blpop(f"{BY_HAND}:list")
            return
        self._held = self.ours() if side == "ours" else self.theirs()
        self._held.__enter__()

    def release(self, side: Side) -> None:
        """Release the lock."""
        if side == "floor":
            self._lists.lpush(f"{BY_HAND}:list", "it")
        elif self._held is not None:
            self._held.__exit__(None, None, None)

    def ours(self) -> AbstractContextManager[Any]:
        """Return statecache's lock."""
        return self.cache.lock(KEY, ttl=TTL_S, timeout=TIMEOUT_S)

    def theirs(self) -> AbstractContextManager[Any]:
        """Return redis-py's lock."""
        lock: AbstractContextManager[Any] = self.bare.lock(BY_HAND, timeout=TTL_S)
        return lock

    def close(self) -> None:
        """Close the connections."""
        self.cache.close()
        self.bare.close()
        self._lists.close()


@contextmanager
def locking(number: int, settings: Settings) -> Iterator[Callable[[tuple[str, Side]], float]]:
    """Yield the job of each process, which answers when it began to release, or when it had the lock."""
    locker = Locker(settings)

    def work(order: tuple[str, Side]) -> float:
        verb, side = order
        begun = monotonic()
        if verb == "release":
            locker.release(side)
            return begun
        locker.acquire(side)
        return monotonic()

    for side in SIDES[:2]:
        with locker.ours() if side == "ours" else locker.theirs():
            pass  # all connections stand now
    try:
        yield work
    finally:
        locker.close()


def uncontended(settings: Settings, rounds: int) -> Row:
    """Measure the row of a lock that nobody else wants."""
    locker = Locker(settings)

    def once(lock: Callable[[], AbstractContextManager[Any]]) -> None:
        with lock():
            pass

    try:
        return in_turns(
            ("lock and unlock, uncontended, sync", partial(once, locker.ours)),
            ("redis-py's Lock", partial(once, locker.theirs)),
            bound=UNCONTENDED_MAX, rounds=rounds, calls=CALLS,
        )  # fmt: skip
    finally:
        locker.close()


def handover(settings: Settings, rounds: int, rng: Random) -> Iterator[Row]:
    """Measure the rows of a lock that eight others wait for."""
    spent: dict[Side, list[list[float]]] = {side: [] for side in SIDES}
    with redis.Redis.from_url(settings.redis_url) as bare:
        bare.lpush(f"{BY_HAND}:list", "it")
    with Processes(locking, settings, count=WAITERS + 1) as processes:
        for turn in range(min(rounds, ROUNDS_MAX)):
            for side in SIDES[:: 1 if turn % 2 else -1]:
                spent[side].append(_round(processes, side, rng))
    sides = {side: measure(name, spent[side]) for side, name in _NAMES.items()}
    beside: tuple[tuple[int, float, Side], ...] = ((50, P50_MS_MAX, "redis-py"), (99, P99_MS_MAX, "floor"))
    for percent, bound, against in beside:
        figures = [1e3 * percentile(times, percent) for times in spent["ours"]]
        name = f"{_NAMES['ours']}, p{percent}"
        yield Row(subject=measure(name, spent["ours"]), against=sides[against], figures=figures, unit="ms", bound=bound)


def _round(processes: Processes, side: Side, rng: Random) -> list[float]:
    """Hand the lock on as often as planned, then to every waiter left; return the seconds of each handover."""
    holder = 0
    processes.send(holder, ("acquire", side))
    processes.answer(holder)
    waiting = set(range(1, WAITERS + 1))
    for number in waiting:
        processes.send(number, ("acquire", side))
    spent: list[float] = []
    count, spread = (HANDOVERS_BY_POLLING, POLL_S) if side == "redis-py" else (HANDOVERS, 0.0)
    while waiting:
        select([], [], [], rng.uniform(*HELD_S))
        processes.send(holder, ("release", side))
        begun = processes.answer(holder)
        following = processes.first(waiting)
        if len(spent) < count:
            spent.append(processes.answer(following) - begun)
            select([], [], [], rng.uniform(0.0, spread))
            waiting.add(holder)
            processes.send(holder, ("acquire", side))
        else:
            processes.answer(following)
        waiting.remove(following)
        holder = following
    processes.send(holder, ("release", side))
    processes.answer(holder)
    return spent

"""How increments of one state go when sixteen want it at once: `update`, beside what it would be without its queues.

Beside it stand a plain retry with the same client, `get`, `set(expected=)` and tenacity, which shows what the queues
save; and WATCH with tenacity by hand.

A burst: all sixteen begin together, add one so many times each, and it ends when the last of them is done, so that
whoever is left waiting counts. Once each is contention from beginning to end. With ten each, WATCH gains by being
unfair: whoever got through goes on alone, while the others sit out their pauses (see the longest wait).

The one by hand is the leanest that is right: it keeps the number alone, reads it under WATCH, writes it in MULTI, and
where EXEC refuses, tenacity draws a pause from a window that doubles from 1 ms to 50 ms, as for the plain retry.
Windows from 0.5 to 100 ms were tried: shorter ones need more attempts, longer ones more time.

An attempt is a read, a sum and a write that is tried; what they add up to is compared at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from statistics import median
from time import monotonic
from typing import Any, Literal, NamedTuple, Protocol

import redis
import redis.asyncio
from redis.exceptions import WatchError
from tenacity import AsyncRetrying, Retrying, retry_if_exception_type, wait_random_exponential

from statecache import AsyncStateCache, Settings, StateCache, VersionConflict
from tests.benchmarks.measuring import Measure, Row, measure

MANY = 16
BURSTS = 6
LONGER = 10
TASKS_MIN = 4.0
PROCESSES_MIN = 1.5
ATTEMPTS_MAX = 2.0
TIMEOUT_S = 60.0
KEY = "bench/sum"
BY_HAND = "by-hand:sum"

Side = Literal["ours", "plain", "theirs"]
SIDES: tuple[Side, ...] = ("ours", "plain", "theirs")
SUMS: tuple[Side, Side] = ("ours", "theirs")
"""The two that have a number of their own; the plain retry adds to the state that `update` adds to."""
_WINDOW: dict[str, float] = {"multiplier": 0.001, "max": 0.05}
_AGAIN: dict[str, Any] = {
    "retry": retry_if_exception_type((WatchError, VersionConflict)),
    "wait": wait_random_exponential(**_WINDOW),
}


class Burst(NamedTuple):
    """One burst: the seconds of each increment, the attempts of all, and the seconds from its start to its end."""

    spent: list[float]
    attempts: int
    seconds: float


class Crowd(Protocol):
    """Sixteen contenders of one kind."""

    def burst(self, side: Side, each: int) -> Burst:
        """Let all of them begin at once, and wait until the last is done."""

    def sums(self) -> dict[Side, int]:
        """Return what the increments add up to."""


def contention(crowd: Crowd, kind: str, *, rounds: int, bound: float) -> Iterator[Row]:
    """Measure the rows of one crowd; raise RuntimeError where an increment is missing from the sum."""
    before, made = crowd.sums(), dict.fromkeys(SUMS, 0)
    for each, bursts, least in ((1, BURSTS, bound), (LONGER, 1, None)):
        met: dict[Side, list[list[Burst]]] = {side: [] for side in SIDES}
        for turn in range(rounds):
            for side in SIDES:
                met[side].append([])
            for number in range(bursts):
                first = (turn + number) % len(SIDES)
                for side in SIDES[first:] + SIDES[:first]:
                    met[side][-1].append(crowd.burst(side, each))
        for side in SIDES:
            sum_of: Side = "theirs" if side == "theirs" else "ours"
            made[sum_of] += sum(len(burst.spent) for of_round in met[side] for burst in of_round)
        yield from _rows(met, f"{MANY} {kind} add to one state, {each} each", least)
    if (found := {side: total - before[side] for side, total in crowd.sums().items()}) != made:
        raise RuntimeError(f"of {made} increments the sums show {found}")


def _rows(met: dict[Side, list[list[Burst]]], name: str, bound: float | None) -> Iterator[Row]:
    names = {
        "ours": name,
        "plain": "by get, set(expected=), tenacity",
        "theirs": "by WATCH, GET, MULTI, SET, EXEC, tenacity",
    }
    rates = {side: [rate_of(bursts) for bursts in met[side]] for side in SIDES}
    sides = {side: measure(names[side], [_spent(bursts) for bursts in met[side]], ops_s=rates[side]) for side in SIDES}
    for rival in SIDES[1:]:
        figures = [ours / theirs for ours, theirs in zip(rates["ours"], rates[rival], strict=True)]
        least = bound if rival == "theirs" else None
        yield Row(subject=sides["ours"], against=sides[rival], figures=figures, bound=least, at_most=False)
    attempts = {side: [attempts_of(bursts) for bursts in met[side]] for side in SIDES}
    said = f"attempts a commit (plain: {median(attempts['plain']):.2f}, WATCH: {median(attempts['theirs']):.2f})"
    yield Row(subject=Measure(name=said), figures=attempts["ours"], bound=ATTEMPTS_MAX if bound else None)


def rate_of(bursts: list[Burst]) -> float:
    """Return the increments per second of a round's bursts, without the pauses between them."""
    return sum(len(burst.spent) for burst in bursts) / sum(burst.seconds for burst in bursts)


def attempts_of(bursts: list[Burst]) -> float:
    """Return the attempts per increment, over a round's bursts."""
    return sum(burst.attempts for burst in bursts) / sum(len(burst.spent) for burst in bursts)


def _spent(bursts: list[Burst]) -> list[float]:
    return [seconds for burst in bursts for seconds in burst.spent]


class Tasks:
    """Tasks of one process, which share a client: a context manager with a loop of its own."""

    def __init__(self, settings: Settings) -> None:
        self._runner = asyncio.Runner()
        self._settings = settings
        self._attempts = 0

    def __enter__(self) -> Tasks:
        self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._close())
        self._runner.close()

    def burst(self, side: Side, each: int) -> Burst:
        """Let all of them begin at once, and wait until the last is done."""
        return self._runner.run(self._burst(self._increments()[side], each))

    def sums(self) -> dict[Side, int]:
        """Return what the increments add up to."""
        return self._runner.run(self._sums())

    async def _open(self) -> None:
        self._cache = AsyncStateCache(settings=self._settings)
        self._bare: Any = redis.asyncio.Redis.from_url(self._settings.redis_url)
        await self._cache.set(KEY, 0)
        await self._bare.set(BY_HAND, 0)
        for increment in self._increments().values():
            await self._burst(increment, LONGER)  # all connections stand now

    async def _close(self) -> None:
        await self._cache.close()
        await self._bare.aclose()

    async def _burst(self, increment: Callable[[], Any], each: int) -> Burst:
        spent: list[float] = []
        self._attempts, started = 0, monotonic()

        async def task() -> None:
            for _ in range(each):
                begun = monotonic()
                await increment()
                spent.append(monotonic() - begun)

        await asyncio.gather(*(task() for _ in range(MANY)))
        return Burst(spent, self._attempts, monotonic() - started)

    async def _sums(self) -> dict[Side, int]:
        state = await self._cache.get(KEY)
        assert state is not None
        return {"ours": state.value, "theirs": int(await self._bare.get(BY_HAND))}

    def _increments(self) -> dict[Side, Callable[[], Any]]:
        return {"ours": self._ours, "plain": self._plain, "theirs": self._theirs}

    async def _ours(self) -> None:
        await self._cache.update(KEY, self._plus_one, timeout=TIMEOUT_S)

    def _plus_one(self, value: int) -> int:
        self._attempts += 1
        return value + 1

    async def _plain(self) -> None:
        async for attempt in AsyncRetrying(**_AGAIN):
            with attempt:
                state = await self._cache.get(KEY, read="primary")
                assert state is not None
                await self._cache.set(KEY, self._plus_one(state.value), expected=state, timeout=TIMEOUT_S)

    async def _theirs(self) -> None:
        async for attempt in AsyncRetrying(**_AGAIN):
            with attempt:
                async with self._bare.pipeline() as pipe:
                    await pipe.watch(BY_HAND)
                    value = self._plus_one(int(await pipe.get(BY_HAND)))
                    pipe.multi()
                    pipe.set(BY_HAND, value)
                    await pipe.execute()


class Adder:
    """One contender with synchronous clients, which counts its attempts."""

    def __init__(self, settings: Settings) -> None:
        self.cache = StateCache(settings=settings)
        self.bare: Any = redis.Redis.from_url(settings.redis_url)
        self.attempts = 0

    def increment(self, side: Side) -> None:
        """Add one."""
        if side == "ours":
            self.cache.update(KEY, self._plus_one, timeout=TIMEOUT_S)
            return
        attempted = self._plain if side == "plain" else self._by_hand
        for attempt in Retrying(**_AGAIN):
            with attempt:
                attempted()

    def sums(self) -> dict[Side, int]:
        """Return what the increments add up to."""
        state = self.cache.get(KEY)
        assert state is not None
        return {"ours": state.value, "theirs": int(self.bare.get(BY_HAND))}

    def close(self) -> None:
        """Close the connections."""
        self.cache.close()
        self.bare.close()

    def _plain(self) -> None:
        state = self.cache.get(KEY, read="primary")
        assert state is not None
        self.cache.set(KEY, self._plus_one(state.value), expected=state, timeout=TIMEOUT_S)

    def _by_hand(self) -> None:
        with self.bare.pipeline() as pipe:
            pipe.watch(BY_HAND)
            value = self._plus_one(int(pipe.get(BY_HAND)))
            pipe.multi()
            pipe.set(BY_HAND, value)
            pipe.execute()

    def _plus_one(self, value: int) -> int:
        self.attempts += 1
        return value + 1

"""Many at once: `get_many` beside a pipelined loop of HMGET by hand, `set_many` of states nobody has seen, `increment`.

By hand a thousand hashes are read in one pipeline, and of each the value is decoded; nothing is proven. `set_many`
writes ten thousand new states, which Redis does not hold, so that Postgres is asked for each of them; a sample of as
new ones is set one by one. What is compared there is seconds for ten thousand.

Sixty-four tasks of one client add to one number, all at once: by `increment`, and by `update`, whose callers take turns
within a client and read nothing but what the one before has written. What they add up to is compared at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

import msgspec
import redis

from statecache import AsyncStateCache, Settings, StateCache
from statecache.keys import KeySpace
from statecache.records import FIELDS
from tests.benchmarks.measuring import Measure, Row, in_turns
from tests.benchmarks.values import Value

READ, CALLS = 1_000, 10
WRITTEN, SAMPLE = 10_000, 300
ROUNDS_MAX = 5
READ_BOUND, WRITE_BOUND_MS, COUNT_BOUND = 1.5, 3_000.0, 1.5
TASKS, EACH = 64, 20
COUNTED = "many/counted"
TIMEOUT_S = 60.0


def bulk(settings: Settings, values: Sequence[Value], rounds: int) -> Iterator[Row]:
    """Measure the rows; one worker runs."""
    with StateCache(settings=settings) as cache, redis.Redis.from_url(settings.redis_url) as bare:
        yield _reading(cache, bare, values, rounds)
        yield _writing(cache, rounds)
    yield asyncio.run(_counting(settings, rounds))


async def _counting(settings: Settings, rounds: int) -> Row:
    async with AsyncStateCache(settings=settings) as cache:
        sides: dict[str, Callable[[], Awaitable[Any]]] = {
            "increment": lambda: cache.increment(COUNTED, timeout=TIMEOUT_S),
            "update": lambda: cache.update(COUNTED, lambda number: number + 1, default=0, timeout=TIMEOUT_S),
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(rounds + 1):
            for name in [*sides][:: 1 if turn % 2 else -1]:
                begun = perf_counter()
                await asyncio.gather(*(_again(sides[name]) for _ in range(TASKS)))
                rates[name].append(TASKS * EACH / (perf_counter() - begun))
        state = await cache.get(COUNTED, read="primary")
    if state is None or state.value != 2 * (rounds + 1) * TASKS * EACH:
        raise RuntimeError(f"the increments add up to {state and state.value}")
    ours, theirs = (rates[name][1:] for name in sides)  # all connections stand by then
    return Row(
        subject=Measure(name=f"{TASKS} tasks increment one number", ops_s=median(ours)),
        against=Measure(name="by update", ops_s=median(theirs)),
        figures=[one / other for one, other in zip(ours, theirs, strict=True)], bound=COUNT_BOUND, at_most=False,
    )  # fmt: skip


async def _again(call: Callable[[], Awaitable[Any]]) -> None:
    for _ in range(EACH):
        await call()


def _reading(cache: StateCache, bare: Any, values: Sequence[Value], rounds: int) -> Row:
    space = KeySpace(cache.settings.prefix, cache.settings.shards)
    keys = [f"many/{number}" for number in range(READ)]
    cache.set_many({key: values[number % len(values)] for number, key in enumerate(keys)}, timeout=TIMEOUT_S)
    names = [space.state(key) for key in keys]

    def by_hand() -> dict[str, Any]:
        with bare.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hmget(name, FIELDS)
            replies = pipe.execute()
        return {key: msgspec.json.decode(reply[2]) for key, reply in zip(keys, replies, strict=True)}

    def many() -> dict[str, Any]:
        return cache.get_many(keys, read="primary")

    if by_hand() != {key: msgspec.to_builtins(state.value) for key, state in many().items()}:
        raise RuntimeError("the two sides read different values")
    return in_turns(
        (f"get_many of {READ:,} of 1 KB, from the primary", many),
        ("pipelined HMGET by hand, and json", by_hand),
        bound=READ_BOUND, rounds=rounds, calls=CALLS,
    )  # fmt: skip


def _writing(cache: StateCache, rounds: int) -> Row:
    fresh, ours, theirs = count(), list[float](), list[float]()
    for _ in range(min(rounds, ROUNDS_MAX)):
        begun = perf_counter()
        cache.set_many({f"new/{next(fresh)}": {"step": 1} for _ in range(WRITTEN)}, timeout=TIMEOUT_S)
        ours.append(1e3 * (perf_counter() - begun))
        begun = perf_counter()
        for _ in range(SAMPLE):
            cache.set(f"new/{next(fresh)}", {"step": 1})
        theirs.append(1e3 * (perf_counter() - begun) * WRITTEN / SAMPLE)
    return Row(
        subject=Measure(name=f"set_many of {WRITTEN:,} new small states", ops_s=WRITTEN / median(ours) * 1e3),
        against=Measure(name=f"set, one by one (a sample of {SAMPLE})", ops_s=WRITTEN / median(theirs) * 1e3),
        figures=ours, unit="ms", bound=WRITE_BOUND_MS,
    )  # fmt: skip

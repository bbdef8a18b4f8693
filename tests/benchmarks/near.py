"""What a read from this process's own memory takes, beside client-side caches of others.

Each is coherent before it is timed: another client writes, and the cache has to give that value soon. And each really
answers from memory: the server counts its commands meanwhile.

redis-py's cache refuses servers that do not call themselves Redis 7.4, for no reason of the protocol; here it is told
to take this one. It is quickest with a connection of its own, so it has one. cashews reads Redis' invalidations from a
pub/sub channel, which in RESP3, the default since redis-py 8, come in a shape that it passes over without a word: left
so it gives the old value for ever, so it is told `protocol=2`. What both give is as they keep it: bytes, and an object
that all callers share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from time import monotonic
from typing import Any

import msgspec
import redis
import redis.asyncio
from redis.cache import CacheConfig
from redis.connection import CacheProxyConnection

from statecache import AsyncStateCache, Settings, StateCache
from tests.benchmarks.blocks import Loop, awaited, in_blocks, looped
from tests.benchmarks.measuring import Row, left_out, measure
from tests.benchmarks.values import Value, encoded

BLOCKS, CALLS = 8, 2_000
SYNC_US_MAX, ASYNC_US_MAX, DICT_US_MAX = 0.7, 0.9, 1.0
REDIS_PY_MIN, CASHEWS_MIN = 20.0, 3.0
COHERENT_S = 5.0
COMMANDS_MAX = CALLS // 20
NAMESPACE, NAME, PLAIN = "bench", "near", "bench/plain"
BY_HAND = "by-hand:near"

STRUCT, DICT = "local hit of a frozen 1 KB Struct", "local hit of a dict"
DECODE, REDIS_PY, CASHEWS = "bare decode of its bytes", "redis-py's client-side cache", "cashews' client-side cache"


class Said(msgspec.Struct, frozen=True):
    """A message."""

    role: str
    content: str


class Step(msgspec.Struct, frozen=True):
    """A value that callers may share."""

    step: int
    open_question: str | None
    messages: tuple[Said, ...]


def near(settings: Settings, values: Sequence[Value], rounds: int) -> Iterator[Row]:
    """Measure the rows of both clients; no worker is needed."""
    with ExitStack() as stack:
        sides = _synchronous(stack, settings, values)
        spent = in_blocks(sides, rounds=rounds, blocks=BLOCKS, calls=CALLS)
    yield taking(f"{STRUCT}, sync", spent[STRUCT], SYNC_US_MAX)
    yield slower(f"{REDIS_PY}, by that", spent[REDIS_PY], spent[STRUCT], REDIS_PY_MIN)
    yield beyond((f"{DICT} of 1 KB, sync", spent[DICT]), (f"less: {DECODE}", spent[DECODE]), DICT_US_MAX)
    with asyncio.Runner() as runner, ExitStack() as stack:
        sides = _asynchronous(stack, settings, values, runner)
        spent = in_blocks(sides, rounds=rounds, blocks=BLOCKS, calls=CALLS)
    yield taking(f"{STRUCT}, async", spent[STRUCT], ASYNC_US_MAX)
    if CASHEWS in spent:
        yield slower(f"{CASHEWS}, by that", spent[CASHEWS], spent[STRUCT], CASHEWS_MIN)
    else:
        yield left_out(f"{CASHEWS}, by that", "not installed: the extra `bench` brings it")


def _synchronous(stack: ExitStack, settings: Settings, values: Sequence[Value]) -> dict[str, Loop]:
    bare: Any = stack.enter_context(redis.Redis.from_url(settings.redis_url))
    cache, other = (stack.enter_context(StateCache(settings=settings)) for _ in range(2))
    rival: Any = stack.enter_context(_redis_py(settings.redis_url))
    steps = cache.namespace(NAMESPACE, type=Step)
    for value in values[:2]:
        other.set(f"{NAMESPACE}/{NAME}", value)
        other.set(PLAIN, value)
        bare.set(BY_HAND, encoded(value))
        coherent(STRUCT, lambda: steps.get(NAME), msgspec.convert(value, Step))
        coherent(DICT, lambda: cache.get(PLAIN), value)
        coherent(REDIS_PY, lambda: rival.get(BY_HAND), encoded(value))
    sides = {
        STRUCT: looped(steps.get, NAME),
        REDIS_PY: looped(rival.get, BY_HAND),
        DICT: looped(cache.get, PLAIN),
        DECODE: looped(msgspec.json.Decoder().decode, encoded(values[1])),
    }
    ask_nobody(sides, bare)
    return sides


def _asynchronous(
    stack: ExitStack, settings: Settings, values: Sequence[Value], runner: asyncio.Runner
) -> dict[str, Loop]:
    bare: Any = stack.enter_context(redis.Redis.from_url(settings.redis_url))
    there: Any = redis.asyncio.Redis.from_url(settings.redis_url)
    stack.callback(lambda: runner.run(there.aclose()))
    other = stack.enter_context(StateCache(settings=settings))
    cache = AsyncStateCache(settings=settings)
    stack.callback(lambda: runner.run(cache.close()))
    steps = cache.namespace(NAMESPACE, type=Step)
    for value in values[:2]:
        other.set(f"{NAMESPACE}/{NAME}", value)
        coherent(STRUCT, lambda: runner.run(steps.get(NAME)), msgspec.convert(value, Step))
    sides = {STRUCT: awaited(runner, steps.get, NAME, first=there.ping)}
    if find_spec("cashews") is not None:
        rival, writer = (_cashews(stack, settings.redis_url, runner) for _ in range(2))
        for value in values[:2]:
            runner.run(writer.set(NAME, msgspec.convert(value, Step)))
            coherent(CASHEWS, lambda: runner.run(rival.get(NAME)), msgspec.convert(value, Step))
        sides[CASHEWS] = awaited(runner, rival.get, NAME, first=there.ping)
    ask_nobody(sides, bare)
    return sides


@contextmanager
def _redis_py(redis_url: str) -> Iterator[Any]:
    """Open redis-py with its cache, made to accept the server as a Redis new enough."""
    meant = CacheProxyConnection.DEFAULT_SERVER_NAME, CacheProxyConnection.MIN_ALLOWED_VERSION
    with redis.Redis.from_url(redis_url) as asking:
        said: Any = asking.execute_command("HELLO")
    told = dict(zip(said[::2], said[1::2], strict=True)) if isinstance(said, list) else said
    CacheProxyConnection.DEFAULT_SERVER_NAME = told[b"server"].decode()
    CacheProxyConnection.MIN_ALLOWED_VERSION = told[b"version"].decode()
    try:
        with redis.Redis.from_url(redis_url, cache_config=CacheConfig(), single_connection_client=True) as client:
            yield client
    finally:
        CacheProxyConnection.DEFAULT_SERVER_NAME, CacheProxyConnection.MIN_ALLOWED_VERSION = meant


def _cashews(stack: ExitStack, redis_url: str, runner: asyncio.Runner) -> Any:
    cashews: Any = import_module("cashews")
    cache = cashews.Cache()
    cache.setup(redis_url, client_side=True, protocol=2)
    runner.run(cache.init())
    stack.callback(lambda: runner.run(cache.close()))
    return cache


def coherent(name: str, read: Callable[[], Any], wanted: Any) -> None:
    """Read until another client's write is seen; raise RuntimeError after COHERENT_S."""
    deadline = monotonic() + COHERENT_S
    while (found := read()) is None or getattr(found, "value", found) != wanted:
        if monotonic() > deadline:
            raise RuntimeError(f"{name} is not coherent: it does not give what another client wrote")


def ask_nobody(sides: Mapping[str, Loop], bare: Any) -> None:
    """Raise RuntimeError where a side's calls are not answered from memory."""
    for name, loop in sides.items():
        loop(CALLS)
        before = bare.info("stats")["total_commands_processed"]
        loop(CALLS)
        if bare.info("stats")["total_commands_processed"] - before > COMMANDS_MAX:
            raise RuntimeError(f"{name} asks the server")


def taking(name: str, spent: Sequence[Sequence[float]], bound: float) -> Row:
    """Make a row of the microseconds of a call."""
    figures = [1e6 * median(blocks) for blocks in spent]
    return Row(subject=measure(name, spent), figures=figures, unit="µs", bound=bound)


def slower(name: str, theirs: Sequence[Sequence[float]], ours: Sequence[Sequence[float]], bound: float) -> Row:
    """Make a row of how many of our calls fit into one of theirs."""
    figures = [median(long) / median(short) for long, short in zip(theirs, ours, strict=True)]
    return Row(subject=measure(name, theirs), figures=figures, bound=bound, at_most=False)


def beyond(
    subject: tuple[str, Sequence[Sequence[float]]], less: tuple[str, Sequence[Sequence[float]]], bound: float
) -> Row:
    """Make a row of the microseconds that a call takes beyond another."""
    figures = [1e6 * (median(all_) - median(part)) for all_, part in zip(subject[1], less[1], strict=True)]
    return Row(subject=measure(*subject), against=measure(*less), figures=figures, unit="µs", bound=bound)

"""What a commit costs while many clients are connected that keep other states in their near caches.

There are two Redis servers. One client commits to both in turns, call by call, each time to a state that nobody else
reads; on the first server it is alone, on the second 10, 100 and then 1,000 clients are connected, each with a near
cache in which a state of its own is, kept coherent over a tracked connection of its own. So machine and moment are the
same, and what a server does for clients that do not read the key is what differs. The clients live in a few processes,
and their heartbeats go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, product
from threading import Thread

import redis

from statecache import AsyncStateCache, Settings, StateCache
from tests.benchmarks.measuring import Row, in_turns
from tests.benchmarks.processes import Processes
from tests.benchmarks.values import Value

CLIENTS = (1, 10, 100, 1_000)
PROCESSES = 4
AT_ONCE = 16
CALLS = 400
FLAT = 1.1
KEY = "bench/unwatched"


def watchers(alone: Settings, watched: Settings, values: Sequence[Value], rounds: int) -> Iterator[Row]:
    """Measure a row for each number of clients; no worker is needed."""
    watched = watched.model_copy(update={"redis_connections_max": 1})
    with ExitStack() as stack:
        ours, theirs = (stack.enter_context(StateCache(settings=settings)) for settings in (alone, watched))
        for number, which in product(range(PROCESSES), range(max(CLIENTS) // PROCESSES + 1)):
            theirs.create(_key(number, which), which, assume_new=True)
        processes = stack.enter_context(Processes(watching, watched, count=PROCESSES))
        for clients in CLIENTS:
            _share_out(processes, clients)
            _check(watched, clients)
            yield in_turns(
                (f"commit of 1 KB, near caches of others: {clients:,}", partial(_commit, theirs, cycle(values))),
                ("the same where there are none", partial(_commit, ours, cycle(values))),
                bound=FLAT, rounds=rounds, calls=CALLS,
            )  # fmt: skip


def _commit(cache: StateCache, values: Iterator[Value]) -> None:
    cache.set(KEY, next(values))


def _key(process: int, client: int) -> str:
    return f"bench/watched-{process}-{client}"


def _share_out(processes: Processes, clients: int) -> None:
    """Spread that many clients over the processes."""
    processes.each([clients // PROCESSES + (number < clients % PROCESSES) for number in range(PROCESSES)])


def _check(settings: Settings, clients: int) -> None:
    """Raise RuntimeError where fewer clients than that track what they read."""
    with redis.Redis.from_url(settings.redis_url) as bare:
        tracking = int(bare.info("clients")["tracking_clients"])
    if tracking < clients:
        raise RuntimeError(f"of {clients} clients {tracking} have a near cache")


@contextmanager
def watching(number: int, settings: Settings) -> Iterator[Callable[[int], int]]:
    """Yield the job of each process: bring its clients to a number, each with a state of its own in its near cache."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    caches: list[AsyncStateCache] = []

    async def watch(which: int) -> None:
        cache = AsyncStateCache(settings=settings)
        caches.append(cache)
        await cache.get(_key(number, which))

    async def grow(clients: int) -> int:
        for first in range(len(caches), clients, AT_ONCE):
            await asyncio.gather(*(watch(which) for which in range(first, min(first + AT_ONCE, clients))))
        return len(caches)

    async def close() -> None:
        await asyncio.gather(*(cache.close() for cache in caches))

    try:
        yield lambda clients: asyncio.run_coroutine_threadsafe(grow(clients), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

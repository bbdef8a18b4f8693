"""A primary and the replica that took its place, and workers at work on both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from statecache import Settings
from statecache.concurrency import THREADS, run
from statecache.core.epoch.gate import Gate
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.tier import RedisTier
from statecache.errors import Unavailable
from statecache.keys import KeySpace
from statecache.testing.binaries import valkey_server
from statecache.testing.valkey import Valkey
from statecache_workers.worker import Worker
from tests.fixtures.servers import plain_client
from tests.support.gate_world import World
from tests.support.polling import pause, pause_thread

BOUND_S = 20.0
QUICK = {"lease_s": 0.6, "lease_renew_s": 0.1, "reservation_s": 0.3}


def parted(shard: World, key: str) -> tuple[Valkey, Valkey]:
    """Return an old primary that still takes writes, and its promoted replica; both hold the key, flushed."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.put(a, key, "both")
    shard.flush(a)
    shard.in_step(a)
    shard.promote(b)
    return a, b


@contextlib.contextmanager
def old_and_new(folder: Path) -> Iterator[tuple[Valkey, Valkey]]:
    """Start a primary and its replica, which has all of it: with its first replica a primary's replid changes."""
    with contextlib.ExitStack() as ending:
        old = Valkey(folder, binary=valkey_server(), name="old", config={"repl-diskless-sync": "no"})
        ending.callback(old.discard)
        old.start()
        new = old.replica("new")
        ending.callback(new.discard)
        new.start()
        with plain_client(new.url) as raw:
            while raw.info("replication")["master_link_status"] != "up":
                pause_thread()
        yield old, new


def failed_over(settings: Settings, old: Valkey, new: Valkey) -> Settings:
    """Promote the replica, open all gates there, and give the settings that lead to it."""
    with plain_client(old.url) as raw:
        raw.set("in-step", "1")
        assert raw.wait(1, 10_000) == 1
    with plain_client(new.url) as raw:
        raw.execute_command("REPLICAOF", "NO", "ONE")
    there = settings.model_copy(update={"redis_url": new.url})
    keys = KeySpace(settings.prefix, settings.shards)
    link = run(RedisTier(there, keys, io=THREADS).link())
    session = run(PostgresTier(there, keys, io=THREADS).session())
    run(Gate(there, keys, by="an agent", authority="client").open(link, session.connection, range(keys.shards)))
    run(link.close())
    run(session.close())
    return there


@contextlib.asynccontextmanager
async def working(*workers: Worker) -> AsyncIterator[None]:
    """Let workers work as their processes do, through outages."""

    async def work(worker: Worker) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                if not await worker.turn():
                    await worker.rest()
                continue
            await pause()

    tasks = [asyncio.create_task(work(one)) for one in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def until(told: Callable[[], object], *, seconds: float = BOUND_S) -> None:
    """Wait until something holds, or the time is up."""
    async with asyncio.timeout(seconds):
        while not told():
            await pause()

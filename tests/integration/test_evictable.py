"""Every clean state may be evicted one day, however it came to be clean; and flushed entries stay for a while."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from statecache import AsyncStateCache, Settings
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, MakeWorker, flush, rows
from tests.support.polling import pause

Psql = psycopg.Connection[Any]
TURNS_MAX = 200


async def until_evictable(worker: Worker, raw: Any, *redis_keys: str) -> None:
    """Turn the worker until all of these states have a time to live."""
    for _ in range(TURNS_MAX):
        if all(raw.pttl(name) > 0 for name in redis_keys):
            return
        worker.janitor._next_round = 0.0
        if not await worker.turn():
            worker.nudge()
            await worker.rest()
    raise AssertionError({name: raw.pttl(name) for name in redis_keys})


async def test_a_state_that_was_written_under_a_lease_may_be_evicted(
    cache: AsyncStateCache, make_worker: MakeWorker, settings: Settings, redis_raw: Any, keys: KeySpace, agents: Agents
) -> None:
    worker = make_worker(settings.model_copy(update={"retention_s": 0.0}))
    async with cache.lock("runs/42", ttl=30) as lease:
        await lease.set("runs/42", 1)
    await flush(worker)
    await until_evictable(worker, redis_raw, keys.state("runs/42"))
    assert agents.entries(keys.shard("runs/42")) == []


async def test_states_that_were_recalled_after_postgres_went_back_may_be_evicted(
    agents: Agents, make_worker: MakeWorker, settings: Settings, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    worker = make_worker(settings.model_copy(update={"retention_s": 0.0}))
    key = agents.key_on(0)
    agents.commit(key)
    await flush(worker)
    await until_evictable(worker, redis_raw, keys.state(key))
    assert agents.entries(0) == []
    await worker.leave()
    psql.execute("TRUNCATE change, state")
    psql.execute("UPDATE shard SET flushed = 0, entries = 0, bytes = 0, owner = NULL")
    second = make_worker(settings.model_copy(update={"retention_s": 0.0}))
    async with asyncio.timeout(30.0):
        while rows(psql, "SELECT count(*) FROM state") != [(1,)]:
            await second.turn()
            await pause()
    await until_evictable(second, redis_raw, keys.state(key))

"""Erasures beside writers, branches, kills and failovers: whatever comes between, nothing of the subject is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from statecache import (
    AsyncStateCache,
    Erasure,
    OutcomeUnknown,
    RedisUnavailable,
    Settings,
    StateCache,
    Unavailable,
)
from statecache.keys import KeySpace
from statecache.testing.valkey import Valkey
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import MakeWorker, flush, flushing, rows
from tests.simulation.backups import Backup
from tests.support.erasures import HEAD, LONG, PAGES, told
from tests.support.fault_proxy import FaultProxy
from tests.support.gate_world import Fenced, World
from tests.support.histories import Psql, read
from tests.support.polling import pause, pause_thread
from tests.support.remains import SECRET, in_postgres, in_redis


class Kills:
    """Every step that an erasure takes at a server, of which one is its last: before it is sent, or once it is done."""

    def __init__(self, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        runtime = cache._runtime
        for part, names in (
            (runtime.postgres, ("fetch",)), (runtime.redis, ("script", "exchange", "read_script")),
            (runtime.committer, ("commit",)),
        ):  # fmt: skip
            for name in names:
                monkeypatch.setattr(part, name, self._mortal(getattr(part, name)))

    def _mortal(self, step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def dies(*args: Any, **more: Any) -> Any:
            self._tick()
            done = await step(*args, **more)
            self._tick()
            return done

        return dies

    def _tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise asyncio.CancelledError


async def test_an_erasure_that_is_killed_at_any_step_is_completed_by_the_next(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    kills, moment, whole = Kills(cache, monkeypatch), 0, False
    while not whole:
        moment += 1
        key, secret = f"runs/{moment}", f"{SECRET}-no-{moment}-"
        kills.left = -1
        await told(cache, key, secret)
        await flush(worker)
        await cache.branch(key, f"runs/{moment}-branch")
        await flush(worker)
        async with flushing(worker):
            kills.left = moment
            try:
                await cache.erase(key)
                whole = True
            except asyncio.CancelledError:
                kills.left = -1
                await cache.erase(key)
            kills.left = -1
            await cache.erase(f"{key}-branch")
        assert (in_postgres(psql, secret), in_redis(redis_raw, keys, secret)) == (set(), set())
    assert moment > 20
    assert (await verify(settings))[1] == []


async def test_a_writer_that_creates_it_anew_meanwhile_keeps_what_it_wrote(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    await told(cache, "runs/1")
    await flush(worker)
    over, written = False, 0

    async def writes() -> None:
        nonlocal written
        while not over:
            written += 1
            await cache.set("runs/1", {"number": written, "log": [f"{n * 7}" for n in range(300)]})
            await pause()

    work = asyncio.create_task(writes())
    async with flushing(worker):
        for _ in range(3):
            await cache.erase("runs/1")
        over = True
        await work
    await flush(worker)
    state = await cache.get("runs/1")
    assert state is not None
    assert (state.value["number"], state.version) == (written, 3 + written + 3)
    assert (in_postgres(psql), in_redis(redis_raw, keys)) == (set(), set())
    assert (await verify(settings))[1] == []
    after = await read(cache, psql)
    assert rows(psql, "SELECT count(*) FROM change WHERE op = 'set' AND digest IS NOT NULL") == [(len(after),)]


async def test_a_branch_that_is_made_meanwhile_is_detached_and_named(
    settings: Settings, cache: AsyncStateCache, make_worker: MakeWorker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker()
    await told(cache, "runs/1")
    await flush(worker)
    fetch, struck = cache._runtime.postgres.fetch, False

    async def branches_first(name: str, parameters: Any, *, seconds: float) -> Any:
        nonlocal struck
        if name == "erase_history" and parameters["keys"] and not struck:
            struck = True
            await cache.branch("runs/1", "runs/2", at=2, durability="postgres")
        return await fetch(name, parameters, seconds=seconds)

    monkeypatch.setattr(cache._runtime.postgres, "fetch", branches_first)
    async with flushing(worker):
        proof = await cache.erase("runs/1")
    assert struck
    assert proof.branches == ("runs/2",)
    assert rows(psql, "SELECT key FROM change WHERE digest IS NOT NULL AND op = 'set'") == [("runs/2",)]
    state = await cache.get_at("runs/2", version=1)
    assert state is not None
    assert state.value == [1, SECRET, *LONG]
    assert (await verify(settings))[1] == []


async def test_without_a_worker_it_waits_and_is_completed_when_there_is_one(
    cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    await told(cache, "runs/1")
    with pytest.raises(OutcomeUnknown):
        await cache.erase("runs/1", timeout=0.5)
    assert "changes" in str(in_redis(redis_raw, keys))
    async with flushing(worker):
        await cache.erase("runs/1")
    assert (in_postgres(psql), in_redis(redis_raw, keys)) == (set(), set())


async def test_without_a_worker_many_keys_wait_and_are_completed_too(
    cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    await cache.set_many(dict.fromkeys([HEAD, *PAGES], SECRET))
    with pytest.raises(OutcomeUnknown):
        await cache.erase(HEAD, group=True, timeout=0.5)
    assert [state.key async for state in cache.list("runs/")] == []
    async with flushing(worker):
        await cache.erase(HEAD, group=True)
    assert (in_postgres(psql), in_redis(redis_raw, keys)) == (set(), set())


def test_a_failover_in_the_middle_leaves_the_rest_to_the_next_call(
    shard: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.open(a)
    agent = shard.client(a, timeout_s=3)
    for number in range(3):
        agent.set("runs/1", [number, SECRET], reason=SECRET)
    shard.flush(a)
    fetch = agent._runtime.postgres.fetch

    def fails_over(name: str, parameters: Any, *, seconds: float) -> Any:
        if name == "erase_left":
            shard.in_step(a)
            shard.promote(b)
            a.kill()
        return fetch(name, parameters, seconds=seconds)

    monkeypatch.setattr(agent._runtime.postgres, "fetch", fails_over)
    with pytest.raises(RedisUnavailable):
        _beside_flushes(shard, a, agent)
    other = shard.client(b)
    assert other.get("runs/1") is None
    proof = _beside_flushes(shard, b, other)
    assert {one.place: one.rows for one in proof.places}["stream"] == 4
    with shard.session() as psql:
        assert in_postgres(psql) == set()
    with redis.Redis.from_url(b.url) as raw:
        assert in_redis(raw, shard.keys) == set()
    assert other.create("runs/1", 1).version == 6


@pytest.mark.parametrize("replica", ["in step", "without the tombstone"])
async def test_a_failover_to_where_the_address_leads_is_followed(
    shard: World, monkeypatch: pytest.MonkeyPatch, replica: str
) -> None:
    """The old primary goes on answering, as a replica of the new one."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.open(a)
    for number in range(3):
        shard.put(a, "runs/1", [number, SECRET])
    shard.flush(a)
    shard.in_step(a)
    if replica == "without the tombstone":
        shard.promote(b)
    async with (
        FaultProxy("127.0.0.1", a.port) as address,
        AsyncStateCache(settings=through(shard.on(a, timeout_s=10), redis=address)) as agent,
    ):
        script = agent._runtime.redis.script

        async def fails_over(name: str, keys: Any, args: Any, **more: Any) -> Any:
            if name == "erase_flushed_entries" and not address_leads_to_b.is_set():
                if replica == "in step":
                    shard.in_step(a)
                    shard.promote(b)
                shard.demote(a, b)
                address.retarget("127.0.0.1", b.port)
                address_leads_to_b.set()
            return await script(name, keys, args, **more)

        address_leads_to_b = asyncio.Event()
        monkeypatch.setattr(agent._runtime.redis, "script", fails_over)
        erasing = asyncio.create_task(agent.erase("runs/1"))
        while not (erasing.done() or address_leads_to_b.is_set()):
            with contextlib.suppress(redis.RedisError, Fenced):
                await asyncio.to_thread(shard.flush, a)
            await pause()
        proof = await erasing
        assert {one.place: one.rows for one in proof.places}["stream"] == 3
        with shard.session() as psql:
            assert in_postgres(psql) == set()
        with redis.Redis.from_url(b.url) as raw:
            assert in_redis(raw, shard.keys) == set()
        assert (await agent.create("runs/1", 1)).version == 5


async def test_a_delete_that_a_failover_takes_is_made_again(shard: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for before the next one is sent, which the new primary takes."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.open(a)
    shard.client(a).set_many(dict.fromkeys([HEAD, *PAGES], SECRET))
    shard.flush(a)
    shard.in_step(a)
    shard.promote(b)
    async with (
        FaultProxy("127.0.0.1", a.port) as address,
        AsyncStateCache(settings=through(shard.on(a, timeout_s=10), redis=address)) as agent,
    ):
        commit, address_leads_to_b = agent._runtime.committer.commit, asyncio.Event()

        async def fails_over(one: Any) -> Any:
            done = await commit(one)
            if not address_leads_to_b.is_set():
                shard.demote(a, b)
                address.retarget("127.0.0.1", b.port)
                address_leads_to_b.set()
            return done

        monkeypatch.setattr(agent._runtime.committer, "commit", fails_over)
        erasing = asyncio.create_task(agent.erase(HEAD, group=True))
        while not (erasing.done() or address_leads_to_b.is_set()):
            await pause()
        while not erasing.done():
            with contextlib.suppress(redis.RedisError, Fenced):
                await asyncio.to_thread(shard.flush, b)
            await pause()
        proof = await erasing
        assert (len(proof.keys), len(proof.positions), len({one.epoch for one in proof.positions})) == (301, 2, 1)
        with shard.session() as psql:
            assert in_postgres(psql) == set()
        with redis.Redis.from_url(b.url) as raw:
            assert in_redis(raw, shard.keys) == set()


@pytest.mark.parametrize("group", [False, True])
async def test_what_a_postgres_that_went_back_lacks_is_not_said_never_to_have_been(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace, *,
    group: bool,
) -> None:  # fmt: skip
    """Redis holds it, and a worker that has compared flushes it again: until then it is not said to be gone."""
    await cache.set("runs/1/old", 1)
    await flush(worker)
    backup = Backup(psql)
    await told(cache, "runs/1")
    await flush(worker)
    backup.put_back()
    with pytest.raises(Unavailable, match="this Postgres holds less than was flushed") as met:
        await cache.erase("runs/1", group=group, timeout=0.5)
    assert (met.value.reason, "statecache worker" in met.value.hint) == ("hydration", True)
    erasing = asyncio.create_task(cache.erase("runs/1", group=group))
    async with flushing(worker):
        proof = await erasing
    assert proof.keys == (("runs/1", "runs/1/old") if group else ("runs/1",))
    assert in_postgres(psql) == set()
    assert in_redis(redis_raw, keys) == set()


def _beside_flushes(shard: World, server: Valkey, agent: StateCache) -> Erasure:
    """Erase, and flush until that has come to its end."""
    with ThreadPoolExecutor(1) as pool:
        erasing = pool.submit(agent.erase, "runs/1")
        while not erasing.done():
            with contextlib.suppress(redis.ConnectionError, Fenced):
                shard.flush(server)
            pause_thread()
        return erasing.result()

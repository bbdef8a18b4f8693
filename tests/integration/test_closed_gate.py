"""Reads of a shard whose gate is closed: Postgres answers, or nobody, for Redis may have gone back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.cli.states.by_hand import get as get_by_hand
from statecache.cli.states.by_hand import ls
from statecache.core.read.dirty import Dirty
from statecache.errors import Unavailable
from statecache.lua import script
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, every_redis
from tests.simulation.backups import Backup
from tests.support.closed_shard import GONE, KEY, WHOLE, Shard, in_order
from tests.support.fault_proxy import FaultProxy
from tests.support.local_reads import kept, reads, until

Read = Literal["local", "primary"]


@pytest.fixture
async def shard(settings: Settings, redis_raw: Any, psql: psycopg.Connection[Any], worker: Worker) -> Shard:
    """A closed shard: Redis has gone back to KEY's first version and lacks GONE. Postgres holds both."""
    made = Shard(settings, redis_raw, psql)
    async with AsyncStateCache(settings=settings) as agent:
        await agent.set(KEY, "old")
        old = redis_raw.dump(made.keys.state(KEY))
        await agent.set(KEY, "new")
        await agent.set(GONE, "here")
    await flush(worker)
    redis_raw.restore(made.keys.state(KEY), 0, old, replace=True)
    redis_raw.unlink(made.keys.state(GONE))
    made.close()
    return made


def _local(settings: Settings, **more: Any) -> Settings:
    return settings.model_copy(update={"read": "local"} | more)


@every_redis
@pytest.mark.parametrize("read", ["local", "primary"])
async def test_postgres_answers_and_who_reads_leaves_the_gate_closed(
    make_client: MakeClient, settings: Settings, shard: Shard, read: Read
) -> None:
    client, epoch = make_client(_local(settings)), shard.epoch
    await client.get("other/1")
    await until(lambda: client.near.trusted)
    for key, value in ((KEY, "new"), (GONE, "here")):
        found = await client.get(key, read=read)
        assert found is not None
        assert found.value == value
    assert await client.get("runs/1/never", read=read) is None
    assert shard.epoch == epoch
    assert not shard.raw.exists(shard.keys.state(GONE))


async def test_every_other_way_of_reading_is_answered_so(
    make_client: MakeClient, settings: Settings, shard: Shard
) -> None:
    client, epoch = make_client(_local(settings)), shard.epoch
    for read in (None, "primary"):
        many = await make_client(_local(settings)).get_many([KEY, GONE, "runs/1/never"], read=read)
        assert [state and state.value for state in many.values()] == ["new", "here", None]
    assert await client.exists(GONE)
    assert {state.key: state.value async for state in client.list("runs/1")} == {KEY: "new", GONE: "here"}
    assert await client.warm([KEY, GONE]) == 0
    waited = await client.wait_for(GONE)
    assert waited is not None
    assert (await get_by_hand(settings, KEY)).version == 2
    assert [one["version"] for one in (await ls(settings, "runs/1", newest=False, limit=0))[0]] == [2, 1]
    assert shard.epoch == epoch


async def test_a_gate_that_was_left_its_moment_is_not_left_another_one(
    make_client: MakeClient, settings: Settings, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lists again and again behind a closed gate waits once, as who reads does."""
    client, looks = make_client(settings), list[int]()
    look = Dirty._read

    async def noted(*asked: Any, **more: Any) -> Any:
        looks.append(1)
        return await look(*asked, **more)

    monkeypatch.setattr(Dirty, "_read", noted)
    assert [state.key async for state in client.list("runs/1")] == [KEY, GONE]
    waited = len(looks)
    for _ in range(3):
        looks.clear()
        assert [state.key async for state in client.list("runs/1")] == [KEY, GONE]
        assert len(looks) <= 3 < waited
    await client.get(KEY, read="primary")
    looks.clear()
    assert [state.key async for state in client.list("runs/1")] == [KEY, GONE]
    assert len(looks) <= 3


async def test_a_gate_that_opens_meanwhile_is_read_behind(
    make_client: MakeClient, settings: Settings, shard: Shard
) -> None:
    client = make_client(settings.model_copy(update={"postgres_url": "postgresql://127.0.0.1:1/none"}))
    reading = asyncio.create_task(_get(client, KEY))
    await until(lambda: shard.number in client._runtime.reader.closed_gates)
    shard.open()
    assert (await reading).value == "old"


async def _get(client: AsyncStateCache, key: str, **more: Any) -> Any:
    return await client.get(key, **more)


@pytest.mark.parametrize("read", ["local", "primary"])
async def test_without_postgres_nothing_is_read_unless_stale_states_are_accepted(
    make_client: MakeClient, settings: Settings, shard: Shard, read: Read
) -> None:
    alone = _local(settings, postgres_url="postgresql://127.0.0.1:1/none")
    client = make_client(alone)
    for key in (KEY, GONE):
        with pytest.raises(Unavailable, match="gate of shard") as refused:
            await client.get(key, read=read, timeout=1)
        assert refused.value.reason == "epoch"
    shard.open()
    assert await make_client(settings).get("runs/1/never") is None
    shard.close()
    content = make_client(alone.model_copy(update={"stale_reads": True}))
    found = await content.get(KEY, read=read)
    assert found is not None
    assert found.value == "old"
    for key in (GONE, "runs/1/never"):
        with pytest.raises(Unavailable) as refused:
            await content.get(key, read=read, timeout=1)
        assert refused.value.reason == "epoch"
    shard.open()
    assert (await client.get(KEY, read=read)) == found


async def test_a_look_for_a_stale_state_that_the_end_cuts_off_hides_no_reason(
    make_client: MakeClient, settings: Settings, shard: Shard, proxy: FaultProxy
) -> None:
    """The gate is why nothing is given, however little time is left for the last look."""
    alone = settings.model_copy(update={"postgres_url": "postgresql://127.0.0.1:1/none", "stale_reads": True})
    content = make_client(through(alone, redis=proxy))
    assert (await _get(content, KEY, read="primary")).value == "old"
    held = proxy.arm("hold_reply", at=b"HMGET\r\n")
    held.then(proxy.freeze)
    with pytest.raises(Unavailable, match=r"gate of shard .* is closed.*Redis is unavailable") as refused:
        await content.get(GONE, read="primary", timeout=1)
    assert held.struck
    assert refused.value.reason == "epoch"
    held.release()


async def test_what_only_redis_holds_is_neither_given_nor_hidden(
    make_client: MakeClient, settings: Settings, shard: Shard
) -> None:
    """It was acknowledged and not flushed, and the gate may find that it is current, or that it is lost."""
    shard.open()
    shard.raw.unlink(shard.keys.state(KEY))  # it is loaded from Postgres
    async with AsyncStateCache(settings=settings) as agent:
        await agent.set(WHOLE, "not flushed")
        await agent.set(KEY, "not flushed")
    shard.close()
    client = make_client(settings)
    asked: list[Callable[[], Awaitable[Any]]] = [
        lambda: _get(client, WHOLE, timeout=0.5), lambda: _get(client, KEY, timeout=0.5),
        lambda: _listed(client, "runs/1", 0.5), lambda: client.get_many([WHOLE, GONE], timeout=0.5),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(Unavailable, match="older state") as refused:
            await ask()
        assert refused.value.reason == "epoch"
    assert (await _get(client, GONE)).value == "here"
    content = make_client(settings.model_copy(update={"stale_reads": True}))
    assert (await _get(content, WHOLE)).value == "not flushed"
    assert sorted(await _listed(content, "runs/1", 5.0)) == ["here", "not flushed", "not flushed"]


@pytest.mark.counts_seconds
@pytest.mark.parametrize("raised", [False, True])
async def test_a_postgres_that_went_back_is_not_read_behind_a_closed_gate(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, worker: Worker, redis_raw: Any,
    psql: psycopg.Connection[Any], *, raised: bool,
) -> None:  # fmt: skip
    """Redis, of which nothing else is believed, remembers how far Postgres was, though an epoch begins."""
    shard = Shard(settings, redis_raw, psql)
    await cache.set(KEY, "old")
    await cache.set(GONE, 1)
    await flush(worker)
    backup = Backup(psql)
    await cache.set(KEY, "new")
    await cache.delete(GONE)
    await cache.set(WHOLE, 1)
    await flush(worker)
    backup.put_back()
    shard.close()
    psql.execute("UPDATE shard SET epoch = epoch + %s", [int(raised)])
    for key in (KEY, GONE, WHOLE):
        redis_raw.unlink(shard.keys.state(key))
    client = make_client(settings.model_copy(update={"timeout_s": 1.0}))
    asked: list[Callable[[], Awaitable[Any]]] = [
        *(partial(client.get, key) for key in (KEY, GONE, WHOLE)), client.namespaces,
        *(partial(in_order, client, *one) for one in (("runs/1", "key"), ("runs/1", "newest"), ("", "key"))),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(Unavailable, match="less of it than it did") as told:
            await ask()
        assert told.value.reason == "epoch"
    shard.open()
    await flush(worker)
    assert await in_order(client, "runs/1", "key") == [(KEY, "new"), (WHOLE, 1)]


async def test_a_gate_that_closes_while_somebody_lists_hides_nothing(
    make_client: MakeClient, settings: Settings, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is dirty was told while it was open, and is asked for when it is closed."""
    shard.open()
    shard.raw.unlink(shard.keys.state(KEY))  # it is loaded from Postgres
    async with AsyncStateCache(settings=settings) as agent:
        await agent.set(KEY, "not flushed")
    client = make_client(settings)
    reads, read = list[str](), client._runtime.redis.read_script

    def closing(*given: Any, **more: Any) -> Any:
        reads.append(given[0])
        if len(reads) == 2:
            shard.close()
        if len(reads) == 4:
            shard.open()
        return read(*given, **more)

    monkeypatch.setattr(client._runtime.redis, "read_script", closing)
    assert sorted(await _listed(client, "runs/1", 5.0)) == ["here", "not flushed"]
    assert len(reads) > 4


async def test_nobody_reads_less_than_it_has_seen(make_client: MakeClient, settings: Settings, shard: Shard) -> None:
    shard.open()
    client = make_client(settings)
    await client.set(WHOLE, "not flushed")
    shard.close()
    asked: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.get(WHOLE, timeout=0.5), lambda: _listed(client, "runs/1", 0.5),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(Unavailable) as refused:
            await ask()
        assert refused.value.reason == "epoch"
    shard.open()
    assert "not flushed" in await _listed(client, "runs/1", 5.0)


async def _listed(client: AsyncStateCache, prefix: str, timeout: float) -> list[Any]:
    return [state.value async for state in client.list(prefix, timeout=timeout)]


async def test_who_writes_opens_the_gate_and_reads_what_is_behind_it(
    make_client: MakeClient, settings: Settings, shard: Shard, psql: psycopg.Connection[Any]
) -> None:
    """The data set continues the row, as after a restart."""
    psql.execute("UPDATE shard SET replid = %s WHERE shard = %s", ["a" * 40, shard.number])
    client, epoch = make_client(settings), shard.epoch
    shard.raw.unlink(shard.keys.state(KEY))
    async with client.transaction(KEY) as tx:
        seen = await tx.get(KEY)
    assert seen is not None
    assert seen.value == "new"
    assert shard.epoch > epoch


async def test_a_shard_is_proven_once_on_the_tracked_connection(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy
) -> None:
    client = make_client(through(_local(settings), redis=proxy))
    await kept(client)
    proof = script("fenced_read")
    before = bytes(proxy.requests)
    for number in range(2, 6):
        await client.get(f"{KEY}/{number}")  # a miss is hydrated by the primary
        await kept(client, f"{KEY}/{number}")
    asked = bytes(proxy.requests).removeprefix(before)
    assert asked.count(b"CACHING") >= 4
    alone = [part for part in asked.split(b"*") if proof.sha.encode() in part and b":state:" not in part]
    assert alone == []


async def test_who_reads_locally_notices_within_the_window_that_the_gate_has_closed(
    make_client: MakeClient, settings: Settings, shard: Shard
) -> None:
    shard.open()
    client, other = make_client(_local(settings, near_window_s=0.4)), make_client(settings)
    await other.set("runs/1/mine", 1)
    await kept(client, "runs/1/mine")
    shard.raw.hset(shard.keys.meta(0), "replid", "c" * 40)  # of which the heartbeat tells, for all shards
    shard.close()
    await until(lambda: client.near.entries == 0)
    await reads(client, "new", KEY)

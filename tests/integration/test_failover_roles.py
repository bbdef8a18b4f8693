"""A server that is a primary no more, and goes on answering: a replica has its primary's replication id and meta."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from statecache import AsyncStateCache, State
from statecache.core.redis.tier import RedisTier
from statecache.errors import RedisUnavailable, Unavailable
from statecache.testing.valkey import Valkey
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, MakeSettings
from tests.support.fault_proxy import FaultProxy
from tests.support.gate_world import KINDS, World, world
from tests.support.local_reads import kept, reads, until

KEY = "runs/42"
TURNS_MAX = 50


@pytest.fixture(params=KINDS)
def shard(make_settings: MakeSettings, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """One shard, with Redis servers of each kind that the test starts and kills."""
    with world(make_settings, tmp_path, kind=request.param) as made:
        yield made


class Failover:
    """A primary with its replica, and the address under which clients know the primary."""

    def __init__(self, shard: World, address: FaultProxy, a: Valkey, b: Valkey) -> None:
        self.shard, self.address, self.a, self.b = shard, address, a, b
        self.settings = through(shard.on(a), redis=address)

    def happens(self) -> State[Any]:
        """Make the replica the primary without killing a connection, write to it, and return what was written.

        The old primary follows the new one, and then loses sight of it: it has its replid and its meta, and is stale.
        """
        shard, a, b = self.shard, self.a, self.b
        shard.promote(b)
        shard.demote(a, b)
        shard.open(b)
        shard.in_step(b)
        shard.raw(a).execute_command("REPLICAOF", "127.0.0.1", "1")
        self.address.retarget("127.0.0.1", b.port)
        assert shard.meta(a) == shard.meta(b)
        assert shard.replid(a) == shard.replid(b)
        return shard.put(b, KEY, "of the new primary")


@pytest.fixture
async def failover(shard: World) -> AsyncIterator[Failover]:
    """A primary that has a replica, with one state."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    async with FaultProxy("127.0.0.1", a.port) as address:
        shard.put(a, KEY, "of the old primary")
        shard.in_step(a)
        yield Failover(shard, address, a, b)


@pytest.mark.parametrize("read", ["local", "primary", "fenced"])
async def test_who_still_has_connections_to_the_old_primary_reads_what_the_new_one_has(
    failover: Failover, make_client: MakeClient, read: Literal["local", "primary", "fenced"]
) -> None:
    client = make_client(failover.settings)
    await asyncio.gather(*(client.get(f"{KEY}/{number}", read=read) for number in range(4)))
    await client.get(KEY, read=read)
    written = await asyncio.to_thread(failover.happens)
    if read == "local":
        await until(lambda: not client.near.trusted)
    found = await client.get(KEY, read=read)
    assert found is not None
    assert found.change_id == written.change_id


async def test_other_ways_of_reading_do_not_believe_a_replica_either(
    failover: Failover, make_client: MakeClient
) -> None:
    client = make_client(failover.settings)
    await client.get(KEY)
    written = await asyncio.to_thread(failover.happens)
    assert [state.change_id async for state in client.list("runs/")] == [written.change_id]


async def test_a_transaction_does_not_believe_a_replica(failover: Failover, make_client: MakeClient) -> None:
    client = make_client(failover.settings)
    await client.get(KEY)
    written = await asyncio.to_thread(failover.happens)
    async with client.transaction(KEY) as tx:
        seen = await tx.get(KEY)
    assert seen is not None
    assert seen.change_id == written.change_id


async def test_what_became_of_a_change_is_not_asked_of_a_replica(failover: Failover, make_client: MakeClient) -> None:
    client = make_client(failover.settings)
    await client.get(KEY)
    written = await asyncio.to_thread(failover.happens)
    assert (await client.outcome(written.change_id, KEY)).verdict == "applied"


async def test_a_comparison_is_not_decided_by_a_replica(failover: Failover, make_client: MakeClient) -> None:
    client = make_client(failover.settings)
    await client.get(KEY)
    written = await asyncio.to_thread(failover.happens)
    state = await client.set(KEY, "on top", expected=written.change_id)
    assert state.parent_change_id == written.change_id


async def test_the_heartbeat_that_meets_no_primary_closes_the_pools_connections_too(failover: Failover) -> None:
    async with AsyncStateCache(settings=failover.settings, read="local") as client:
        await asyncio.gather(*(client.get(f"{KEY}/{number}") for number in range(4)))
        await kept(client)
        await client.get(KEY, read="primary")
        before = failover.address.ports
        await asyncio.to_thread(failover.happens)
        await until(lambda: not before & failover.address.ports)


async def test_a_replica_is_refused_when_it_is_first_met(failover: Failover, make_client: MakeClient) -> None:
    failover.address.retarget("127.0.0.1", failover.b.port)
    client = make_client(failover.settings)
    with pytest.raises(RedisUnavailable) as refused:
        await client.get(KEY, timeout=1)
    assert refused.value.reason == "role"
    assert failover.b.password not in str(refused.value)
    with pytest.raises(RedisUnavailable) as refused:
        await client.set(KEY, 1, timeout=1)
    assert refused.value.reason == "role"
    with pytest.raises(RedisUnavailable) as refused:
        await RedisTier(failover.settings, failover.shard.keys).link()
    assert refused.value.reason == "role"
    await asyncio.to_thread(failover.shard.promote, failover.b)
    assert (await client.set(KEY, "promoted meanwhile")).version == 2


async def test_a_worker_leaves_a_primary_that_was_demoted_and_finds_the_new_one(failover: Failover) -> None:
    """No connection is killed: row and meta agree on the old one too, and every acknowledgement is READONLY."""
    shard = failover.shard
    worker = Worker(failover.settings)
    try:
        await flush(worker)
        written = await asyncio.to_thread(failover.happens)
        for _ in range(TURNS_MAX):
            with suppress(Unavailable):
                await flush(worker)
                break
        assert shard.chain(KEY)[-1] == written.change_id
        await asyncio.to_thread(shard.check, failover.b)
        again = await asyncio.to_thread(shard.put, failover.b, KEY, "and goes on")
        await flush(worker)
        assert shard.chain(KEY)[-1] == again.change_id
    finally:
        await worker.close()


async def test_another_data_set_behind_the_same_server_is_noticed_by_the_heartbeat(
    shard: World, make_client: MakeClient
) -> None:
    """Nobody is told of a SWAPDB by the server."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "flushed")
    shard.flush(a)
    client = make_client(shard.on(a, read="local", near_window_s=0.4))
    await kept(client, KEY)
    shard.put(a, KEY, "not flushed")
    other = make_client(shard.on(a, read="local", near_window_s=0.4))
    await kept(other, KEY)
    await client.get(f"{KEY}/other")
    shard.raw(a).swapdb(0, 1)
    await until(lambda: other.near.entries == 0)
    with pytest.raises(Unavailable) as refused:
        await other.get(KEY, timeout=0.5)
    assert refused.value.reason == "epoch"
    shard.raw(a).swapdb(0, 1)
    await reads(other, "not flushed", KEY)

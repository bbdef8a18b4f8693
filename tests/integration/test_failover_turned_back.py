"""A client that knows of the new primary, and is led to the old one once more: by a proxy, or by a name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from statecache import AsyncStateCache, BulkError, StateCacheError, Token
from statecache.errors import Unavailable
from statecache.testing.valkey import Valkey
from tests.fixtures.faults import through
from tests.support.failed_over import parted
from tests.support.fault_proxy import FaultProxy
from tests.support.gate_world import World
from tests.support.local_reads import kept, reads, until

KEY = "runs/42"
CALLS: dict[str, Callable[[AsyncStateCache], Awaitable[Any]]] = {
    "set": lambda agent: agent.set(KEY, "lost", timeout=600),
    "create": lambda agent: agent.create("runs/43", "lost", timeout=600),
    "increment": lambda agent: agent.increment("runs/44", timeout=600),
    "append": lambda agent: agent.append("runs/45", "lost", timeout=600),
    "set_many": lambda agent: agent.set_many({"runs/46": "lost", "runs/47": "lost"}, timeout=600),
    "lock": lambda agent: anext(locked(agent)),
}


async def locked(agent: AsyncStateCache) -> AsyncIterator[Token]:
    """Take the lock of the key, and give it back when that is closed."""
    async with agent.lock(KEY, timeout=600) as lock:
        yield lock.token


async def _lead(network: FaultProxy, server: Valkey) -> None:
    """Let the address lead to that server from now on, and end what stands."""
    network.retarget("127.0.0.1", server.port)
    network.cut_all()


@pytest.mark.counts_seconds
@pytest.mark.parametrize("what", CALLS)
async def test_who_knows_the_new_primary_writes_to_no_old_one(shard: World, what: str) -> None:
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    async with (
        FaultProxy("127.0.0.1", b.port) as network,
        AsyncStateCache(settings=through(shard.on(b), redis=network)) as agent,
    ):
        known = await agent.set(KEY, "on the new primary")
        async with agent.lock("runs/41", timeout=5) as lock:
            token = lock.token
        assert known.epoch > int(shard.meta(a)["epoch"])
        await _lead(network, a)
        before = shard.entries(a), shard.raw(a).hgetall(shard.keys.leases(0))
        with pytest.raises(Unavailable, match=f"there, and this process has seen it in {known.epoch}"):
            await agent.get(KEY, read="primary", timeout=2)
        with pytest.raises((Unavailable, BulkError), match="operator's word"):
            await CALLS[what](agent)
        assert (shard.entries(a), shard.raw(a).hgetall(shard.keys.leases(0))) == before
        await _lead(network, b)
        assert await agent.get(KEY, read="primary") == known
        async with agent.lock("runs/41", timeout=5) as lock:
            assert lock.token > token


@pytest.mark.counts_seconds
@pytest.mark.parametrize("what", [what for what in CALLS if what != "lock"])
async def test_who_has_lost_an_answer_asks_for_it_until_the_address_is_right_again(
    shard: World, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the moment in which the address leads to the old primary, which cannot know of it."""
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    async with (
        FaultProxy("127.0.0.1", b.port) as network,
        AsyncStateCache(settings=through(shard.on(b), redis=network)) as agent,
    ):
        await agent.set(KEY, "on the new primary")
        opener, refused = agent._runtime.opener, list[StateCacheError]()
        opened = opener.open

        async def refuses(*given: Any, **more: Any) -> Any:
            try:
                return await opened(*given, **more)
            except StateCacheError as error:
                refused.append(error)
                await _lead(network, b)
                raise

        monkeypatch.setattr(opener, "open", refuses)
        before = len(shard.entries(b))
        fault = network.arm("drop_reply", at=b"runs/4")
        fault.then(lambda: network.retarget("127.0.0.1", a.port))
        await CALLS[what](agent)
        assert fault.struck
        assert len(refused) == 1
        assert len(shard.entries(b)) - before == (2 if what == "set_many" else 1)


async def test_connections_that_stand_on_the_old_primary_are_left_by_who_knows_the_new_one(
    shard: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody ends them, and the address leads elsewhere; one comes back to the pool once the new one has been found."""
    a, b = parted(shard, KEY)
    async with (
        FaultProxy("127.0.0.1", a.port) as network,
        AsyncStateCache(settings=through(shard.on(a), redis=network)) as agent,
    ):
        await asyncio.gather(*(agent.get(f"runs/5{number}", read="primary") for number in range(8)))
        opener, pool = agent._runtime.opener, agent._runtime.redis.pool
        lent, found = [await pool.take(1)], opener.open

        async def found_and_given_back(shard: int, *, end: float) -> None:
            await found(shard, end=end)
            while lent:
                pool.give(lent.pop())

        monkeypatch.setattr(opener, "open", found_and_given_back)
        network.retarget("127.0.0.1", b.port)
        shard.open(b, "client")
        met, before = int(shard.meta(b)["epoch"]), shard.entries(a)
        opener.epochs.note(0, met)
        written = [await agent.set(KEY, number) for number in range(20)]
        async with agent.lock(KEY, timeout=5) as lock:
            assert lock.token.epoch >= met
        assert min(state.epoch for state in written) >= met
        assert shard.entries(a) == before
        assert not lent


@pytest.mark.parametrize("first", ["set", "fenced"])
async def test_where_both_tiers_were_put_back_a_client_that_knows_more_goes_on(shard: World, first: str) -> None:
    """The primary and Postgres agree on the older epoch: nobody is elsewhere."""
    a = shard.start("a")
    shard.open(a)
    async with AsyncStateCache(settings=shard.on(a)) as agent:
        await agent.set(KEY, 1)
        older = shard.meta(a)
        row, raw = shard.row(), shard.raw(a)
        a.restart()
        shard.open(a)
        assert (await agent.set(KEY, 2, timeout=600)).epoch > int(older["epoch"])
        shard.sql("UPDATE shard SET epoch = %s, replid = %s", row.epoch, shard.replid(a))
        raw.unlink(shard.keys.changes(0))
        raw.hset(shard.keys.meta(0), "epoch", older["epoch"])
        if first == "fenced":
            found = await agent.get(KEY, read="fenced", timeout=5)
            assert found is not None
            assert found.value == 2
        assert (await agent.set("runs/43", 3)).epoch == row.epoch


async def test_what_a_connection_to_an_old_primary_keeps_is_not_believed_by_who_knows_the_new_one(shard: World) -> None:
    """It stands, and answers: only what the client meets elsewhere tells that nobody writes there any more."""
    a, b = parted(shard, KEY)
    async with (
        FaultProxy("127.0.0.1", a.port) as network,
        AsyncStateCache(settings=through(shard.on(a, read="local"), redis=network)) as agent,
    ):
        await kept(agent, KEY)
        network.retarget("127.0.0.1", b.port)
        for one in shard.raw(a).client_list():
            if not {"t", "S", "M"} & {*one["flags"]}:
                shard.raw(a).client_kill_filter(_id=one["id"], skipme=True)
        shard.open(b, "client")
        await agent.set("runs/43", "met", timeout=600)
        await until(lambda: agent.near.trusted)
        shard.put(b, KEY, "by another client")
        await reads(agent, "by another client", KEY)

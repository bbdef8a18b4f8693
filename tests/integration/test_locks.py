"""Locks: one holder at a time, in order of arrival, called and not polling, and nobody blocked by the dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statecache import (
    AsyncStateCache,
    LeaseLost,
    LockTimeout,
    Settings,
    Token,
)
from statecache.clock import monotonic
from statecache.core.lock import leases
from statecache.core.redis.connection import Link
from statecache.rules import leases as rules
from statecache.rules.leases import call_of
from tests.fixtures.faults import through
from tests.fixtures.locks import KEY, LONG, NEVER, Place, entered, until_calm
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.fault_proxy import FaultProxy
from tests.support.local_reads import kept
from tests.support.polling import pause

pytestmark = pytest.mark.counts_seconds


@every_redis
async def test_a_lock_is_a_lease_that_a_person_can_read(
    client: AsyncStateCache, settings: Settings, place: Place
) -> None:
    async with client.lock(KEY, ttl=30) as lease:
        standing = place.lease()
        assert standing.token == lease.token == Token(1, 1)
        assert (standing.holder, standing.ttl_ms) == (settings.writer, 30_000)
        assert standing.until_ms - standing.since_ms == 30_000
        assert lease.key == KEY
        assert not lease.lost
        lease.check()
        assert (await lease.set(KEY, {"step": 1})).version == 1
    assert place.lease() is None
    assert lease.lost
    with pytest.raises(LeaseLost):
        lease.check()
    async with client.lock(KEY) as lease:
        assert lease.token == Token(1, 2)


@every_redis
async def test_waiters_come_in_order_of_arrival(make_client: MakeClient, settings: Settings, place: Place) -> None:
    clients = [make_client(settings) for _ in range(3)]
    came: list[int] = []

    async def comer(number: int) -> None:
        async with clients[number % 3].lock(KEY, timeout=LONG) as lease:
            came.append(number)
            assert place.lease().token == lease.token

    async with asyncio.TaskGroup() as tasks, clients[0].lock(KEY):
        for number in range(8):
            tasks.create_task(comer(number))
            await place.until_waiting(number + 1)
        assert not came
    assert came == list(range(8))
    assert place.lease() is None
    assert place.queue() == []


@every_redis
async def test_who_waits_is_called(client: AsyncStateCache, place: Place, nobody_asks_again: None) -> None:
    async with asyncio.TaskGroup() as tasks:
        async with client.lock(KEY, ttl=600):
            waiting = tasks.create_task(entered(client, ttl=600, timeout=LONG))
            await place.until_waiting(1)
        async with asyncio.timeout(LONG):
            assert await waiting == Token(1, 2)


@pytest.mark.own_servers("it ends the connections of others")
async def test_a_call_that_is_lost_with_its_connection_is_made_up_for(
    client: AsyncStateCache, place: Place, nobody_asks_again: None
) -> None:
    async with asyncio.TaskGroup() as tasks:
        async with client.lock(KEY, ttl=600):
            waiting = tasks.create_task(entered(client, ttl=600, timeout=LONG))
            await place.until_waiting(1)
            async with asyncio.timeout(LONG):
                while not place.redis.client_kill_filter(_type="pubsub"):
                    await pause()
        async with asyncio.timeout(LONG):
            assert await waiting == Token(1, 2)


@every_redis
@pytest.mark.parametrize("dead", [["nobody"], ["dead:1", "dead:2"], ["dead:1", "late:7"]])
async def test_who_stands_first_and_died_is_called_and_passed_over(
    client: AsyncStateCache, place: Place, nobody_asks_again: None, dead: list[str]
) -> None:
    """The first behind who still stands, and is not of the same client, hears the call too, and asks in time."""
    async with asyncio.timeout(LONG), asyncio.TaskGroup() as tasks:
        async with client.lock(KEY, ttl=600):
            for request in reversed(dead):
                place.put_first(until=1 if request == "late:7" else NEVER, request=request)
            waiting = tasks.create_task(entered(client, ttl=600))
            await until_calm(client)
        called = place.lease()
        assert (called.request, called.token) == (dead[0], Token(1, 2))
        assert called.until_ms - called.since_ms == rules.COMING_S * 1000
        assert await waiting == Token(1, 4 if "dead:2" in dead else 3)


async def test_who_was_called_for_a_moment_only_and_died_is_passed_over_after_that(
    cache: AsyncStateCache, place: Place, nobody_asks_again: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a dead one had to come in is short where its ttl is: the one behind is woken to look at the time."""
    monkeypatch.setattr(leases, "COMING_S", 1000.0)
    async with asyncio.timeout(LONG), asyncio.TaskGroup() as tasks:
        async with cache.lock(KEY, ttl=600):
            place.put_first(until=NEVER, ttl=50)
            waiting = tasks.create_task(entered(cache, ttl=600))
            await until_calm(cache)
        assert await waiting == Token(1, 3)


async def test_a_call_goes_to_nobody_but_who_is_called_and_the_one_behind(
    make_client: MakeClient, settings: Settings, place: Place
) -> None:
    """Of any number of waiters: else each handover would cost the more, the more there are."""
    clients = [make_client(settings) for _ in range(5)]
    heard: list[str] = []
    async with asyncio.TaskGroup() as tasks, clients[0].lock(KEY):
        for number, client in enumerate(clients[1:], 1):
            tasks.create_task(entered(client))
            await place.until_waiting(number)
        first, *others = (one.request for one in place.queue())
        keys = clients[0]._runtime.keys
        channels = [keys.events(keys.shard(KEY), one.partition(":")[0]) for one in (first, *others)]
        listener = place.redis.pubsub(ignore_subscribe_messages=True)
        listener.ssubscribe(*channels)
        for _ in channels:
            listener.get_sharded_message(timeout=LONG)
    while message := listener.get_sharded_message(timeout=0.1):
        if first.encode() in message["data"]:
            heard.append(message["channel"].decode())
    listener.close()
    assert sorted(heard) == sorted(channels[:2])


@every_redis
async def test_a_place_that_was_not_kept_is_not_called(client: AsyncStateCache, place: Place) -> None:
    async with asyncio.TaskGroup() as tasks:
        async with client.lock(KEY):
            place.put_first(until=1)
            waiting = tasks.create_task(entered(client, timeout=LONG))
            await place.until_waiting(2)
        assert await waiting == Token(1, 2)


@every_redis
async def test_a_waiter_gives_up_in_time_and_leaves_the_queue(client: AsyncStateCache, place: Place) -> None:
    place.put(token="1-7", until=NEVER)
    begun = monotonic()
    with pytest.raises(LockTimeout, match=r"'runs/42' could not be had within 0.2 s: elsewhere:1 holds it") as caught:
        await entered(client, timeout=0.2)
    assert 0.2 <= monotonic() - begun < LONG
    assert (caught.value.key, caught.value.seconds, caught.value.holder) == (KEY, 0.2, "elsewhere:1")
    assert place.queue() == []
    with pytest.raises(LockTimeout, match="within 0 s"):
        await entered(client, timeout=0)
    assert place.queue() == []


async def test_a_waiter_that_is_cancelled_leaves_the_queue(cache: AsyncStateCache, place: Place) -> None:
    async with cache.lock(KEY):
        waiting = [asyncio.create_task(entered(cache)) for _ in range(3)]
        await place.until_waiting(3)
        waiting[1].cancel()
        await place.until_waiting(2)
    assert [token.count for token in await asyncio.gather(waiting[0], waiting[2])] in ([2, 3], [3, 2])


async def test_waiters_that_are_cancelled_at_one_moment_leave_the_queue_in_one_exchange(
    cache: AsyncStateCache, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than the pool has connections."""
    run, sent = Link.run, list[int]()

    async def counted(link: Link, commands: Any, **more: Any) -> Any:
        if withdrawals := sum("withdraw" in one for one in commands):
            sent.append(withdrawals)
        return await run(link, commands, **more)

    async with cache.lock(KEY, ttl=600):
        waiting = [asyncio.create_task(entered(cache)) for _ in range(40)]
        await place.until_waiting(40)
        monkeypatch.setattr(Link, "run", counted)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        await place.until_waiting(0)
    assert sent == [40]


async def test_a_waiter_that_is_cancelled_as_it_is_called_passes_the_call_on(
    cache: AsyncStateCache, place: Place, nobody_asks_again: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cache.lock(KEY, ttl=600):
        first = asyncio.create_task(entered(cache, ttl=600))
        await place.until_waiting(1)
        second = asyncio.create_task(entered(cache, ttl=600))
        await place.until_waiting(2)
        ours = place.queue()[0].request
        await until_calm(cache)

        def cancelled_by(message: bytes) -> tuple[str, str, float] | None:
            if ours.encode() in message:
                first.cancel()
            return call_of(message)

        monkeypatch.setattr(leases, "call_of", cancelled_by)
    async with asyncio.timeout(LONG):
        assert (await second).count in (3, 4)
    assert first.cancelled()


@pytest.mark.parametrize("kind", ["hold_reply", "hold_request"])
async def test_a_task_that_is_cancelled_while_it_locks_leaves_nothing(
    settings: Settings, proxy: FaultProxy, place: Place, kind: Any
) -> None:
    """Not even where its request arrives only after it has been taken back."""
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as behind:
        await entered(behind)
        fault = proxy.arm(kind, at=b"queue")
        locking = asyncio.create_task(entered(behind))
        await fault.wait()
        locking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await locking
        if kind == "hold_request":
            fault.release()
            await fault.answered()
        assert place.lease() is None


@every_redis
async def test_who_comes_when_a_holder_has_died_does_not_pass_those_who_wait(
    client: AsyncStateCache, place: Place
) -> None:
    place.put(token="1-7", until=1)
    place.put_first(until=NEVER)
    with pytest.raises(LockTimeout, match="elsewhere:2 holds it"):
        await entered(client, timeout=0)
    assert place.lease().request == "nobody"
    assert await entered(client, timeout=LONG) == Token(1, 2)


async def test_a_holder_reads_what_the_one_before_has_written_although_nobody_has_told_it_yet(
    settings: Settings, proxy: FaultProxy
) -> None:
    """Two increments, each under the lock, by processes that keep the state near; to one of them pushes come late."""
    local = settings.model_copy(update={"read": "local", "near_window_s": 60.0})
    async with AsyncStateCache(settings=through(local, redis=proxy)) as one, AsyncStateCache(settings=local) as other:
        await _increments_under_a_lock(one, other, proxy)


async def _increments_under_a_lock(one: AsyncStateCache, other: AsyncStateCache, proxy: FaultProxy) -> None:
    await other.set(KEY, 0)
    await kept(one, KEY)
    await one._runtime.redis.pool.drop_idle(all_of_them=True)
    proxy.freeze(proxy.ports)  # the tracked connection; there is no other
    for client in (other, one):
        async with client.lock(KEY) as lease:
            state = await lease.get(KEY)
            assert state is not None
            await lease.set(KEY, state.value + 1)
    found = await other.get(KEY, read="primary")
    assert found is not None
    assert found.value == 2
    proxy.thaw()

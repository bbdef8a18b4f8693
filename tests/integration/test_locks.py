"""Locks: one holder at a time, in order of arrival, called and not polling, and nobody blocked by the dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statecache import (
    AsyncStateCache,
    LeaseLost,
    Settings,
    Token,
)
from statecache.keys import KeySpace
from statecache.leases import lease_of, queue_of
from tests.fix_servers import MakeClient, every_redis

KEY = "runs/42"
LONG = 20.0


class Place:
    """These are a lock's lease and queue as they stand in Redis."""

    def __init__(self, redis_raw: Any, keys: KeySpace, key: str = KEY) -> None:
        self._redis, self._key, shard = redis_raw, key, keys.shard(key)
        self.leases, self.waiters, self.meta = keys.leases(shard), keys.waiters(shard), keys.meta(shard)

    def lease(self) -> Any:
        value = self._redis.hget(self.leases, self._key)
        return value and lease_of(self._key, value)

    def queue(self) -> list[Any]:
        return queue_of(self._redis.hget(self.waiters, self._key) or b"")

    async def until_waiting(self, count: int) -> None:
        """This returns when so many stand in the queue."""
        async with asyncio.timeout(LONG):
            while len(self.queue()) != count:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def until_free(self) -> None:
        async with asyncio.timeout(LONG):
            while self.lease() is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)


@pytest.fixture
def place(redis_raw: Any, keys: KeySpace) -> Place:
    return Place(redis_raw, keys)


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

"""Whose clock decides of an end: that of the Redis server, whatever this machine has, and when it is set."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings
from statecache.clock import boottime
from statecache.commit_protocol.answers import Absent
from statecache.keys import KeySpace
from statecache.model import EXPIRED, Write
from tests.fixtures.servers import MakeSettings
from tests.support.local_reads import LIMIT_S
from tests.support.polling import pause

KEY = "runs/1"
HOUR = timedelta(hours=1)


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of clients that read locally."""
    return make_settings(read="local")


async def test_an_end_is_decided_by_the_servers_clock(
    cache: AsyncStateCache, keys: KeySpace, redis_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However wrong this machine's clock: here it is years ahead when the client is made, and then years behind."""
    state = await cache.set(KEY, 1, ttl=HOUR)
    clock = cache._runtime.redis.clock
    seconds, micros = redis_raw.time()
    assert abs(clock.now_ms() - seconds * 1000 - micros / 1000) < 1000
    monkeypatch.setattr(clock, "_ahead_ms", clock._ahead_ms + 10 * 3_600_000)
    assert state.expires_at is not None
    assert state.expires_at.timestamp() * 1000 < clock.now_ms()
    write = Write(key=KEY, op="delete", expected=EXPIRED)
    commit = cache._runtime.committer.new(
        [write], keys.shard(KEY), durability="memory", actor="", reason="", end=cache._view.end_of(None)
    )
    with pytest.raises(Absent):  # a worker with such a clock deletes nothing
        await cache._runtime.committer.commit(commit)
    assert await cache.get(KEY, read="primary") == state


def _set_clock(client: AsyncStateCache, hours: int) -> None:
    """Have a client know a clock of the server that was set since."""
    clock, now = client._runtime.redis.clock, boottime()
    clock.heard(str(clock.now_ms() + hours * 3_600_000), now)


@pytest.mark.counts_seconds
@pytest.mark.parametrize("read", ["local", "primary", "fenced"])
async def test_a_clock_of_redis_that_is_set_is_known_without_another_connection(
    one: AsyncStateCache, other: AsyncStateCache, read: Any
) -> None:
    lasts = await other.set(KEY, 1, ttl=HOUR)
    await one.get("runs/2", read=read)  # from here on there is a connection
    _set_clock(one, 2)
    async with asyncio.timeout(LIMIT_S):
        while await one.get(KEY, read=read) != lasts:  # by the clock of before it had ended
            await pause()
    _set_clock(one, -2)
    await other.set("runs/3", 1, ttl=1.0)
    async with asyncio.timeout(LIMIT_S):
        while await one.get("runs/3", read=read) is not None:
            await pause()

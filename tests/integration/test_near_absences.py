"""Local reads of what is nowhere: Redis is asked while Postgres is looked in, and nobody waits for the install."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings, Unavailable
from statecache.clock import monotonic
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis
from tests.support.fault_proxy import FaultProxy
from tests.support.local_reads import kept, reads, until
from tests.support.misses import ABSENT, KEY, LOOKS, as_coroutine, evict_clean, hold_at

pytestmark = pytest.mark.counts_seconds

OTHER = "other/1"
WINDOW_S = 0.6


@pytest.fixture
def settings(make_settings: MakeSettings, request: pytest.FixtureRequest) -> Settings:
    """Settings of clients that read locally."""
    return make_settings(**{"read": "local", "near_window_s": WINDOW_S} | getattr(request, "param", {}))


@pytest.fixture
async def slow(
    make_client: MakeClient, settings: Settings, other: AsyncStateCache, proxy: FaultProxy, postgres_proxy: FaultProxy
) -> AsyncStateCache:
    """A client whose ways lead through the proxies, and whose tracked connection stands."""
    made = make_client(through(settings, redis=proxy, postgres=postgres_proxy))
    await other.set(OTHER, 1)
    await kept(made, OTHER)
    return made


@every_redis
async def test_what_is_nowhere_is_known_to_be_absent_by_all_afterwards(
    slow: AsyncStateCache, other: AsyncStateCache, proxy: FaultProxy, postgres_proxy: FaultProxy, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    assert await slow.get(KEY) is None
    await until(lambda: redis_raw.hget(keys.state(KEY), "op") == b"absent")
    assert redis_raw.pttl(keys.state(KEY)) > 0
    assert bytes(postgres_proxy.requests).count(LOOKS) == 1
    assert bytes(proxy.requests).count(ABSENT) == 1, "its text is sent once: to be told, and not again to install"
    assert await slow.get(KEY) is None
    assert bytes(postgres_proxy.requests).count(LOOKS) == 1
    created = await other.create(KEY, 1)
    await reads(slow, 1, KEY)
    assert await slow.get(KEY) == created


async def test_who_is_slow_to_find_nothing_undoes_no_create(
    slow: AsyncStateCache, other: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    """It was absent when Redis was asked, after the call began."""
    fault, reading = await hold_at(postgres_proxy, LOOKS, slow.get(KEY))
    created = await other.create(KEY, 1)
    await flush(worker)
    evict_clean(redis_raw, keys)
    fault.release()
    assert await reading in (None, created)
    assert await other.get(KEY, read="primary") == created
    assert await slow.get(KEY, min_version=1) == created


async def test_what_redis_told_does_not_count_for_longer_than_a_local_read_may_take(
    slow: AsyncStateCache, other: AsyncStateCache, postgres_proxy: FaultProxy
) -> None:
    fault, reading = await hold_at(postgres_proxy, LOOKS, slow.get(KEY))
    created = await other.create(KEY, 1)
    await asyncio.wait([reading], timeout=WINDOW_S / 2)
    assert not reading.done()
    fault.release()
    assert await reading == created


async def test_what_is_dirty_and_was_removed_by_hand_is_not_absent(
    slow: AsyncStateCache, other: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    created = await other.create(KEY, 1)
    redis_raw.unlink(keys.state(KEY))
    reading = asyncio.create_task(as_coroutine(slow.get(KEY)))
    await asyncio.wait([reading], timeout=0.1)
    assert not reading.done()
    await flush(worker)
    assert await reading == created


@pytest.mark.parametrize("told", [{"n": 5, "flushed": 5}, {"epoch": 9}])
async def test_a_postgres_that_holds_less_than_was_flushed_proves_nothing(
    told: dict[str, int], slow: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    redis_raw.hset(keys.meta(keys.shard(KEY)), mapping=told)
    with pytest.raises(Unavailable, match="holds less than was flushed"):
        await slow.get(KEY, timeout=0.5)
    assert not redis_raw.exists(keys.state(KEY))


@pytest.mark.parametrize("kind", ["drop_request", "drop_reply"])
async def test_where_the_tracked_connection_ends_the_absence_is_proven_without_it(
    kind: Any, slow: AsyncStateCache, proxy: FaultProxy, redis_raw: Any, keys: KeySpace
) -> None:
    lost = proxy.arm(kind, at=ABSENT)
    assert await slow.get(KEY) is None
    assert lost.struck
    assert redis_raw.hget(keys.state(KEY), "op") == b"absent"


@pytest.mark.parametrize("settings", [{"near_window_s": 60.0}], indirect=True)
@pytest.mark.parametrize(
    ("kind", "at"), [("hold_request", ABSENT), ("half_reply", ABSENT), ("half_reply", KEY.encode())]
)
async def test_where_redis_does_not_tell_or_tells_half_the_call_ends_in_its_time(
    kind: Any, at: bytes, slow: AsyncStateCache, proxy: FaultProxy
) -> None:
    fault = proxy.arm(kind, at=at)
    begun = monotonic()
    with suppress(Unavailable):
        assert await slow.get(KEY, timeout=0.4) is None
    assert fault.struck
    assert monotonic() - begun < 10
    fault.release()


@every_redis
@pytest.mark.parametrize("settings", [{"absent_ttl_s": 0.2}], indirect=True)
async def test_what_expires_while_its_reader_asks_is_not_kept_here(
    slow: AsyncStateCache, other: AsyncStateCache
) -> None:
    """The server removes it when it meets the command, and pushes that to who sent it too."""
    names = [f"runs/{number}" for number in range(30)]
    for name in names * 2:
        assert await slow.get(name) is None
    until_s = monotonic() + 0.8
    while monotonic() < until_s:
        for name in names:
            await slow.get(name, max_stale=1e-9)
    for name in names:
        await other.create(name, 1)
    for name in names:
        await reads(slow, 1, name)


async def test_of_many_that_miss_at_once_each_is_told(slow: AsyncStateCache, other: AsyncStateCache) -> None:
    names = [f"many/{number}" for number in range(60)]
    there = {name: await other.set(name, name) for name in names[::7]}
    found = await asyncio.gather(*(as_coroutine(slow.get(name)) for name in names))
    assert found == [there.get(name) for name in names]

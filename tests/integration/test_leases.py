"""Leases: renewed while their holder lives, lost before another has the lock, and what else may befall them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from statecache import (
    AsyncStateCache,
    ConfigurationError,
    ForeignData,
    InvalidKey,
    LeaseLost,
    LimitExceeded,
    LockTimeout,
    Settings,
    StateCache,
    Token,
    UsageError,
)
from statecache.clock import monotonic
from statecache.keys import KeySpace
from statecache.rules import leases as rules
from tests.fixtures.faults import through
from tests.fixtures.locks import KEY, LONG, NEVER, Place, entered
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause

pytestmark = pytest.mark.counts_seconds
EVICTIONS_MAX = 1000


@every_redis
async def test_a_holder_that_lives_keeps_its_lease_for_longer_than_its_ttl(
    client: AsyncStateCache, cache: AsyncStateCache, place: Place
) -> None:
    async with client.lock(KEY, ttl=2) as lease:
        given = place.lease()
        await place.until_prolonged(given.until_ms + 2500)
        assert not lease.lost
        assert place.lease().token == lease.token
        with pytest.raises(LockTimeout):
            await entered(cache, timeout=0)
        await lease.set(KEY, 1)


async def test_many_leases_are_renewed_together_and_one_that_comes_sooner_is_not_forgotten(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    """The renewer sleeps for the first lease, of which a third is 200 s, when the others come."""
    places = [Place(redis_raw, keys, f"runs/{number}") for number in range(20)]
    async with AsyncExitStack() as held:
        await held.enter_async_context(client.lock("runs/long", ttl=600))
        leases = [await held.enter_async_context(client.lock(place.key, ttl=2)) for place in places]
        given = [place.lease().until_ms for place in places]
        for place, until_ms in zip(places, given, strict=True):
            await place.until_prolonged(until_ms + 2500)
        assert not any(lease.lost for lease in leases)
        for lease in leases:
            await lease.set(lease.key, 1)


@every_redis
async def test_a_holder_knows_that_it_lost_the_lock_before_another_has_it(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, cache: AsyncStateCache
) -> None:
    behind = make_client(through(settings, redis=proxy))
    with pytest.raises(LeaseLost, match="over before the block was"):  # noqa: PT012
        async with behind.lock(KEY, ttl=1) as lease:
            assert not lease.lost
            proxy.freeze()
            async with cache.lock(KEY, timeout=LONG) as other:
                assert lease.lost
                assert other.token > lease.token
                with pytest.raises(LeaseLost, match=r"it was not renewed in time|it is over"):
                    lease.check()
                with pytest.raises(LeaseLost):
                    await lease.set(KEY, "too late")
                assert await cache.get(KEY) is None
                proxy.thaw()


async def test_a_block_that_wrote_by_its_lease_ends_well_though_the_lease_was_lost_later(
    cache: AsyncStateCache, place: Place
) -> None:
    async with cache.lock(KEY, ttl=1.5) as lease:
        await lease.set(KEY, 1)
        place.redis.hdel(place.leases, KEY)
        async with asyncio.timeout(LONG):
            while not lease.lost:
                await pause()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with cache.lock(KEY, ttl=1.5):
            place.redis.hdel(place.leases, KEY)
            raise ZeroDivisionError
    with pytest.raises(LeaseLost):
        async with cache.lock(KEY, ttl=1.5):
            place.redis.hdel(place.leases, KEY)


@every_redis
async def test_who_leaves_a_block_late_leaves_the_lock_to_whom_it_belongs_by_now(
    client: AsyncStateCache, place: Place
) -> None:
    with pytest.raises(LeaseLost):
        async with client.lock(KEY):
            place.put(token="1-99", until=NEVER)
    assert place.lease().token == Token(1, 99)
    with pytest.raises(LockTimeout):
        await entered(client, timeout=0)


@every_redis
async def test_a_lease_that_is_over_and_one_of_another_group_write_nothing(client: AsyncStateCache) -> None:
    runs = client.namespace("runs")
    async with runs.lock("42") as lease:
        assert (await lease.set("42", 1)).key == KEY
        assert (await lease.set("42/plan", 1)).key == "runs/42/plan"
        for call in (lease.set("43", 1), lease.update("43", lambda value: value), lease.get("43"), lease.delete("43")):
            with pytest.raises(InvalidKey, match=r"'runs/43'.*group 'runs/42'"):
                await call
        assert await lease.get("42/plan") is not None
    for call in (lease.set("42", 2), lease.update("42", lambda value: value), lease.delete("42")):
        with pytest.raises(LeaseLost, match="it is over"):
            await call
    assert (await runs.get("42")).value == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [{"ttl": 0}, {"ttl": -1}, {"ttl": float("nan")}, {"timeout": -1}, {"timeout": "1"}])
async def test_times_that_mean_nothing_are_refused_before_anything_is_sent(
    client: AsyncStateCache, place: Place, wrong: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        await entered(client, **wrong)
    assert place.lease() is None


async def test_the_same_task_locking_the_same_key_again_is_told_so(cache: AsyncStateCache) -> None:
    async with cache.lock(KEY) as lease:
        with pytest.raises(UsageError, match="locked already by this very task"):
            await entered(cache)
        with pytest.raises(UsageError, match="locked already"):
            await entered(lease)  # type: ignore[arg-type]
        async with cache.lock("runs/43"):
            with pytest.raises(LockTimeout):
                await asyncio.create_task(entered(cache, timeout=0))
    assert await entered(cache) is not None


def test_the_same_thread_locking_the_same_key_again_is_told_so(sync_cache: StateCache) -> None:
    with sync_cache.lock(KEY), pytest.raises(UsageError, match="locked already"), sync_cache.lock(KEY):
        pass
    lock = sync_cache.lock(KEY)
    with lock, pytest.raises(UsageError, match="in use"), lock:
        pass


@pytest.mark.parametrize("verb", ["queue", "renew", "release"])
@pytest.mark.parametrize("kind", ["drop_request", "drop_reply"])
async def test_what_is_lost_on_the_way_neither_leaks_a_lease_nor_doubles_it(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, place: Place, verb: str, kind: Any
) -> None:
    behind = make_client(through(settings, redis=proxy))
    await entered(behind)
    fault = proxy.arm(kind, at=b"\r\n" + verb.encode() + b"\r\n")
    async with behind.lock(KEY, ttl=2 if verb == "renew" else 30) as lease:
        assert place.lease().token == lease.token == Token(1, 2)
        if verb == "renew":
            await place.held_until(lambda: fault.struck)
            await place.until_prolonged(place.lease().until_ms + 1200)
        assert not lease.lost
    await fault.wait()
    assert place.lease() is None
    assert await entered(behind) == Token(1, 3)


async def test_a_request_that_was_held_up_takes_nothing_when_it_is_too_late(
    settings: Settings, proxy: FaultProxy, place: Place
) -> None:
    hurried = through(settings, redis=proxy).model_copy(update={"timeout_s": 1.0, "hydrate_token_s": 0.5})
    async with AsyncStateCache(settings=hurried) as behind:
        await entered(behind)
        fault = proxy.arm("hold_request", at=b"\r\nqueue\r\n")
        async with behind.lock(KEY) as lease:
            assert lease.token == Token(1, 2)
            await lease.set(KEY, 1)
            place.redis.hdel(place.leases, KEY)  # an operator broke it: nobody has withdrawn the request
            fault.release()
            await fault.answered()
            assert place.lease() is None


@every_redis
async def test_a_client_that_closes_gives_its_leases_back(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, place: Place
) -> None:
    client = make_client(settings)
    with pytest.raises(LeaseLost):  # noqa: PT012
        async with client.lock(KEY) as lease:
            assert len(client._runtime.leases.held) == 1
            await client.close()
            assert lease.lost
            assert await entered(cache, timeout=0) == Token(1, 2)


async def _take_for_nobody(client: AsyncStateCache) -> None:
    await client._runtime.leases.take(KEY, ttl=1, patience=None)


async def test_a_lease_that_nobody_has_is_not_renewed(
    client: AsyncStateCache, cache: AsyncStateCache, place: Place
) -> None:
    """Its holder was interrupted before he had it, or on his way to give it back; another one of his is renewed."""
    async with client.lock("runs/43", ttl=1) as another:
        await _take_for_nobody(client)
        gc.collect()
        assert await entered(cache, timeout=LONG) == Token(1, 2)
        assert not another.lost


async def test_all_leases_of_a_client_can_be_given_back_at_once(cache: AsyncStateCache, place: Place) -> None:
    async with cache.lock(KEY) as one, cache.lock("runs/43") as other:
        await one.set(KEY, 1)
        await other.set("runs/43", 1)
        await cache._runtime.leases.release(end=monotonic() + LONG)
        assert (one.lost, other.lost, cache._runtime.leases.held, place.lease()) == (True, True, (), None)


async def test_who_waits_when_its_client_is_closed_is_told_so(cache: AsyncStateCache, place: Place) -> None:
    place.put(token="1-7", until=NEVER)
    waiting = asyncio.create_task(entered(cache))
    await place.until_waiting(1)
    await cache.close()
    async with asyncio.timeout(LONG):
        with pytest.raises(UsageError, match="it is closed"):
            await waiting


@every_redis
@pytest.mark.parametrize("kind", ["meta", "leases", "waiters"])
async def test_what_is_not_ours_at_our_keys_is_named(client: AsyncStateCache, place: Place, kind: str) -> None:
    await client.get(KEY)
    redis_key = getattr(place, kind)
    place.redis.delete(redis_key)
    place.redis.set(redis_key, "somebody's")
    with pytest.raises(ForeignData) as caught:
        await entered(client)
    assert caught.value.redis_key == redis_key


async def test_a_lease_that_no_script_wrote_is_named(client: AsyncStateCache, place: Place) -> None:
    place.redis.hset(place.leases, KEY, "somebody's")
    with pytest.raises(ForeignData, match="runs/42 is not a lease"):
        await entered(client)


async def test_more_than_may_wait_are_refused(
    client: AsyncStateCache, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put(token="1-7", until=NEVER)
    line = "somebody{} until=9 ttl=30000 since=1 holder=elsewhere:2\n"
    place.redis.hset(place.waiters, KEY, "".join(line.format(number) for number in range(rules.WAITERS_MAX)))
    with pytest.raises(LimitExceeded, match="waiters is 1,001"):
        await entered(client)
    assert len(place.queue()) == rules.WAITERS_MAX


@every_redis
async def test_a_server_whose_clock_was_set_forward_ends_leases_and_nothing_worse(
    client: AsyncStateCache, cache: AsyncStateCache, place: Place
) -> None:
    """To a server whose clock went forward the deadline lies in the past."""
    async with client.lock(KEY) as lease:
        await lease.set(KEY, "the first's")
        place.put(token=str(lease.token), until=1, request=place.lease().request)
        async with cache.lock(KEY, timeout=LONG) as other:
            assert other.token > lease.token
            with pytest.raises(Exception, match="made under the lease 1-1"):
                await lease.set(KEY, "late")
            assert lease.lost
            await other.set(KEY, "the second's")


@every_redis
async def test_a_server_whose_clock_was_set_back_holds_nobody_up_for_longer_than_a_ttl(
    client: AsyncStateCache, place: Place
) -> None:
    """To a server whose clock went back the deadline of a holder that died lies far in the future."""
    text = "token=1-7 until={} ttl=500 since=1 request=dead holder=elsewhere:1"
    place.redis.hset(place.leases, KEY, text.format(NEVER))
    assert await entered(client, timeout=LONG) == Token(1, 1)


@pytest.mark.parametrize("lacking", [["&*", "+@all", "-spublish"], ["resetchannels", "&*:events", "+@all"]])
async def test_a_user_that_may_not_call_the_next_one_may_not_lock(
    settings: Settings, redis_raw: Any, place: Place, lacking: list[str]
) -> None:
    """Else the last script of a block would fail in its middle, with others waiting."""
    name = f"deaf-{settings.prefix}"
    redis_raw.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", "~*", *lacking)
    try:
        url = f"redis://{name}:secret@{urlsplit(settings.redis_url).netloc.rpartition('@')[2]}"
        async with AsyncStateCache(settings=settings.model_copy(update={"redis_url": url})) as lesser:
            await lesser.set(KEY, 1)
            with pytest.raises(ConfigurationError, match="SPUBLISH"):
                await entered(lesser)
        assert place.lease() is None
    finally:
        redis_raw.acl_deluser(name)


@pytest.fixture
def full(redis_raw: Any) -> Iterator[Any]:
    """A Redis that has no memory left and evicts what has a time to live."""
    kept = redis_raw.config_get("maxmemory", "maxmemory-policy")
    redis_raw.config_set("maxmemory-policy", "volatile-lru")
    redis_raw.config_set("maxmemory", 1)
    yield redis_raw
    for name, value in kept.items():
        redis_raw.config_set(name, value)


@pytest.mark.own_servers("it changes settings of the server")
@every_redis
async def test_no_lease_is_evicted_and_a_holder_keeps_it_where_memory_is_full(
    client: AsyncStateCache, cache: AsyncStateCache, place: Place, redis_raw: Any, request: pytest.FixtureRequest
) -> None:
    """An eviction would be a second holder."""
    async with asyncio.TaskGroup() as tasks, client.lock(KEY, ttl=2) as lease:
        waiting = tasks.create_task(entered(cache, timeout=LONG))
        await place.until_waiting(1)
        assert [redis_raw.ttl(key) for key in (place.leases, place.waiters)] == [-1, -1]
        for number in range(20):
            redis_raw.set(f"{place.leases}:other:{number}", "x", ex=600)
        request.getfixturevalue("full")
        with pytest.raises(Exception, match=r"OOM|memory"):  # noqa: PT012
            for _ in range(EVICTIONS_MAX):  # a slow server evicts in several pieces, and refuses nothing meanwhile
                redis_raw.set("another", "key")
        assert not list(redis_raw.scan_iter(f"{place.leases}:other:*"))
        await place.until_prolonged(place.lease().until_ms + 2500)
        assert (lease.lost, len(place.queue())) == (False, 1)
    assert await waiting == Token(1, 2)

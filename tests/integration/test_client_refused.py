"""A commit that is refused after an answer was lost: what was sent of it before is not executed any more."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from statecache import (
    AlreadyExists,
    AsyncStateCache,
    OutcomeUnknown,
    Settings,
)
from statecache._process import mutex
from statecache.clock import monotonic
from statecache.core.commit.durable import Durable
from statecache.keys import KeySpace
from tests.fixtures.flusher import MakeWorker, flush
from tests.support.held_up import Stray

pytestmark = pytest.mark.counts_seconds

COMMITS = 8
"""More than a state's `recent` holds."""
CHANGE_ID = "a" * 24


async def test_a_create_that_is_refused_is_not_applied_when_it_arrives_afterwards(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repeat meets somebody's state, which is deleted before the first attempt arrives."""
    assert await cache.get("runs/42") is None
    stray = Stray(monkeypatch, partial(cache.set, "runs/42", "somebody's"))
    async with AsyncStateCache(settings=settings) as client:
        with pytest.raises(AlreadyExists):
            await client.create("runs/42", "overdue", timeout=4.0)
    await cache.delete("runs/42")
    assert await stray.arrives(cache) == b"LATE"
    assert await cache.get("runs/42") is None


@pytest.mark.own_servers("its Redis begins another history")
@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("anew", [False, True])
async def test_a_create_that_is_refused_is_told_so_at_once(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch, make_worker: MakeWorker,
    redis_raw: Any, attempts: int, anew: bool,
) -> None:  # fmt: skip
    """Redis executes the lost attempts no more, and remembers that as long as they could arrive in their time."""
    assert await cache.get("runs/42") is None
    stray = Stray(monkeypatch, partial(cache.set, "runs/42", "somebody's"), attempts)
    async with AsyncStateCache(settings=settings) as client, asyncio.timeout(60):
        with pytest.raises(AlreadyExists):
            await client.create("runs/42", "overdue", timeout=600.0)
        await cache.delete("runs/42")
        if anew:
            redis_raw.replicaof("127.0.0.1", 1)
            redis_raw.replicaof("NO", "ONE")
        await flush(make_worker())
        assert ((await cache.set("runs/42/more", 1)).epoch > 1) is anew
        assert await stray.arrives(cache) == b"LATE"
        assert await cache.get("runs/42") is None
        assert (await client.create("runs/42", "another", timeout=60.0)).version == 3


async def test_a_create_that_redis_has_no_room_to_remember_waits_until_it_would_be_late(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch, redis_raw: Any, keys: KeySpace
) -> None:
    """It remembers a hundred of a shard, for as long as their attempts may arrive."""
    assert await cache.get("runs/42") is None
    meta, others = keys.meta(keys.shard("runs/42")), "".join(f" {number}/a=1@9999999999999" for number in range(100))
    others = f"9999999999999{others}"
    redis_raw.hset(meta, "refused", others)
    stray = Stray(monkeypatch, partial(cache.set, "runs/42", "somebody's"))
    async with AsyncStateCache(settings=settings) as client:
        with pytest.raises(AlreadyExists):
            await client.create("runs/42", "overdue", timeout=4.0)
    assert redis_raw.hget(meta, "refused").decode() == others
    await cache.delete("runs/42")
    assert await stray.arrives(cache) == b"LATE"
    assert await cache.get("runs/42") is None


async def test_what_can_no_longer_arrive_is_forgotten(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch, redis_raw: Any, keys: KeySpace
) -> None:
    meta = keys.meta(keys.shard("runs/42"))
    for number in range(3):
        await cache.delete("runs/42")
        if number == 0:
            redis_raw.hset(meta, "refused", "9999999999999 gone/a=1@1 stays/a=1@9999999999999")
        with monkeypatch.context() as patched:
            Stray(patched, partial(cache.set, "runs/42", "somebody's"))
            async with AsyncStateCache(settings=settings) as client:
                with pytest.raises(AlreadyExists):
                    await client.create("runs/42", "overdue", timeout=600.0)
    refused = redis_raw.hget(meta, "refused").decode().split()
    assert refused[:2] == ["9999999999999", "stays/a=1@9999999999999"]
    assert len(refused) == 5
    redis_raw.hset(meta, "refused", "1 gone/a=1@1")
    await cache.set("runs/42", "whoever commits next takes away what is of no use")
    assert redis_raw.hget(meta, "refused") == b""


@pytest.mark.parametrize("ms", [-60_000, 50, 60_000])
async def test_what_is_refused_is_known_by_its_number_whatever_clocks_say(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch, ms: int
) -> None:
    assert await cache.get("runs/42") is None
    stray = Stray(monkeypatch, partial(cache.set, "runs/42", "somebody's"))
    async with AsyncStateCache(settings=settings) as client:
        with pytest.raises(AlreadyExists):
            await client.create("runs/42", "overdue", timeout=600.0)
    await cache.delete("runs/42")
    assert await stray.arrives(cache, ms) == b"LATE"
    assert await cache.get("runs/42") is None


async def test_a_change_that_is_refused_again_stays_refused_for_as_long_as_before(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again, in less time, it is refused again; then its key is free, and a third request is a new one."""
    assert await cache.get("runs/42") is None
    stray = Stray(monkeypatch, partial(cache.set, "runs/42", "somebody's"))
    async with AsyncStateCache(settings=settings) as client, asyncio.timeout(60):
        with pytest.raises(AlreadyExists):
            await client.create("runs/42", "overdue", timeout=600.0, change_id=CHANGE_ID)
        with monkeypatch.context() as patched:
            Stray(patched, partial(cache.get, "runs/42"))
            with pytest.raises(AlreadyExists):
                await client.create("runs/42", "overdue", timeout=5.0, change_id=CHANGE_ID)
        await cache.delete("runs/42")
        assert await stray.arrives(cache) == b"LATE"
        created = await client.create("runs/42", "overdue", timeout=5.0, change_id=CHANGE_ID)
        assert (created.change_id, created.version) == (CHANGE_ID, 3)


async def test_what_has_to_outlast_redis_is_refused_once_its_attempts_would_be_late(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch, redis_raw: Any, keys: KeySpace
) -> None:
    """What refuses attempts is no more durable than Redis."""
    assert await cache.get("runs/42") is None
    Stray(monkeypatch, partial(cache.set, "runs/42", "somebody's"))
    async with AsyncStateCache(settings=settings) as client:
        begun = monotonic()
        with pytest.raises(AlreadyExists):
            await client.create("runs/42", "overdue", timeout=4.0, durability="postgres")
    assert monotonic() - begun > 1.0
    assert not redis_raw.hget(keys.meta(keys.shard("runs/42")), "refused")


async def _cancelled(
    client: AsyncStateCache, other: AsyncStateCache, monkeypatch: pytest.MonkeyPatch, *, timeout: float
) -> Stray:
    """Cancel a create whose attempt is lost; somebody else has taken its key meanwhile."""
    held = asyncio.Event()

    async def taken() -> None:
        await other.set("runs/42", "somebody's")
        held.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        stray = Stray(patched, taken)
        call = asyncio.ensure_future(client.create("runs/42", "overdue", timeout=timeout, change_id=CHANGE_ID))
        await held.wait()
        call.cancel()
        await asyncio.wait([call])
    return stray


async def test_no_call_waits_longer_than_it_was_given_for_what_an_earlier_one_sent(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch, redis_raw: Any, keys: KeySpace
) -> None:
    """Redis remembers too many refused ones already."""
    assert await cache.get("runs/42") is None
    others = "9999999999999" + "".join(f" {number}/a=1@9999999999999" for number in range(100))
    redis_raw.hset(keys.meta(keys.shard("runs/42")), "refused", others)
    async with AsyncStateCache(settings=settings) as client, asyncio.timeout(30):
        await _cancelled(client, cache, monkeypatch, timeout=600.0)
        begun = monotonic()
        with pytest.raises(OutcomeUnknown):
            await client.create("runs/42", "overdue", timeout=1.0, change_id=CHANGE_ID)
        assert monotonic() - begun < 5.0


async def test_attempts_of_a_parent_that_has_forked_are_refused_once_they_would_be_late(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch, redis_raw: Any, keys: KeySpace
) -> None:
    """The child numbers its own, and cannot have the parent's refused."""
    assert await cache.get("runs/42") is None
    async with AsyncStateCache(settings=settings) as client, asyncio.timeout(30):
        stray = await _cancelled(client, cache, monkeypatch, timeout=4.0)
        client._runtime.committer.attempts.begin_anew(mutex())
        begun = monotonic()
        with pytest.raises(AlreadyExists):
            await client.create("runs/42", "overdue", timeout=20.0, change_id=CHANGE_ID)
        assert monotonic() - begun > 0.5
        assert not redis_raw.hget(keys.meta(keys.shard("runs/42")), "refused")
        await cache.delete("runs/42")
        assert await stray.arrives(cache) == b"LATE"


async def test_a_create_that_arrives_while_it_is_looked_up_is_not_refused(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is taken when the lookup begins, free when the attempt arrives, and taken again when it has ended."""
    for number in range(COMMITS):
        await cache.set("runs/42", number)
    await cache.delete("runs/42")
    stray = Stray(monkeypatch, partial(cache.set, "runs/42", "somebody's"))
    lookup, arrived = Durable.lookup, list[bytes]()

    async def slow(self: Durable, *args: Any, **more: Any) -> Any:
        found = await lookup(self, *args, **more)
        if not arrived:
            await cache.delete("runs/42")
            arrived.append(await stray.arrives(cache))
            for number in range(COMMITS):
                await cache.set("runs/42", number)
        return found

    monkeypatch.setattr(Durable, "lookup", slow)
    async with AsyncStateCache(settings=settings) as client:
        created = await client.create("runs/42", "overdue", timeout=30.0)
    assert arrived == [b"OK"]
    versions = [one.version async for one in cache.history("runs/42") if one.change_id == created.change_id]
    assert versions == [created.version] == [COMMITS + 4]

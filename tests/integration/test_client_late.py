"""An attempt that was held up on its way is refused: nobody remembers it any more when it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest

from statecache import (
    AsyncStateCache,
    Backpressure,
    ForeignData,
    Settings,
    Unavailable,
    VersionConflict,
)
from statecache.clock import monotonic
from statecache.commit_protocol.commit import Commit
from statecache.core.commit.attempts import Attempts
from statecache.core.redis.connection import Link
from statecache.keys import KeySpace
from statecache.model import Position
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import MakeWorker, flush
from tests.support.dirtiness import evict
from tests.support.fault_proxy import FaultProxy
from tests.support.held_up import Stray
from tests.support.polling import pause

pytestmark = pytest.mark.counts_seconds

COMMITS = 8
"""More than a state's `recent` holds."""


async def test_a_blind_write_that_arrives_after_its_repeat_was_forgotten_is_not_applied_again(
    settings: Settings, proxy: FaultProxy, cache: AsyncStateCache
) -> None:
    await cache.set("runs/42", "before")
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as held_up:
        await held_up.get("runs/42")
        fault = proxy.arm("hold_request", at=b"held up")
        mine = await held_up.set("runs/42", "held up", timeout=5.0)
        assert fault.struck
        for number in range(COMMITS):
            last = await cache.set("runs/42", number)
        fault.release()
        await executed(proxy)
        now = await cache.get("runs/42")
    assert now is not None
    assert (now.value, now.version) == (last.value, last.version) == (COMMITS - 1, mine.version + COMMITS)
    assert now.position == last.position == Position(1, last.version)


@pytest.mark.parametrize("verb", ["set", "create", "delete"])
async def test_a_first_attempt_that_arrives_in_its_time_but_after_others_is_not_applied_again(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch, redis_raw: Any, keys: KeySpace,
    verb: str,
) -> None:  # fmt: skip
    """It is no repeat, and the state no longer remembers the repeat that was quicker."""
    if verb == "delete":
        await cache.set("runs/42", 0)
    stray = Stray(monkeypatch, partial(cache.get, "runs/42"))
    async with AsyncStateCache(settings=settings) as client:
        if verb == "delete":
            mine = await client.delete("runs/42", reason="overdue")
        else:
            mine = await getattr(client, verb)("runs/42", verb, reason="overdue")
    for number in range(COMMITS):
        await cache.set("runs/42", number)
    if verb == "create":
        await cache.delete("runs/42")
    before = redis_raw.xrange(keys.changes(keys.shard("runs/42")))
    assert await stray.arrives(cache) == b"LATE"
    assert redis_raw.xrange(keys.changes(keys.shard("runs/42"))) == before
    assert mine is not None
    assert [fields[b"change_id"].decode() for _, fields in before].count(mine.change_id) == 1


async def test_a_server_whose_clock_was_set_forward_is_asked_anew(settings: Settings, cache: AsyncStateCache) -> None:
    await cache.set("runs/42", 1)
    link = await cache._runtime.redis.pool.take(1.0)
    link.ahead_ms -= 3_600_000
    cache._runtime.redis.pool.give(link)
    state = await cache.set("runs/42", 2)
    assert state.version == 2
    assert not link.alive


async def test_being_late_does_not_hide_what_hindered_the_attempts_before(
    settings: Settings, cache: AsyncStateCache, redis_raw: Any, keys: KeySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's entry is in the way of the first attempt; all others come after their time."""
    await cache.set("runs/42", 1)
    redis_raw.xadd(keys.changes(keys.shard("runs/42")), {"somebody": "else"})
    exchange, attempts = Attempts.send, 0

    async def late_from_the_second_on(self: Attempts, link: Link, commit: Commit, seconds: float) -> Sequence[Any]:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            link.ahead_ms -= 3_600_000
        return await exchange(self, link, commit, seconds)

    monkeypatch.setattr(Attempts, "send", late_from_the_second_on)
    with pytest.raises(ForeignData, match="equal or smaller"):
        await cache.set("runs/42", 2, timeout=0.5)
    assert attempts > 1


@pytest.fixture
async def limited(settings: Settings) -> AsyncIterator[AsyncStateCache]:
    """A client whose backlog takes two changes of a shard."""
    async with AsyncStateCache(settings=settings.model_copy(update={"backlog_entries_max": 2})) as client:
        yield client


@pytest.mark.own_servers("its Redis begins another history")
async def test_a_first_attempt_is_not_applied_again_in_another_epoch(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch, make_worker: MakeWorker, redis_raw: Any
) -> None:
    await cache.set("runs/42", 0)
    stray = Stray(monkeypatch, partial(cache.get, "runs/42"))
    async with AsyncStateCache(settings=settings) as client:
        mine = await client.set("runs/42", "overdue", timeout=600.0)
    for number in range(COMMITS):
        await cache.set("runs/42", number)
    await flush(make_worker())
    redis_raw.replicaof("127.0.0.1", 1)
    redis_raw.replicaof("NO", "ONE")
    await flush(make_worker())
    newest = await cache.set("runs/42", "newest")
    assert newest.position is not None
    assert (newest.version, newest.position.epoch > 1) == (mine.version + COMMITS + 1, True)
    assert await stray.arrives(cache) == b"LATE"
    assert await cache.get("runs/42") == newest


async def test_what_a_full_backlog_refuses_is_not_applied_when_it_arrives_afterwards(
    cache: AsyncStateCache, limited: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repeat meets a backlog that was full for a moment."""
    first = await cache.set("runs/42", 1)
    stray = Stray(monkeypatch, partial(cache.set, "runs/42/more", 2))
    with pytest.raises(Backpressure):
        await limited.set("runs/42", "overdue", timeout=4.0)
    await flush(worker)
    assert await stray.arrives(cache) == b"LATE"
    assert await cache.get("runs/42") == first


async def test_a_refusal_that_passes_in_time_is_none(
    cache: AsyncStateCache, limited: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backlog that the repeat met is flushed while the first attempt is waited for."""
    await cache.set("runs/42", 1)
    stray = Stray(monkeypatch, partial(cache.set, "runs/42/more", 2))
    writing = asyncio.create_task(_awaited(limited.set("runs/42", "overdue", timeout=5.0)))
    flushing = asyncio.create_task(_flushed_on(worker, writing))
    assert (await writing).version == 2
    await flushing
    assert await stray.arrives(cache) == b"DUP"


async def test_a_refusal_that_lasts_is_told_at_once(
    cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that names the change it expects meets the same answer whenever it arrives."""
    first = await cache.set("runs/42", 1)
    stray = Stray(monkeypatch, partial(cache.set, "runs/42", 2))
    async with AsyncStateCache(settings=settings) as client, asyncio.timeout(60):
        with pytest.raises(VersionConflict):
            await client.set("runs/42", "overdue", expected=first, timeout=60.0)
    assert await stray.arrives(cache) == b"CONFLICT"


async def _awaited(call: Any) -> Any:
    return await call


async def _flushed_on(worker: Worker, until: asyncio.Future[Any]) -> None:
    """Flush again and again until the future is done."""
    while not until.done():
        await flush(worker)
        await pause()


async def executed(proxy: FaultProxy) -> None:
    """Wait until the proxy has nothing left to hand on: what it held was answered, or its server has it."""
    async with asyncio.timeout(60):
        while proxy.holding:  # the proxy runs on this loop
            await pause()


async def test_a_token_of_an_earlier_epoch_holds_nobody_up(
    cache: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    await cache.set("runs/42", 1)
    await flush(worker)
    shard = keys.shard("runs/42")
    assert evict(redis_raw, keys, "runs/42")
    epoch = int(redis_raw.hget(keys.meta(shard), "epoch"))
    redis_raw.hset(keys.hydrating(shard), "runs/42", f"somebody|{epoch - 1}|9999999999999")
    begun = monotonic()
    state = await cache.get("runs/42", read="primary")
    assert state is not None
    assert monotonic() - begun < 1.0
    assert evict(redis_raw, keys, "runs/42")
    redis_raw.hset(keys.hydrating(shard), "runs/42", f"somebody|{epoch}|9999999999999")
    with pytest.raises(Unavailable):
        await cache.get("runs/42", read="primary", timeout=0.3)

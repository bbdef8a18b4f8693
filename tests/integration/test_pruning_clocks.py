"""What goes by age is old enough by the clock of Redis and by that of Postgres, whichever of the two is off."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings
from statecache.core.redis.server_clock import ServerClock
from statecache.core.redis.tier import RedisTier
from statecache.errors import ConfigurationError, RedisUnavailable
from statecache.keys import KeySpace
from statecache_workers import pruning
from statecache_workers.prune_passes import PrunePasses
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Log, flush
from tests.support.histories import Psql, aged, conversation, policy, pruned, read, versions, whole

AGE = timedelta(minutes=30)
HOUR = timedelta(hours=1)


def _clock_is_off(monkeypatch: pytest.MonkeyPatch, psql: Psql, by: timedelta) -> None:
    """Have Redis' clock be ahead by so much of that of Postgres, now and when all that is there was committed."""
    psql.execute("UPDATE change SET at = at + %s", (by,))
    psql.execute("UPDATE state SET updated_at = updated_at + %s", (by,))
    now_ms = ServerClock.now_ms
    monkeypatch.setattr(ServerClock, "now_ms", lambda clock: now_ms(clock) + round(by.total_seconds() * 1000))


async def _passed(settings: Settings) -> int:
    """Let a worker's pass go through all namespaces; return how many values went."""
    passes = PrunePasses(settings, KeySpace(settings.prefix, settings.shards), by="test")
    passes.ask()
    assert passes._task is not None
    try:
        await asyncio.wait_for(passes._task, 30)
    finally:
        await passes.stop()
    return passes.pruned.values


@pytest.mark.parametrize("by", [-HOUR, HOUR], ids=["Redis behind", "Redis ahead"])
async def test_values_stay_until_the_age_has_passed_by_both_clocks(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch,
    by: timedelta,
) -> None:  # fmt: skip
    await conversation(cache, "runs/1", times=4)
    await conversation(cache, "runs/2", times=4)
    await flush(worker)
    aged(psql, "runs/2", lambda version: (4 - version) / 24)
    _clock_is_off(monkeypatch, psql, by)
    before = await read(cache, psql)
    policy(psql, age=AGE)
    late = by > timedelta(0)
    goes = {1} if late else {1, 2}
    assert (await pruned(settings, dry_run=True)).values == len(goes)
    assert await _passed(settings) == len(goes)
    assert (await pruned(settings)).values == 0
    after = await whole(settings, cache, psql, before)
    assert versions(after, "runs/1") == [1, 2, 3, 4], "replaced a moment ago"
    assert versions(after, "runs/2") == sorted({1, 2, 3, 4} - goes)


async def test_where_redis_cannot_be_asked_for_its_time_nothing_goes_by_age(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand nothing goes at all then: of what goes by count it would not be said."""
    await conversation(cache, "runs/1", times=4)
    await conversation(cache, "early/1", times=4)
    await flush(worker)
    aged(psql, "runs/1", lambda _: 400)
    before = await read(cache, psql)

    async def refused(tier: RedisTier, seconds: float | None = None) -> Any:
        raise RedisUnavailable("connect", detail="nobody listens there")

    policy(psql, age=AGE)
    with monkeypatch.context() as patch:
        patch.setattr(RedisTier, "link", refused)
        by_count = "INSERT INTO retention (name, history, max_count, changed_by) VALUES ('early', 'full', 1, 'test')"
        psql.execute(by_count.encode())
        for dry_run in (True, False):
            with pytest.raises(RedisUnavailable, match="nobody listens there"):
                await pruned(settings, dry_run=dry_run)
        assert await read(cache, psql) == before
        policy(psql, age=AGE)
        assert await _passed(settings) == 0
        assert [line["detail"] for line in log.of("prune_waits")] == [
            "Redis is unavailable (connect): nobody listens there."
        ]
        assert await read(cache, psql) == before
        policy(psql, count=3)
        assert (await pruned(settings)).values == 1, "that takes no clock"
    policy(psql, age=AGE)
    assert (await pruned(settings)).values == 2
    assert versions(await whole(settings, cache, psql, before), "runs/1") == [4]


async def test_the_time_of_another_redis_does_not_count(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    """Nor that of one which holds nothing: who names the wrong one would let values go by the wrong clock."""
    await conversation(cache, "runs/1", times=4)
    await flush(worker)
    aged(psql, "runs/1", lambda _: 400)
    policy(psql, age=AGE)
    cluster = redis_raw.hget(keys.meta(0), "cluster")
    redis_raw.hset(keys.meta(0), "cluster", "another")
    with pytest.raises(ConfigurationError, match="Redis belongs to cluster another, Postgres to"):
        await pruned(settings)
    redis_raw.hdel(keys.meta(0), "shards", "cluster")
    with pytest.raises(ConfigurationError, match=r"has been opened in this Redis.*STATECACHE_REDIS_URL"):
        await pruned(settings)
    redis_raw.hset(keys.meta(0), mapping={"shards": settings.shards, "cluster": cluster})
    assert (await pruned(settings)).values == 3


async def test_the_time_of_redis_is_asked_for_anew_with_each_page(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is promoted meanwhile may have another clock."""
    monkeypatch.setattr(pruning, "ROWS", 4)
    for key in ("runs/1", "runs/2"):
        await conversation(cache, key, times=4)
        await flush(worker)
        aged(psql, key, lambda _: 1 / 24)
    before = await read(cache, psql)
    policy(psql, age=AGE)
    now_ms, asked = ServerClock.now_ms, 0

    def promoted(clock: ServerClock) -> int:
        nonlocal asked
        asked += 1
        return now_ms(clock) - (0 if asked <= 2 else 3_600_000)  # the first time, before anything goes

    monkeypatch.setattr(ServerClock, "now_ms", promoted)
    assert (await pruned(settings)).values == 3
    after = await whole(settings, cache, psql, before)
    assert (versions(after, "runs/1"), versions(after, "runs/2")) == ([4], [1, 2, 3, 4])

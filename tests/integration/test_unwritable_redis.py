"""A Redis whose disk fails, or whose replicas are away: it is written to no more, and read as before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from statecache import AsyncStateCache, RedisUnavailable, Settings
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.dirtiness import evict
from tests.support.unwritable_redis import disk_full, replicas_away

KEYS = ["runs/1", "runs/2", "runs/gone", "runs/never"]


@every_redis
@pytest.mark.own_servers("it changes settings of the server")
@pytest.mark.parametrize("read", ["primary", "local"])
@pytest.mark.parametrize(("away", "code"), [(replicas_away, "NOREPLICAS"), (disk_full, "MISCONF")])
async def test_what_redis_does_not_hold_is_read_where_it_takes_no_writes(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace,
    away: Callable[[Any], AbstractContextManager[None]], code: str, read: Any,
) -> None:  # fmt: skip
    for key in KEYS[:3]:
        await cache.set(key, key)
    await cache.delete("runs/gone")
    await flush(worker)
    wanted = {key: key if key in KEYS[:2] else None for key in KEYS}
    client = make_client(settings.model_copy(update={"timeout_s": 5.0}))
    for key in KEYS[:3]:
        assert evict(redis_raw, keys, key)
    with away(redis_raw):
        for _ in range(2):
            assert {key: _value(await client.get(key, read=read)) for key in KEYS} == wanted
        found = await make_client(settings).get_many(KEYS, read=read)
        assert {key: _value(state) for key, state in found.items()} == wanted
        assert not any(redis_raw.exists(keys.state(key)) for key in KEYS)
        for writing in (client.set("runs/1", 1), client.update("runs/2", str), client.create("runs/never", 1)):
            with pytest.raises(RedisUnavailable, match=code) as refused:
                await writing
            assert refused.value.reason in ("refused", "timeout")
    assert (await client.set("runs/1", "again")).version == 2
    assert _value(await client.get("runs/1", read=read)) == "again"


@every_redis
@pytest.mark.own_servers("it changes settings of the server")
@pytest.mark.parametrize("away", [replicas_away, disk_full])
async def test_nobody_waits_for_a_load_that_was_begun_before_redis_took_no_more_writes(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace,
    away: Callable[[Any], AbstractContextManager[None]],
) -> None:  # fmt: skip
    """Whoever has taken the token cannot bring the state either."""
    await cache.set("runs/1", 1)
    await flush(worker)
    assert evict(redis_raw, keys, "runs/1")
    shard, minutes_later = keys.shard("runs/1"), (redis_raw.time()[0] + 300) * 1000
    epoch = redis_raw.hget(keys.meta(shard), "epoch").decode()
    redis_raw.hset(keys.hydrating(shard), "runs/1", f"another|{epoch}|{minutes_later}")
    client = make_client(settings.model_copy(update={"timeout_s": 5.0}))
    with away(redis_raw):
        assert _value(await client.get("runs/1")) == 1
        assert redis_raw.hexists(keys.hydrating(shard), "runs/1")


def _value(state: Any) -> Any:
    return None if state is None else state.value

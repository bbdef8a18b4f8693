"""Numbers that Lua counts stay whole: beyond fourteen digits it would write them as 1e+14."""

from __future__ import annotations

from typing import Any

from statecache import AsyncStateCache
from statecache.keys import KeySpace
from tests.fixtures.servers import every_redis

KEY = "runs/42"


@every_redis
async def test_versions_and_totals_stay_whole_however_large(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    meta, plan, much = keys.meta(keys.shard(KEY)), f"{KEY}/plan", 10**14 - 1
    for key in (KEY, plan):
        await client.set(key, 1)
        redis_raw.hset(keys.state(key), "version", much)
    redis_raw.hset(meta, mapping={"bytes": much, "flushed_bytes": much})
    written = await client.set(KEY, 2)
    assert written.version == much + 1
    assert await client.set(KEY, 2, change_id=written.change_id) == written
    async with client.transaction(KEY, plan) as tx:
        tx.set(KEY, 3)
        tx.set(plan, 2)
    assert (tx.states[KEY].version, tx.states[plan].version) == (much + 2, much + 1)
    assert (await client.get(KEY)) == tx.states[KEY]
    assert much < int(redis_raw.hget(meta, "bytes")) < much + 2000

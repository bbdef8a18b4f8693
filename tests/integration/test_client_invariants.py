"""What holds at every instant, whatever agents, a worker, evictions and lost connections are doing meanwhile."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import psycopg

from statecache import AsyncStateCache, NotFound, Settings, VersionConflict
from statecache.keys import KeySpace
from tests.fixtures.faults import through
from tests.fixtures.flusher import rows
from tests.fixtures.servers import MakeSettings, every_redis
from tests.support.dirtiness import dirty_keys
from tests.support.fault_proxy import FaultProxy
from tests.support.workers import at_work

OPERATIONS = 150
AGENTS = 4
KEYS = tuple(f"runs/{number}{part}" for number in range(5) for part in ("", "/plan"))

Psql = psycopg.Connection[Any]

SNAPSHOT = """
-- One instant of one shard: what is wrong with its dirty states, how many they are, and how many clean ones may go.
-- KEYS  1 meta  2 changes  3 written   ARGV  1 what the Redis key of a state begins with  2 the pattern of the states
local wrong, dirty, evictable = {}, 0, 0
local flushed = redis.call('HGET', KEYS[1], 'flushed')
local members = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. flushed, '+inf', 'WITHSCORES')
for i = 1, #members, 2 do
  if members[i] ~= '_' then
    dirty = dirty + 1
    local state = ARGV[1] .. members[i]
    local position = redis.call('HGET', state, 'position')
    if not position then
      wrong[#wrong + 1] = 'gone: ' .. members[i]
    else
      if redis.call('PTTL', state) ~= -1 then wrong[#wrong + 1] = 'may be evicted: ' .. members[i] end
      if redis.call('HGET', state, 'key') ~= members[i] then wrong[#wrong + 1] = 'names another: ' .. members[i] end
      if string.match(position, '%d+$') ~= members[i + 1] then wrong[#wrong + 1] = 'is out of step: ' .. members[i] end
      local entry = redis.call('XRANGE', KEYS[2], position, position)[1]
      if not entry then wrong[#wrong + 1] = 'has no entry: ' .. members[i] end
    end
  end
end
for _, state in ipairs(redis.call('KEYS', ARGV[2])) do
  if redis.call('PTTL', state) ~= -1 then evictable = evictable + 1 end
end
return { wrong, dirty, evictable }
"""

EVICT = """
-- Does what Redis does for room: takes states that have a time to live.
local states = redis.call('KEYS', ARGV[1])
local gone = 0
for _, state in ipairs(states) do
  if redis.call('PTTL', state) ~= -1 then gone = gone + redis.call('DEL', state) end
end
return gone
"""


class Watch:
    """Repeated looks at the deployment, and what they found."""

    def __init__(self, raw: Any, keys: KeySpace, prefix: str) -> None:
        self._raw, self._keys, self._prefix = raw, keys, prefix
        self.looks = self.dirty = self.evictable = self.evicted = 0
        self.wrong: list[bytes] = []
        self.seen: dict[str, tuple[int, int]] = {}

    def look(self) -> None:
        """Take one snapshot of every shard."""
        for shard in range(self._keys.shards):
            tag = f"{self._prefix}:{{{shard:02d}}}"
            fixed = [self._keys.meta(shard), self._keys.changes(shard), self._keys.unflushed(shard)]
            wrong, dirty, evictable = self._raw.eval(SNAPSHOT, 3, *fixed, f"{tag}:state:", f"{tag}:state:*")
            self.wrong += wrong
            self.dirty += dirty
            self.evictable += evictable
        self.looks += 1

    def evict(self) -> None:
        """Evict whatever may be evicted."""
        self.evicted += self._raw.eval(EVICT, 0, f"{self._prefix}:*:state:*")


async def _agent(cache: AsyncStateCache, rng: Random, watch: Watch) -> int:
    written = 0
    newest: dict[str, tuple[int, int]] = {}
    for number in range(OPERATIONS):
        key = rng.choice(KEYS)
        kind = rng.choice(("set", "set", "update", "delete", "get", "get", "transaction"))
        if kind == "set":
            written += bool(await cache.set(key, {"number": number}))
        elif kind == "update":
            written += bool(await cache.update(key, _adding, default=dict))
        elif kind == "delete":
            written += await cache.delete(key) is not None
        elif kind == "transaction":
            written += await _together(cache, key, number)
        elif (state := await cache.get(key)) is not None:
            assert state.key == key
            assert (state.epoch, state.version) >= newest.get(key, (0, 0))
            newest[key] = (state.epoch, state.version)
        watch.look()
        if number % 25 == 0:
            watch.evict()
    return written


def _adding(value: dict[str, int]) -> dict[str, int]:
    return {"number": value.get("number", 0) + 1}


async def _together(cache: AsyncStateCache, key: str, number: int) -> int:
    group = "/".join(key.split("/")[:2])
    try:
        async with cache.transaction(group, f"{group}/plan") as tx:
            tx.set(group, {"number": number})
            tx.delete(f"{group}/plan")
    except (VersionConflict, NotFound):
        return 0
    return len(tx.states)


@every_redis
async def test_no_dirty_state_can_be_lost_at_any_instant(
    make_settings: MakeSettings, redis_kind: str, settings: Settings, redis_raw: Any, keys: KeySpace, psql: Psql,
    proxy: FaultProxy,
) -> None:  # fmt: skip
    """No dirty state has a time to live, each has its entry; and Postgres has every change once, in unbroken chains."""
    quick = settings.model_copy(update={"retention_s": 0.0, "retention_bytes_max": 0})
    watch = Watch(redis_raw, keys, settings.prefix)
    async with at_work(quick), AsyncStateCache(settings=through(settings, redis=proxy)) as cache:
        agents = [asyncio.create_task(_agent(cache, Random(seed), watch)) for seed in range(AGENTS)]
        while watch.looks < AGENTS * OPERATIONS // 3:
            assert not (await asyncio.wait(agents, timeout=0.01, return_when=asyncio.FIRST_EXCEPTION))[0]
        proxy.cut_all()
        written = sum(await asyncio.gather(*agents))
        for key in KEYS:
            state = await cache.get(key)
            if state is not None:
                await cache.wait_durable(state)
    assert watch.wrong == []
    assert watch.looks >= AGENTS * OPERATIONS
    assert watch.dirty > 100
    assert watch.evicted > 0
    changes = rows(psql, "SELECT key, version, change_id, parent_change_id, gap FROM change ORDER BY key, version")
    assert len(changes) == written
    tips: dict[str, tuple[int, str]] = {}
    for key, version, change_id, parent, gap in changes:
        assert (version - 1, parent) == tips.get(key, (0, ""))
        assert not gap
        tips[key] = (version, change_id)
    assert rows(psql, "SELECT * FROM conflict") == []


@every_redis
async def test_nothing_but_clean_states_ever_gets_a_time_to_live(
    settings: Settings, cache: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    quick = settings.model_copy(update={"retention_s": 0.0, "retention_bytes_max": 0})
    async with at_work(quick):
        states = [await cache.set(key, 1) for key in KEYS]
        for state in states:
            await cache.wait_durable(state)
        assert await cache.get("runs/nobody") is None
    for key in KEYS[:3]:
        await cache.set(key, "dirty again")
    dirty = {key for shard in range(keys.shards) for key in dirty_keys(redis_raw, keys, shard)}
    mortal = {name.decode() for name in redis_raw.scan_iter(f"{settings.prefix}:*") if redis_raw.pttl(name) != -1}
    assert mortal <= {keys.state(key) for key in (*KEYS, "runs/nobody") if key not in dirty}
    assert keys.state("runs/nobody") in mortal
    assert set(KEYS[:3]) <= dirty

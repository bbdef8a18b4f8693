"""What leaves Redis behind the watermark, and that nothing else does."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.keys import KeySpace
from statecache.lua import script
from statecache_workers.janitor import TOKEN_GRACE_MS
from statecache_workers.worker import Worker
from tests.fix_flusher import Agents, Log, MakeWorker, flush, rows
from tests.fix_servers import every_redis

Psql = psycopg.Connection[Any]


@pytest.fixture
def tidy(make_worker: MakeWorker, settings: Settings) -> Worker:
    """A worker that keeps no flushed entry."""
    return make_worker(settings.model_copy(update={"retention_s": 0.0, "redis_ttl_s": 1000.0}))


async def _retire(worker: Worker, *, now_ms: int | None = None) -> None:
    """This lets everything leave that may."""
    link, database = await worker.connect()
    heads = await worker.flusher.streams.heads(link, list(worker.holdings))
    left = list(worker.holdings)
    while left:
        holdings = [worker.holdings[shard] for shard in left]
        left = await worker.janitor.retire(link, database, holdings, now_ms=now_ms or heads.now_ms + 1)


@every_redis
async def test_a_clean_state_gets_its_time_to_live_when_its_entry_leaves(
    agents: Agents, tidy: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    agents.commit({"key": key, "ttl": "5000"}, f"{key}/default")
    await flush(tidy)
    await _retire(tidy)
    assert 0 < redis_raw.pttl(keys.state(key)) <= 5000
    assert 990_000 < redis_raw.pttl(keys.state(f"{key}/default")) <= 1_000_000
    assert agents.entries(0) == []


async def test_a_state_that_was_written_again_keeps_no_time_to_live(
    agents: Agents, tidy: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    """Both ways round: dirty when its older entry leaves, and clean with a time to live when it is written."""
    key = agents.key_on(0)
    agents.commit(key)
    await flush(tidy)
    agents.commit(key)
    await _retire(tidy)
    assert redis_raw.ttl(keys.state(key)) == -1
    assert agents.entries(0) == ["1-2"], "it is not flushed yet"
    await flush(tidy)
    await _retire(tidy)
    assert redis_raw.ttl(keys.state(key)) > 0
    agents.commit(key)
    assert redis_raw.ttl(keys.state(key)) == -1


async def test_what_was_set_aside_of_another_branch_does_not_keep_the_lineages_states(
    agents: Agents, tidy: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    """Both have an entry of that n; only with its epoch does it name one."""
    key = agents.key_on(0)
    psql.execute(
        "INSERT INTO conflict (change_id, key, shard, epoch, n, op, version, parent_change_id, value, encoding, schema,"
        " writer, actor, reason, at, cause) VALUES ('x', %s, 0, 9, 1, 'set', 1, '', '', '', '', '', '', '', now(), '')",
        (key,),
    )
    psql.execute("UPDATE shard SET excepted = 1 WHERE shard = 0")
    agents.commit(key)
    await flush(tidy)
    await _retire(tidy)
    assert agents.entries(0) == []
    assert redis_raw.ttl(keys.state(key)) > 0


@every_redis
async def test_an_older_entry_leaving_marks_nothing_that_is_newer_or_dirty(
    agents: Agents, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    agents.commit(key, change_id="a" * 24)
    agents.commit(key, change_id="b" * 24)
    redis_raw.hset(keys.meta(0), "flushed", 2)
    names = [keys.meta(0), keys.changes(0), keys.unflushed(0), keys.state(key)]

    def retire(entry_id: str, change_id: str) -> int:
        return int(redis_raw.eval(script("retire").text, 4, *names, 1, 2, entry_id, key, change_id, 1000))

    assert retire("1-1", "b" * 24) == 0, "it is still dirty"
    redis_raw.zrem(keys.unflushed(0), key)
    assert retire("1-1", "a" * 24) == 0, "it is newer"
    assert redis_raw.ttl(keys.state(key)) == -1
    assert retire("1-2", "b" * 24) == 1


async def test_entries_stay_for_the_retention_by_their_own_time(
    agents: Agents, make_worker: MakeWorker, settings: Settings, redis_raw: Any, keys: KeySpace
) -> None:
    worker = make_worker(settings.model_copy(update={"retention_s": 60.0}))
    key = agents.key_on(0)
    agents.commit(key)
    await flush(worker)
    seconds, _ = redis_raw.time()
    await _retire(worker, now_ms=(seconds + 50) * 1000)
    assert agents.entries(0) == ["1-1"]
    await _retire(worker, now_ms=(seconds + 62) * 1000)
    assert agents.entries(0) == []
    assert redis_raw.ttl(keys.state(key)) > 0


async def test_entries_stay_only_as_far_as_there_is_room(
    agents: Agents, make_worker: MakeWorker, settings: Settings
) -> None:
    worker = make_worker(settings.model_copy(update={"retention_bytes_max": settings.shards * 5000}))
    key = agents.key_on(0)
    for _ in range(10):
        agents.commit((key, "x" * 800))
    await flush(worker)
    await _retire(worker)
    assert agents.entries(0) == [f"1-{n}" for n in range(6, 11)], "of a good 1,000 bytes each; the fifth reaches over"


async def test_thousands_of_entries_leave_in_steps(
    agents: Agents, tidy: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    group = agents.key_on(0)
    for i in range(40):
        agents.commit(*(f"{group}/{i}/{j}" for j in range(30)))
    await flush(tidy)
    await _retire(tidy)
    assert agents.entries(0) == []
    assert all(redis_raw.ttl(keys.state(f"{group}/{i}/7")) > 0 for i in range(40))


async def test_large_entries_are_read_a_few_at_a_time_for_commits_wait_meanwhile(
    agents: Agents, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    for i in range(30):
        agents.commit((f"{key}/{i}", "x" * 100_000))
    names = keys.meta(0), keys.changes(0), keys.unflushed(0)
    redis_raw.hset(names[0], mapping={"flushed": 30, "flushed_entries": 30})
    redis_raw.config_resetstat()
    more, *found = redis_raw.eval(script("retired").text, 3, *names, 1, 30, "9999", 0, 250, 1_000_000)
    assert (more, len(found)) == (1, 10)
    assert redis_raw.info("commandstats")["cmdstat_xrange"]["calls"] > 3


async def test_a_turn_tidies_by_itself(agents: Agents, tidy: Worker) -> None:
    key = agents.key_on(0)
    agents.commit(key)
    await flush(tidy)
    for _ in range(200):
        if not agents.entries(0):
            return
        if not await tidy.turn():
            await tidy.rest()
    raise AssertionError("nothing leaves")


@every_redis
async def test_nothing_leaves_that_is_not_behind_the_watermark(agents: Agents, redis_raw: Any, keys: KeySpace) -> None:
    key = agents.key_on(0)
    for _ in range(3):
        agents.commit(key)
    meta = keys.meta(0)
    redis_raw.hset(meta, mapping={"flushed": 2, "flushed_entries": 2})
    names = [meta, keys.changes(0)]
    unflushed = keys.unflushed(0)

    def retired(epoch: int, flushed: int) -> list[Any]:
        asked = epoch, flushed, "9999", 0, 100, 2**20
        found: list[Any] = redis_raw.eval(script("retired").text, 3, *names, unflushed, *asked)
        return [entry[0] for entry in found[1:]]

    def retire(epoch: int, flushed: int, entry_id: str) -> int:
        return int(redis_raw.eval(script("retire").text, 3, *names, keys.unflushed(0), epoch, flushed, entry_id))

    assert retired(1, 9) == [b"1-1", b"1-2"], "by Redis' copy of the watermark"
    assert retired(1, 1) == [b"1-1"], "by Postgres' watermark"
    assert retired(2, 9) == [], "of another epoch"
    assert retire(1, 9, "1-3") == -1
    assert retire(1, 1, "1-2") == -1
    assert retire(2, 9, "1-1") == -1
    assert len(agents.entries(0)) == 3
    assert retire(1, 9, "1-2") == 0
    assert agents.entries(0) == ["1-3"]


async def test_a_state_that_postgres_did_not_take_gets_no_time_to_live(
    agents: Agents, tidy: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    """A quarantined state is nowhere else in a form that can be read."""
    parked, good = agents.key_on(0), agents.key_on(0, "jobs")
    agents.commit(parked, reason="a\0b")
    agents.commit(good)
    await flush(tidy)
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(1,)]
    await _retire(tidy)
    assert agents.entries(0) == []
    assert redis_raw.ttl(keys.state(parked)) == -1
    assert redis_raw.ttl(keys.state(good)) > 0


@every_redis
async def test_a_full_redis_is_acknowledged_and_tidied(
    agents: Agents, tidy: Worker, redis_raw: Any, keys: KeySpace, log: Log
) -> None:
    """Were these refused, nothing would ever become clean, and nothing could be evicted."""
    key = agents.key_on(0)
    agents.commit(key)
    held = redis_raw.config_get("maxmemory*")
    redis_raw.config_set("maxmemory-policy", "noeviction")
    redis_raw.config_set("maxmemory", 1)
    try:
        await flush(tidy)
        await _retire(tidy)
        assert [alarm["policy"] for alarm in log.of("redis_is_full")] == ["noeviction"]
    finally:
        redis_raw.config_set("maxmemory", held["maxmemory"])
        redis_raw.config_set("maxmemory-policy", held["maxmemory-policy"])
    assert agents.meta(0)["flushed"] == "1"
    assert agents.entries(0) == []
    assert redis_raw.ttl(keys.state(key)) > 0


async def test_old_hydration_tokens_are_swept_and_young_ones_stay(
    agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    await flush(worker)
    seconds, _ = redis_raw.time()
    now_ms = seconds * 1000
    old = {f"runs/{i}": f"token|1|{now_ms - TOKEN_GRACE_MS - 1000}" for i in range(300)}
    redis_raw.hset(keys.hydrating(0), mapping=old | {"runs/young": f"token|1|{now_ms}"})
    link, _ = await worker.connect()
    for _ in range(10):
        await worker.janitor._sweep(link, list(worker.holdings.values()))
    assert set(redis_raw.hkeys(keys.hydrating(0))) == {b"_", b"runs/young"}


async def test_what_dead_holders_and_waiters_left_is_swept_and_what_may_still_be_somebodys_stays(
    agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    await flush(worker)
    seconds, _ = redis_raw.time()
    young, old = seconds * 1000, seconds * 1000 - TOKEN_GRACE_MS - 1000
    lease = "token=1-1 until={} ttl=30 since=1 request=abc holder=a host:1"
    place = "abc until={} ttl=30 since=1 holder=a host:1\n"
    leases = {f"runs/{i}": lease.format(old) for i in range(300)} | {"runs/young": lease.format(young), "runs/x": "?"}
    waiters = {f"runs/{i}": place.format(old) * 2 for i in range(300)} | {"!old": old, "!young": young}
    waiters |= {"runs/young": place.format(old) + place.format(young)}
    redis_raw.hset(keys.leases(0), mapping=leases)
    redis_raw.hset(keys.waiters(0), mapping=waiters)
    link, _ = await worker.connect()
    for _ in range(10):
        await worker.janitor._sweep(link, list(worker.holdings.values()))
    assert set(redis_raw.hkeys(keys.leases(0))) == {b"_", b"runs/young", b"runs/x"}
    assert set(redis_raw.hkeys(keys.waiters(0))) == {b"_", b"runs/young", b"!young"}


@every_redis
async def test_a_state_that_is_called_dirty_behind_the_watermark_is_clean_again(
    agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    """As a worker may do that stood still while another one took its shard over and flushed it."""
    await flush(worker)
    key = agents.key_on(0)
    agents.commit(key)
    await flush(worker)
    agents.commit((f"{key}/later", 1))
    redis_raw.zadd(keys.unflushed(0), {key: 1})
    redis_raw.eval(script("retired").text, 3, keys.meta(0), keys.changes(0), keys.unflushed(0), 1, 1, "0", 0, 9, 9)
    assert agents.dirty(0) == {f"{key}/later"}

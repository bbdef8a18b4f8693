"""What leaves Redis behind the watermark, and that nothing else does."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.clock import monotonic
from statecache.keys import KeySpace
from statecache.lua import script
from statecache_workers.janitor import TOKEN_GRACE_MS
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, rows
from tests.fixtures.servers import every_redis
from tests.support.polling import pause

Psql = psycopg.Connection[Any]


@pytest.fixture
def tidy(make_worker: MakeWorker, settings: Settings) -> Worker:
    """A worker that keeps no flushed entry."""
    return make_worker(settings.model_copy(update={"retention_s": 0.0, "redis_ttl_s": 1000.0}))


async def _retire(worker: Worker) -> None:
    """Let everything leave that may."""
    link, database = await worker.connect()
    left = list(worker.holdings)
    while left:
        left = await worker.janitor.retire(link, database, [worker.holdings[shard] for shard in left])


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


class Retiring:
    """The retire script alone, called as by a worker whose row holds the given numbers."""

    def __init__(self, raw: Any, keys: KeySpace) -> None:
        self.raw = raw
        self.names = [keys.meta(0), keys.changes(0), keys.unflushed(0)]
        self.keys = keys

    def __call__(self, upto: int, *states: str, before: str = "", epoch: int = 1, flushed: int = 9, **more: Any) -> Any:
        most, excepted = more.get("most", 1000), more.get("excepted", "")
        redis_keys = [*self.names, *(self.keys.state(key) for key in states)]
        asked = [epoch, flushed, upto, before, most, 1000, excepted, *states]
        return self.raw.eval(script("retire").text, len(redis_keys), *redis_keys, *asked)


@every_redis
async def test_what_was_written_again_or_not_taken_by_postgres_is_not_marked(
    agents: Agents, redis_raw: Any, keys: KeySpace
) -> None:
    key, other, retire = agents.key_on(0), agents.key_on(0, "jobs"), Retiring(redis_raw, keys)
    for one in (key, key, other):
        agents.commit(one)
    redis_raw.hset(keys.meta(0), "flushed", 3)
    assert retire(1, key) == [0, 0, 0], "its newest change is the second"
    assert redis_raw.zscore(keys.unflushed(0), key) == 2
    assert retire(3, other, excepted="1-3") == [0, 0, 0], "Postgres did not take it"
    assert redis_raw.ttl(keys.state(other)) == -1
    assert retire(3, key, excepted="2-2") == [1, 0, 0], "another epoch's was not taken"
    assert 0 < redis_raw.pttl(keys.state(key)) <= 1000
    assert redis_raw.zrange(keys.unflushed(0), 0, -1) == [b"_"]
    redis_raw.pexpire(keys.state(key), 60_000)
    assert retire(3, key) == [0, 0, 0]
    assert redis_raw.pttl(keys.state(key)) > 1000, "one that was loaded has its time to live"


async def test_the_time_to_live_of_the_last_write_counts(
    agents: Agents, tidy: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    for ttl in ("5000", "", "9000", "7000"):
        agents.commit({"key": key, "ttl": ttl})
        await flush(tidy)
        await _retire(tidy)
        assert 0 < redis_raw.pttl(keys.state(key)) <= int(ttl or 1_000_000)
        assert redis_raw.pttl(keys.state(key)) > int(ttl or 1_000_000) - 4000


async def test_entries_stay_for_the_retention_from_when_postgres_came_to_hold_them(
    agents: Agents, make_worker: MakeWorker, settings: Settings, redis_raw: Any, keys: KeySpace
) -> None:
    """However long they had waited for it: it may be just then that Postgres fails over."""
    ahead = 0.0
    worker = make_worker(settings.model_copy(update={"retention_s": 60.0}), monotonic=lambda: monotonic() + ahead)
    await flush(worker)
    key = agents.key_on(0)
    agents.commit(key)
    ahead = 3600.0
    await flush(worker)
    await _retire(worker)
    assert agents.entries(0) == ["1-1"]
    ahead += 58.0
    await flush(worker)
    await _retire(worker)
    assert agents.entries(0) == ["1-1"]
    assert redis_raw.ttl(keys.state(key)) == -1
    ahead += 4.0
    await flush(worker)
    await _retire(worker)
    assert agents.entries(0) == []
    assert redis_raw.ttl(keys.state(key)) > 0


async def test_a_new_owner_keeps_what_it_finds_for_a_whole_retention(
    agents: Agents, make_worker: MakeWorker, settings: Settings
) -> None:
    ahead = 0.0
    given = settings.model_copy(update={"retention_s": 60.0})
    first, second = (make_worker(given, monotonic=lambda: monotonic() + ahead) for _ in range(2))
    await flush(first)
    agents.commit(agents.key_on(0))
    await flush(first)
    await first.leave()
    ahead = 50.0
    await flush(second)
    ahead = 100.0
    await flush(second)
    await _retire(second)
    assert agents.entries(0) == ["1-1"]
    ahead = 112.0
    await flush(second)
    await _retire(second)
    assert agents.entries(0) == []


async def test_what_postgres_forgot_and_holds_again_is_kept_for_a_whole_retention(
    agents: Agents, make_worker: MakeWorker, settings: Settings, psql: Psql
) -> None:
    ahead = 0.0
    worker = make_worker(settings.model_copy(update={"retention_s": 60.0}), monotonic=lambda: monotonic() + ahead)
    await flush(worker)
    agents.commit(agents.key_on(0))
    await flush(worker)
    ahead = 50.0
    psql.execute("TRUNCATE change, state")
    psql.execute("UPDATE shard SET flushed = 0, entries = 0, bytes = 0")
    worker.forget()
    async with asyncio.timeout(30.0):
        while rows(psql, "SELECT count(*) FROM state") != [(1,)]:
            await worker.turn()
            await pause()
    ahead = 100.0
    await flush(worker)
    await _retire(worker)
    assert agents.entries(0) == ["1-1"]


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


async def test_many_entries_of_few_states_leave_a_thousand_at_a_time_for_commits_wait_meanwhile(
    agents: Agents, redis_raw: Any, keys: KeySpace
) -> None:
    key, retire = agents.key_on(0), Retiring(redis_raw, keys)
    for _ in range(420):
        agents.commit(key)
    redis_raw.hset(keys.meta(0), "flushed", 420)
    left, more = [], 1
    while more:
        _, gone, more = retire(415, before="1-416", flushed=420, most=200)
        left.append(gone)
    assert len(left) >= 3
    assert max(left) <= 200
    assert sum(left) == 415
    assert agents.entries(0) == [f"1-{n}" for n in range(416, 421)]


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
    key, retire = agents.key_on(0), Retiring(redis_raw, keys)
    for _ in range(3):
        agents.commit(key)
    redis_raw.hset(keys.meta(0), mapping={"flushed": 2, "flushed_entries": 2})
    assert retire(3, key, before="1-4") == [], "by Redis' copy of the watermark"
    assert retire(2, key, before="1-3", flushed=1) == [], "by Postgres' watermark"
    assert retire(1, key, before="1-2", epoch=2) == [], "of another epoch"
    assert len(agents.entries(0)) == 3
    assert retire(2, key, before="1-3") == [0, 2, 0]
    assert agents.entries(0) == ["1-3"]


async def test_what_another_program_puts_on_the_list_of_what_was_written_leaves_it(
    agents: Agents, tidy: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    agents.commit(key)
    elsewhere = agents.key_on(1)
    redis_raw.zadd(keys.unflushed(0), {b"\xff\xfe": 0, "no slash": 0, elsewhere: 0, f"{key}/string": 0})
    redis_raw.set(keys.state(f"{key}/string"), "not ours")
    await flush(tidy)
    await _retire(tidy)
    assert redis_raw.zrange(keys.unflushed(0), 0, -1) == [b"_"]
    assert redis_raw.ttl(keys.state(key)) > 0
    assert redis_raw.ttl(keys.state(f"{key}/string")) == -1


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


@pytest.mark.own_servers("it changes settings of the server")
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
    assert agents.dirty(0) == {f"{key}/later"}

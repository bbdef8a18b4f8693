"""The flusher's main road: from the streams into Postgres, in order, once."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache_workers.batch_writing import judged
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flushed, rows
from tests.fixtures.servers import MakeSettings, every_redis

Psql = psycopg.Connection[Any]


@every_redis
async def test_changes_and_tips_reach_postgres_and_redis_learns_the_watermark(
    agents: Agents, worker: Worker, psql: Psql
) -> None:
    for i in range(10):
        agents.commit((f"runs/{i}", f'{{"i":{i}}}'), actor="ada", reason="why not")
        agents.commit((f"runs/{i}", f'{{"i":{i},"again":true}}'))
    agents.commit({"key": "runs/3", "op": "delete", "value": ""})
    await flush(worker)
    assert rows(psql, "SELECT count(*), count(DISTINCT change_id), bool_or(gap) FROM change") == [(21, 21, False)]
    found = rows(psql, "SELECT version, op, value, parent_change_id FROM change WHERE key = 'runs/3' ORDER BY version")
    assert [(version, op, bytes(value)) for version, op, value, _ in found] == [
        (1, "set", b'{"i":3}'),
        (2, "set", b'{"i":3,"again":true}'),
        (3, "delete", b""),
    ]
    assert rows(psql, "SELECT actor, reason, writer FROM change WHERE key = 'runs/0' AND version = 1") == [
        ("ada", "why not", "agent")
    ]
    assert rows(psql, "SELECT version, op FROM state WHERE key = 'runs/3'") == [(3, "delete")]
    assert rows(psql, "SELECT count(*) FROM state s JOIN change c USING (key, version, change_id, n)") == [(10,)]
    for shard, n in flushed(psql).items():
        meta = agents.meta(shard)
        assert (meta["flushed"], meta["flushed_entries"], meta["flushed_bytes"]) == (
            str(n),
            meta["entries"],
            meta["bytes"],
        )
        assert agents.dirty(shard) == set()


async def test_a_redis_that_does_not_show_its_replid_is_flushed_when_the_settings_say_so(
    make_settings: MakeSettings, make_worker: MakeWorker
) -> None:
    settings = make_settings(fence="off")
    worker = make_worker(settings)
    async with AsyncStateCache(settings=settings) as cache:
        await cache.set("runs/1", {"a": 1})
    await flush(worker)
    assert [holding.row.flushed for holding in worker.holdings.values() if holding.row.replid == "off"].count(1) == 1


async def test_one_state_many_times_in_a_batch_is_one_upsert(agents: Agents, worker: Worker, psql: Psql) -> None:
    for i in range(100):
        agents.commit(("runs/1", str(i)))
    await flush(worker)
    assert rows(psql, "SELECT key, version, value FROM state") == [("runs/1", 100, b"99")]
    assert rows(psql, "SELECT count(*), max(version) FROM change") == [(100, 100)]


async def test_a_commit_of_many_states_is_one_position(agents: Agents, worker: Worker, psql: Psql) -> None:
    agents.commit(*(f"runs/7/{i}" for i in range(256)))
    await flush(worker)
    assert rows(psql, "SELECT count(*), count(DISTINCT (n, change_id)) FROM change") == [(256, 1)]


async def test_a_backlog_longer_than_a_batch_is_flushed_in_order(
    make_settings: MakeSettings, make_worker: MakeWorker, agents: Agents, psql: Psql, settings: Settings
) -> None:
    small = settings.model_copy(update={"flush_batch_max": 10})
    for i in range(95):
        agents.commit((f"runs/{i % 7}", str(i)))
    await flush(make_worker(small))
    assert rows(psql, "SELECT count(*), bool_or(gap) FROM change") == [(95, False)]
    assert sum(flushed(psql).values()) == 95


async def test_the_loop_has_its_turn_before_each_shard_of_a_batch_is_judged(
    worker: Worker, agents: Agents, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await flush(worker)
    loop, turns = asyncio.get_running_loop(), 0
    had: list[int] = []

    def turn() -> None:
        nonlocal turns
        turns += 1
        if len(had) < 4:
            loop.call_soon(turn)

    async def counted(*given: Any) -> Any:
        had.append(turns)
        return await judged(*given)

    monkeypatch.setattr("statecache_workers.batch_transactions.judged", counted)
    for shard in range(4):
        agents.commit(agents.key_on(shard))
    turn()
    await flush(worker)
    assert len(had) == len(set(had)) == 4
    assert rows(psql, "SELECT count(*) FROM change") == [(4,)]


async def test_a_batch_is_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch, make_worker: MakeWorker, agents: Agents, psql: Psql, settings: Settings
) -> None:
    small = make_worker(settings.model_copy(update={"flush_bytes_max": 5000}))
    sizes: list[list[int]] = []
    write = small.flusher.batches.write

    async def measured(database: Any, slices: Any, *rest: Any) -> Any:
        sizes.append(
            [len(change.value) for one in slices for entry in one.entries for change in entry.change_set.changes]
        )
        return await write(database, slices, *rest)

    monkeypatch.setattr(small.flusher.batches, "write", measured)
    for size in [4000] * 3 + [10] * 20 + [20_000] + [2000] * 9:
        agents.commit(("runs/1", "x" * size))
    await flush(small)
    assert rows(psql, "SELECT count(*) FROM change") == [(33,)]
    assert all(sum(batch) <= 5000 or len(batch) == 1 for batch in sizes)


async def test_a_shard_with_a_full_batch_of_bytes_does_not_keep_the_others_waiting(
    make_worker: MakeWorker, agents: Agents, psql: Psql, settings: Settings
) -> None:
    worker = make_worker(settings.model_copy(update={"flush_bytes_max": 5000}))
    await flush(worker)
    heavy, light = agents.key_on(0), agents.key_on(1)
    for _ in range(40):
        agents.commit((heavy, "x" * 800))
    agents.commit((light, "x" * 2000))
    await worker.turn()
    await worker.turn()
    assert flushed(psql)[0] < 40
    assert flushed(psql)[1] == 1


async def test_values_are_bytes_and_come_out_as_they_went_in(agents: Agents, worker: Worker, psql: Psql) -> None:
    values = [b'"\\u0000"', b'"\xed\xa0\x80"', b"NaN", b"1e400000", bytes(range(256)), b"", b"{" * 10_000]
    for i, value in enumerate(values):
        agents.commit((f"runs/{i}", value))
    await flush(worker)
    assert [bytes(value) for (value,) in rows(psql, "SELECT value FROM state ORDER BY key")] == values
    assert rows(psql, "SELECT count(*), count(value_json) FROM state_view") == [(len(values), 0)]
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(0,)]


async def test_a_restarted_worker_goes_on_where_the_watermark_is(
    agents: Agents, make_worker: MakeWorker, psql: Psql
) -> None:
    agents.commit("runs/1")
    first = make_worker()
    await flush(first)
    await first.leave()
    agents.commit("runs/1")
    await flush(make_worker())
    assert rows(psql, "SELECT version, gap FROM change ORDER BY version") == [(1, False), (2, False)]


async def test_what_the_worker_remembers_of_tips_is_bounded(
    agents: Agents, make_worker: MakeWorker, settings: Settings, psql: Psql
) -> None:
    worker = make_worker(settings.model_copy(update={"tips_max": 20}))
    for turn in range(3):
        for i in range(100):
            agents.commit((f"runs/{i}", str(turn)))
        await flush(worker)
        assert len(worker.flusher.tips) <= 20
    assert rows(psql, "SELECT count(*), bool_or(gap) FROM change") == [(300, False)]


async def test_backpressure_ends_when_the_flusher_has_caught_up(
    make_settings: MakeSettings, make_worker: MakeWorker, agents: Agents
) -> None:
    agents.settings = agents.settings.model_copy(update={"backlog_entries_max": 5})
    for _ in range(5):
        agents.commit("runs/1")
    assert agents.ask("runs/1")[1] == b"BACKLOG"
    await flush(make_worker())
    agents.commit("runs/1")


async def test_the_log_never_holds_a_value(agents: Agents, worker: Worker, log: Log) -> None:
    agents.commit(("runs/1", "a secret"), writer="bad\0writer")
    agents.commit(("runs/1", "a secret"))
    await flush(worker)
    assert log.of("quarantined")
    assert "secret" not in repr(log.lines)


@pytest.mark.counts_seconds
@pytest.mark.parametrize("count", [1, 2, 3, 5])
async def test_shards_are_shared_evenly_and_given_back(
    make_worker: MakeWorker, psql: Psql, count: int, settings: Settings
) -> None:
    workers = [make_worker() for _ in range(count)]
    for _ in range(3):
        for worker in workers:
            worker.refresh()
            await worker.turn()
    most = -(-settings.shards // count)
    owned = [len(worker.holdings) for worker in workers]
    assert sum(owned) == settings.shards
    assert max(owned) <= most
    await workers[0].leave()
    gone = rows(psql, "SELECT count(*) FROM shard WHERE owner = %s", workers[0].id)
    assert gone == [(0,)]
    assert rows(psql, "SELECT count(*) FROM worker") == [(count - 1,)]


async def test_a_worker_that_joins_has_its_part_soon_after_the_others_have_given_it(
    make_worker: MakeWorker, settings: Settings
) -> None:
    now = [1000.0]
    first, second = make_worker(), make_worker(monotonic=lambda: now[0])
    await flush(first)
    await second.turn()
    assert not second.holdings
    first.refresh()
    await first.turn()
    now[0] += 0.1
    await second.turn()
    assert len(second.holdings) == settings.shards // 2
    assert second._next_tend == now[0] + settings.lease_renew_s


async def test_a_worker_that_gets_no_part_does_not_go_on_asking_for_it(
    make_worker: MakeWorker, settings: Settings
) -> None:
    now = [1000.0]
    first, second = make_worker(), make_worker(monotonic=lambda: now[0])
    await flush(first)
    pauses = []
    while now[0] < 1000 + 4 * settings.lease_renew_s:
        await second.turn()
        pauses.append(second._next_tend - now[0])
        now[0] = second._next_tend
    assert pauses[0] < 0.1
    assert pauses[-1] == settings.lease_renew_s
    assert len(pauses) < 40

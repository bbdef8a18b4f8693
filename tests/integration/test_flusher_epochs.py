"""Epochs as a worker meets them whose row and whose Redis do not say the same."""

from __future__ import annotations

from time import time
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, OutcomeUnknown
from statecache.core.epoch import deletion
from statecache.errors import RedisUnavailable
from statecache.keys import KeySpace
from statecache_workers import acknowledgement, resync
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, flush, flush_through, flushing, rows, turn_until

Psql = psycopg.Connection[Any]


async def test_a_row_that_went_back_behind_its_redis_closes_the_gate_and_the_next_epoch_is_above_both(
    agents: Agents, worker: Worker, psql: Psql, log: Log
) -> None:
    """Postgres was restored and names the same server: every flush would be refused, and agents would go on."""
    await flush(worker)
    key, at_first = agents.key_on(0), agents.meta(0)
    psql.execute("UPDATE shard SET epoch = epoch - 1 WHERE shard = 0")
    psql.execute("DELETE FROM epoch WHERE shard = 0")
    agents.commit(key)
    log.lines.clear()
    worker.refresh()
    await turn_until(worker, log, "epoch_opened")
    (epoch,) = log.of("epoch_opened")[0]["epochs"]
    assert epoch > int(at_first["epoch"])
    assert rows(psql, "SELECT epoch, replid FROM shard WHERE shard = 0") == [(epoch, at_first["replid"])]
    agents.commit(key)
    await flush(worker)
    assert rows(psql, "SELECT epoch, version, gap FROM change ORDER BY n") == [(1, 1, False), (epoch, 2, False)]
    assert agents.meta(0)["flushed"] == "2"


async def test_the_next_epoch_is_above_what_its_opener_has_met_where_both_tiers_were_put_back(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace, log: Log
) -> None:
    """Postgres' clock was ahead when that epoch began, and has been put right since."""

    def both_say(epoch: int, replid: str) -> None:
        redis_raw.delete(keys.changes(0))
        redis_raw.hset(keys.meta(0), mapping={"epoch": epoch, "replid": replid})
        psql.execute("UPDATE shard SET epoch = %s, replid = %s WHERE shard = 0", [epoch, replid])
        worker.refresh()

    await flush(worker)
    before = agents.meta(0)
    ahead = int(time()) + 1_000_000
    both_say(ahead, before["replid"])
    agents.commit(agents.key_on(0))
    await flush(worker)
    assert rows(psql, "SELECT epoch FROM change") == [(ahead,)]

    both_say(int(before["epoch"]), "a" * 40)
    log.lines.clear()
    await turn_until(worker, log, "epoch_opened")

    assert log.of("epoch_opened")[0]["epochs"] == [ahead + 1]


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize(("pages", "calls"), [(10_000, 500), (3, 2)])
async def test_forks_whose_acknowledgement_was_lost_are_removed_before_anybody_writes(
    agents: Agents, cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace,
    monkeypatch: pytest.MonkeyPatch, pages: int, calls: int, restarted: bool,
) -> None:  # fmt: skip
    """Postgres has set them aside; who reads one, even fenced, writes the next conflict on top of it.

    After a restart of Redis an agent may be first to open the gate; without one, the next owner looks.
    """
    monkeypatch.setattr(resync, "FORKS_MAX", pages)
    monkeypatch.setattr(deletion, "FORKS_PER_PAGE", pages)
    monkeypatch.setattr(acknowledgement, "FORKS_PER_ACK", calls)
    await flush(worker)
    group = agents.key_on(0)
    names = [f"{group}/{number}" for number in range(7)]
    for key in names:
        agents.commit((key, "truth"))
    await flush(worker)
    redis_raw.unlink(*map(keys.state, names))
    for key in (*names, names[0]):
        agents.commit((key, "fork"))
    _lose_the_next_acknowledgement(worker)
    await flush_through(worker, until=lambda: rows(psql, "SELECT count(*) FROM conflict") == [(8,)])
    if restarted:
        ((first,),) = rows(psql, "SELECT change_id FROM conflict ORDER BY n LIMIT 1")
        redis_raw.hset(keys.state(names[0]), "change_id", first)  # as in a data set that lacks the fork's last change
        _restart(psql, redis_raw, keys)
        assert (await cache.set(f"{group}/other", 1)).epoch > 1
    else:
        await flush(worker)
    assert agents.meta(0)["excepted"] == "15"
    assert [redis_raw.hget(keys.state(key), "value") for key in names] == [None] * 7
    assert [(await cache.set(key, "after")).version for key in names] == [2] * 7
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(8,)]


async def test_what_postgres_forgot_is_not_called_durable_until_it_holds_it_again(
    agents: Agents, cache: AsyncStateCache, worker: Worker, psql: Psql, log: Log, keys: KeySpace
) -> None:
    """Redis' copy of the watermark is what lies then: a new epoch begins with what Postgres says."""
    await flush(worker)
    group = agents.key_on(0)
    before = await cache.set(f"{group}/before", "before")
    await flush(worker)
    states = [await cache.set(f"{group}/{number}", number) for number in range(3)]
    await flush(worker)
    for state in states:
        assert await cache.wait_durable(state) == state
    _went_back(psql, 1)
    assert await cache.wait_durable(before) == before
    for state in states:
        with pytest.raises(OutcomeUnknown):
            await cache.wait_durable(state, timeout=0.2)
    worker.refresh()
    await turn_until(worker, log, "epoch_opened")
    epoch = int(agents.meta(0)["epoch"])
    (line,) = log.of("postgres_went_back")
    assert (line["shard"], line["acknowledged"], line["flushed"]) == (0, 4, 1)
    async with flushing(worker):
        for state in states:
            assert await cache.wait_durable(state, timeout=20) == state
    assert rows(psql, "SELECT n, epoch, version, gap FROM change ORDER BY n") == [(n, 1, 1, False) for n in range(1, 5)]
    assert rows(psql, "SELECT epoch, start_n FROM epoch WHERE shard = 0 ORDER BY epoch") == [(1, 0), (epoch, 4)]


async def test_a_postgres_of_before_two_restarts_of_redis_needs_nobody(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    """Idle shards too: Postgres holds nothing of them that Redis might lack."""
    await flush(worker)
    group = agents.key_on(0)
    for number in range(40):
        agents.commit((f"{group}/{number}", "kept"))
    await flush(worker)
    redis_raw.unlink(*(keys.state(f"{group}/{number}") for number in range(1, 40)))
    redis_raw.xtrim(keys.changes(0), maxlen=0, approximate=False)
    psql.execute("UPDATE shard SET replid = 'of then'")
    for shard in range(4):
        redis_raw.hset(keys.meta(shard), "epoch", 3)
    agents.commit((f"{group}/39/again", "since"))
    worker.refresh()
    await turn_until(worker, log, "gate_closed")
    assert "shard 0 is closed" in log.of("gate_closed")[0]["detail"], "the newest of its keys were evicted"
    assert rows(psql, "SELECT shard FROM shard WHERE epoch > 3 ORDER BY shard") == [(1,), (2,), (3,)]
    assert rows(psql, "SELECT epoch FROM shard WHERE shard = 0") == [(1,)]
    psql.execute("DELETE FROM change WHERE n > 1")
    psql.execute("UPDATE shard SET flushed = 1, entries = 1 WHERE shard = 0")
    await turn_until(worker, log, "postgres_went_back")
    assert rows(psql, "SELECT epoch > 3 FROM shard WHERE shard = 0") == [(True,)]


async def test_how_far_a_lost_tail_had_come_is_recorded_by_the_worker_that_saw_it(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    """Its last look at the old data set is all that anybody may know of it."""
    await flush(worker)
    key = agents.key_on(0)
    agents.commit((key, "kept"))
    await flush(worker)
    meta = redis_raw.hgetall(keys.meta(0))
    for value in ("lost", "lost too"):
        agents.commit((key, value))
    await worker.look()
    redis_raw.delete(keys.changes(0), keys.state(key))
    redis_raw.zrem(keys.unflushed(0), key)
    redis_raw.hset(keys.meta(0), mapping=meta)
    _restart(psql, redis_raw, keys)
    await flush(worker)
    epoch = int(agents.meta(0)["epoch"])
    assert log.of("lost_tail") == [{"alarm": True, "shard": 0, "epoch": epoch, "first": 2, "last": 3}]
    assert rows(psql, "SELECT epoch, first_n, last_n, cause, positions, keys, reported_by FROM lost") == [
        (epoch, 2, 3, "tail", 2, [], worker.id)
    ]
    agents.commit(agents.key_on(0, "jobs"))
    await flush(worker)
    assert rows(psql, "SELECT epoch, n FROM change ORDER BY n") == [(1, 1), (epoch, 2)], "n was issued again"


async def test_a_worker_that_may_not_record_what_was_lost_goes_on(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    await flush(worker)
    psql.execute("DROP FUNCTION report_lost")
    agents.commit(agents.key_on(0))
    await flush(worker)
    _restart(psql, redis_raw, keys)
    agents.commit(agents.key_on(1))
    await flush(worker)
    assert log.of("lost_tail_not_told")[0]["shards"] == [0]
    assert rows(psql, "SELECT count(*) FROM change") == [(2,)]


def _went_back(psql: Psql, flushed: int) -> None:
    """Make Postgres what it was when shard 0 was flushed up to there, at one byte a change."""
    psql.execute("DELETE FROM change WHERE shard = 0 AND n > %s", (flushed,))
    psql.execute("DELETE FROM state WHERE shard = 0 AND n > %s", (flushed,))
    psql.execute("UPDATE shard SET flushed = %s, entries = %s, bytes = %s WHERE shard = 0", (flushed,) * 3)


def _lose_the_next_acknowledgement(worker: Worker) -> None:
    """Make the connection to Redis break between COMMIT and acknowledgement."""
    acknowledge = worker.flusher.acknowledgement.tell

    async def lost(*_: Any, **__: Any) -> Any:
        worker.flusher.acknowledgement.tell = acknowledge  # type: ignore[method-assign]
        raise RedisUnavailable("connection", detail="it was cut")

    worker.flusher.acknowledgement.tell = lost  # type: ignore[method-assign]


def _restart(psql: Psql, redis_raw: Any, keys: KeySpace) -> None:
    """Make shard 0 what a restart without loss leaves: row and meta name a replid that is the server's no more."""
    psql.execute("UPDATE shard SET replid = 'before' WHERE shard = 0")
    redis_raw.hset(keys.meta(0), "replid", "before")

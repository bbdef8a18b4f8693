"""Who may flush and acknowledge: one owner, one epoch, one server, one watermark; whoever is late changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.errors import RedisUnavailable
from statecache.keys import KeySpace
from statecache.lua import script
from statecache.settings import masked
from statecache.sql import statement
from statecache_workers.postgres_arrays import integers, register
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flush_through, flushed, rows, turn_until
from tests.fixtures.servers import every_redis

Psql = psycopg.Connection[Any]
LOCKED_S = 20.0


def _once_before(patch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[[], Awaitable[None]]) -> None:
    """Run an action just before a method runs for the first time."""
    real, left = getattr(owner, name), [action]

    async def meddled(*args: Any, **more: Any) -> Any:
        while left:
            await left.pop()()
        return await real(*args, **more)

    patch.setattr(owner, name, meddled)


@pytest.mark.parametrize("taken", ["epoch = epoch + 1, replid = 'elsewhere'", "replid = 'elsewhere'"])
async def test_a_fenced_flusher_drops_its_batch_and_the_other_shards_go_on(
    agents: Agents,
    worker: Worker,
    psql: Psql,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    taken: str,
) -> None:
    """The epoch is taken by another server between the read and the write: this one is an old primary."""
    await flush(worker)
    fenced, other = agents.key_on(0), agents.key_on(1)
    agents.commit(fenced)
    agents.commit(other)

    async def promoted_elsewhere() -> None:
        psql.execute(f"UPDATE shard SET {taken} WHERE shard = 0".encode())

    _once_before(monkeypatch, worker.flusher.batches, "write", promoted_elsewhere)
    await turn_until(worker, log, "gate_closed")
    assert rows(psql, "SELECT key FROM change") == [(other,)]
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]
    assert agents.meta(0)["flushed"] == "0"
    assert log.of("fenced") == [{"shard": 0, "dropped": 1}]
    (closed,) = log.of("gate_closed")[:1]
    assert closed["alarm"]
    assert masked(settings.redis_url) in closed["detail"]
    assert masked(settings.postgres_url) in closed["detail"]
    agents.commit(other)
    for _ in range(20):
        await worker.turn()
    assert rows(psql, "SELECT count(*) FROM change") == [(2,)]


def _restart(agents: Agents, psql: Psql, shard: int) -> None:
    """Make a shard look as after a restart: its data set names a replid that is no longer the server's."""
    agents.raw.hset(agents.keys.meta(shard), "replid", "f" * 40)
    psql.execute("UPDATE shard SET replid = %s WHERE shard = %s", ("f" * 40, shard))


async def test_entries_of_older_epochs_are_ancestors_and_are_flushed(
    agents: Agents, make_worker: MakeWorker, psql: Psql, log: Log
) -> None:
    key = agents.key_on(0)
    agents.commit(key)
    _restart(agents, psql, 0)
    worker = make_worker()
    await turn_until(worker, log, "epoch_opened")
    await flush(worker)
    agents.commit(key)
    _restart(agents, psql, 0)
    log.lines.clear()
    later = make_worker()
    await worker.leave()
    agents.raw.hset(agents.keys.meta(0), "flushed", "0")
    psql.execute("UPDATE shard SET flushed = 0, entries = 0, bytes = 0")
    psql.execute("TRUNCATE change, state")
    await turn_until(later, log, "epoch_opened")
    await flush(later)
    agents.commit(key)
    await flush(later)
    epochs = [epoch for (epoch,) in rows(psql, "SELECT epoch FROM epoch WHERE shard = 0 ORDER BY epoch")]
    assert rows(psql, "SELECT epoch, n, version, gap FROM change ORDER BY n") == [
        (epoch, n, n, False) for n, epoch in enumerate(epochs, start=1)
    ]
    assert len(epochs) == 3


async def test_two_workers_on_one_shard_write_every_change_once(
    agents: Agents, make_worker: MakeWorker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner is slow: its lease ends while it holds a batch, and another takes the shards and flushes them."""
    slow, quick = make_worker(), make_worker()
    await flush(slow)
    for i in range(20):
        agents.commit((f"runs/{i % 3}", str(i)))

    async def taken_over() -> None:
        psql.execute("UPDATE shard SET lease_until = now() - interval '1 second'")
        psql.execute("DELETE FROM worker")
        await flush(quick)

    _once_before(monkeypatch, slow.flusher.batches, "write", taken_over)
    await slow.turn()
    assert rows(psql, "SELECT count(*), bool_or(gap) FROM change") == [(20, False)]
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]
    assert sum(flushed(psql).values()) == 20


async def test_a_worker_whose_shard_another_has_taken_writes_nothing(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other has not flushed yet, so the watermark alone would let it."""
    await flush(worker)
    agents.commit("runs/1")

    async def taken() -> None:
        psql.execute("UPDATE shard SET owner = 'other', lease_until = now() + interval '1 hour'")

    _once_before(monkeypatch, worker.flusher.batches, "write", taken)
    await worker.turn()
    assert rows(psql, "SELECT count(*) FROM change") == [(0,)]
    await worker.turn()
    assert worker.holdings == {}


async def test_a_zombie_with_old_entries_does_not_resurrect_a_deleted_key(
    agents: Agents, make_worker: MakeWorker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner id is even the right one again; the watermark is not where it left it."""
    zombie, quick = make_worker(), make_worker()
    await flush(zombie)
    agents.commit("runs/1")

    async def meanwhile() -> None:
        psql.execute("UPDATE shard SET lease_until = now() - interval '1 second'")
        psql.execute("DELETE FROM worker")
        agents.commit({"key": "runs/1", "op": "delete", "value": ""})
        await flush(quick)
        psql.execute("UPDATE shard SET owner = %s", (zombie.id,))

    _once_before(monkeypatch, zombie.flusher.batches, "write", meanwhile)
    await zombie.turn()
    assert rows(psql, "SELECT version, op FROM state") == [(2, "delete")]
    assert rows(psql, "SELECT count(*) FROM change") == [(2,)]
    assert sum(flushed(psql).values()) == 2, "the watermark never goes back"
    agents.commit("runs/1")
    await flush_through(zombie)
    assert rows(psql, "SELECT version, op FROM state") == [(3, "set")]


@every_redis
async def test_a_late_acknowledgement_changes_nothing(agents: Agents, redis_raw: Any, keys: KeySpace) -> None:
    key = agents.key_on(0)
    for _ in range(3):
        agents.commit(key)
    names = [keys.meta(0), keys.events(0), keys.state(key)]
    before = (agents.meta(0), agents.dirty(0))
    meta, change_id = before[0], redis_raw.hget(keys.state(key), "change_id")

    def acknowledge(epoch: int, replid: str, n: int) -> int:
        numbers = [epoch, replid, n, n, n, 0]
        return int(redis_raw.eval(script("ack").text, 3, *names, *numbers, change_id))

    assert acknowledge(0, meta["replid"], 3) == 0, "of another lineage with the same n"
    assert acknowledge(2, meta["replid"], 3) == 0, "of an epoch that this data set does not know"
    assert acknowledge(1, "a" * 40, 3) == 0, "of another server"
    assert acknowledge(1, meta["replid"], 4) == 0, "beyond what this data set holds"
    assert (agents.meta(0), agents.dirty(0)) == before
    assert redis_raw.exists(keys.state(key))
    assert acknowledge(1, meta["replid"], 2) == 1
    assert acknowledge(1, meta["replid"], 1) == 1
    assert (agents.meta(0)["flushed"], agents.dirty(0)) == ("2", {key})


@every_redis
async def test_an_acknowledgement_touches_no_state_but_a_fork_that_still_stands(
    agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    """Any write to a state's key would abort a transaction that watches it."""
    agents.commit("runs/1")
    with redis_raw.pipeline() as pipe:
        pipe.watch(keys.state("runs/1"))
        await flush(worker)
        pipe.multi()
        pipe.set(f"{keys.prefix}-witness", 1, px=1000)
        assert pipe.execute() == [True]
    assert redis_raw.ttl(keys.state("runs/1")) == -1


async def test_a_new_owner_acknowledges_first_what_a_dead_one_had_committed(
    agents: Agents, make_worker: MakeWorker, psql: Psql, monkeypatch: pytest.MonkeyPatch, redis_raw: Any, keys: KeySpace
) -> None:
    """The owner dies between COMMIT and acknowledgement, and the shard then goes idle: waiters must not hang."""
    dead, heir = make_worker(), make_worker()
    await flush(dead)
    key = agents.key_on(2)
    agents.commit(key)

    async def killed(*_: Any) -> list[int]:
        raise RedisUnavailable("killed")

    monkeypatch.setattr(dead.flusher.acknowledgement, "tell", killed)
    with pytest.raises(RedisUnavailable):
        await flush(dead)
    psql.execute("UPDATE shard SET lease_until = now() - interval '1 second'")
    psql.execute("DELETE FROM worker")
    assert (agents.meta(2)["flushed"], agents.dirty(2)) == ("0", {key})
    listener = redis_raw.pubsub()
    listener.ssubscribe(keys.events(2))
    assert listener.get_message(timeout=30)["type"] == "ssubscribe"
    await flush(heir)
    assert (agents.meta(2)["flushed"], agents.dirty(2)) == ("1", set())
    assert listener.get_message(timeout=30)["data"].startswith(b"1 1 0 ")
    listener.close()


async def test_a_new_owner_takes_back_the_forks_that_a_dead_one_had_committed(
    agents: Agents, make_worker: MakeWorker, psql: Psql, monkeypatch: pytest.MonkeyPatch, redis_raw: Any, keys: KeySpace
) -> None:
    dead, heir = make_worker(), make_worker()
    agents.commit("runs/1")
    await flush(dead)
    redis_raw.delete(keys.state("runs/1"))
    agents.commit("runs/1", change_id="f" * 24)

    async def killed(*_: Any) -> list[int]:
        raise RedisUnavailable("killed")

    monkeypatch.setattr(dead.flusher.acknowledgement, "tell", killed)
    with pytest.raises(RedisUnavailable):
        await flush(dead)
    await dead.leave()
    assert rows(psql, "SELECT change_id, cause FROM conflict") == [("f" * 24, "behind")]
    assert redis_raw.exists(keys.state("runs/1"))
    await flush(heir)
    assert not redis_raw.exists(keys.state("runs/1"))
    assert agents.meta(keys.shard("runs/1"))["excepted"] == "2"


async def test_epoch_and_server_are_asked_for_before_the_entries(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is wiped just after the read, and the shard opened anew: what was read is not of the new epoch."""
    await flush(worker)
    key = agents.key_on(0)
    agents.commit(key)
    order = _wiped_after_read(monkeypatch, agents, worker, 1, key)
    await worker.turn()
    assert order[:2] == ["heads", "entries"]
    assert rows(psql, "SELECT count(*) FROM change") == [(0,)]
    assert agents.meta(0)["flushed"] == "0"
    await flush_through(worker)
    assert rows(psql, "SELECT change_id, epoch > 1, n FROM change") == [("a" * 24, True, 1)]


async def test_epoch_and_server_are_asked_for_before_the_entries_that_are_read_ahead(
    agents: Agents, make_worker: MakeWorker, psql: Psql, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """The same while another shard's batch is written: nothing else of the shard is under way that could tell."""
    worker = make_worker(settings.model_copy(update={"flush_batch_max": 2}))
    await flush(worker)
    for _ in range(2):
        agents.commit(agents.key_on(1))

    async def next_is_another_shard() -> None:
        agents.commit(agents.key_on(0))

    _once_before(monkeypatch, worker.flusher.batches, "write", next_is_another_shard)
    _wiped_after_read(monkeypatch, agents, worker, 2, agents.key_on(0))
    await flush_through(worker)
    assert rows(psql, "SELECT change_id, epoch > 1, n FROM change WHERE shard = 0") == [("a" * 24, True, 1)]
    assert rows(psql, "SELECT count(*) FROM change WHERE shard = 1") == [(2,)]


def _wiped_after_read(patch: pytest.MonkeyPatch, agents: Agents, worker: Worker, number: int, key: str) -> list[str]:
    """Wipe shard 0, open it anew and commit, just after that many reads of entries; return the order of the reads."""
    order: list[str] = []
    keys, streams = agents.keys, worker.flusher.streams
    look, read = streams.heads, streams.read

    async def noted_look(*args: Any) -> Any:
        order.append("heads")
        return await look(*args)

    async def read_then_wiped(*args: Any) -> Any:
        order.append("entries")
        found = await read(*args)
        if order.count("entries") == number:
            agents.raw.delete(keys.meta(0), keys.changes(0), keys.unflushed(0), keys.hydrating(0), keys.state(key))
            await worker.gatekeeper._opened([0])
            agents.commit(key, change_id="a" * 24)
        return found

    patch.setattr(streams, "heads", noted_look)
    patch.setattr(streams, "read", read_then_wiped)
    return order


@pytest.mark.parametrize(
    ("name", "owner"), [("flush_lock", "me"), ("shards_renew", "me"), ("shards_give", "me"), ("shards_take", None)]
)
async def test_nobody_waits_for_a_row_that_somebody_holds(
    psql: Psql, settings: Settings, name: str, owner: str | None
) -> None:
    """What is left out of the answer is left as it is."""
    psql.execute("UPDATE shard SET owner = %s", (owner,))
    query = statement(name, settings.postgres_schema).encode()
    asked = {"shards": integers([3, 2, 1, 0]), "owner": "me", "room": 4, "avoid": integers([]), "never": integers([])}
    asked["lease"] = timedelta(seconds=5)
    with psycopg.connect(settings.postgres_url) as holder:
        holder.execute(f'SELECT FROM "{settings.postgres_schema}".shard WHERE shard = 2 FOR UPDATE'.encode())
        asker = await psycopg.AsyncConnection.connect(settings.postgres_url)
        register(asker)
        await asker.execute("SET lock_timeout = '1s'")
        done = await asker.execute(query, asked)
        got = sorted(row[0] for row in await done.fetchall() if row[1] is not None) if done.description else [0, 1, 3]
        await asker.commit()
        await asker.close()
    assert got == [0, 1, 3]
    expected = {"flush_lock": "me", "shards_renew": "me", "shards_give": None, "shards_take": "me"}[name]
    assert rows(psql, "SELECT shard, owner FROM shard ORDER BY shard") == [
        (shard, owner if shard == 2 else expected) for shard in range(4)
    ]


async def test_dead_workers_leave_no_rows_behind(worker: Worker, psql: Psql, log: Log) -> None:
    psql.execute("INSERT INTO worker VALUES ('dead', 'h', 1, now(), now() - interval '1 hour')")
    psql.execute("INSERT INTO worker VALUES ('alive', 'h', 2, now(), now() + interval '1 hour')")
    psql.execute("UPDATE shard SET owner = 'dead', lease_until = now() - interval '1 hour'")
    await flush(worker)
    assert {row[0] for row in rows(psql, "SELECT id FROM worker")} == {worker.id, "alive"}
    assert log.of("reaped") == [{"workers": ["dead"]}]
    assert rows(psql, "SELECT count(*) FROM shard WHERE owner = 'dead'") == [(2,)], "half is the other worker's part"


async def test_a_worker_that_lost_its_shards_lets_go_of_them(agents: Agents, worker: Worker, psql: Psql) -> None:
    await flush(worker)
    psql.execute("UPDATE shard SET owner = 'other', lease_until = now() + interval '1 hour' WHERE shard < 3")
    agents.commit(agents.key_on(0))
    worker.refresh()
    await worker.turn()
    assert set(worker.holdings) == {3}
    assert rows(psql, "SELECT count(*) FROM change") == [(0,)]

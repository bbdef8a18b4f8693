"""A worker that cannot serve its shards gives them up to the others, and leaves them alone for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.concurrency import THREADS, run
from statecache.core.epoch.gate import Gate
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.tier import RedisTier
from statecache.errors import RedisUnavailable, Unavailable
from statecache.keys import KeySpace
from statecache.testing.binaries import valkey_server
from statecache.testing.valkey import Valkey
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flushed, rows
from tests.fixtures.servers import MakeSettings, plain_client

Psql = psycopg.Connection[Any]

BOUND_S = 20.0


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given up is avoided for a moment only."""
    monkeypatch.setattr("statecache_workers.avoided_shards.AVOID_S", 0.3)


QUICK = {"lease_s": 0.6, "lease_renew_s": 0.1, "reservation_s": 0.3}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Valkey, Valkey]]:
    """A primary and its replica."""
    with contextlib.ExitStack() as ending:
        old = Valkey(tmp_path, binary=valkey_server(), name="old", config={"repl-diskless-sync": "no"})
        ending.callback(old.discard)
        old.start()
        new = old.replica("new")
        ending.callback(new.discard)
        new.start()
        yield old, new


async def _moment() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.02):
            await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def working(*workers: Worker) -> AsyncIterator[None]:
    """Let workers work as their processes do, through outages."""

    async def work(worker: Worker) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                if not await worker.turn():
                    await worker.rest()
                continue
            await _moment()

    tasks = [asyncio.create_task(work(one)) for one in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _until(told: Any, *, seconds: float = BOUND_S) -> None:
    async with asyncio.timeout(seconds):
        while not told():
            await _moment()


def _failed_over(settings: Settings, old: Valkey, new: Valkey) -> Settings:
    """Promote the replica, open all gates there, and give the settings that lead to it."""
    with plain_client(old.url) as raw:
        raw.set("in-step", "1")
        assert raw.wait(1, 10_000) == 1
    with plain_client(new.url) as raw:
        raw.execute_command("REPLICAOF", "NO", "ONE")
    there = settings.model_copy(update={"redis_url": new.url})
    keys = KeySpace(settings.prefix, settings.shards)
    link = run(RedisTier(there, keys, io=THREADS).link())
    session = run(PostgresTier(there, keys, io=THREADS).session())
    run(Gate(there, keys, by="an agent", authority="client").open(link, session.connection, range(keys.shards)))
    run(link.close())
    run(session.close())
    return there


async def test_a_forgotten_worker_that_still_points_at_the_old_primary_holds_no_shards(
    make_settings: MakeSettings, make_worker: MakeWorker, pair: tuple[Valkey, Valkey], site: Any, log: Log
) -> None:
    old, new = pair
    here = make_settings(redis_url=old.url, **QUICK)
    there = _failed_over(here, old, new)
    forgotten, good = make_worker(here), make_worker(there)
    path = f"-c search_path={here.postgres_schema}"
    with (
        plain_client(new.url) as raw,
        psycopg.connect(site.postgres_url, autocommit=True, options=path) as psql,
    ):
        agents = Agents(there, good.keys, raw)
        async with working(forgotten, good):
            await _until(lambda: forgotten.holdings and good.holdings)
            for shard in range(4):
                agents.commit(agents.key_on(shard))
            await _until(lambda: flushed(psql) == dict.fromkeys(range(4), 1))
            assert not forgotten.holdings
            assert set(good.holdings) == {0, 1, 2, 3}
            (told,) = rows(psql, "SELECT avoids, trouble FROM worker WHERE id = %s", forgotten.id)
            assert told[0] > 0
            assert "operator's word" in told[1]
            await _until(lambda: len(log.of("still_avoided")) > 1)
            assert not forgotten.holdings
    assert {shard for line in log.of("given_up") for shard in line["shards"]} <= {0, 1, 2, 3}


async def test_a_worker_that_may_not_acknowledge_gives_its_shards_up(
    agents: Agents, make_worker: MakeWorker, settings: Settings, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with rights that were taken away: every turn ends with an outage, and every turn begins with a renewal."""
    quick = settings.model_copy(update=QUICK)
    hindered, good = make_worker(quick), make_worker(quick)
    trouble = "SELECT trouble FROM worker WHERE id = %s"

    async def refused(*_: Any) -> Any:
        raise RedisUnavailable("refused", detail="NOPERM this user may not run evalsha")

    monkeypatch.setattr(hindered.flusher.acknowledgement, "tell", refused)
    async with working(hindered, good):
        await _until(lambda: any("NOPERM" in told for (told,) in rows(psql, trouble, hindered.id)))
        await _until(lambda: set(good.holdings) == {0, 1, 2, 3})
        for shard in range(4):
            agents.commit(agents.key_on(shard))
        await _until(lambda: all(agents.meta(shard)["flushed"] == "1" for shard in range(4)))
    assert "NOPERM" in rows(psql, trouble, hindered.id)[0][0]


async def test_alone_it_keeps_trying(
    make_settings: MakeSettings, make_worker: MakeWorker, pair: tuple[Valkey, Valkey], log: Log
) -> None:
    old, new = pair
    here = make_settings(redis_url=old.url, **QUICK)
    _failed_over(here, old, new)
    alone = make_worker(here)
    async with working(alone):
        await _until(lambda: len(log.of("gate_closed")) > 2)
        assert set(alone.holdings) == {0, 1, 2, 3}
    assert log.of("given_up") == []


async def test_what_nobody_else_takes_is_taken_again(
    agents: Agents, make_worker: MakeWorker, settings: Settings, psql: Psql, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    """Both were hindered and gave everything up; once they are not, nobody waits for the other."""
    quick = settings.model_copy(update=QUICK)
    both = [make_worker(quick), make_worker(quick)]
    hindered = True
    for worker in both:
        acknowledge = worker.flusher.acknowledgement.tell

        async def refused(*args: Any, through: Any = acknowledge) -> Any:
            if hindered:
                raise RedisUnavailable("refused", detail="NOPERM")
            return await through(*args)

        monkeypatch.setattr(worker.flusher.acknowledgement, "tell", refused)
    async with working(*both):
        await _until(lambda: log.of("given_up"))
        hindered = False
        for shard in range(4):
            agents.commit(agents.key_on(shard))
        await _until(lambda: flushed(psql) == dict.fromkeys(range(4), 1))


async def test_a_worker_that_serves_tells_of_no_trouble(worker: Worker, psql: Psql) -> None:
    await flush(worker)
    assert rows(psql, "SELECT avoids, trouble FROM worker") == [(0, "")]

"""A worker that cannot serve its shards gives them up to the others, and leaves them alone for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.errors import RedisUnavailable
from statecache.testing.valkey import Valkey
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flushed, rows
from tests.fixtures.servers import MakeSettings, plain_client
from tests.support.failed_over import QUICK, failed_over, old_and_new, until, working

Psql = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given up is avoided for a moment only."""
    monkeypatch.setattr("statecache_workers.avoided_shards.AVOID_S", 0.3)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Valkey, Valkey]]:
    """A primary and its replica."""
    with old_and_new(tmp_path) as servers:
        yield servers


async def test_a_forgotten_worker_that_still_points_at_the_old_primary_holds_no_shards(
    make_settings: MakeSettings, make_worker: MakeWorker, pair: tuple[Valkey, Valkey], site: Any, log: Log
) -> None:
    old, new = pair
    here = make_settings(redis_url=old.url, **QUICK)
    there = failed_over(here, old, new)
    forgotten, good = make_worker(here), make_worker(there)
    path = f"-c search_path={here.postgres_schema}"
    with (
        plain_client(new.url) as raw,
        psycopg.connect(site.postgres_url, autocommit=True, options=path) as psql,
    ):
        agents = Agents(there, good.keys, raw)
        async with working(forgotten, good):
            await until(lambda: forgotten.holdings and good.holdings)
            for shard in range(4):
                agents.commit(agents.key_on(shard))
            await until(lambda: flushed(psql) == dict.fromkeys(range(4), 1))
            assert not forgotten.holdings
            assert set(good.holdings) == {0, 1, 2, 3}
            (told,) = rows(psql, "SELECT avoids, trouble FROM worker WHERE id = %s", forgotten.id)
            assert told[0] > 0
            assert "operator's word" in told[1]
            await until(lambda: len(log.of("still_avoided")) > 1)
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
        await until(lambda: any("NOPERM" in told for (told,) in rows(psql, trouble, hindered.id)))
        await until(lambda: set(good.holdings) == {0, 1, 2, 3})
        for shard in range(4):
            agents.commit(agents.key_on(shard))
        await until(lambda: all(agents.meta(shard)["flushed"] == "1" for shard in range(4)))
    assert "NOPERM" in rows(psql, trouble, hindered.id)[0][0]


async def test_alone_it_keeps_trying(
    make_settings: MakeSettings, make_worker: MakeWorker, pair: tuple[Valkey, Valkey], log: Log
) -> None:
    old, new = pair
    here = make_settings(redis_url=old.url, **QUICK)
    failed_over(here, old, new)
    alone = make_worker(here)
    async with working(alone):
        await until(lambda: len(log.of("gate_closed")) > 2)
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
        await until(lambda: log.of("given_up"))
        hindered = False
        for shard in range(4):
            agents.commit(agents.key_on(shard))
        await until(lambda: flushed(psql) == dict.fromkeys(range(4), 1))


async def test_a_worker_without_shards_tells_of_no_trouble_once_it_is_over(
    make_settings: MakeSettings, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = make_settings(shards=1, **QUICK)
    workers = [make_worker(quick), make_worker(quick)]
    path = f"-c search_path={quick.postgres_schema}"

    async def refused() -> Any:
        raise RedisUnavailable("connection", detail="Connection refused")

    async with working(*workers):
        await until(lambda: any(one.holdings for one in workers) and all(one.ready for one in workers))
        (spare,) = (one for one in workers if not one.holdings)
        with psycopg.connect(quick.postgres_url, autocommit=True, options=path) as psql:
            with monkeypatch.context() as away:
                away.setattr(spare, "connect", refused)
                await until(lambda: "refused" in spare.trouble)
            told = "SELECT trouble FROM worker WHERE id = %s"
            await until(lambda: "refused" in rows(psql, told, spare.id)[0][0])
            await until(lambda: rows(psql, told, spare.id) == [("",)])


async def test_a_worker_that_serves_tells_of_no_trouble(worker: Worker, psql: Psql) -> None:
    await flush(worker)
    assert rows(psql, "SELECT avoids, trouble FROM worker") == [(0, "")]


@pytest.mark.parametrize(("long", "shown"), [(1000, "x" * 1000), (1001, "x" * 999 + "…")])
async def test_what_hinders_a_worker_is_marked_where_it_is_cut_off(
    make_worker: MakeWorker, psql: Psql, long: int, shown: str
) -> None:
    worker = make_worker()
    _, database = await worker.connect()
    await worker.ownership.tend(database, trouble="x" * long)
    assert rows(psql, "SELECT trouble FROM worker") == [(shown,)]

"""Postgres is down, or paused, or restored to what it held earlier, while Redis goes on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from statecache import Settings
from statecache.cli.status.sample import Sample, Sampler
from statecache.clock import monotonic
from statecache.errors import PostgresUnavailable, Unavailable
from statecache.rules.epochs import Authority
from statecache.testing import servers
from statecache.testing.embedded import Servers
from statecache_workers.worker import Worker
from tests.fixtures.servers import MakeSettings
from tests.support.command_line import CommandLine
from tests.support.dirtiness import dirty_keys
from tests.support.gate_world import World, once, world
from tests.support.postgres_backup import Backup

pytestmark = pytest.mark.counts_seconds

KEY = "runs/42"


@pytest.fixture(scope="module")
def tiers() -> Iterator[Servers]:
    """A Postgres of these tests' own, beside a Redis that they do not need."""
    with servers(workers=0, migrate=False, fsync=False) as started:
        yield started


@pytest.fixture
def shard(tiers: Servers, make_settings: MakeSettings, tmp_path: Path) -> Iterator[World]:
    """One shard on it."""
    with world(partial(make_settings, postgres_url=tiers.postgres_url), tmp_path) as made:
        yield made


@pytest.fixture
def standby(tiers: Servers) -> Iterator[Callable[[], None]]:
    """What makes this Postgres come back as a standby, as a former primary does; it is a primary again afterwards."""
    data = tiers.folder / "postgres" / "data"
    sign = data / "standby.signal"

    def come_back() -> None:
        tiers.stop("postgres")
        sign.touch()
        shutil.chown(sign, data.stat().st_uid, data.stat().st_gid)
        tiers.restart("postgres")

    yield come_back
    tiers.stop("postgres")
    sign.unlink(missing_ok=True)
    tiers.restart("postgres")


def test_writes_wait_for_their_epoch_and_reads_too_while_postgres_is_down(tiers: Servers, shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    before = shard.put(a, KEY, "before")
    a.restart()
    tiers.stop("postgres")

    agent = shard.client(a, writer="of a new agent")
    started = monotonic()
    with pytest.raises(Unavailable) as refused:
        agent.set(KEY, "no better than lost", timeout=2)
    assert refused.value.reason == "epoch"
    assert monotonic() - started < 5
    with pytest.raises(Unavailable) as refused:
        agent.get(KEY, timeout=2)
    assert refused.value.reason == "epoch"
    assert shard.client(a, stale_reads=True).get(KEY) == before

    tiers.restart("postgres")
    after = agent.set(KEY, "after")
    assert (after.epoch > before.epoch, after.version) == (True, 2)
    shard.check(a)


@pytest.mark.parametrize("redis", ["holds it", "has forgotten it", "holds another"])
def test_a_postgres_that_was_restored_to_before_two_restarts_is_overtaken_by_what_redis_holds(
    tiers: Servers, shard: World, tmp_path: Path, redis: str
) -> None:
    """The row names a server that the data set has forgotten. The new epoch lies above the row's and both of Redis."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.put(a, "runs/43", 1)
    shard.flush(a)
    backup = Backup(tiers, tmp_path)
    for number in (2, 3):
        a.restart()
        shard.open(a, "client")
        shard.put(a, KEY, number)
    shard.flush(a)
    unflushed = shard.put(a, "runs/44", 1)
    backup.put_back()
    assert (shard.row().epoch, shard.row().flushed) == (1, 2)
    newest = int(shard.meta(a)["epoch"])
    held = shard.keys.state(KEY), shard.keys.state("runs/43"), shard.keys.changes(0)
    if redis == "has forgotten it":
        for name in held:
            shard.raw(a).rename(name, f"evicted-{name}")
    elif redis == "holds another":
        shard.sql("UPDATE change SET change_id = 'another' WHERE key = %s", "runs/43")

    refused_by: list[Authority] = ["client"] if redis == "holds it" else ["client", "worker"]
    for authority in refused_by:
        with pytest.raises(Unavailable) as refused:
            shard.open(a, authority)
        assert f"holds epoch {newest} of" in refused.value.detail
        assert "Postgres says epoch 1 of" in refused.value.detail
    if redis == "holds another":
        return
    for name in held if redis == "has forgotten it" else ():
        shard.raw(a).rename(f"evicted-{name}", name)
    (opened,) = shard.open(a, "worker")

    assert [epoch for epoch, _ in shard.epochs()] == [1, opened.epoch]
    assert opened.epoch > newest > 1
    assert (opened.start_n, opened.dropped, opened.conflicts) == (5, 1, 0), (
        "one state was flushed, and may have been loaded"
    )
    shard.check(a)
    again = shard.put(a, KEY, 4)
    assert again.version == 4
    assert shard.flush(a) == 4  # what was flushed after the backup is still in the stream
    assert len(shard.chain(KEY)) == 4
    assert shard.chain("runs/44") == [unflushed.change_id]
    shard.check(a)


def test_a_restored_postgres_that_knows_the_server_is_overtaken_by_whoever_comes(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    """The same server was opened anew since (its meta was lost): the data set still names the row's replid."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    backup = Backup(tiers, tmp_path)
    shard.raw(a).delete(shard.keys.meta(0))
    shard.open(a)
    shard.put(a, KEY, 2)
    shard.flush(a)
    shard.put(a, KEY, 3)
    backup.put_back()
    newest = int(shard.meta(a)["epoch"])
    assert newest > shard.row().epoch == 1

    (opened,) = shard.open(a, "worker")
    assert opened.epoch > newest
    assert [epoch for epoch, _ in shard.epochs()] == [1, opened.epoch]
    shard.check(a)
    shard.put(a, KEY, 4)
    assert shard.flush(a) == 3
    assert len(shard.chain(KEY)) == 4
    shard.check(a)


def test_what_postgres_forgot_is_dirty_again_when_the_gate_opens(tiers: Servers, shard: World, tmp_path: Path) -> None:
    a = shard.start("a")
    shard.open(a)
    backup = Backup(tiers, tmp_path)
    shard.put(a, KEY, 1)
    shard.put(a, "runs/43", 1)
    shard.flush(a)
    assert dirty_keys(shard.raw(a), shard.keys, 0) == {}
    backup.put_back()
    a.restart()

    shard.open(a, "client")
    shard.check(a)
    assert dirty_keys(shard.raw(a), shard.keys, 0) == {KEY: 1, "runs/43": 2}
    assert shard.flush(a) == 2
    shard.check(a)


def test_an_agents_next_epoch_is_above_what_it_has_met_where_the_clock_was_ahead_and_both_tiers_were_put_back(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    """The clock has been put right since: neither it nor what was put back says how far the numbers had come."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "kept")
    shard.flush(a)
    backup, data_set = Backup(tiers, tmp_path), {name: shard.raw(a).dump(name) for name in shard.raw(a).scan_iter()}
    a.restart()
    shard.sql("UPDATE shard SET epoch = epoch + 10000000000 RETURNING epoch")
    agent = shard.client(a)
    gone = agent.set(KEY, "gone")
    shard.flush(a)
    assert agent.wait_durable(gone) == gone
    backup.put_back()
    shard.raw(a).flushall()
    for name, dumped in data_set.items():
        shard.raw(a).restore(name, 0, dumped)
    a.restart()

    assert agent.set("runs/43", "in the new lineage").epoch == gone.epoch + 1
    found = agent.get(KEY)
    assert found is not None
    assert found.value == "kept"
    assert [one.change_id for one in agent.lost()] == [gone.change_id]


def test_a_claimer_whom_postgres_fails_leaves_the_gate_to_the_next(tiers: Servers, shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    a.restart()
    agent = shard.client(a, writer="of a new agent")
    with pytest.raises(psycopg.OperationalError):
        shard.open(a, "client", tap=once("before begin_epoch", lambda: tiers.kill("postgres")))
    tiers.restart("postgres")
    assert agent.set(KEY, 2).version == 2
    shard.check(a)


def test_a_postgres_that_is_silent_costs_a_writer_no_more_than_its_time(tiers: Servers, shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    agent = shard.client(a, writer="of another agent")
    assert agent.get("runs/unheard-of") is None  # so it has a connection to Postgres
    a.restart()
    with pytest.raises(Unavailable, match="older state"):
        agent.get(KEY, timeout=1)  # so its connection to Redis is a new one
    tiers.pause("postgres")
    try:
        started = monotonic()
        with pytest.raises(Unavailable) as refused:
            agent.set(KEY, 2, timeout=1)
        assert refused.value.reason == "epoch"
        assert monotonic() - started < 4
        started = monotonic()
        with pytest.raises(Unavailable) as refused:
            agent.get(KEY, timeout=1)
        assert refused.value.reason == "epoch"
        assert monotonic() - started < 4
    finally:
        tiers.resume("postgres")
    assert agent.set(KEY, 2).version == 2
    shard.check(a)


@pytest.mark.parametrize("options", ["", "?options=-cdefault_transaction_isolation%3Dserializable"])
def test_a_postgres_that_came_back_as_a_standby_is_neither_read_nor_written(
    tiers: Servers, shard: World, standby: Callable[[], None], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], options: str,
) -> None:  # fmt: skip
    """What it holds may be long outdated: a hydration from it would bring that back.

    A standby refuses each query of a transaction that is serializable, as it may be by default.
    """
    url = f"{tiers.postgres_url}{options}"
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "before")
    shard.flush(a)
    agent = shard.client(a, writer="of an agent", postgres_url=url)
    assert shard.raw(a).unlink(shard.keys.state(KEY)) == 1
    standby()
    with pytest.raises(PostgresUnavailable, match="it is a standby") as refused:
        agent.get(KEY, timeout=3)
    assert refused.value.reason == "standby"
    assert "target_session_attrs=primary" in refused.value.hint
    assert not shard.raw(a).exists(shard.keys.state(KEY))
    assert shard.raw(a).hkeys(shard.keys.hydrating(0)) == ["_"]
    with pytest.raises(PostgresUnavailable, match="it is a standby"):
        shard.open(a, "client", postgres_url=url)
    with pytest.raises(PostgresUnavailable, match="it is a standby"):
        asyncio.run(_turned(shard.on(a, postgres_url=url)))
    looked = asyncio.run(_looked(shard.on(a, postgres_url=url)))
    assert (looked.postgres.reachable, looked.postgres.role) == (True, "standby")
    cli = CommandLine(shard.on(a, postgres_url=url), monkeypatch, capsys)
    assert "this is a standby" in cli("doctor").out
    assert "whole" in cli("verify").out


async def _turned(settings: Settings) -> None:
    worker = Worker(settings)
    try:
        await worker.turn()
    finally:
        await worker.close()


async def _looked(settings: Settings) -> Sample:
    sampler = Sampler(settings, patience_s=5.0)
    try:
        return await sampler.take()
    finally:
        await sampler.close()


def test_a_standby_behind_a_connection_that_stands_is_not_read_either(tiers: Servers, shard: World) -> None:
    """As behind a pooler, which may change servers; what says that this one is a standby is a stand-in."""
    a = shard.start("a")
    shard.open(a)
    schema = shard.settings.postgres_schema
    with shard.session() as connection:
        connection.execute("CREATE TABLE become (a_standby bool)")
        body = "SELECT EXISTS (SELECT FROM become)"
        connection.execute(f"CREATE FUNCTION pg_is_in_recovery() RETURNS bool LANGUAGE sql AS '{body}'".encode())
    path = f"{tiers.postgres_url}?options=-csearch_path%3D{schema}%2Cpg_catalog"
    agent = shard.client(a, postgres_url=path)
    assert agent.get(KEY) is None
    shard.sql("INSERT INTO become VALUES (true)")
    with pytest.raises(PostgresUnavailable, match="it is a standby"):
        agent.get("runs/43", timeout=1)
    shard.sql("DELETE FROM become")
    assert agent.get("runs/43") is None

"""Who may open what: an agent with few rights, an agent at the wrong Redis, a Redis that keeps nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from redis.exceptions import RedisError

from statecache.clock import monotonic
from statecache.concurrency import THREADS, run
from statecache.core.postgres.migrate import migrate
from statecache.errors import ConfigurationError, DurabilityRefused, ForeignData, Unavailable
from statecache.model import Durability
from statecache.testing.valkey import Valkey
from tests.fixtures.servers import MakeSettings
from tests.support.command_line import CommandLine
from tests.support.gate_world import SHARD, World, once

KEY = "runs/42"


def as_role(shard: World, *, may_open: bool) -> str:
    """Create a role that may read, and open epochs or not; return its URL."""
    schema = shard.settings.postgres_schema
    role = f"{schema}_{'agent' if may_open else 'reader'}"
    shard.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'word'")
    shard.sql(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    shard.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    if may_open:
        shard.sql(f"GRANT EXECUTE ON FUNCTION begin_epoch TO {role}")
    parts = urlsplit(shard.settings.postgres_url)
    return urlunsplit(parts._replace(netloc=f"{role}:word@{parts.hostname}:{parts.port}"))


def test_an_agent_needs_to_read_and_to_begin_epochs_and_no_more(shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.put(a, KEY, 1)
    shard.in_step(a)
    shard.promote(b)
    durable = shard.put(a, KEY, 2)
    shard.flush(a)
    a.kill()

    agent = shard.client(b, postgres_url=as_role(shard, may_open=True))
    written = agent.set(KEY, 3)
    assert written.parent_change_id == durable.change_id
    shard.check(b)
    (by,) = shard.sql("SELECT opened_by FROM epoch ORDER BY epoch DESC LIMIT 1")[0]
    assert by == agent.settings.writer


@pytest.mark.parametrize("table", ["change", "shard", "epoch", "cluster"])
def test_an_agent_opens_no_gate_past_rows_that_it_does_not_see(shard: World, table: str) -> None:
    """What was flushed beyond this server is looked for in `change`: hidden, it would be left standing here."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.put(a, KEY, 1)
    shard.in_step(a)
    shard.promote(b)
    durable = shard.put(a, KEY, 2)
    shard.flush(a)
    a.kill()
    epochs = shard.epochs()

    url = as_role(shard, may_open=True)
    shard.sql(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    with pytest.raises(ConfigurationError, match=f'row-level security policy for table "{table}".*BYPASSRLS'):
        shard.client(b, postgres_url=url).set("runs/43", 1)
    assert shard.epochs() == epochs or table == "change"
    shard.sql(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    agent = shard.client(b, postgres_url=url)
    assert agent.set("runs/43", 1).version == 1
    assert agent.set(KEY, 3).parent_change_id == durable.change_id
    shard.check(b)


def test_a_reader_of_postgres_cannot_raise_epochs_and_is_told_what_it_lacks(shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    a.restart()
    epochs = shard.epochs()
    reader = shard.client(a, postgres_url=as_role(shard, may_open=False))
    with pytest.raises(ConfigurationError, match="may not run begin_epoch"):
        reader.set(KEY, 2)
    assert "reservation" not in shard.meta(a)
    assert shard.epochs() == epochs
    assert shard.put(a, KEY, 2).version == 2
    shard.check(a)


def test_what_only_a_worker_can_set_aside_a_client_leaves_to_it_unreserved(shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.raw(a).xadd(shard.keys.changes(SHARD), {"not": "ours"})
    a.restart()
    agent = shard.client(a, writer="of a new agent")
    with pytest.raises(Unavailable, match="entries of another program, which a worker has to set aside"):
        agent.set(KEY, 2, timeout=2)
    assert "reservation" not in shard.meta(a)
    (opened,) = shard.open(a, "worker")
    assert (opened.start_n, opened.conflicts) == (1, 0)
    shard.check(a)
    assert shard.sql("SELECT n, sqlstate FROM quarantine")[0][1] == "entry"
    assert agent.set(KEY, 2).version == 2


def test_an_agent_at_an_empty_redis_does_not_take_the_epoch(shard: World) -> None:
    a, wrong = shard.start("a"), shard.start("wrong")
    shard.open(a)
    written = shard.put(a, KEY, 1)
    shard.flush(a)
    row, epochs = shard.row(), shard.epochs()

    misled = shard.client(wrong, writer="misled")
    vouched_for = partial(misled.create, "runs/new", "misled", assume_new=True)
    for verb in (partial(misled.set, KEY, "misled"), partial(misled.update, KEY, str), vouched_for):
        with pytest.raises(Unavailable, match="holds no data set of ours") as refused:
            verb(timeout=1.5)
        assert refused.value.reason == "epoch"
    found = misled.get(KEY)
    assert found is not None
    assert found.change_id == written.change_id, "Postgres answers who only reads"
    assert shard.raw(wrong).dbsize() == 0
    assert (shard.row(), shard.epochs()) == (row, epochs)
    assert shard.put(a, KEY, 2).version == 2
    shard.flush(a)
    shard.check(a)


@pytest.mark.parametrize("flushed", [True, False])
def test_an_agent_at_another_lineages_redis_does_not_take_the_epoch(shard: World, flushed: bool) -> None:
    """It was production's once and has been replaced: also where it holds nothing that production lacks."""
    a, b = shard.start("a"), shard.start("b")
    shard.open(a)
    shard.put(a, KEY, 1)
    if flushed:
        shard.flush(a)
    shard.open(b, "operator")
    shard.put(b, KEY, 1)
    row, epochs = shard.row(), shard.epochs()
    a.restart()
    with pytest.raises(Unavailable, match="operator's word"):
        shard.client(a, writer="misled").set(KEY, "misled", timeout=60)
    assert (shard.row(), shard.epochs()) == (row, epochs)
    shard.check(b)


def test_an_agent_between_two_installations_is_refused_whoever_it_is(shard: World, make_settings: MakeSettings) -> None:
    """The same prefix and schema, but another Postgres' cluster: not even a worker may join the two."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.raw(a).hset(shard.keys.meta(SHARD), "cluster", "00000000-0000-0000-0000-000000000000")
    a.restart()
    with pytest.raises(ConfigurationError, match="belongs to cluster 00000000"):
        shard.client(a, writer="misled").set(KEY, "misled")
    row = shard.row()
    for authority in ("client", "worker", "operator"):
        with pytest.raises(Unavailable, match="belongs to cluster 00000000"):
            shard.open(a, authority)
    assert shard.row() == row


def test_a_replica_is_not_adopted_on_an_operators_word_either(
    shard: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a = shard.start("a")
    shard.open(a)
    b, row = shard.replica(a, "b"), shard.row()
    cli = CommandLine(shard.on(b), monkeypatch, capsys)
    for options in ([], ["--from", row.replid], ["--from", row.replid, "--to", row.replid]):
        ended = cli("epoch", "adopt", "all", *options)
        assert (ended.status, ended.out, ended.err.count("\n")) == (4, "", 1)
        assert "it is a slave. redis_url must name the primary" in ended.err
    assert shard.row() == row


def test_only_a_worker_or_a_migration_adopts_the_first_redis(shard: World) -> None:
    a = shard.start("a")
    with pytest.raises(Unavailable, match="holds no data set of ours"):
        shard.put(a, KEY, 1, timeout=2)
    report = run(migrate(shard.on(a), io=THREADS))
    assert report.shards_opened == 1
    shard.check(a)


def test_a_flushed_server_is_adopted_by_a_worker_that_has_flushed_from_it(shard: World) -> None:
    """Its replid alone says nothing: another database of the same server has it too."""
    a = shard.start("a")
    shard.open(a)
    durable = shard.put(a, KEY, 1)
    shard.flush(a)
    shard.raw(a).flushall()
    for authority in ("client", "worker"):
        with pytest.raises(Unavailable, match="holds no data set of ours"):
            shard.open(a, authority, vouched=[])
    shard.open(a, "worker")
    assert shard.put(a, KEY, 2).parent_change_id == durable.change_id
    shard.check(a)


def test_a_wrong_url_takes_no_epoch(shard: World) -> None:
    """Production's Postgres and any other Redis, by a migration, a worker just started, a careless adoption."""
    a, wrong = shard.start("a"), shard.start("wrong")
    shard.open(a)
    shard.put(a, KEY, 1)
    row, epochs = shard.row(), shard.epochs()

    with pytest.raises(Unavailable, match="holds no data set of ours") as refused:
        run(migrate(shard.on(wrong), io=THREADS))
    for part in (f"({shard.replid(wrong)})", f":{wrong.port}/", f"epoch adopt all --from {row.replid}"):
        assert part in refused.value.detail
    with pytest.raises(Unavailable, match="holds no data set of ours"):
        shard.open(wrong, "worker", vouched=[])
    with pytest.raises(Unavailable, match=f"say `--from {row.replid} --to {shard.replid(wrong)}`"):
        shard.open(wrong, "operator", vouched=[shard.replid(wrong)])

    assert shard.raw(wrong).dbsize() == 0
    assert (shard.row(), shard.epochs()) == (row, epochs)
    shard.put(a, KEY, 2)
    assert shard.flush(a) == 2
    shard.check(a)


def test_replica_and_disk_are_refused_where_the_primary_keeps_nothing(shard: World) -> None:
    """An empty primary that comes back before a replica is promoted empties the replicas too."""
    forgetful = shard.start("forgetful", appendonly="no")
    shard.open(forgetful)
    shard.replica(forgetful, "its-replica")
    shard.open(forgetful, "client")
    agent = shard.client(forgetful)
    levels: tuple[Durability, ...] = ("replica", "disk")
    for level in levels:
        with pytest.raises(DurabilityRefused) as refused:
            agent.set(KEY, 1, durability=level)
        assert "append-only file" in refused.value.reason
    assert shard.state(forgetful, KEY) == {}
    assert agent.set(KEY, 1).version == 1
    shard.raw(forgetful).config_set("save", "3600 1")
    assert agent.set(KEY, 2, durability="replica").version == 2
    with pytest.raises(DurabilityRefused):
        agent.set(KEY, 3, durability="disk")


@pytest.mark.parametrize("step", ["before gate_open", "after gate_open"])
def test_a_worker_adopts_what_takes_the_place_of_a_server_that_it_has_opened_and_never_flushed_from(
    shard: World, step: str
) -> None:
    """Redis comes back empty, is opened, and comes back empty again before anything could be flushed from it."""
    a = shard.start("a", appendonly="no", save="")
    shard.open(a)
    durable = shard.put(a, KEY, 1)
    shard.flush(a)
    gate = shard.gate(a, vouched=[shard.replid(a)])
    for _ in range(3):
        _come_back_empty(a)
        gate.tap = once(step, lambda: _come_back_empty(a))
        with suppress(RedisError, Unavailable):
            gate.open()
    gate.tap = None
    with pytest.raises(Unavailable, match="holds no data set of ours"):
        shard.open(a, "worker", vouched=[])
    assert len(gate.open()) == 1
    written = shard.put(a, KEY, 2)
    assert (written.version, written.parent_change_id) == (2, durable.change_id)
    shard.check(a)


def _come_back_empty(server: Valkey) -> None:
    server.kill()
    server.start()


def test_a_primary_that_restarts_empty_and_empties_its_replica_is_adopted_with_what_postgres_holds(
    shard: World,
) -> None:
    a = shard.start("a", appendonly="no")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.open(a, "client")
    durable = shard.put(a, KEY, 1)
    shard.flush(a)
    shard.in_step(a)
    a.stop()
    (a.folder / a.name / "dump.rdb").unlink()  # it was written for the replica
    a.start()
    shard.in_step(a)
    assert shard.state(b, KEY) == {}
    shard.promote(b)
    with pytest.raises(Unavailable, match="holds no data set of ours"):
        shard.put(b, KEY, "by an agent", timeout=2)
    with pytest.raises(Unavailable, match="holds no data set of ours"):
        shard.open(b, "worker", vouched=[])
    shard.open(b, "worker")
    written = shard.put(b, KEY, 2)
    assert (written.version, written.parent_change_id) == (2, durable.change_id)
    shard.check(b)


def test_waiting_writers_hold_no_connection_so_reads_go_on(shard: World) -> None:
    """Meta was deleted, so agents wait for a worker; Postgres answers who reads meanwhile."""
    a = shard.start("a")
    shard.open(a)
    state = shard.put(a, KEY, 1)
    shard.flush(a)
    shard.raw(a).delete(shard.keys.meta(SHARD))
    agent = shard.client(a, redis_connections_max=2, postgres_connections_max=2)
    with ThreadPoolExecutor(8) as threads:
        writes = [threads.submit(agent.set, f"runs/{number}", 1) for number in range(8)]
        while_they_wait = monotonic() + 0.5
        while monotonic() < while_they_wait:
            found = agent.get(KEY, timeout=1.5)
            assert found is not None
            assert found.change_id == state.change_id
        assert not any(write.done() for write in writes)
        shard.open(a, "worker")
        assert {write.result().version for write in writes} == {1}
    shard.check(a)


@pytest.mark.parametrize("broken", ["meta", "changes", "unflushed", "hydrating"])
def test_a_key_of_another_type_is_named_and_the_gate_opens_when_it_is_gone(shard: World, broken: str) -> None:
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    name = getattr(shard.keys, broken)(SHARD)
    raw: Any = shard.raw(a)
    raw.rename(name, "aside")
    raw.set(name, "another program's")
    epochs = shard.epochs()
    for authority in ("client", "worker", "operator"):
        if broken == "meta":
            a.restart()
        else:
            raw.hset(shard.keys.meta(SHARD), "replid", "closed")
            raw.hset(shard.keys.meta(SHARD), "continues", shard.replid(a))
        with pytest.raises((ForeignData, ConfigurationError)) as refused:
            shard.open(a, authority)
        assert name in str(refused.value) or isinstance(refused.value, ConfigurationError)
    assert shard.epochs() == epochs
    raw.rename("aside", name)
    shard.open(a, "worker")
    shard.put(a, KEY, 2)
    shard.check(a)

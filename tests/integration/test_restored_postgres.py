"""Postgres is restored to what it held earlier, and Redis may have been emptied, or belong to what came after."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from statecache import AsyncStateCache, Lost, OutcomeUnknown
from statecache.errors import Unavailable
from statecache.rules.epochs import Authority
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.fixtures.faults import through
from tests.fixtures.servers import MakeSettings
from tests.support.fault_proxy import FaultProxy
from tests.support.gate_world import World, world
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


@pytest.mark.parametrize("authority", ["worker", "operator"])
def test_no_epoch_is_issued_twice_where_both_tiers_have_forgotten_it(
    tiers: Servers, shard: World, tmp_path: Path, authority: Authority
) -> None:
    """Only an agent remembers what it was acknowledged in an epoch of that number: it is told that it is lost."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "kept")
    shard.flush(a)
    backup = Backup(tiers, tmp_path)
    a.restart()
    shard.open(a, "client")
    agent = shard.client(a)
    gone = [agent.set(KEY, number) for number in range(5)]
    shard.flush(a)
    assert [agent.wait_durable(state) for state in gone] == gone
    shard.until_later_than(gone[-1].epoch)
    backup.put_back()
    shard.raw(a).flushall()

    (opened,) = shard.open(a, authority)

    assert opened.start_n == 1
    newest = agent.set("runs/43", "in the new lineage")
    assert newest.epoch == opened.epoch > gone[-1].epoch
    found = agent.get(KEY)
    assert found is not None
    assert found.value == "kept"
    assert [one.change_id for one in agent.lost()] == [state.change_id for state in gone]
    assert shard.sql("SELECT epoch, first_n, last_n, cause FROM lost") == [(opened.epoch, 2, 6, "tail")]
    with pytest.raises(Lost):
        agent.wait_durable(gone[-1], timeout=60)
    outcome = agent.outcome(gone[-1].change_id, KEY, position=gone[-1].position)
    assert (outcome.verdict, outcome.settled) == ("lost", True)


async def test_no_epoch_is_issued_twice_where_a_replica_and_a_standby_that_lag_take_over(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    """Neither knows of the last epoch: who was acknowledged in it takes nothing of it for the new one's."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "kept")
    shard.flush(a)
    b = shard.replica(a, "b")
    shard.in_step(a)
    shard.promote(b)
    backup = Backup(tiers, tmp_path)
    a.restart()
    shard.open(a, "client")
    async with (
        FaultProxy("127.0.0.1", a.port) as address,
        AsyncStateCache(settings=through(shard.on(a, timeout_s=20), redis=address)) as agent,
    ):
        gone = [await agent.set(KEY, number) for number in range(20)]
        shard.flush(a)
        assert [await agent.wait_durable(state) for state in gone] == gone
        shard.until_later_than(gone[-1].epoch)
        backup.put_back()
        (opened,) = shard.open(b, "worker")
        assert opened.epoch > gone[-1].epoch
        address.retarget("127.0.0.1", b.port)
        address.cut_all()
        for number in range(3):
            with pytest.raises(OutcomeUnknown):
                await agent.set("runs/43", number, durability="postgres", timeout=1.5)
        found = await agent.get(KEY)
        assert (found and found.value, shard.sql("SELECT count(*) FROM change")) == ("kept", [(1,)])
        address.retarget("127.0.0.1", a.port)
        address.cut_all()
        with pytest.raises(Unavailable) as refused:
            await agent.get(KEY, timeout=1.5)
        assert refused.value.reason == "epoch"
        with pytest.raises((Unavailable, OutcomeUnknown), match="Postgres says epoch"):  # its connection was cut, too
            await agent.set(KEY, "old branch", timeout=1.5)
        assert shard.state(a, KEY)["change_id"] == gone[-1].change_id


@pytest.mark.parametrize("reopened", [False, True])
def test_nobody_but_a_worker_takes_the_epoch_of_a_live_redis_for_a_copy(
    tiers: Servers, shard: World, tmp_path: Path, *, reopened: bool
) -> None:
    """A dump is restored to be looked into, and `migrate` or an agent is pointed at it and the live Redis."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    backup = Backup(tiers, tmp_path)
    if reopened:
        a.restart()
        shard.open(a)
    shard.put(a, KEY, 2)
    shard.flush(a)
    backup.put_back()
    before = shard.raw(a).hgetall(shard.keys.meta(0)), shard.sql("SELECT epoch, replid FROM shard")

    for authority in ("setup", "client"):
        with pytest.raises(Unavailable, match="restored, or is a copy"):
            shard.open(a, authority)
    assert (shard.raw(a).hgetall(shard.keys.meta(0)), shard.sql("SELECT epoch, replid FROM shard")) == before

    (opened,) = shard.open(a, "worker")
    shard.flush(a)
    assert opened.epoch > before[1][0][0]
    assert shard.sql("SELECT version FROM state") == [(2,)]
    shard.check(a)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("trimmed", [False, True])
def test_what_was_written_on_a_backup_that_was_restored_by_mistake_is_set_aside_for_the_right_one(
    tiers: Servers, shard: World, tmp_path: Path, *, trimmed: bool, restarted: bool
) -> None:
    """Its positions are those of other changes: only their content tells, in the stream or in what has left it."""
    a = shard.start("a")
    shard.open(a)
    for number in range(4):
        shard.put(a, f"runs/{number}", number)
    shard.flush(a)
    wrong = Backup(tiers, tmp_path, "wrong")
    for number in range(4, 14):
        shard.put(a, f"runs/{number}", number)
    shard.flush(a)
    right = Backup(tiers, tmp_path, "right")
    wrong.put_back()
    shard.raw(a).flushall()
    shard.open(a)
    if restarted:
        a.restart()
        shard.open(a)
    agent = shard.client(a)
    flushed_there = agent.set("runs/flushed", "into the wrong one")
    shard.flush(a)
    kept = agent.get("runs/2")
    if trimmed:
        shard.raw(a).xtrim(shard.keys.changes(0), maxlen=0)
    acknowledged = agent.set("runs/0", "by Redis alone")
    right.put_back()

    with pytest.raises(Unavailable, match="operator's word"):
        shard.open(a, "worker")
    with pytest.raises(Unavailable, match="a worker begins a new epoch, or says what hinders it"):
        shard.open(a, "client")
    with pytest.raises(Unavailable, match="shard 0 is closed"):
        agent.set("runs/0", "would be set aside as well", timeout=0.5)
    (opened,) = shard.open(a, "operator")

    assert kept is not None
    assert (opened.start_n, opened.conflicts) == (14, 2)
    assert shard.conflicts() == {flushed_there.change_id, acknowledged.change_id}
    fresh = shard.client(a, writer="fresh")
    assert fresh.get("runs/flushed") is None
    values = {number: fresh.get(f"runs/{number}") for number in range(14)}
    assert {number: None if state is None else state.value for number, state in values.items()} == {
        number: number for number in range(14)
    }
    assert fresh.outcome(flushed_there.change_id, "runs/flushed").verdict == "forked"
    assert shard.put(a, "runs/0", "goes on").version == 2
    shard.check(a)


def test_what_the_stream_still_holds_tells_that_redis_continues_what_was_restored(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    """The states remember their last six changes, and have been written oftener since."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 0)
    shard.flush(a)
    backup = Backup(tiers, tmp_path)
    for _ in range(2):
        a.restart()
        shard.open(a)
    newest = [shard.put(a, KEY, number) for number in range(1, 9)][-1]
    shard.flush(a)
    backup.put_back()

    (opened,) = shard.open(a)

    assert opened.conflicts == 0
    assert shard.flush(a) == 8
    assert shard.client(a).wait_durable(newest) == newest
    shard.check(a)


def test_agents_go_on_where_nothing_tells_whether_redis_continues_what_was_restored(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    """What they write is kept if an operator says that it does, so it is not for a worker to stop them."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    backup = Backup(tiers, tmp_path)
    a.restart()
    shard.open(a)
    a.restart()
    shard.open(a)
    shard.put(a, "runs/43", "not in the backup")
    shard.flush(a)
    shard.raw(a).xtrim(shard.keys.changes(0), maxlen=0)
    shard.raw(a).unlink(shard.keys.state(KEY))
    backup.put_back()

    with pytest.raises(Unavailable, match="whether this server is the primary is an operator's word"):
        shard.open(a)
    meanwhile = shard.put(a, "runs/43", "meanwhile")

    (opened,) = shard.open(a, "operator")
    assert opened.conflicts == 0
    assert shard.client(a).get("runs/43", read="primary") == meanwhile


def test_two_postgres_with_one_redis_do_not_take_turns_at_its_gate(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    """A worker of a copy that has the live Redis' URL shuts the live gate once; whose gate it is, opens it again."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    older = Backup(tiers, tmp_path, "older")
    shard.put(a, KEY, 2)
    shard.flush(a)
    copy = Backup(tiers, tmp_path, "copy")
    older.put_back()
    shard.raw(a).flushall()
    shard.open(a)
    agent = shard.client(a)
    agent.set(KEY, "live")
    shard.flush(a)
    live = Backup(tiers, tmp_path, "live")
    worker_of_the_copy = shard.gate(a)

    copy.put_back()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"in epoch [0-9]+, with another Postgres, .* back\. Whether"):
            worker_of_the_copy.open()
        with pytest.raises(Unavailable, match="shard 0 is closed"):
            agent.set(KEY, "too early", timeout=0.3)
    live.put_back()
    assert agent.set(KEY, "the client has opened it").version == 3
    live = Backup(tiers, tmp_path, "live again")
    copy.put_back()
    for _ in range(2):
        with pytest.raises(Unavailable, match="is open again, so another Postgres is in use with this Redis"):
            worker_of_the_copy.open()
        agent.set(KEY, "goes on")
    live.put_back()
    shard.flush(a)
    shard.check(a)


def test_what_was_loaded_from_a_backup_that_was_restored_by_mistake_is_forgotten_for_the_right_one(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "old")
    shard.flush(a)
    wrong = Backup(tiers, tmp_path, "wrong")
    shard.put(a, KEY, "new")
    shard.put(a, "runs/7", "made after the backup")
    shard.flush(a)
    right = Backup(tiers, tmp_path, "right")
    for key in (KEY, "runs/7"):
        shard.raw(a).unlink(shard.keys.state(key))
    shard.raw(a).xtrim(shard.keys.changes(0), maxlen=0)
    shard.raw(a).zrem(shard.keys.unflushed(0), KEY, "runs/7")
    wrong.put_back()
    shard.open(a)
    reader = shard.client(a, writer="reader")
    old, absent = reader.get(KEY), reader.get("runs/8")
    waiting = shard.client(a, writer="waiting").set("runs/9", "not flushed yet")
    right.put_back()

    (opened,) = shard.open(a)

    assert old is not None
    assert absent is None
    assert opened.start_n == 4
    for key, value in ((KEY, "new"), ("runs/7", "made after the backup"), ("runs/9", "not flushed yet")):
        for read in ("local", "primary", "fenced"):
            found = shard.client(a, writer="afterwards").get(key, read=read)
            assert found is not None
            assert found.value == value
    assert shard.flush(a) == 1
    assert shard.client(a).wait_durable(waiting) == waiting
    shard.check(a)


def test_an_older_copy_of_postgres_fills_nothing_into_redis(tiers: Servers, shard: World, tmp_path: Path) -> None:
    """As where somebody looks into a restored backup, and the URL of Redis is still the live one."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "old")
    shard.flush(a)
    copy = Backup(tiers, tmp_path)
    shard.put(a, KEY, "new")
    shard.put(a, "runs/7", "made after the backup")
    shard.flush(a)
    live = Backup(tiers, tmp_path, "live")
    for key in (KEY, "runs/7"):
        shard.raw(a).unlink(shard.keys.state(key))
    copy.put_back()
    for key in (KEY, "runs/7"):
        for call in (partial(shard.client(a).get, key), partial(shard.client(a).create, key, "again")):
            with pytest.raises(Unavailable, match="holds less than was flushed"):
                call(timeout=0.5)
        assert not shard.raw(a).exists(shard.keys.state(key))
    assert shard.raw(a).hmget(shard.keys.hydrating(0), KEY, "runs/7") == [None, None], "nobody waits for that"
    live.put_back()
    for key, value in ((KEY, "new"), ("runs/7", "made after the backup")):
        found = shard.client(a).get(key)
        assert found is not None
        assert found.value == value
    shard.check(a)


def test_what_an_old_redis_holds_of_what_postgres_lost_is_set_aside_though_its_stream_was_trimmed(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    a, b = shard.start("a"), shard.start("b")
    shard.open(a)
    shard.put(a, KEY, "old")
    shard.flush(a)
    backup = Backup(tiers, tmp_path)
    newer, later = shard.put(a, KEY, "newer"), shard.put(a, "runs/6", "created later")
    shard.flush(a)
    shard.raw(a).xtrim(shard.keys.changes(0), maxlen=0)
    shard.raw(a).zrem(shard.keys.unflushed(0), KEY, "runs/6")
    backup.put_back()
    shard.open(b, "operator")
    shard.put(b, "runs/0", "goes on")
    shard.flush(b)

    (opened,) = shard.open(a, "operator")

    assert opened.conflicts == 2
    assert shard.conflicts() == {newer.change_id, later.change_id}
    fresh = shard.client(a, writer="fresh")
    found = {key: fresh.get(key) for key in (KEY, "runs/6", "runs/0")}
    assert {key: None if state is None else state.value for key, state in found.items()} == {
        KEY: "old", "runs/6": None, "runs/0": "goes on",
    }  # fmt: skip
    assert shard.put(a, KEY, "and on").version == 2
    shard.check(a)

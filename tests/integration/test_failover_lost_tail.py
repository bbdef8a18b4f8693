"""A promoted replica, or a restarted server, that lacks the end of what its predecessor had acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statecache.clock import monotonic
from statecache.concurrency import run
from statecache.errors import Unavailable, VersionConflict
from statecache.testing.valkey import Valkey
from tests.fixtures.servers import MakeSettings
from tests.support.gate_world import KINDS, SHARD, Fenced, World, append_only_file, lose_from, world

KEY = "runs/42"
pytestmark = pytest.mark.parametrize("redis_kind", KINDS, indirect=True)


@pytest.fixture
def shard(make_settings: MakeSettings, redis_kind: str, tmp_path: Path) -> Iterator[World]:
    """One shard, with Redis servers that the test starts and kills."""
    with world(make_settings, tmp_path, kind=redis_kind) as made:
        yield made


def test_a_promoted_replica_that_lacks_durable_changes_takes_no_write_until_it_has_learnt_of_them(shard: World) -> None:
    """Postgres has versions 11 and 12, the promoted Redis has 10: the next write is version 13, whoever comes first."""
    a = shard.start("a")
    shard.open(a)
    for number in range(1, 11):
        shard.put(a, KEY, number)
    b = shard.replica(a, "b")
    shard.open(a)  # the first replica of a server changes its replid
    shard.in_step(a)
    shard.promote(b)
    durable = [shard.put(a, KEY, number) for number in (11, 12)]
    shard.flush(a)
    a.kill()
    assert shard.state(b, KEY)["version"] == "10"

    agent = shard.client(b)
    with pytest.raises(VersionConflict):
        agent.set(KEY, "on top of what is stale", expected=shard.state(b, KEY)["change_id"])
    written = agent.set(KEY, "later")

    assert (written.version, written.parent_change_id) == (13, durable[-1].change_id)
    shard.check(b)
    shard.flush(b)
    assert shard.chain(KEY)[-3:] == [*(state.change_id for state in durable), written.change_id]
    shard.check(b)


def test_what_was_acknowledged_as_durable_is_never_overtaken_by_a_higher_epoch(shard: World) -> None:
    """Keys that nobody wrote since are at Postgres' version as soon as the new epoch is open, for readers too."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    before = {key: shard.put(a, key, "before") for key in (KEY, "runs/43", "runs/44", "runs/45")}
    shard.flush(a)
    shard.in_step(a)
    shard.promote(b)
    durable = {key: shard.put(a, key, "durable") for key in (KEY, "runs/43")}
    durable["runs/46"] = shard.put(a, "runs/46", "new and durable")
    assert shard.client(a).delete("runs/45") is not None
    shard.flush(a)
    a.kill()

    (opened,) = shard.open(b, "client")
    assert (opened.dropped, opened.conflicts) == (3, 0)
    shard.check(b)
    assert shard.state(b, KEY) == {}
    assert shard.state(b, "runs/44")["change_id"] == before["runs/44"].change_id
    agent = shard.client(b)
    for key, state in durable.items():
        found = agent.get(key)
        assert found is not None
        assert (found.version, found.change_id) == (state.version, state.change_id)
    assert agent.get("runs/45") is None
    again = agent.set(KEY, "after")
    assert again.epoch > durable[KEY].epoch
    assert again.parent_change_id == durable[KEY].change_id
    shard.flush(b)
    assert len(shard.chain(KEY)) == 3


def test_a_repeat_of_what_was_vouched_for_as_new_is_found_in_postgres(shard: World) -> None:
    """Redis lost the change and Postgres has it: applied again, it would stand in the new epoch until it is evicted."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.open(a)
    shard.in_step(a)
    shard.promote(b)
    change_id = "0123456789abcdef01234567"
    first = shard.client(a).create(KEY, "once", assume_new=True, change_id=change_id)
    shard.flush(a)
    a.kill()

    agent = shard.client(b)
    repeated = agent.create(KEY, "once", assume_new=True, change_id=change_id)
    assert (repeated.epoch, repeated.version, repeated.position) == (first.epoch, 1, first.position)
    assert shard.flush(b) == 0
    shard.raw(b).unlink(shard.keys.state(KEY))
    found = agent.get(KEY)
    assert found is not None
    assert (found.epoch, found.version, found.change_id) == (first.epoch, 1, change_id)
    shard.check(b)


def test_what_the_promoted_replica_had_and_postgres_had_not_is_flushed_as_the_ancestor_that_it_is(shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    flushed = shard.put(a, KEY, "flushed")
    shard.flush(a)
    inherited = [shard.put(a, KEY, "inherited"), shard.put(a, "runs/43", "inherited")]
    shard.in_step(a)
    shard.promote(b)
    shard.put(a, KEY, "lost with its server")
    a.kill()

    (opened,) = shard.open(b, "client")
    assert (opened.start_n, opened.dropped, opened.conflicts) == (3, 0, 0)
    shard.check(b)
    written = shard.put(b, KEY, "after")
    assert written.parent_change_id == inherited[0].change_id
    assert str(written.position) == f"{opened.epoch}-4"
    shard.check(b)
    assert shard.flush(b) == 3
    assert shard.chain(KEY) == [state.change_id for state in (flushed, inherited[0], written)]
    shard.check(b)


def test_a_connection_that_outlives_two_promotions_is_fenced_and_finds_the_truth(shard: World) -> None:
    """The same process, the same connection, the same run_id: only the replid tells that data were lost between."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.put(a, KEY, 1)
    shard.flush(a)
    shard.in_step(a)
    run_id, connection = shard.raw(a).info("server")["run_id"], _connection(shard, a)

    shard.promote(b)
    durable = shard.put(a, KEY, 2)
    shard.flush(a)
    shard.demote(a, b)
    shard.promote(a)

    assert shard.raw(a).info("server")["run_id"] == run_id
    assert shard.state(a, KEY)["version"] == "1"
    written = shard.put(a, KEY, 3)
    assert (written.version, written.parent_change_id) == (3, durable.change_id)
    assert _connection(shard, a) == connection
    shard.check(a)


def _connection(shard: World, server: Valkey) -> int:
    (number,) = run(shard.client(server)._runtime.redis.exchange([("CLIENT", "ID")], seconds=10))
    return int(number)


def test_a_late_acknowledgement_of_the_old_lineage_moves_nothing_in_the_new_one(shard: World) -> None:
    """Positions of two epochs may share their n: the old one's watermark is not the new one's."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.put(a, KEY, "both have it")
    shard.in_step(a)
    shard.promote(b)
    shard.put(a, "runs/43", "at the same n as another change")
    old = (int(shard.meta(a)["epoch"]), shard.replid(a))
    watermark = (2, 2, int(shard.meta(a)["bytes"]))
    a.kill()

    shard.open(b, "client")
    entry = shard.put(b, "runs/44", "acknowledged in the new epoch")
    before = shard.meta(b)
    assert entry.position is not None
    assert entry.position.n == watermark[0]
    for replid in (old[1], shard.replid(b)):
        assert shard.ack(b, epoch=old[0], replid=replid, numbers=watermark) == 0
    assert shard.meta(b) == before
    shard.check(b)
    shard.flush(b)
    assert shard.chain("runs/44") == [entry.change_id]


def test_a_waiter_does_not_take_the_new_epochs_watermark_for_its_own(shard: World) -> None:
    """The change was lost with its Redis; another one stands at its n and is flushed. It is not called durable."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.put(a, KEY, "both have it")
    shard.in_step(a)
    shard.promote(b)
    lost = shard.put(a, "runs/43", "lost")
    a.kill()
    shard.open(b, "client")
    other = shard.put(b, "runs/44", "at its n")
    assert lost.position is not None
    assert other.position is not None
    assert lost.position.n == other.position.n
    shard.flush(b)

    agent = shard.client(b)
    assert agent.wait_durable(other, timeout=30) == other
    end = monotonic() + 10
    waited = run(agent._runtime.durable.wait(SHARD, lost.position, lost.change_id, [lost.key], end=end))
    assert waited == shard.row().epoch, "the epoch that went on without it"


def test_an_epoch_that_a_second_failover_loses_is_never_given_again(shard: World) -> None:
    """Epochs are counted in Postgres: the second promoted replica never heard of the first one's, and gets another."""
    a = shard.start("a")
    shard.open(a)
    b, c = shard.replica(a, "b"), shard.replica(a, "c")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.in_step(a, replicas=2)
    shard.promote(b)
    shard.promote(c)
    a.kill()
    (first,) = shard.open(b, "client")
    shard.put(b, KEY, "lost with the second")
    b.kill()

    with pytest.raises(Unavailable, match="operator's word"):
        shard.open(c, "worker")
    (second,) = shard.open(c, "operator")
    assert second.epoch == first.epoch + 1
    written = shard.put(c, KEY, "kept")
    assert written.epoch == second.epoch
    shard.check(c)
    shard.flush(c)
    assert shard.chain(KEY)[-1] == written.change_id


def test_a_restart_that_lost_the_end_of_its_append_only_file_is_a_lost_tail_as_well(shard: World) -> None:
    a = shard.start("a", appendfsync="always")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.put(a, "runs/43", 1)
    size = append_only_file(a).stat().st_size
    durable = shard.put(a, KEY, 2)
    shard.flush(a)
    shard.put(a, "runs/44", "memory only")
    lose_from(a, size)
    a.start()

    (opened,) = shard.open(a, "client")
    assert (opened.start_n, opened.dropped) == (3, 1)
    shard.check(a)
    found = shard.client(a).get(KEY)
    assert found is not None
    assert found.change_id == durable.change_id
    assert shard.client(a).get("runs/44") is None
    shard.put(a, "runs/43", 2)
    shard.flush(a)
    shard.check(a)


def test_a_server_that_lost_an_epoch_itself_opens_on_an_operators_word_alone(shard: World) -> None:
    """By its data it cannot be told from an old primary that comes back."""
    a = shard.start("a", appendfsync="always")
    shard.open(a)
    shard.put(a, KEY, 1)
    size = append_only_file(a).stat().st_size
    a.kill()
    a.start()
    shard.open(a, "client")
    durable = shard.put(a, KEY, 2)
    shard.flush(a)
    shard.put(a, KEY, 3)
    lose_from(a, size)
    a.start()

    for authority in ("client", "worker"):
        with pytest.raises(Unavailable, match="operator's word"):
            shard.open(a, authority)
    (opened,) = shard.open(a, "operator")
    assert (opened.start_n, opened.dropped, opened.conflicts) == (2, 1, 0)
    shard.check(a)
    assert shard.put(a, KEY, "after").parent_change_id == durable.change_id
    shard.flush(a)
    assert len(shard.chain(KEY)) == 3


def test_two_failovers_with_a_longer_tail_lost_in_the_second_leave_nothing_stale(shard: World) -> None:
    """What the first failover kept the second one lost: the common point is the lowest of all later starts."""
    a = shard.start("a")
    shard.open(a)
    b, c = shard.replica(a, "b"), shard.replica(a, "c")
    shard.open(a)
    shard.put(a, KEY, "all have it")
    shard.in_step(a, replicas=2)
    shard.promote(c)
    kept_by_b = shard.put(a, KEY, "a and b have it")
    shard.in_step(a)
    shard.promote(b)
    alone = shard.put(a, "runs/43", "a alone has it")
    (first,) = shard.open(b, "client")
    assert first.start_n == 2
    (second,) = shard.open(c, "operator")
    assert second.start_n == 1
    truth = [shard.put(c, KEY, "the lineage"), shard.put(c, "runs/44", "the lineage")]
    shard.flush(c)

    with pytest.raises(Fenced):
        shard.flush(a)
    (third,) = shard.open(a, "operator")
    assert (third.start_n, third.conflicts) == (3, 2)
    assert shard.conflicts() == {kept_by_b.change_id, alone.change_id}
    shard.check(a)
    found = shard.client(a).get(KEY)
    assert found is not None
    assert found.change_id == truth[0].change_id
    shard.put(a, KEY, "after")
    shard.flush(a)
    assert len(shard.chain(KEY)) == 3
    shard.check(a)

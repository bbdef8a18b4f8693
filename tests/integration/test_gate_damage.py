"""Data sets that were damaged by hand, clocks that were set back, memory that is full: the gate opens all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from statecache.errors import Unavailable
from tests.support.dirtiness import dirty_keys
from tests.support.gate_world import SHARD, World, once

KEY = "runs/42"


def test_meta_deleted_by_hand_takes_nothing_with_it(shard: World) -> None:
    """The stream still says in which epoch the data set was and where it ends: nothing is set aside, nothing lost."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    a.restart()
    shard.open(a)
    unflushed = [shard.put(a, KEY, 2), shard.put(a, "runs/43", 1)]
    before = shard.meta(a)
    shard.raw(a).delete(shard.keys.meta(SHARD))
    for attempt in (KEY, "runs/43"):
        with pytest.raises(Unavailable, match="holds no data set of ours"):
            shard.put(a, attempt, "its state is there, its epoch is not", timeout=1)

    (opened,) = shard.open(a, "worker")

    assert (opened.start_n, opened.dropped, opened.conflicts) == (3, 0, 0)
    assert {name: shard.meta(a)[name] for name in ("n", "entries", "bytes")} == {
        name: before[name] for name in ("n", "entries", "bytes")
    }
    shard.check(a)
    shard.put(a, KEY, 3)
    assert shard.flush(a) == 3
    assert shard.chain(KEY)[1] == unflushed[0].change_id
    shard.check(a)


def test_an_old_primary_without_meta_is_still_the_branch_that_it_is(shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.put(a, KEY, 1)
    shard.in_step(a)
    shard.promote(b)
    shard.open(b, "client")
    alone = shard.put(a, KEY, "branch")
    shard.put(b, KEY, "the lineage")
    shard.flush(b)
    shard.raw(a).delete(shard.keys.meta(SHARD))

    with pytest.raises(Unavailable, match="holds no data set of ours"):
        shard.open(a, "worker", vouched=[])
    shard.open(a, "operator")
    assert shard.conflicts() == {alone.change_id}
    shard.check(a)


def test_a_stream_deleted_by_hand_does_not_take_the_dirty_states_with_it(shard: World) -> None:
    """The only copy of what is not flushed is now in the states: none of them may pass for stale."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    dirty = [shard.put(a, KEY, 2), shard.put(a, "runs/43", 1)]
    shard.raw(a).delete(shard.keys.changes(SHARD))
    a.restart()

    (opened,) = shard.open(a, "client")

    assert (opened.start_n, opened.dropped, opened.conflicts) == (3, 0, 0)
    for state in dirty:
        assert shard.state(a, state.key)["change_id"] == state.change_id
    assert shard.raw(a).zscore(shard.keys.unflushed(SHARD), KEY) == 2
    meta = shard.meta(a)
    assert int(meta["entries"]) - int(meta["flushed_entries"]) == 2
    assert str(shard.put(a, KEY, 3).position) == f"{opened.epoch}-4"


def test_states_that_outlive_meta_and_stream_still_tell_where_the_data_set_ends(shard: World) -> None:
    """They alone hold what is not flushed: it stays, and is known to be dirty."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    dirty = [shard.put(a, KEY, 2), shard.put(a, "runs/43", 1)]
    shard.raw(a).delete(shard.keys.meta(SHARD), shard.keys.changes(SHARD), shard.keys.unflushed(SHARD))

    (opened,) = shard.open(a, "worker")

    assert (opened.start_n, opened.dropped, opened.conflicts) == (3, 0, 0)
    assert shard.meta(a)["n"] == "3"
    assert dirty_keys(shard.raw(a), shard.keys, SHARD) == {KEY: 2, "runs/43": 3}
    for state in dirty:
        assert shard.state(a, state.key)["change_id"] == state.change_id


def test_states_of_another_branch_are_set_aside_though_their_meta_and_stream_are_gone(shard: World) -> None:
    """An operator gives the lineage's server up for an old primary, of which nothing but states is left."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.put(a, KEY, 1)
    shard.put(a, "runs/44", 1)
    shard.in_step(a)
    shard.promote(b)
    shard.open(b, "client")
    alone = [shard.put(a, KEY, "branch"), shard.put(a, "runs/43", "branch")]
    shard.put(b, "runs/44", "the lineage")
    shard.flush(b)
    shard.raw(a).delete(shard.keys.meta(SHARD), shard.keys.changes(SHARD))

    (opened,) = shard.open(a, "operator")

    assert (opened.start_n, opened.conflicts) == (3, 2)
    assert shard.conflicts() == {one.change_id for one in alone}
    shard.check(a)


def test_who_may_not_go_through_the_states_leaves_the_gate_closed(shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    raw = shard.raw(a)
    raw.delete(shard.keys.meta(SHARD), shard.keys.changes(SHARD))
    raw.execute_command("ACL", "SETUSER", "default", "-scan")
    with pytest.raises(Unavailable, match="SCAN"):
        shard.open(a, "worker")
    raw.execute_command("ACL", "SETUSER", "default", "+scan")
    (opened,) = shard.open(a, "worker")
    assert opened.start_n == 1


def test_another_programs_entry_makes_nothing_stale(shard: World) -> None:
    """Its id is a time in milliseconds, its n is 0: taken for the data set's end, everything would lie beyond it."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    dirty = [shard.put(a, KEY, 2), shard.put(a, "runs/43", 1)]
    stray = shard.raw(a).xadd(shard.keys.changes(SHARD), {"\0not": "ours"})
    a.restart()

    (opened,) = shard.open(a, "worker")

    assert (opened.start_n, opened.dropped, opened.conflicts) == (3, 0, 0)
    assert shard.sql("SELECT epoch, n FROM quarantine") == [(int(stray.partition("-")[0]), -1)]
    shard.check(a)
    for state in dirty:
        assert shard.state(a, state.key)["change_id"] == state.change_id
    shard.put(a, KEY, 3)
    assert shard.flush(a) == 3
    shard.check(a)


def test_an_entry_that_another_program_adds_while_the_gate_opens_only_delays_it(shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    a.restart()

    def another_program() -> None:
        shard.raw(a).xadd(shard.keys.changes(SHARD), {"not": "ours"})

    (opened,) = shard.open(a, "worker", tap=once("before gate_open", another_program))
    shard.check(a)
    assert shard.sql("SELECT count(*) FROM quarantine") == [(1,)]
    assert opened.start_n == 1


@pytest.mark.parametrize("what", [{"epoch": "x"}, {"flushed": "x"}, {"reservation": "x", "reserved_until": "9" * 13}])
def test_a_meta_that_makes_no_sense_is_named_or_outlived(shard: World, what: dict[str, str]) -> None:
    """A reservation whose end lies far ahead, for the server's clock was set back, counts for as long as any other."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    old = shard.meta(a)
    a.restart()
    meta = shard.keys.meta(SHARD)
    shard.raw(a).hset(meta, mapping=what)
    if "reservation" in what:
        shard.open(a, "client", reservation_s=0.2)
    else:
        with pytest.raises(Exception, match="does not hold what statecache wrote there") as refused:
            shard.open(a, "client")
        assert meta in str(refused.value)
        shard.raw(a).hset(meta, mapping={name: old[name] for name in what})
        shard.open(a, "client")
    shard.check(a)


def test_a_reservation_ends_with_the_server_that_it_was_made_on(shard: World) -> None:
    """Whoever made it lost its connection; nobody need wait for the reservation's time to be over."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    a.restart()
    with pytest.raises(ZeroDivisionError):
        shard.open(a, "client", tap=once("after gate_reserve", lambda: 1 // 0), reservation_s=600)
    assert shard.meta(a)["reservation"]
    told: list[str] = []
    a.restart()
    (opened,) = shard.open(a, "client", tap=told.append)
    assert told.count("after gate_look") == 1
    assert [epoch for epoch, _ in shard.epochs()] == [1, opened.epoch]
    shard.check(a)


@pytest.mark.parametrize("tokens", ["kept", "gone"])
def test_the_gate_opens_when_memory_is_full_for_flushing_alone_makes_room(shard: World, tokens: str) -> None:
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    for number in range(20):
        shard.put(a, f"runs/{number}", "x" * 10_000)
    shard.flush(a, most=5)
    shard.in_step(a)
    shard.promote(b)
    shard.put(a, "runs/19", "durable elsewhere")
    shard.flush(a)
    a.kill()
    if tokens == "gone":
        assert shard.raw(b).delete(shard.keys.hydrating(0)) == 1
    shard.raw(b).config_set("maxmemory", 1)

    (opened,) = shard.open(b, "client")
    assert opened.dropped == 1
    shard.check(b)


def test_the_backlog_of_a_shard_that_lost_its_tail_drains_to_nothing(shard: World) -> None:
    """Totals go on from the row where Postgres is ahead, and from the head where Redis is: never below nothing."""
    a = shard.start("a", appendfsync="always")
    shard.open(a)
    b = shard.replica(a, "b")
    for number in range(6):
        shard.put(a, KEY, "x" * 100 * number)
    shard.in_step(a)
    shard.promote(b)
    for number in range(6):
        shard.put(a, f"runs/{number}", "y" * 500)
    shard.flush(a, most=10)
    a.kill()
    shard.open(b, "client")
    shard.check(b)
    row = shard.row()
    assert (shard.meta(b)["n"], shard.meta(b)["entries"]) == ("10", str(row.entries))
    shard.put(b, KEY, "after")
    shard.check(b)
    shard.flush(b)
    meta = shard.meta(b)
    assert meta["entries"] == meta["flushed_entries"] == "11"
    assert meta["bytes"] == meta["flushed_bytes"]
    shard.check(b)


def test_what_was_read_before_an_opening_is_not_installed_after_it(
    shard: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader took its token and read Postgres in the old epoch: it comes too late, and nobody waits for it."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "old")
    shard.flush(a)
    raw, redis_key = shard.raw(a), shard.keys.state(KEY)
    raw.delete(redis_key)
    slow, quick = shard.client(a, writer="slow"), shard.client(a, writer="quick", hydrate_token_s=10.0)
    fetch = slow._runtime.postgres.fetch_each
    written = []

    async def slowly(names: Sequence[str], parameters: Mapping[str, Any], *, seconds: float) -> list[Any]:
        rows = await fetch(names, parameters, seconds=seconds)
        if "states" not in names:
            return rows
        raw.hset(shard.keys.meta(SHARD), mapping={"replid": "", "continues": shard.replid(a)})
        shard.open(a, "client")
        written.append(quick.set(KEY, "new", timeout=9))
        shard.flush(a)
        raw.delete(redis_key)
        return rows

    monkeypatch.setattr(slow._runtime.postgres, "fetch_each", slowly)
    found = slow.get(KEY)
    assert found is not None
    assert found.value == "old"  # it is no older than the moment the reading began
    assert shard.state(a, KEY) == {}
    assert raw.hgetall(shard.keys.hydrating(SHARD)) == {"_": "_"}
    shard.check(a)
    found = quick.get(KEY)
    assert found is not None
    assert found.change_id == written[0].change_id

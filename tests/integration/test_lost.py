"""A lost tail is told: to whoever waits for it, to whoever wrote it, and to operators."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest

from statecache import AsyncStateCache, ConfigurationError, DrainReport, Lost, LostCommit, Position, State
from statecache.clock import monotonic
from statecache.testing.valkey import Valkey
from tests.fixtures.faults import through
from tests.support.command_line import CommandLine
from tests.support.fault_proxy import FaultProxy
from tests.support.gate_world import Fenced, World, append_only_file, lose_from
from tests.support.polling import pause

KEY = "runs/42"
AT_ONCE_S = 5.0


def lost_tail(shard: World, *, many: int = 2) -> tuple[Valkey, list[State[Any]]]:
    """Restart a server without the last changes that its client was acknowledged, and give it and what it lacks."""
    a = shard.start("a", appendfsync="always")
    shard.open(a)
    shard.put(a, KEY, "kept")
    size = append_only_file(a).stat().st_size
    lost = [shard.put(a, KEY, number) for number in range(many)]
    lose_from(a, size)
    a.start()
    return a, lost


async def test_a_commit_that_was_lost_and_applied_again_by_itself_is_not_left_when_its_client_closes(
    shard: World,
) -> None:
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.open(a)
    kept = shard.put(a, KEY, "kept")
    shard.flush(a)
    shard.in_step(a)
    shard.promote(b)
    async with (
        FaultProxy("127.0.0.1", a.port) as address,
        AsyncStateCache(settings=through(shard.on(a, timeout_s=20), redis=address)) as agent,
    ):
        writing = asyncio.create_task(agent.set(KEY, 1, durability="postgres"))
        while shard.state(a, KEY)["version"] != "2":
            await pause()
        await asyncio.to_thread(shard.demote, a, b)
        address.retarget("127.0.0.1", b.port)
        await asyncio.to_thread(shard.open, b)
        while not writing.done():
            with contextlib.suppress(Fenced):
                await asyncio.to_thread(shard.flush, b)
            await pause()
        state = await writing
        assert (state.version, state.epoch > kept.epoch) == (2, True)
        assert await agent.close(drain=5) == DrainReport()


def test_whoever_waits_for_a_lost_position_is_told_at_once(shard: World) -> None:
    a, lost = lost_tail(shard)
    agent = shard.client(a, writer="another")
    again = agent.set(KEY, "issued again")
    assert (again.version, again.position and again.position.n) == (2, 2), "as the first of the lost ones"
    begun = monotonic()
    for state in lost:
        with pytest.raises(Lost) as told:
            agent.wait_durable(state, timeout=60)
        assert (told.value.change_id, told.value.position, told.value.epoch) == (
            state.change_id, state.position, again.epoch,
        )  # fmt: skip
        outcome = agent.outcome(state.change_id, KEY, position=state.position, timeout=60)
        assert (outcome.verdict, outcome.position, outcome.settled) == ("lost", state.position, True)
        assert f"epoch {again.epoch} began at 1" in outcome.reason
    assert monotonic() - begun < AT_ONCE_S
    assert agent.outcome(lost[0].change_id, KEY, timeout=1).verdict == "unknown", "nobody knows its position"
    shard.flush(a)
    assert agent.wait_durable(again) == again
    with pytest.raises(Lost):
        agent.wait_durable(lost[1], timeout=60)


def test_a_change_that_its_writer_has_applied_again_is_not_lost(shard: World) -> None:
    a, (first, second) = lost_tail(shard)
    agent = shard.client(a)
    repeated = agent.set(KEY, 0, change_id=first.change_id)
    assert repeated.position != first.position
    shard.flush(a)
    assert agent.wait_durable(first, timeout=60) == first
    assert agent.outcome(first.change_id, KEY, position=first.position).verdict == "applied"
    unflushed = agent.set(KEY, 1, change_id=second.change_id)
    assert agent.outcome(second.change_id, KEY, position=second.position).verdict == "applied"
    assert agent.outcome(second.change_id, KEY, position=second.position).position == unflushed.position


def test_a_client_tells_what_it_was_acknowledged_and_lost_and_how_far_the_tail_came(
    shard: World, caplog: pytest.LogCaptureFixture
) -> None:
    a, lost = lost_tail(shard, many=5)
    old = shard.client(a)
    assert old.lost() == ()
    with caplog.at_level(logging.WARNING, "statecache"):
        new = old.set("runs/43", "shows the new epoch")
    expected = tuple(
        LostCommit(change_id=one.change_id, key=KEY, position=one.position or Position(0, 0), ended_by=new.epoch)
        for one in lost
    )
    assert old.lost() == expected
    assert old.close(drain=0.0).lost == expected
    (line,) = [record.getMessage() for record in caplog.records if "are lost, with" in record.getMessage()]
    assert line.startswith("5 commits that were acknowledged are lost")
    assert f"'{KEY}' at {lost[0].position}" in line
    rows = shard.sql("SELECT shard, epoch, first_n, last_n, cause, positions, keys FROM lost")
    assert rows == [(0, new.epoch, 2, 6, "tail", 5, [KEY])]


def test_what_is_lost_is_listed_and_calls_for_a_person(
    shard: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, lost = lost_tail(shard, many=3)
    ended_by = shard.client(a).set("runs/43", "shows the new epoch").epoch
    shard.flush(a)
    cli = CommandLine(shard.on(a), monkeypatch, capsys)
    listed = cli("lost", "--json")
    (found,) = listed.json["lost"]
    facts = {
        name: found[name] for name in ("shard", "ended_by", "first_n", "last_n", "cause", "positions", "kept", "keys")
    }
    assert facts == {"shard": 0, "ended_by": ended_by, "first_n": 2, "last_n": 4, "cause": "tail", "positions": 3,
                     "kept": 0, "keys": [KEY]}  # fmt: skip
    assert found["opened_by"] == found["reported_by"] == shard.client(a).settings.writer
    told = cli("lost")
    assert (told.status, told.out.splitlines()[0].split("\t")[:2]) == (0, ["shard", "ended by epoch"])
    assert told.out.splitlines()[1].split("\t")[:5] == ["0", str(ended_by), "2", "4", "3"]
    status = cli("status")
    assert status.status == 1
    assert "3 positions of shard 0 were lost within 24 hours" in status.out
    shard.sql(
        "INSERT INTO conflict (change_id, key, shard, epoch, n, op, version, parent_change_id, value, encoding, schema,"
        " writer, actor, reason, at, cause)"
        " VALUES (%s, 'runs/42', 0, 1, 2, 'set', 2, '', '', '', '', '', '', '', now(), 'brought back')",
        lost[0].change_id,
    )
    assert cli("lost").out.splitlines()[1].split("\t")[4] == "2", "an old primary has brought one back"


def test_a_later_witness_raises_how_far_a_tail_is_known_to_have_come(shard: World) -> None:
    """Of an earlier epoch, too, and of a position that another one has ended since."""
    for epoch, start in ((1, 0), (2, 100), (3, 90)):
        shard.sql(
            "INSERT INTO epoch (shard, epoch, start_n, replid, opened_by) VALUES (0, %s, %s, '', '')", epoch, start
        )

    def report(epoch: int, n: int, key: str) -> list[tuple[int, int]]:
        asked = (f"{{{value}}}" for value in (0, epoch, n))
        query = "SELECT ended_by, start_n FROM report_lost(%s, %s, %s, '{\"\"}', ARRAY[%s], 'me')"
        return shard.sql(query, *asked, key)

    def lost() -> list[tuple[int, int, int, list[str]]]:
        return shard.sql("SELECT epoch, first_n, last_n, keys FROM lost ORDER BY epoch")

    assert report(1, 100, "runs/1") == [(3, 90)], "the second epoch began with it, the third without"
    assert report(1, 120, "runs/2") == [(2, 100)]
    assert report(1, 110, "runs/3") == [(2, 100)]
    assert lost() == [(2, 101, 120, ["runs/2", "runs/3"]), (3, 91, 100, ["runs/1"])]
    assert report(2, 130, "runs/4") == [(3, 90)]
    assert report(1, 90, "runs/5") == report(3, 500, "runs/6") == []
    assert lost() == [(2, 101, 120, ["runs/2", "runs/3"]), (3, 91, 130, ["runs/1", "runs/4"])]


def test_nothing_lost_is_nothing_to_look_at(
    shard: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a = shard.start("a")
    shard.open(a)
    kept = shard.put(a, KEY, 1)
    a.restart()
    agent = shard.client(a)
    agent.set(KEY, 2)
    shard.flush(a)
    assert agent.lost() == agent.close(drain=5.0).lost == ()
    assert shard.sql("SELECT * FROM lost") == []
    assert shard.client(a, writer="another").wait_durable(kept) == kept
    told = CommandLine(shard.on(a), monkeypatch, capsys)("lost")
    assert (told.status, told.out) == (0, "nothing is known to be lost\n")


def test_a_role_that_may_not_record_what_was_lost_is_told_when_it_asks_and_writes_on(shard: World) -> None:
    a, _ = lost_tail(shard)
    shard.sql("DROP FUNCTION report_lost")
    agent = shard.client(a)
    assert agent.set("runs/43", "shows the new epoch").epoch == shard.row().epoch > 1
    with pytest.raises(ConfigurationError):
        agent.lost()
    assert agent.close(drain=0.0).lost == ()

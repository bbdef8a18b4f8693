"""What a reservation, a row and a script each check for themselves, where the other two would let an opener through."""

from __future__ import annotations

import pytest

from statecache.errors import Quarantined, Unavailable
from statecache.rules.epochs import Authority
from statecache.sql import statement
from tests.support.gate_world import SHARD, World, once

KEY = "runs/42"


def test_a_server_that_was_replaced_under_its_opener_is_not_opened_for_the_row_that_names_its_former_self(
    shard: World,
) -> None:
    """Reservation and connection outlive two promotions: opened so, it would take writes that nobody may ever flush."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.put(a, KEY, 1)
    a.restart()
    shard.in_step(a)
    former = shard.replid(a)

    def replaced() -> None:
        assert shard.row().replid == former
        shard.in_step(a)
        shard.promote(b)
        shard.demote(a, b)
        shard.promote(a)
        assert shard.meta(a)["reservation"]

    (opened,) = shard.open(a, "client", tap=once("before gate_open", replaced))

    raised = [epoch for epoch, _ in shard.epochs()]
    assert (raised[-1], len(raised)) == (opened.epoch, 4)
    assert shard.replid(a) != former
    shard.check(a)
    shard.put(a, KEY, 2)
    assert shard.flush(a) == 2
    shard.check(a)


def test_an_opener_whose_own_bump_failed_does_not_open_with_anothers_epoch(shard: World) -> None:
    """Its reservation stands, for a FLUSHALL made all as it was looked at: the row alone tells of an epoch used up."""
    a = shard.start("a")
    shard.open(a)
    shard.raw(a).flushall()
    written = []

    def another_opens_and_all_is_flushed() -> None:
        shard.open(a, "worker")
        written.append(shard.put(a, KEY, "of an epoch that is gone"))
        shard.raw(a).flushall()

    told: list[str] = []
    flushed = once("before gate_reserve", another_opens_and_all_is_flushed)

    def tap(moment: str) -> None:
        told.append(moment)
        flushed(moment)

    (opened,) = shard.open(a, "worker", tap=tap)

    assert opened.epoch > written[0].epoch
    assert told.count("after gate_reserve") == 2, "its first reservation stood, and its bump came to nothing"
    assert [epoch for epoch, _ in shard.epochs()] == [1, written[0].epoch, opened.epoch]
    shard.check(a)


def test_a_row_is_raised_only_where_epoch_and_server_are_as_they_were_read(shard: World) -> None:
    """Either alone may come again: the server's with a FLUSHALL, the epoch's with a Postgres that was restored."""
    a = shard.start("a")
    shard.open(a)
    row = shard.row()
    begin = statement("begin_epoch", shard.settings.postgres_schema).encode()
    asked = {"shards": [SHARD], "seen": [row.epoch], "last": [0], "replid": "mine", "by": "the test", "wait": True}

    def raised(epoch: int, replid: str) -> int:
        with shard.session() as connection:
            return len(connection.execute(begin, asked | {"epochs": [epoch], "replids": [replid]}).fetchall())

    assert raised(row.epoch, "another") == 0
    assert raised(row.epoch - 1, row.replid) == 0
    assert raised(row.epoch + 1, row.replid) == 0
    assert shard.row() == row
    assert raised(row.epoch, row.replid) == 1
    assert shard.row()[:2] == (row.epoch + 1, "mine")


def test_what_a_worker_began_that_died_adopting_a_redis_anybody_may_finish(shard: World) -> None:
    """The row names this very server by then; before that a client may not."""
    a = shard.start("a")
    with pytest.raises(ZeroDivisionError):
        shard.open(a, "worker", tap=once("before begin_epoch", lambda: 1 // 0))
    assert shard.row()[:2] == (0, "")
    with pytest.raises(Unavailable, match="holds no data set of ours"):
        shard.open(a, "client")
    with pytest.raises(ZeroDivisionError):
        shard.open(a, "worker", tap=once("after begin_epoch", lambda: 1 // 0))
    assert shard.row()[:2] == (1, shard.replid(a))
    (opened,) = shard.open(a, "client")
    assert opened.epoch > 1
    assert shard.epochs() == [(1, 0), (opened.epoch, 0)]
    shard.check(a)


def test_a_state_whose_next_change_stands_in_quarantine_is_as_stale_as_any_other(shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.put(a, KEY, 1)
    kept = shard.put(a, "runs/43", 1)
    shard.flush(a)
    shard.in_step(a)
    shard.promote(b)
    parked = shard.put(a, KEY, "refused by Postgres")
    shard.sql(
        "INSERT INTO quarantine (shard, epoch, n, change_id, keys, entry, sqlstate, error)"
        " VALUES (0, 1, 3, %s, ARRAY[%s], '', '22021', 'for its data')",
        parked.change_id,
        KEY,
    )
    shard.sql("UPDATE state SET op = 'quarantined', version = 2, n = 3, change_id = %s WHERE key = %s",
              parked.change_id, KEY)  # fmt: skip
    shard.sql("UPDATE shard SET flushed = 3, entries = 3, bytes = %s", int(shard.meta(a)["bytes"]))
    a.kill()

    (opened,) = shard.open(b, "client")

    assert (opened.start_n, opened.dropped) == (3, 1)
    assert shard.state(b, KEY) == {}
    assert shard.state(b, "runs/43")["change_id"] == kept.change_id
    shard.check(b)
    with pytest.raises(Quarantined):
        shard.client(b).get(KEY)


@pytest.mark.parametrize("authority", ["client", "setup", "worker", "operator"])
def test_what_is_flushed_between_the_row_and_the_look_is_no_postgres_that_went_back(
    shard: World, authority: Authority
) -> None:
    """`migrate` beside a live deployment: what Redis was told is ahead of the row that was read, of no newer one."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    assert shard.open(a, authority, tap=once("after shards", lambda: shard.flush(a))) == []
    assert len(shard.epochs()) == 1
    shard.check(a)

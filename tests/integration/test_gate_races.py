"""Openers that die, pause, or meet each other and a FLUSHALL: one opens, and nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.clock import monotonic
from statecache.concurrency import THREADS, run
from statecache.core.epoch import attempt, deletion, rescue
from statecache.core.epoch.gate import Gate
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.tier import RedisTier
from statecache.errors import Unavailable
from statecache.keys import KeySpace
from statecache.rules.epochs import Authority
from statecache.sql import statement
from statecache.testing.valkey import Valkey
from tests.fixtures.servers import MakeSettings, plain_client
from tests.support.gate_taps import Tap, TappedConnection, TappedLink
from tests.support.gate_world import SHARD, World, once
from tests.support.polling import pause_thread

KEY = "runs/42"
PATIENCE_S = 10.0  # a third of the time that is taken for an opening
STEPS = ["after gate_look", "before gate_reserve", "after gate_reserve", "after begin_epoch", "before gate_open"]


class Dies(BaseException):
    """The end of an opener's process."""


def dying_after(number: int, died: list[str]) -> Callable[[str], None]:
    """Return a tap that ends an opener after that many answers since it reserved; `died` gets the last one's name."""
    answered = 0

    def tap(moment: str) -> None:
        nonlocal answered
        answered += moment == "after gate_reserve" or (answered > 0 and moment.startswith("after"))
        if answered == number:
            died.append(moment)
            raise Dies

    return tap


def dying_at(name: str, died: list[str]) -> Callable[[str], None]:
    """Return a tap that ends an opener at a moment of that name."""

    def dies() -> None:
        died.append(name)
        raise Dies

    return once(name, dies)


def lost_tail(shard: World) -> tuple[Valkey, Authority]:
    """Return a promoted replica that lacks durable changes and has some that are still to be flushed."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    for number in range(5):
        shard.put(a, f"runs/{number}", 1)
    shard.in_step(a)
    shard.promote(b)
    for number in range(1, 8):
        shard.put(a, f"runs/{number}", 2)
    shard.flush(a, most=9)
    a.kill()
    return b, "client"


def old_branch(shard: World) -> tuple[Valkey, Authority]:
    """Return an old primary with ancestors to flush, a branch, and another program's entry."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    for number in range(4):
        shard.put(a, f"runs/{number}", 1)
    shard.flush(a, most=2)
    shard.in_step(a)
    shard.promote(b)
    for number in range(2, 9):
        shard.put(a, f"runs/{number}", 2)
    shard.raw(a).xadd(shard.keys.changes(SHARD), {"not": "ours"})
    shard.open(b, "client")
    shard.put(b, "runs/0", "the lineage")
    shard.flush(b)
    b.kill()
    return a, "operator"


BACKWARDS = [
    "before gate_open", "after gate_drop", "before gate_drop", "after keys_beyond", "after begin_epoch",
    "before begin_epoch", "after gate_reserve",
]  # fmt: skip


@pytest.mark.parametrize("story", [lost_tail, old_branch])
@pytest.mark.parametrize("order", ["from the first step on", "from the last step back"])
def test_openers_that_die_one_after_the_other_at_every_step_leave_it_to_the_next(
    shard: World, story: Callable[[World], tuple[Valkey, Authority]], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "KEYS_PER_CALL", 2)
    monkeypatch.setattr(attempt, "_POSITIONS_PER_PAGE", 3)
    monkeypatch.setattr(rescue, "_PAGE", 2)
    server, authority = story(shard)
    acknowledged = {entry.change_id for entry in shard.entries(server)}
    died: list[str] = []
    if order == "from the first step on":
        taps = [dying_after(number, died) for number in range(1, 60)]
    else:
        taps = [dying_at(name, died) for name in BACKWARDS]
    opened = []
    for tap in [*taps, None]:
        with suppress(Dies):
            opened = shard.open(server, authority, tap=tap, reservation_s=0.1)
        if opened:
            break

    assert {"after gate_reserve", "after begin_epoch", "after gate_drop"} <= set(died)
    shard.check(server)
    held = {change_id for (change_id,) in shard.sql("SELECT change_id FROM change")} | shard.conflicts()
    assert acknowledged <= held | {entry.change_id for entry in shard.entries(server)}
    for number in range(10):
        shard.put(server, f"runs/{number}", "after")
    shard.flush(server)
    shard.check(server)
    for number in range(10):
        shard.chain(f"runs/{number}")


def test_of_two_clients_that_saw_the_same_closed_gate_one_opens_it(shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    a.restart()
    quicker: list[int] = []

    def another_opens() -> None:
        quicker.extend(one.epoch for one in shard.open(a, "client"))

    assert shard.open(a, "client", tap=once("before begin_epoch", another_opens)) == []
    assert len(quicker) == 1
    assert [epoch for epoch, _ in shard.epochs()] == [1, quicker[0]]
    shard.check(a)


@pytest.mark.parametrize("step", STEPS)
def test_an_opener_that_pauses_while_the_server_is_flushed_and_opened_anew_does_no_harm(
    shard: World, step: str
) -> None:
    """FLUSHALL keeps the replid: what was looked at, reserved or raised before it counts for nothing after it."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "durable")
    shard.flush(a)
    for number in range(5):
        shard.put(a, f"runs/{number}", "in memory, and gone with the FLUSHALL")
    a.restart()
    written = []

    def meanwhile() -> None:
        shard.raw(a).flushall()
        shard.open(a, "worker")
        written.append(shard.put(a, KEY, "acknowledged"))

    assert shard.open(a, "worker", tap=once(step, meanwhile)) == []
    epochs = [epoch for epoch, _ in shard.epochs()]
    begun_before = step in ("after begin_epoch", "before gate_open")
    assert (epochs[0], epochs[-1], len(epochs)) == (1, written[0].epoch, 3 if begun_before else 2)
    shard.check(a)
    shard.put(a, KEY, "goes on")
    assert shard.flush(a) == 2
    assert len(shard.chain(KEY)) == 3
    shard.check(a)


def opens_nothing(shard: World, server: Valkey, authority: Authority, *, tap: Tap) -> None:
    """Assert that an opener finds the gate open, or gives up where it has no time left to look."""
    with suppress(Unavailable):
        assert shard.open(server, authority, tap=tap) == []


@pytest.mark.parametrize("step", STEPS)
def test_an_opener_that_outlives_its_reservation_opens_nothing(shard: World, step: str) -> None:
    """Meta is missing: whoever came last raised the row highest, and the earlier one must not open with its own."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "durable")
    shard.flush(a)
    shard.raw(a).flushall()
    written = []

    def meanwhile() -> None:
        shard.open(a, "worker", reservation_s=PATIENCE_S)
        written.append(shard.put(a, KEY, "acknowledged"))
        written.append(shard.put(a, KEY, "acknowledged too"))

    opens_nothing(shard, a, "worker", tap=once(step, meanwhile))
    shard.check(a)
    assert int(shard.meta(a)["epoch"]) == shard.row().epoch == written[0].epoch
    assert shard.flush(a) == 2
    assert shard.chain(KEY)[1:] == [state.change_id for state in written]


@pytest.mark.parametrize("step", ["after begin_epoch", "before XRANGE", "before rescue_branch", "before gate_drop"])
def test_an_opener_that_outlives_its_reservation_does_not_take_the_next_epochs_changes_for_the_branch(
    shard: World, step: str
) -> None:
    a, authority = old_branch(shard)
    branch = {change.change_id for entry in shard.entries(a)[4:] for change in entry.changes}
    written: list[str] = []

    def meanwhile() -> None:
        shard.open(a, authority, reservation_s=PATIENCE_S)
        written.extend(shard.put(a, f"runs/{number}", "acknowledged").change_id for number in range(9))

    opens_nothing(shard, a, authority, tap=once(step, meanwhile))
    assert shard.conflicts() == branch
    assert shard.sql("SELECT count(*) FROM quarantine") == [(1,)]
    shard.check(a)
    shard.flush(a)
    flushed = {change_id for (change_id,) in shard.sql("SELECT change_id FROM change")}
    assert set(written) <= flushed


def test_a_flushall_is_nothing_to_compare(shard: World) -> None:
    """Everything that Postgres holds lies beyond the end of nothing: none of it is read, none of it is deleted."""
    a = shard.start("a")
    shard.open(a)
    durable = [shard.put(a, f"runs/{number}", 1) for number in range(20)]
    shard.flush(a)
    shard.raw(a).flushall()
    told: list[str] = []

    (opened,) = shard.open(a, "worker", tap=told.append)

    assert (opened.dropped, opened.start_n) == (0, 20)
    assert not {"before keys_beyond", "before gate_drop", "before XRANGE"} & set(told)
    shard.check(a)
    found = shard.client(a).get("runs/7")
    assert found is not None
    assert found.change_id == durable[7].change_id


def test_a_refusal_that_rests_on_an_old_row_is_looked_at_again(shard: World) -> None:
    """Between reading the row and looking at Redis another one opened: that is no other server."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, 1)
    a.restart()

    quicker: list[int] = []

    def another_opens() -> None:
        quicker.extend(one.epoch for one in shard.open(a, "client"))

    assert shard.open(a, "client", tap=once("after shards", another_opens)) == []
    assert len(quicker) == 1
    shard.check(a)


@pytest.mark.parametrize("authority", ["client", "worker", "operator"])
def test_what_another_opened_since_the_row_was_read_is_not_closed_again(shard: World, authority: Authority) -> None:
    """FLUSHALL keeps the replid, so what was opened meanwhile looks like what an older Postgres may go on from."""
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "durable")
    shard.flush(a)
    shard.raw(a).flushall()

    def another_opens() -> None:
        shard.open(a, "worker")

    assert shard.open(a, authority, tap=once("after shards", another_opens)) == []
    assert len(shard.epochs()) == 2
    shard.check(a)


class Several:
    """A deployment of eight shards on the shared servers."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = KeySpace(settings.prefix, settings.shards)

    def close_all(self, raw: Any) -> None:
        """Close every gate, as a restart would."""
        for number in range(self.settings.shards):
            raw.hset(self.keys.meta(number), "replid", "")
            raw.hset(self.keys.meta(number), "continues", raw.info("replication")["master_replid"])

    def are_open(self, raw: Any) -> list[int]:
        return [n for n in range(self.settings.shards) if raw.hget(self.keys.meta(n), "replid")]

    def open(self, tap: Callable[[str], None]) -> list[int]:
        link = run(RedisTier(self.settings, self.keys, io=THREADS).link())
        session = run(PostgresTier(self.settings, self.keys, io=THREADS).session())
        try:
            gate = Gate(self.settings, self.keys, by="the test", authority="worker")
            tapped: Any = TappedLink(link, tap)
            connection: Any = TappedConnection(session.connection, tap)
            return [one.shard for one in run(gate.open(tapped, connection, range(self.settings.shards)))]
        finally:
            run(link.close())
            run(session.close())


@pytest.fixture
def several(make_settings: MakeSettings) -> Several:
    """Eight shards on the shared servers."""
    return Several(make_settings(shards=8))


def test_one_stuck_row_holds_up_its_own_shard_alone(several: Several) -> None:
    settings = several.settings
    lock = f'SELECT 1 FROM "{settings.postgres_schema}".shard WHERE shard = 3 FOR UPDATE'
    with plain_client(settings.redis_url) as raw, psycopg.connect(settings.postgres_url) as stuck:
        several.close_all(raw)
        stuck.execute(lock.encode())
        while_stuck: list[int] = []

        def look_then_let_go() -> None:
            while_stuck.extend(several.are_open(raw))
            stuck.rollback()

        told: list[str] = []
        let_go = once("after gate_open", look_then_let_go)

        def tap(moment: str) -> None:
            told.append(moment)
            let_go(moment)

        opened = several.open(tap)
        assert while_stuck == [0, 1, 2, 4, 5, 6, 7]
        assert told.count("after gate_reserve") == 1, "what was held is waited for, not reserved again and again"
        assert sorted(opened) == several.are_open(raw) == [*range(8)]


def test_a_row_that_stays_stuck_is_given_up_in_time(several: Several) -> None:
    settings = several.settings
    lock = f'SELECT 1 FROM "{settings.postgres_schema}".shard WHERE shard = 3 FOR UPDATE'
    begin = statement("begin_epoch", settings.postgres_schema).encode()
    limit = "-c statement_timeout=8s"
    with (
        psycopg.connect(settings.postgres_url) as stuck,
        psycopg.connect(settings.postgres_url, options=limit) as opener,
    ):
        stuck.execute(lock.encode())
        asked = {"shards": [3], "epochs": [1], "replids": ["x"], "seen": [1], "last": [0], "replid": "x", "by": "me"}
        started = monotonic()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            opener.execute(begin, asked | {"wait": True})
        assert monotonic() - started < 6


def test_rows_are_locked_in_the_order_in_which_a_flush_locks_them(several: Several) -> None:
    """A flush holds row 1 and goes on to row 6; an opener that was asked for 6 and 1 must not hold 6 meanwhile."""
    settings = several.settings
    table = f'"{settings.postgres_schema}".shard'
    begin = statement("begin_epoch", settings.postgres_schema).encode()
    asked = {"shards": [6, 1], "epochs": [1, 1], "seen": [1, 1], "last": [0, 0], "by": "the test", "wait": True}

    heap_order = "-c enable_indexscan=off -c enable_bitmapscan=off"  # as the planner may choose by itself

    def open_both() -> list[Any]:
        with psycopg.connect(settings.postgres_url, autocommit=True, options=heap_order) as connection:
            replid = connection.execute(f"SELECT replid FROM {table}".encode()).fetchone()
            assert replid is not None
            return connection.execute(begin, asked | {"replids": [*replid, *replid], "replid": "x"}).fetchall()

    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
    with psycopg.connect(settings.postgres_url) as flush, ThreadPoolExecutor(1) as threads:
        for number in range(7, -1, -1):  # so that the table holds 6 before 1
            flush.execute(f"UPDATE {table} SET owner = NULL WHERE shard = {number}".encode())
        flush.commit()
        flush.execute(f"SELECT 1 FROM {table} WHERE shard = 1 FOR UPDATE".encode())
        with psycopg.connect(settings.postgres_url, autocommit=True) as watch:
            raised, deadline = threads.submit(open_both), monotonic() + 10
            while watch.execute(waits.encode()).fetchone() == (0,):
                assert monotonic() < deadline
                assert not raised.done()
                pause_thread()
        flush.execute(f"SELECT 1 FROM {table} WHERE shard = 6 FOR UPDATE NOWAIT; COMMIT".encode())
        assert sorted(row[0] for row in raised.result()) == [1, 6]

"""What was said of durability, copies and outcomes is judged: the right history passes, each falsified one does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.simulation.ages import Bounds
from tests.simulation.evidence import Evidence, Loss, Row
from tests.simulation.freshness import Told, Window, judge_freshness
from tests.simulation.history import Operation, Seen

KEY = "runs/1"
CHAIN = [
    Row(key=KEY, change_id="c1", parent="", epoch=1, version=1),
    Row(key=KEY, change_id="c2", parent="c1", epoch=1, version=2),
    Row(key=KEY, change_id="c3", parent="c2", epoch=2, version=3, op="delete"),
    Row(key=KEY, change_id="c4", parent="c3", epoch=2, version=4),
]
BOUNDS = Bounds(window_s=1.0, command_s=2.0)


def _op(tag: str, kind: Any, at: float, **more: Any) -> Operation:
    process = tag.partition(".")[0]
    ended: dict[str, Any] = {"returned": at + 0.1, "outcome": "ok", "number": 1, "verb": kind} | more
    return Operation(tag=tag, session=f"{process}.s0", keys=(KEY,), kind=kind, invoked=at, **ended)


def _read(at: float, change_id: str = "", mode: str = "fenced", **more: Any) -> Operation:
    seen = Seen(key=KEY, change_id=change_id, version=int(change_id[1:] or 0), op="set" if change_id else "absent")
    return _op("w1-0.s0.9", "read", at, mode=mode, read=(seen,), **more)


DURABLE = _op("w0-0.s0.1", "write", 1.0, change_id="c2", level="postgres")


def _kinds(*operations: Operation, told: Told | None = None, **more: Any) -> list[str]:
    evidence = Evidence(chains={KEY: CHAIN}, **more)
    return [one.kind for one in judge_freshness(operations, evidence, told or Told(), bounds=BOUNDS)]


@pytest.mark.parametrize(
    ("read", "kinds"),
    [
        (_read(1.2, "c2"), []),
        (_read(1.2, "c4"), []),
        (_read(1.2, ""), []),  # what was deleted later
        (_read(1.05, "c1"), []),  # it began before that was said
        (_read(1.2, "c1"), ["durable read"]),
        (_read(2.05, "c1", "primary"), []),
        (_read(2.2, "c1", "primary"), ["durable read"]),
        (_read(4.05, "c1", "local"), []),
        (_read(4.2, "c1", "local"), ["durable read"]),
        (_read(4.2, "c9", "local"), []),  # what is in no chain is the checker's to judge
        (_read(4.2, "c1", "local", outcome="unknown"), []),
    ],
)
def test_what_is_durable_is_read(read: Operation, kinds: list[str]) -> None:
    assert _kinds(DURABLE, read) == kinds


SETS = {KEY: CHAIN[:2]}
LOST = Loss(since=1.5, until=7.0, levels=frozenset({"memory"}))
EARLY = msgspec.structs.replace(LOST, since=0.2)
DELETION = _op(
    "w2-0.s0.1", "write", 2.0, verb="delete", change_id="c9", written=(Seen(key=KEY, op="delete", change_id="c9"),)
)


@pytest.mark.parametrize(
    ("deletion", "read", "losses", "kinds"),
    [
        (DELETION, _read(6.0), [LOST], []),
        (DELETION, _read(6.0), [], ["durable read"]),
        (DELETION, _read(6.0, "c1"), [LOST], ["durable read"]),  # it saw something, and that is older
        (DELETION, _read(7.5), [LOST], ["durable read"]),  # when it was over
        (msgspec.structs.replace(DELETION, outcome="fail"), _read(6.0), [LOST], ["durable read"]),
        (msgspec.structs.replace(DELETION, invoked=6.5, returned=6.6), _read(6.0), [LOST], ["durable read"]),
        (
            msgspec.structs.replace(DELETION, invoked=0.5, returned=0.6),
            _read(6.0),
            [EARLY],
            ["durable read"],
        ),  # before it
        (msgspec.structs.replace(DELETION, keys=("runs/2",)), _read(6.0), [LOST], ["durable read"]),
        (msgspec.structs.replace(DELETION, written=(), verb="set"), _read(6.0), [LOST], ["durable read"]),
        (msgspec.structs.replace(DELETION, written=(), verb="transact", outcome="unknown"), _read(6.0), [LOST], []),
        (msgspec.structs.replace(DELETION, written=(), verb="delete_many", change_id=""), _read(6.0), [LOST], []),
        (msgspec.structs.replace(DELETION, written=(), verb="rename"), _read(6.0), [LOST], []),  # its source
        (msgspec.structs.replace(DELETION, written=(), verb="commit"), _read(6.0), [LOST], ["durable read"]),
    ],
)
def test_who_sees_nothing_may_have_seen_a_deletion_that_was_lost(
    deletion: Operation, read: Operation, losses: list[Loss], kinds: list[str]
) -> None:
    found = judge_freshness([DURABLE, deletion, read], Evidence(chains=SETS), Told(losses=losses), bounds=BOUNDS)
    assert [one.kind for one in found] == kinds


def test_an_absence_before_the_first_change_is_old_too() -> None:
    confirmed = _op("w0-0.s0.2", "confirm", 5.0, change_id="c4")
    assert _kinds(confirmed, _read(6.0, "")) == ["durable read"]
    assert _kinds(confirmed, _read(6.0, "c4")) == []


def test_who_is_led_to_an_old_primary_reads_what_that_holds_but_not_fenced() -> None:
    alone = Told(alone=[Window(since=2.0, until=3.0, processes=frozenset({"w1"}))])
    others = Told(alone=[Window(since=2.0, until=3.0, processes=frozenset({"w2"}))])
    assert _kinds(DURABLE, _read(2.5, "c1", "primary"), told=alone) == []
    assert _kinds(DURABLE, _read(2.5, "c1", "primary"), told=others) == ["durable read"]
    assert _kinds(DURABLE, _read(2.5, "c1"), told=alone) == ["durable read"]
    assert _kinds(DURABLE, _read(3.5, "c1", "primary"), told=alone) == ["durable read"]


def test_what_postgres_lost_is_not_asked_for() -> None:
    lost = Told(losses=[Loss(since=2.0, until=3.0, levels=frozenset({"postgres"}))])
    assert _kinds(DURABLE, _read(2.5, "c1"), told=lost) == []


def test_an_acknowledgement_at_replica_needs_one_that_answers() -> None:
    told = Told(uncopied=[Window(since=2.0, until=3.0)])
    write = _op("w0-0.s0.1", "write", 2.5, change_id="c1", level="replica")
    assert _kinds(write, told=told) == ["uncopied"]
    for changed in ({"level": "memory"}, {"invoked": 1.9}, {"returned": 3.1}, {"outcome": "unknown"}):
        assert _kinds(msgspec.structs.replace(write, **changed), told=told) == []


@pytest.mark.parametrize(
    ("change_id", "verdict", "wrong"),
    [
        ("c1", "applied", False), ("c1", "durable", False), ("c1", "not applied", True), ("c1", "forked", True),
        ("c9", "applied", True), ("c9", "durable", True), ("c9", "not applied", False), ("c9", "unknown", False),
        ("c8", "forked", False), ("c8", "quarantined", True), ("c7", "quarantined", False),
    ],
)  # fmt: skip
def test_an_outcome_is_true(change_id: str, verdict: str, wrong: bool) -> None:
    asked = _op("w0-0.s0.1", "ask", 1.0, change_id=change_id, verdict=verdict)
    aside: dict[str, Any] = {"conflicts": {("c8", KEY)}, "quarantined": {("c7", KEY)}}
    assert _kinds(asked, **aside) == ["outcome"] * wrong


def test_what_was_applied_may_be_lost_later_but_not_what_is_durable() -> None:
    told = Told(losses=[Loss(since=0.5, until=2.0)])
    assert _kinds(_op("w0-0.s0.1", "ask", 1.0, change_id="c9", verdict="applied"), told=told) == []
    assert _kinds(_op("w0-0.s0.1", "ask", 1.0, change_id="c9", verdict="durable"), told=told) == ["outcome"]


def test_what_is_said_to_be_durable_is_in_postgres_at_that_moment() -> None:
    said = _op("w0-0.s0.1", "confirm", 5.0, change_id="c4", held="no")
    assert _kinds(said) == ["moment"]
    assert _kinds(msgspec.structs.replace(said, held="yes")) == []
    assert _kinds(said, told=Told(restoring=[Window(since=5.05, until=6.0)])) == []


def test_while_changes_are_on_their_way_no_outcome_is_judged() -> None:
    asked = _op("w0-0.s0.1", "ask", 1.0, change_id="c9", verdict="applied")
    assert _kinds(asked) == ["outcome"]
    assert _kinds(asked, told=Told(rests=False)) == []


def test_an_acknowledgement_at_replica_is_held_by_one() -> None:
    write = _op("w0-0.s0.1", "write", 2.5, change_id="c1", level="replica", held="no")
    assert _kinds(write) == ["moment"]
    assert _kinds(write, told=Told(restoring=[Window(since=2.0, until=2.6)])) == []

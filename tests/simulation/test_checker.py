"""What the checker finds: every violation by its name."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest

from statecache.errors import Lost
from statecache.model import ABSENT, PRESENT, Position
from tests.simulation.checker import check
from tests.simulation.evidence import Evidence, Loss, Row, Verdict
from tests.simulation.history import Operation, Seen
from tests.simulation.judge import lost_in_vain
from tests.simulation.small_histories import KEY

OTHER = "runs/1/plan"


# A history that is right: a writes c1, b reads it and writes c2 over it, a reads c2 and deletes it.


def _row(number: int, **changed: Any) -> Row:
    parent = f"c{number - 1}" if number > 1 else ""
    row = Row(key=KEY, change_id=f"c{number}", parent=parent, epoch=1, version=number, n=number, digest=f"d{number}")
    return msgspec.structs.replace(row, **changed)


def _seen(number: int, **changed: Any) -> Seen:
    seen = Seen(key=KEY, change_id=f"c{number}", epoch=1, version=number, digest=f"d{number}")
    return msgspec.structs.replace(seen, **changed)


def _write(session: str, number: int, change: int, at: float, **changed: Any) -> Operation:
    operation = Operation(
        tag=f"{session}.{number}", session=session, number=number, verb="set", kind="write", keys=(KEY,), invoked=at,
        returned=at + 1, outcome="ok", change_id=f"c{change}", written=(_seen(change),),
    )  # fmt: skip
    return msgspec.structs.replace(operation, **changed)


def _read(session: str, number: int, seen: Seen, at: float, **changed: Any) -> Operation:
    operation = Operation(
        tag=f"{session}.{number}", session=session, number=number, verb="get", kind="read", keys=(KEY,), invoked=at,
        returned=at + 1, outcome="ok", mode="primary", read=(seen,),
    )  # fmt: skip
    return msgspec.structs.replace(operation, **changed)


FIRST = _write("a", 1, 1, 0)
READ = _read("b", 1, _seen(1), 2)
SECOND = _write("b", 2, 2, 4, expected={KEY: "c1"})
LAST = _write("a", 3, 3, 8, expected={KEY: PRESENT}, written=(_seen(3, op="delete", digest=""),), verb="delete")
TRUE = [FIRST, READ, SECOND, _read("a", 2, _seen(2), 6), LAST, _read("b", 3, Seen(key=KEY, op="absent"), 10)]
CHAIN = [_row(1), _row(2), _row(3, op="delete", digest="")]


def _judged(operations: list[Operation], chain: list[Row], **more: Any) -> Verdict:
    losses = more.pop("losses", ())
    return check(operations, Evidence(chains={KEY: chain, **more.pop("chains", {})}, **more), losses=losses)


def _kinds(operations: list[Operation], chain: list[Row], **more: Any) -> set[str]:
    return {violation.kind for violation in _judged(operations, chain, **more).violations}


def _with(operation: Operation, **changed: Any) -> list[Operation]:
    """Return the true history with one operation changed."""
    altered = msgspec.structs.replace(operation, **changed)
    return [altered if one is operation else one for one in TRUE]


def test_a_right_history_has_no_violations() -> None:
    assert _judged(TRUE, CHAIN).violations == []


def test_what_is_told_to_be_lost_must_not_be_at_the_place_that_was_told() -> None:
    found = Evidence(chains={"runs/1": [Row(key="runs/1", change_id="c1", parent="", epoch=5, version=1, n=7)]})

    def told(change_id: str, position: Position, *, epoch: int = 6, keys: tuple[str, ...] = ("runs/1",)) -> list[str]:
        error = Lost("runs/1", change_id, position=position, epoch=epoch)
        operation = Operation(tag="t", session="s", number=1, verb="wait_durable", kind="confirm", keys=("runs/1",),
                              invoked=0.0, error=f"Lost: {error}")  # fmt: skip
        written = msgspec.structs.replace(
            operation, verb="transact", kind="write", keys=keys, change_id=change_id, error=""
        )
        return lost_in_vain([written, operation], found)

    assert told("c1", Position(4, 7)) == told("c2", Position(5, 7)) == []
    assert "it is there" in told("c1", Position(5, 7))[0]
    assert "it is there" in told("c1", Position(5, 7), epoch=5)[0]
    assert told("c1", Position(5, 7), epoch=5, keys=("runs/1", "runs/1/gone")) == [], "a part of it may be"


def test_an_acknowledged_write_that_is_nowhere_is_lost() -> None:
    violations = _judged(TRUE, CHAIN[:2]).violations
    assert [(one.kind, one.operations[0].tag) for one in violations if one.kind == "lost"] == [("lost", "a.3")]
    assert "nowhere" in violations[0].sentence


@pytest.mark.parametrize(("place", "said"), [("conflicts", "in conflict"), ("quarantined", "in quarantine")])
def test_an_acknowledged_write_that_was_set_aside_is_lost_and_said_to_be_there(place: str, said: str) -> None:
    violations = _judged(TRUE, CHAIN[:2], **{place: {("c3", KEY)}}).violations
    assert said in next(str(one) for one in violations if one.kind == "lost")


def test_a_fault_beyond_the_level_excuses_a_missing_write_and_counts_it() -> None:
    verdict = _judged(TRUE[:5], CHAIN[:2], losses=[Loss(since=7, until=20)])
    assert (verdict.violations, verdict.lost) == ([], ["a.3"])


@pytest.mark.parametrize("loss", [Loss(since=0, until=3), Loss(since=10, until=20)])
def test_a_fault_at_another_time_excuses_nothing(loss: Loss) -> None:
    assert "lost" in _kinds(TRUE[:5], CHAIN[:2], losses=[loss])


def test_no_fault_excuses_a_write_at_postgres() -> None:
    assert "lost" in _kinds(_with(LAST, level="postgres"), CHAIN[:2], losses=[Loss(since=0, until=20)])


def test_what_was_said_to_be_durable_must_be_in_the_chain() -> None:
    confirmed = Operation(
        tag="c.1", session="c", number=1, verb="wait_durable", kind="confirm", keys=(KEY,), invoked=9, returned=10,
        outcome="ok", change_id="c3",
    )  # fmt: skip
    assert _kinds([*TRUE, confirmed], CHAIN) == set()
    lossy = [Loss(since=0, until=20)]
    assert _kinds([*TRUE, confirmed], CHAIN[:2], losses=lossy) == {"lost"}


def test_a_change_that_is_twice_in_the_chain_is_found() -> None:
    assert "twice" in _kinds(TRUE, [*CHAIN, _row(4, change_id="c2", parent="c3")])


def test_a_write_that_was_applied_under_two_change_ids_is_found_by_its_tag() -> None:
    again = _row(4, change_id="c9", parent="c3", tag="b.2")
    assert "twice" in _kinds(TRUE[:5], [*CHAIN, again])


def test_a_refused_write_that_is_in_the_chain_is_found() -> None:
    refused = _with(LAST, outcome="fail", written=(), error="VersionConflict")
    assert _kinds(refused, CHAIN) == {"refused"}


def test_a_write_in_doubt_may_be_there_or_not() -> None:
    doubtful = _with(LAST, outcome="unknown", written=(), returned=inf)
    assert _kinds(doubtful, CHAIN) == set()
    assert _kinds(doubtful[:5], CHAIN[:2]) == set()


def test_a_write_in_doubt_whose_change_id_nobody_learnt_is_known_by_its_tag() -> None:
    doubtful = _with(LAST, outcome="unknown", written=(), returned=inf, change_id="")
    assert _kinds(doubtful, [*CHAIN[:2], _row(3, op="delete", digest="", tag="a.3")]) == set()
    assert "stranger" in _kinds(doubtful, CHAIN)


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param([_row(1), _row(2, parent="c0"), CHAIN[2]], id="another parent"),
        pytest.param([_row(1, parent="c0"), *CHAIN[1:]], id="a root with a parent"),
        pytest.param([_row(1), _row(2, parent=""), CHAIN[2]], id="two roots"),
        pytest.param([_row(1), _row(2), msgspec.structs.replace(CHAIN[2], version=4)], id="a version left out"),
        pytest.param([_row(1, epoch=2), *CHAIN[1:]], id="the epoch goes down"),
        pytest.param([_row(1, n=9), *CHAIN[1:]], id="the position goes down"),
    ],
)
def test_a_broken_chain_is_found(chain: list[Row]) -> None:
    assert "chain" in _kinds(TRUE, chain)


def test_a_change_that_nobody_made_is_found() -> None:
    assert "stranger" in _kinds(TRUE[:5], [*CHAIN, _row(4)])


def test_a_change_on_a_key_that_its_write_did_not_name_is_found() -> None:
    assert "stranger" in _kinds(_with(LAST, keys=(OTHER,)), CHAIN)


@pytest.mark.parametrize(("operation", "expected"), [(SECOND, "c0"), (SECOND, ABSENT), (FIRST, PRESENT), (LAST, "c1")])
def test_a_write_that_stands_behind_another_change_than_it_expected_is_found(
    operation: Operation, expected: str
) -> None:
    assert _kinds(_with(operation, expected={KEY: expected}), CHAIN) == {"precondition"}


def test_a_value_that_was_computed_from_another_one_is_found() -> None:
    told = [_row(1, tag="a.1", follows=""), _row(2, tag="b.2", follows="a.1"), CHAIN[2]]
    assert _kinds(TRUE, told) == set()
    told[1] = _row(2, tag="b.2", follows="a.0")
    assert _kinds(TRUE, told) == {"precondition"}


@pytest.mark.parametrize(
    ("verb", "argument", "values"),
    [("increment", 2, (5, 7)), ("append", ["b"], (["a"], ["a", "b"])), ("add", ["a", "b"], (["c"], ["c", "a", "b"])),
     ("remove", ["a"], (["a", "b"], ["b"]))],
)  # fmt: skip
def test_what_a_merge_has_made_is_compared_with_what_it_was_to_make(
    verb: str, argument: Any, values: tuple[Any, Any]
) -> None:
    before, after = values
    told = _with(SECOND, verb=verb, expected={}, merges={KEY: (verb, argument)})
    assert _kinds(told, [_row(1, value=before), _row(2, value=after), CHAIN[2]]) == set()
    for wrong in (before, [*after, "b"] if isinstance(after, list) else after + 2, None):
        assert _kinds(told, [_row(1, value=before), _row(2, value=wrong), CHAIN[2]]) == {"merge"}
    ended = [_row(1, value=before, until=5.0, ends=5.0), _row(2, value=after, at=6.0), CHAIN[2]]
    assert "merge" in _kinds(told, ended)
    begun = {"increment": 2, "append": ["b"], "add": ["a", "b"], "remove": []}[verb]
    assert "merge" not in _kinds(told, [ended[0], _row(2, value=begun, at=6.0), CHAIN[2]])


def test_a_copy_has_its_value_from_elsewhere_and_is_gone_on_from_as_it_is() -> None:
    copied = _with(FIRST, verb="copy")
    told = [_row(1, tag="a.1", by="z.9", follows="z.8"), _row(2, tag="b.2", follows="z.9"), CHAIN[2]]
    assert _kinds(copied, told) == set()
    assert _kinds(TRUE, told) == {"precondition"}
    told[1] = _row(2, tag="b.2", follows="a.1")
    assert _kinds(copied, told) == {"precondition"}


def test_an_acknowledged_write_whose_change_id_nobody_told_is_known_by_its_tag() -> None:
    untold = _with(LAST, change_id="", written=())
    assert _kinds(untold, [*CHAIN[:2], _row(3, op="delete", digest="", tag=LAST.tag)]) == set()
    assert "lost" in _kinds(untold, CHAIN[:2])


def test_a_commit_that_is_there_with_one_of_its_keys_only_is_found() -> None:
    there = Row(key=OTHER, change_id="c2", parent="", epoch=1, version=1, n=2)
    both = _with(SECOND, keys=(KEY, OTHER), written=(_seen(2), Seen(key=OTHER, change_id="c2", epoch=1, version=1)))
    assert _kinds(both, CHAIN, chains={OTHER: [there]}) == set()
    assert "torn" in _kinds(both, CHAIN)
    doubtful = _with(SECOND, keys=(KEY, OTHER), outcome="unknown", written=(), returned=inf)
    assert "torn" in _kinds(doubtful, CHAIN)


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (_seen(1), set()),
        (Seen(key=KEY, op="present"), set()),
        (Seen(key=OTHER, change_id="o1", epoch=1, version=1), set()),
        (Seen(key=KEY, op="absent"), {"stale", "skew"}),
        (Seen(key=OTHER, change_id="o2", epoch=1, version=2), {"skew"}),
        (Seen(key=OTHER, op="absent"), {"skew"}),
    ],
)
def test_what_a_commit_has_read_was_still_so_when_it_was_applied(seen: Seen, found: set[str]) -> None:
    """The other key was written just before the commit, and again just after it, while the commit was under way."""
    other = [_write("d", at, at, 3.5, keys=(OTHER,), change_id=f"o{at}", written=(), returned=9) for at in (1, 2)]
    chain = [
        Row(key=OTHER, change_id="o1", parent="", epoch=1, version=1, n=11),
        Row(key=OTHER, change_id="o2", parent="o1", epoch=1, version=2, n=13),
    ]
    own = [_row(1, n=10), _row(2, n=12), msgspec.structs.replace(CHAIN[2], n=14)]
    assert _kinds([*_with(SECOND, read=(seen,)), *other], own, chains={OTHER: chain}) == found


@pytest.mark.parametrize("wrong", [{"version": 3}, {"epoch": 2}, {"digest": "d9"}, {"parent": "c0"}, {"op": "delete"}])
def test_an_answer_that_the_chain_belies_is_found(wrong: dict[str, Any]) -> None:
    assert "mismatch" in _kinds(_with(SECOND, written=(_seen(2, **wrong),)), CHAIN)
    assert "mismatch" in _kinds(_with(READ, read=(_seen(1, **wrong),)), CHAIN)


def test_an_answer_about_another_change_than_was_written_is_found() -> None:
    assert "mismatch" in _kinds(_with(SECOND, written=(_seen(1),)), CHAIN)


def test_a_session_that_sees_a_key_go_back_is_found() -> None:
    back = _read("b", 3, _seen(1), 4.5, mode="local")
    assert _kinds([*TRUE[:5], back], CHAIN) == {"backwards"}


def test_a_read_of_what_had_been_overwritten_is_found() -> None:
    assert _kinds([*TRUE, _read("d", 1, _seen(1), 12)], CHAIN) == {"stale"}
    assert _kinds([*TRUE, _read("d", 1, _seen(1), 12, mode="local")], CHAIN) == set()
    assert _kinds([*TRUE, _read("d", 1, _seen(1), 4.5)], CHAIN) == set()


def test_a_write_that_was_put_before_one_that_had_ended_is_found() -> None:
    assert _kinds(_with(SECOND, invoked=8.5, returned=9), CHAIN) == {"future", "stale"}
    assert "stale" in _kinds([*TRUE[:3], *_with(SECOND, invoked=12, returned=13)[2:]], CHAIN)


def test_what_one_read_has_seen_a_later_read_must_see() -> None:
    slow = _with(SECOND, invoked=1.5, returned=9)
    early = [_read("d", 1, _seen(2), 1.6, returned=1.8), _read("e", 1, _seen(1), 1.9, returned=2)]
    assert _kinds([slow[0], slow[2], *early], CHAIN[:2]) == {"stale"}


def test_a_read_of_what_had_not_been_sent_is_found() -> None:
    assert _kinds([*TRUE, _read("d", 1, _seen(3, op="delete", digest=""), 4)], CHAIN) >= {"future"}


@pytest.mark.parametrize(("op", "at"), [("absent", 2), ("present", 10), ("absent", 6)])
def test_a_presence_that_the_chain_belies_is_found(op: str, at: float) -> None:
    assert _kinds([*TRUE, _read("d", 1, Seen(key=KEY, op=op), at)], CHAIN) == {"stale"}


def test_what_a_refusal_told_counts_as_a_read() -> None:
    denied = _write("d", 1, 9, 12, outcome="fail", written=(), change_id="", read=(Seen(key=KEY, op="present"),))
    assert _kinds([*TRUE, denied], CHAIN) == {"stale"}


def test_a_read_of_a_value_that_nobody_wrote_is_found() -> None:
    assert _kinds([*TRUE, _read("d", 1, _seen(7), 12)], CHAIN) == {"invented"}


def test_a_read_of_a_write_that_is_not_in_the_chain_is_found() -> None:
    doubtful = _with(LAST, outcome="unknown", written=(), returned=inf)[:5]
    seen = _read("d", 1, _seen(3, op="delete"), 12)
    assert _kinds([*doubtful, seen], CHAIN[:2]) == {"vanished"}
    assert _kinds([*doubtful, seen], CHAIN[:2], losses=[Loss(since=12, until=14)]) == set()


def test_a_write_in_doubt_that_was_lost_and_applied_again_may_have_been_seen_at_its_first_place() -> None:
    again = _write("a", 1, 1, 0, invoked=0, returned=inf, outcome="unknown", written=())
    first = _read("d", 1, _seen(1, version=7), 2)
    other = _write("b", 1, 2, 5, written=(_seen(2, version=1),))
    chain = [_row(2, parent="", version=1, n=1), _row(1, parent="c2", version=2, n=2)]
    assert "mismatch" in _kinds([again, first, other], chain)
    assert _kinds([again, first, other], chain, losses=[Loss(since=1, until=4)]) == set()


def test_a_presence_that_was_told_during_a_loss_binds_nobody() -> None:
    created = _write("b", 1, 1, 0)
    told = _read("d", 1, Seen(key=KEY, op="absent"), 2)
    over = _write("b", 2, 2, 5)
    deleted = _write("a", 1, 3, 1.5, returned=9, verb="delete", written=())
    chain = [_row(1), _row(2), _row(3, op="delete", digest="")]
    assert _kinds([created, told, over, deleted], chain) == {"stale"}
    assert _kinds([created, told, over, deleted], chain, losses=[Loss(since=1, until=4)]) == set()


# States that end: c1 ends at 5, on the clock of the journals and on that of the server.


ENDING = _row(1, at=0, until=5_000, ends=5.0)
EXPIRED = _row(2, op="delete", digest="", tag="expired", at=6_000)


def test_a_worker_deletes_what_has_ended_and_nothing_else() -> None:
    absent = _read("b", 1, Seen(key=KEY, op="absent"), 6)
    verdict = _judged([FIRST, absent], [ENDING, EXPIRED])
    assert (verdict.violations, verdict.expired) == ([], 1)
    for early in (_row(1, at=0), _row(1, at=0, until=6_001, ends=9.0)):
        assert "early" in _kinds([FIRST], [early, EXPIRED])
    assert "early" in _kinds([FIRST], [ENDING, msgspec.structs.replace(EXPIRED, op="set")])
    assert "stranger" in _kinds([FIRST], [ENDING, msgspec.structs.replace(EXPIRED, tag="tidy")])


def test_reads_find_a_state_until_its_end_and_not_beyond() -> None:
    assert _kinds([FIRST, _read("b", 1, _seen(1), 4)], [ENDING]) == set()
    assert _kinds([FIRST, _read("b", 1, _seen(1), 5.9)], [ENDING]) == set()  # as far as a client knows the clock
    assert _kinds([FIRST, _read("b", 1, _seen(1), 6.1)], [ENDING]) == {"ended"}
    absent = Seen(key=KEY, op="absent")
    assert _kinds([FIRST, _read("b", 1, absent, 4.5)], [ENDING]) == set()
    assert _kinds([FIRST, _read("b", 1, absent, 2)], [ENDING]) == {"stale"}
    assert _kinds([FIRST, _read("b", 1, Seen(key=KEY, op="present"), 6.1)], [ENDING]) == {"stale"}


@pytest.mark.parametrize(
    ("expected", "at", "kinds"),
    [(ABSENT, 6_000, set()), (ABSENT, 4_000, {"precondition"}), (PRESENT, 4_000, set()),
     (PRESENT, 6_000, {"precondition"}), ("c1", 4_000, set()), ("c1", 6_000, {"precondition"}), (None, 6_000, set())],
)  # fmt: skip
def test_writes_stand_behind_nothing_once_a_state_has_ended(expected: str | None, at: int, kinds: set[str]) -> None:
    write = _write("b", 1, 2, 6, expected={} if expected is None else {KEY: expected})
    assert _kinds([FIRST, write], [ENDING, _row(2, at=at)]) == kinds

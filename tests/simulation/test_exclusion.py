"""Locks and steps are judged: the right history passes, each falsified one does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.simulation.exclusion import Did, Steps, judge_locks, judge_steps
from tests.simulation.freshness import Window
from tests.simulation.history import Operation

LOCK, STEP = "locked/1", "jobs/1/steps/a1"


def _op(tag: str, verb: str, key: str, at: float, **more: Any) -> Operation:
    session = tag.rpartition(".")[0]
    ended: dict[str, Any] = {"returned": at + 1, "outcome": "ok"} | more
    return Operation(tag=tag, session=session, number=1, verb=verb, kind="ask", keys=(key,), invoked=at, **ended)


FIRST = _op("w0-0.s0.1", "hold", LOCK, 1.0, verdict="1-1")
NEXT = _op("w1-0.s0.1", "hold", LOCK, 2.0, verdict="1-2")


def _kinds_of_locks(*operations: Operation, tokens: Any = None) -> list[str]:
    return [one.kind for one in judge_locks(operations, tokens or {})]


def test_holders_of_a_lock_come_one_after_the_other() -> None:
    assert _kinds_of_locks(FIRST, NEXT) == []
    assert _kinds_of_locks(FIRST, msgspec.structs.replace(NEXT, invoked=1.9)) == ["exclusion"]
    assert _kinds_of_locks(FIRST, msgspec.structs.replace(NEXT, invoked=1.9, keys=("locked/2",))) == []
    assert _kinds_of_locks(FIRST, msgspec.structs.replace(NEXT, invoked=1.9, outcome="unknown")) == []


def test_tokens_grow() -> None:
    assert _kinds_of_locks(FIRST, msgspec.structs.replace(NEXT, verdict="1-1")) == ["tokens"]
    assert _kinds_of_locks(FIRST, msgspec.structs.replace(NEXT, verdict="2-1")) == []
    assert _kinds_of_locks(tokens={"locked/1/count": [(1, 1), (1, 1), (1, 2), (2, 1)]}) == []
    assert _kinds_of_locks(tokens={"locked/1/count": [(1, 2), (1, 1)]}) == ["tokens"]


RAN = Did(step=STEP, by="w0-0.s0.1", began=10.0, ended=18.0)
GIVEN = _op("w0-0.s0.1", "step", STEP, 9.0, returned=18.1, verdict="w0-0.s0.1")
TOLD = _op("w1-0.s0.7", "step", STEP, 14.0, outcome="fail", error="StepUnknown: nobody knows")


def _kinds(*operations: Operation, calls: Any = (RAN,), status: str = "done", troubles: Any = ()) -> list[str]:
    known = Steps(calls=calls, statuses={STEP: status}, troubles=troubles, grace_s=2.0, ended_at=60.0)
    return [one.kind for one in judge_steps(operations, known)]


def test_a_step_runs_once_and_gives_its_result_ever_after() -> None:
    later = _op("w1-0.s0.7", "step", STEP, 20.0, verdict="w0-0.s0.1")
    assert _kinds(GIVEN, later) == []
    assert _kinds(GIVEN, msgspec.structs.replace(later, verdict="w1-0.s0.7")) == ["results"]
    assert _kinds(GIVEN, calls=(RAN, msgspec.structs.replace(RAN, by="w1-0.s0.7"))) == ["effects"]


@pytest.mark.parametrize(
    ("trouble", "kinds"),
    [
        (Window(since=11.0, until=11.9), ["taken for dead"]),  # long enough before it was asked for
        (Window(since=11.0, until=12.1), []),
        (Window(since=14.5, until=14.6), []),
        (Window(since=14.5, until=14.6, processes=frozenset({"w0"})), []),
        (Window(since=14.5, until=14.6, processes=frozenset({"w2"})), ["taken for dead"]),
    ],
)
def test_an_agent_that_lives_is_not_taken_for_dead(trouble: Window, kinds: list[str]) -> None:
    assert _kinds(GIVEN, TOLD, troubles=[trouble]) == kinds


def test_of_an_agent_that_died_or_has_ended_nobody_needs_to_know() -> None:
    assert _kinds(TOLD, calls=[msgspec.structs.replace(RAN, ended=None)], status="intent") == []
    assert _kinds(GIVEN, msgspec.structs.replace(TOLD, invoked=17.5, returned=18.5)) == []
    assert _kinds(GIVEN, msgspec.structs.replace(TOLD, invoked=9.5, returned=9.9)) == []


def test_a_result_that_a_function_gave_is_kept() -> None:
    assert _kinds(status="ran") == []
    assert _kinds(status="unknown") == ["thrown away"]
    assert _kinds(status="intent", troubles=[Window(since=19.0, until=19.5)]) == []
    assert _kinds(status="intent", calls=[msgspec.structs.replace(RAN, ended=58.5)]) == []

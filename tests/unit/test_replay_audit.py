"""The audit sees what was done to the evidence, and nothing where nothing was done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from statecache.replay.audit import (
    FINDINGS_MAX,
    AuditRow,
    Evidence,
    Tip,
    Verdict,
    expected_value,
    judge,
    judge_journals,
)
from statecache.replay.journal import Ok
from statecache.replay.ledger import Sent
from statecache.replay.runs import AgentRun, Message

SHARD = 7
STARTS = {SHARD: [(1, 0), (2, 12)]}


def message(role: str, content: str | None, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


RUN = AgentRun(
    "a",
    [
        message("user", "Is it open?"),
        message("assistant", None, tool_calls=[{"function": {"name": "hours"}}]),
        message("tool", "ten to five"),
        message("assistant", "Yes. Until five. Will you come today?"),
    ],
)


def change_id(index: int) -> str:
    return f"change{index:02}"


def value_after(step: int, run: AgentRun = RUN) -> bytes:
    return msgspec.json.encode(expected_value(run, step))


def row(index: int, **other: Any) -> AuditRow:
    facts = {
        "version": index + 1,
        "change_id": change_id(index),
        "parent_change_id": change_id(index - 1) if index else "",
        "shard": SHARD,
        "epoch": 1 if index < 2 else 2,
        "n": 11 + index if index < 2 else 13 + index,
        "op": "set",
        "gap": False,
        "value": value_after(index + 1),
    }
    return AuditRow(**{**facts, **other})


def sent(index: int, **other: Any) -> Sent:
    place = row(index)
    ok = Ok(
        at=2.0,
        change_id=change_id(index),
        version=index + 1,
        epoch=place.epoch,
        position=f"{place.epoch}-{place.n}",
    )
    facts = {
        "run": RUN.id,
        "index": index,
        "change_id": change_id(index),
        "expected": change_id(index - 1) if index else "",
        "first_at": 1.0,
        "ok": ok,
        "sendings": 1,
    }
    return Sent(**{**facts, **other})


def evidence(**other: Any) -> Evidence:
    last = row(3)
    tip = Tip(op="set", version=4, epoch=last.epoch, change_id=last.change_id, value=last.value)
    facts = {
        "run": RUN,
        "sent": [sent(index) for index in range(4)],
        "rows": [row(index) for index in range(4)],
        "conflicts": 0,
        "quarantined": 0,
        "postgres": tip,
        "redis": tip,
    }
    return Evidence(**{**facts, **other})


def judged(**other: Any) -> Verdict:
    verdict = Verdict()
    judge(evidence(**other), STARTS, verdict)
    return verdict


def rows_with(index: int, **other: Any) -> list[AuditRow]:
    return [row(each, **other) if each == index else row(each) for each in range(4)]


def tip_with(**other: Any) -> Tip:
    tip = evidence().postgres
    assert tip is not None
    return msgspec.structs.replace(tip, **other)


def test_sound_evidence_passes() -> None:
    verdict = judged()
    assert verdict.ok
    assert verdict.findings == []


def test_an_acknowledged_change_that_is_not_there_is_lost() -> None:
    verdict = judged(rows=[row(0), row(1), row(3, version=3, parent_change_id=change_id(1))])
    assert verdict.lost == 1
    assert "message 3, acknowledged as change02, is lost" in verdict.findings[0]
    assert not verdict.ok


def test_the_last_change_lost_is_lost_too() -> None:
    verdict = judged(rows=[row(0), row(1), row(2)])
    assert verdict.lost == 1


def test_a_change_of_unknown_outcome_may_be_missing_only_if_the_message_is_there() -> None:
    in_doubt = sent(3, change_id="doubt000", ok=None)
    assert judged(sent=[*(sent(index) for index in range(4)), in_doubt]).ok
    cut = judged(sent=[sent(0), sent(1), sent(2), in_doubt], rows=[row(0), row(1), row(2)])
    assert cut.lost == 0
    assert "3 changes for 4 messages" in " ".join(cut.findings)


def test_a_message_under_two_change_ids_is_duplicated() -> None:
    twice = row(3, version=5, change_id="again000", parent_change_id=change_id(3), n=17)
    again = sent(3, change_id="again000", expected=change_id(3), ok=None)
    verdict = judged(sent=[*(sent(index) for index in range(4)), again], rows=[*rows_with(9), twice])
    assert verdict.duplicated == 1
    assert "message 4 is in the chain 2 times" in " ".join(verdict.findings)


def test_a_repeated_step_is_duplicated_even_where_no_agent_sent_it() -> None:
    verdict = judged(rows=[*rows_with(9), row(3, version=5, change_id="stranger", parent_change_id=change_id(3), n=17)])
    assert verdict.duplicated == 1
    assert "sent by no agent" in " ".join(verdict.findings)


def test_changes_set_aside_are_forked_or_quarantined() -> None:
    verdict = judged(conflicts=2, quarantined=1)
    assert (verdict.forked, verdict.quarantined, verdict.ok) == (2, 1, False)


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("wrong parent", {"rows": rows_with(2, parent_change_id=change_id(0))}, "continues change00, not change01"),
    ("two roots", {"rows": rows_with(2, parent_change_id="")}, "continues nothing, not change01"),
    ("version skipped", {"rows": rows_with(3, version=5)}, "has version 5"),
    ("a gap", {"rows": rows_with(3, gap=True)}, "has a gap before it"),
    ("a delete", {"rows": rows_with(3, op="delete")}, "is a delete"),
    ("epoch goes down", {"rows": [*(row(i) for i in range(3)), row(3, epoch=1)]}, "back to 1-16"),
    ("n goes down", {"rows": rows_with(3, n=14)}, "back to 2-14"),
    ("before its epoch began", {"rows": rows_with(2, n=12)}, "outside its epoch (12)"),
    ("after the next epoch began", {"rows": rows_with(1, n=13)}, "outside its epoch (0 to 12)"),
    ("an epoch that never was", {"rows": rows_with(3, epoch=9)}, "which shard 7 never had"),
    (
        "other content",
        {"rows": rows_with(1, value=value_after(2).replace(b"open", b"shut"))},
        "not what 2 messages make",
    ),
    ("steps swapped", {"rows": rows_with(1, value=value_after(3))}, "has step 3, not 2"),
    ("not JSON", {"rows": rows_with(1, value=b"\xff")}, "has step 0, not 2"),
    ("acknowledged otherwise", {"rows": rows_with(3, n=99)}, "is version 4 at 2-99"),
    (
        "another parent than asked",
        {"sent": [sent(0), sent(1), sent(2), sent(3, expected="else0000")]},
        "to continue else0000",
    ),
    ("wrong final state", {"postgres": tip_with(value=value_after(3))}, "the final state is not what the input makes"),
    ("tip is not the chain's end", {"postgres": tip_with(version=9)}, "the state is set version 9"),
    ("no state in Postgres", {"postgres": None}, "no state in Postgres"),
    ("no state in Redis", {"redis": None}, "no state in Redis"),
    (
        "Redis behind",
        {"redis": tip_with(version=3, change_id=change_id(2), value=value_after(3))},
        "Redis has set version 3",
    ),
    ("Redis has another value", {"redis": tip_with(value=b"{}")}, "with another value"),
    ("a tombstone in Redis", {"redis": tip_with(op="delete")}, "Redis has delete version 4"),
    ("applied although denied", {"sent": [sent(0), sent(1), sent(2), sent(3, denied="VersionConflict")]}, "denied it"),
    (
        "refused for good and there",
        {"sent": [sent(0), sent(1), sent(2), sent(3, ok=None, refused="VersionConflict")]},
        "was refused and is in the chain",
    ),
    ("nothing at all", {"rows": []}, "0 changes for 4 messages"),
]


@pytest.mark.parametrize(("facts", "told"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_broken_chain_is_seen(facts: dict[str, Any], told: str) -> None:
    verdict = judged(**facts)
    assert not verdict.ok
    assert told in "\n".join(verdict.findings)


def test_contradictions_in_the_journals_fail_the_audit() -> None:
    verdict = Verdict()
    judge_journals(["x was answered and never sent"], verdict)
    assert not verdict.ok
    assert verdict.findings == ["journals: x was answered and never sent"]


def test_findings_are_counted_beyond_those_that_are_told() -> None:
    verdict = Verdict()
    for _ in range(FINDINGS_MAX + 10):
        judge(evidence(redis=None), STARTS, verdict)
    assert verdict.others == FINDINGS_MAX + 10
    assert len(verdict.findings) == FINDINGS_MAX


@pytest.mark.parametrize(
    ("change", "step", "question"),
    [
        (lambda m: m, 0, None),
        (lambda m: m, 1, None),
        (lambda m: m, 4, "Will you come today?"),
        (lambda m: [*m, message("user", "No.")], 5, None),
        (lambda m: [*m, message("assistant", "Fine.")], 5, "Will you come today?"),
        (lambda m: [*m, message("assistant", "Really?? Tell me")], 5, "?"),
    ],
)
def test_the_open_question_is_the_last_one_that_was_not_answered(
    change: Callable[[list[Message]], list[Message]], step: int, question: str | None
) -> None:
    run = AgentRun("b", change(list(RUN.messages)))
    assert expected_value(run, step)["open_question"] == question
    assert expected_value(run, step)["tool_calls"] == (["hours"] if step > 1 else [])

"""The audit: what journals, input and Postgres say about each other, one run after the other.

Pure, and independent of what it judges: values are read as plain JSON, and what a state has to be is derived from the
input in other words than the agents'. For every run it proves, or names what hinders the proof:

    lost          every acknowledged change is in the run's chain, at the version, epoch and position acknowledged
    duplicated    no message is in the chain under two change_ids
    forked        none of its changes lies in `conflict` (nor, counted apart, in `quarantine`)
    chain         one root, versions 1, 2, 3 …, each row's parent is the row before it, no gap, epochs and n rising,
                  every change within the range of its epoch; no change that no agent sent; none that was refused
    content       after i changes the state is what the input's first i messages make it; after the last, all of them
    tip           the current state is the chain's last row, in Postgres and in Redis, byte for byte
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from statecache.replay.ledger import Sent
from statecache.replay.runs import AgentRun

FINDINGS_MAX = 50
"""Findings that are told in words; the others are only counted."""


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table `change`."""

    version: int
    change_id: str
    parent_change_id: str
    shard: int
    epoch: int
    n: int
    op: str
    gap: bool
    value: bytes
    writer: str = ""


class Tip(msgspec.Struct, frozen=True, kw_only=True):
    """A key's current state, as Postgres or as Redis has it."""

    op: str
    version: int
    epoch: int
    change_id: str
    value: bytes


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All evidence about one run."""

    run: AgentRun
    sent: Sequence[Sent]
    rows: Sequence[AuditRow]
    conflicts: int
    quarantined: int
    postgres: Tip | None
    redis: Tip | None


class Verdict(msgspec.Struct, kw_only=True):
    """The counts of what was found; `findings` says it in words, up to FINDINGS_MAX of them."""

    lost: int = 0
    duplicated: int = 0
    forked: int = 0
    quarantined: int = 0
    others: int = 0
    findings: list[str] = []

    @property
    def ok(self) -> bool:
        """Whether the audit passed."""
        return not (self.lost or self.duplicated or self.forked or self.quarantined or self.others)

    def tell(self, finding: str) -> None:
        """Record in words a finding that is counted elsewhere."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def note(self, finding: str) -> None:
        """Count a finding that has no counter of its own, and record it in words."""
        self.others += 1
        self.tell(finding)


Starts = Mapping[int, Sequence[tuple[int, int]]]
"""Of each shard, its epochs with the n after which each began, rising."""


def judge_journals(contradictions: Iterable[str], verdict: Verdict) -> None:
    """Add to the verdict what the journals say that contradicts itself."""
    for contradiction in contradictions:
        verdict.note(f"journals: {contradiction}")


def judge(one: Evidence, starts: Starts, verdict: Verdict) -> None:
    """Add to the verdict what the evidence about one run shows."""
    by_id = {row.change_id: row for row in one.rows}
    _judge_acknowledged(one, by_id, verdict)
    _judge_refused(one, by_id, verdict)
    _judge_set_aside(one, verdict)
    _judge_chain(one, verdict)
    _judge_epochs(one, starts, verdict)
    _judge_content(one, verdict)
    _judge_tips(one, verdict)


def _judge_acknowledged(one: Evidence, by_id: Mapping[str, AuditRow], verdict: Verdict) -> None:
    for sent in one.sent:
        if sent.ok is None:
            continue
        row = by_id.get(sent.change_id)
        if row is None:
            verdict.lost += 1
            verdict.tell(f"{one.run.id}: message {sent.index + 1}, acknowledged as {sent.change_id}, is lost")
            continue
        acknowledged = (sent.ok.version, sent.ok.epoch, sent.ok.position or f"{row.epoch}-{row.n}")
        if acknowledged != (row.version, row.epoch, f"{row.epoch}-{row.n}"):
            verdict.note(
                f"{one.run.id}: {sent.change_id} was acknowledged as version {acknowledged[0]} at {acknowledged[2]} "
                f"and is version {row.version} at {row.epoch}-{row.n}"
            )
        if sent.expected != row.parent_change_id:
            verdict.note(
                f"{one.run.id}: {sent.change_id} was to continue {sent.expected or 'nothing'} "
                f"and continues {row.parent_change_id or 'nothing'}"
            )


def _judge_refused(one: Evidence, by_id: Mapping[str, AuditRow], verdict: Verdict) -> None:
    for sent in one.sent:
        if sent.denied:
            verdict.note(f"{one.run.id}: {sent.change_id} was applied when the cache denied it: {sent.denied}")
        elif sent.refused and sent.change_id in by_id:
            verdict.note(f"{one.run.id}: {sent.change_id} was refused and is in the chain: {sent.refused}")


def _judge_set_aside(one: Evidence, verdict: Verdict) -> None:
    if one.conflicts:
        verdict.forked += one.conflicts
        verdict.tell(f"{one.run.id}: {one.conflicts} changes are in conflict")
    if one.quarantined:
        verdict.quarantined += one.quarantined
        verdict.tell(f"{one.run.id}: {one.quarantined} changes are in quarantine")


def _judge_chain(one: Evidence, verdict: Verdict) -> None:
    known = {sent.change_id for sent in one.sent}
    parent = ""
    for number, row in enumerate(one.rows, 1):
        where = f"{one.run.id}: row {number} of the chain ({row.change_id})"
        if row.change_id not in known:
            verdict.note(f"{where} was sent by no agent")
        if row.version != number:
            verdict.note(f"{where} has version {row.version}")
        if row.parent_change_id != parent:
            verdict.note(f"{where} continues {row.parent_change_id or 'nothing'}, not {parent or 'nothing'}")
        if row.gap:
            verdict.note(f"{where} has a gap before it")
        if row.op != "set":
            verdict.note(f"{where} is a {row.op}")
        parent = row.change_id
    for before, after in pairwise(one.rows):
        if after.epoch < before.epoch or after.n <= before.n:
            verdict.note(f"{one.run.id}: the chain goes from {before.epoch}-{before.n} back to {after.epoch}-{after.n}")


def _judge_epochs(one: Evidence, starts: Starts, verdict: Verdict) -> None:
    """Note every change that lies before its epoch's start or after the next one's: there the gate was not closed."""
    for row in one.rows:
        epochs = starts.get(row.shard, ())
        began = next((start for epoch, start in epochs if epoch == row.epoch), None)
        ended = next((start for epoch, start in epochs if epoch > row.epoch), None)
        if began is None:
            verdict.note(f"{one.run.id}: {row.change_id} is of epoch {row.epoch}, which shard {row.shard} never had")
        elif row.n <= began or (ended is not None and row.n > ended):
            until = "" if ended is None else f" to {ended}"
            verdict.note(f"{one.run.id}: {row.change_id} at {row.epoch}-{row.n} is outside its epoch ({began}{until})")


def _judge_content(one: Evidence, verdict: Verdict) -> None:
    sent = {each.change_id: each.index for each in one.sent}
    messages: Counter[int] = Counter()
    for number, row in enumerate(one.rows, 1):
        step = _step(row.value)
        messages[sent.get(row.change_id, step - 1)] += 1
        if row.value and step and _differs(row.value, one.run, step):
            verdict.note(f"{one.run.id}: version {row.version} ({row.change_id}) is not what {step} messages make")
        if step != number:
            verdict.note(f"{one.run.id}: version {row.version} ({row.change_id}) has step {step}, not {number}")
    for index, times in sorted(messages.items()):
        if times > 1:
            verdict.duplicated += times - 1
            verdict.tell(f"{one.run.id}: message {index + 1} is in the chain {times} times")
    if len(one.rows) < len(one.run.messages):
        verdict.note(f"{one.run.id}: {len(one.rows)} changes for {len(one.run.messages)} messages")


def _judge_tips(one: Evidence, verdict: Verdict) -> None:
    if one.postgres is None:
        verdict.note(f"{one.run.id}: there is no state in Postgres")
        return
    if _differs(one.postgres.value, one.run, len(one.run.messages)):
        verdict.note(f"{one.run.id}: the final state is not what the input makes")
    if one.rows:
        last = one.rows[-1]
        tip = Tip(op=last.op, version=last.version, epoch=last.epoch, change_id=last.change_id, value=last.value)
        if tip != one.postgres:
            verdict.note(f"{one.run.id}: the state is {_told(one.postgres)} and the chain ends in {_told(tip)}")
    if one.redis is None:
        verdict.note(f"{one.run.id}: there is no state in Redis")
    elif one.redis != one.postgres:
        values = "" if one.redis.value == one.postgres.value else ", with another value"
        verdict.note(f"{one.run.id}: Redis has {_told(one.redis)}, Postgres {_told(one.postgres)}{values}")


def _told(tip: Tip) -> str:
    return f"{tip.op} version {tip.version} of epoch {tip.epoch} ({tip.change_id})"


def _step(value: bytes) -> int:
    try:
        step = msgspec.json.decode(value)["step"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return 0
    return step if type(step) is int and step > 0 else 0


def _differs(value: bytes, run: AgentRun, step: int) -> bool:
    try:
        return bool(msgspec.json.decode(value) != expected_value(run, step))
    except msgspec.DecodeError:
        return True


def expected_value(run: AgentRun, step: int) -> dict[str, Any]:
    """Return what the state has to be after the first `step` messages, derived from the input alone."""
    messages = run.messages[:step]
    since_user = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=-1) + 1
    asked = [
        questions[-1].strip()
        for message in messages[since_user:]
        if message["role"] == "assistant" and (questions := re.findall(r"[^.!?\n]*\?", message.get("content") or ""))
    ]
    return {
        "id": run.id,
        "step": len(messages),
        "tool_calls": [call["function"]["name"] for each in messages for call in each.get("tool_calls") or []],
        "open_question": asked[-1] if asked else None,
        "messages": messages,
    }

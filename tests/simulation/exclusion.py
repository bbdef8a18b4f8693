"""Was every lock one holder's at a time, and did every step run once? Decided from journals, effects and chains.

    exclusion    the times for which holders of one lock believed to be alone do not overlap
    tokens       who had a lock later had a greater token, and the writes under a lock stand in the order of its tokens
    effects      the function of a step was called once: nothing declared it idempotent, and nobody resolved it
    results      a step has one result, the one that its function gave
    taken for dead   StepUnknown is not told of a step whose agent lives: its function went on before and after, its
                 process was neither stopped nor killed, and nothing was wrong for a while before it was asked for
    thrown away  a result that a function gave, in a process that lived on with nothing wrong, is kept

Where nothing was wrong is what the run's faults say. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from tests.simulation.evidence import Violation
from tests.simulation.freshness import Window
from tests.simulation.history import Operation

Token = tuple[int, int]


class Did(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a step's function: when it began, and when it was about to return, if it was."""

    step: str
    by: str
    began: float
    ended: float | None = None


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the steps at the end: their calls, the status of their records, and what was wrong when.

    Of an agent nothing is expected within `grace_s` of a trouble of its process, or of one of everybody.
    """

    calls: Sequence[Did]
    statuses: Mapping[str, str]
    troubles: Sequence[Window]
    grace_s: float
    ended_at: float

    def calm(self, process: str, since: float, until: float) -> bool:
        """Say whether nothing was wrong for that process in that time, nor shortly before it."""
        return not any(
            (not window.processes or process in window.processes)
            and window.since <= until
            and since <= window.until + self.grace_s
            for window in self.troubles
        )


def judge_locks(operations: Sequence[Operation], tokens: Mapping[str, Sequence[Token]]) -> list[Violation]:
    """Judge the holders of all locks; `tokens` are those of each key's chain, in its order."""
    holds: dict[str, list[Operation]] = defaultdict(list)
    for one in operations:
        if one.verb == "hold" and one.outcome == "ok":
            holds[one.keys[0]].append(one)
    return [*_overlaps(holds), *_token_orders(tokens)]


def _overlaps(holds: Mapping[str, list[Operation]]) -> Iterator[Violation]:
    for lock, held in holds.items():
        held.sort(key=lambda one: one.invoked)
        for before, one in pairwise(held):
            if one.invoked < before.returned:
                sentence = (
                    f"{one.tag} took it {before.returned - one.invoked:.3f} s before {before.tag} believed it lost"
                )
                yield Violation(kind="exclusion", key=lock, operations=(before, one), sentence=sentence)
            if _token_of(one) <= _token_of(before):
                sentence = f"{one.tag} has token {one.verdict} after {before.tag} had {before.verdict}"
                yield Violation(kind="tokens", key=lock, operations=(before, one), sentence=sentence)


def _token_of(hold: Operation) -> Token:
    epoch, _, count = hold.verdict.partition("-")
    return int(epoch), int(count)


def _token_orders(tokens: Mapping[str, Sequence[Token]]) -> Iterator[Violation]:
    for key, given in tokens.items():
        for at, (before, token) in enumerate(pairwise(given), 2):
            if token < before:
                sentence = f"version {at} was written under {token}, behind one under {before}"
                yield Violation(kind="tokens", key=key, operations=(), sentence=sentence)


def judge_steps(operations: Sequence[Operation], known: Steps) -> list[Violation]:
    """Judge all steps."""
    calls: dict[str, list[Did]] = defaultdict(list)
    for did in known.calls:
        calls[did.step].append(did)
    asked: dict[str, list[Operation]] = defaultdict(list)
    for one in operations:
        if one.verb == "step":
            asked[one.keys[0]].append(one)
    found: list[Violation] = []
    for step in calls.keys() | asked.keys():
        found += _effects(step, calls[step])
        found += _results(step, calls[step], asked[step])
        found += _taken_for_dead(step, calls[step], asked[step], known)
        found += _thrown_away(step, calls[step], known)
    return found


def _effects(step: str, calls: Sequence[Did]) -> Iterator[Violation]:
    if len(calls) > 1:
        sentence = f"its function was called {len(calls)} times, by {', '.join(did.by for did in calls)}"
        yield Violation(kind="effects", key=step, operations=(), sentence=sentence)


def _results(step: str, calls: Sequence[Did], asked: Sequence[Operation]) -> Iterator[Violation]:
    given = {did.by for did in calls if did.ended is not None}
    for one in asked:
        if one.outcome == "ok" and one.verdict not in given:
            sentence = f"{one.tag} was given the result of {one.verdict!r}; its function returned in {sorted(given)}"
            yield Violation(kind="results", key=step, operations=(one,), sentence=sentence)


def _taken_for_dead(step: str, calls: Sequence[Did], asked: Sequence[Operation], known: Steps) -> Iterator[Violation]:
    for one in asked:
        if one.outcome == "ok" or not one.error.startswith("StepUnknown"):
            continue
        for did in calls:
            process = did.by.partition("-")[0]
            lived = did.by != one.tag and did.began < one.invoked and did.ended is not None and one.returned < did.ended
            if lived and known.calm(process, one.invoked, one.returned):
                sentence = f"{one.tag} was told that nobody knows, while its agent {did.by} lived and was at it"
                yield Violation(kind="taken for dead", key=step, operations=(one,), sentence=sentence)


def _thrown_away(step: str, calls: Sequence[Did], known: Steps) -> Iterator[Violation]:
    for did in calls:
        process = did.by.partition("-")[0]
        if did.ended is None or did.ended + known.grace_s > known.ended_at:
            continue
        if known.statuses.get(step, "no") not in ("done", "ran") and known.calm(
            process, did.ended, did.ended + known.grace_s
        ):
            sentence = f"its function returned in {did.by}, and its record says {known.statuses.get(step, 'nothing')}"
            yield Violation(kind="thrown away", key=step, operations=(), sentence=sentence)

"""Did what was said of durability, of copies and of outcomes hold across failovers? Decided from journals and chains.

Where servers change their roles, a history has more in it than one order of changes. Beside the checker's verdict:

    durable reads   what Postgres held durable when a read began, the read shows, or something later: a fenced one
                    always, one of the primary when it was so for longer than the trust window, one from near a command
                    later; but for a process that was led to an old primary, which cannot know that it is one. Who saw
                    nothing may have seen a deletion that a loss took away again
    copies          what was acknowledged at `replica` began and ended while a replica could acknowledge it, and where
                    all servers were asked at that moment, a second one held it
    outcomes        what `outcome()` called applied is in its chain, what it called not applied is in none, what it
                    called forked or quarantined was set aside
    moments         what was said to be durable was in Postgres at that moment, not only at some other

What a change was durable since is the end of the first operation that says so: its writer's acknowledgement at
`postgres`, or a `wait_durable`. So a read is blamed only for what had been promised. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from tests.simulation.ages import Bounds
from tests.simulation.evidence import Evidence, Loss, Row, Violation
from tests.simulation.history import Operation, Seen

DELETING = ("delete", "delete_many", "rename", "transaction", "transact")
"""The verbs that may delete."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A time, in seconds of the journals' clock, for these processes, or for all where none is named."""

    since: float
    until: float
    processes: frozenset[str] = frozenset()

    def meets(self, operation: Operation) -> bool:
        """Say whether the operation was under way at some moment of it, in one of its processes."""
        process = operation.session.partition("-")[0]
        if self.processes and process not in self.processes:
            return False
        return self.since <= operation.returned and operation.invoked <= self.until

    def holds(self, operation: Operation) -> bool:
        """Say whether the operation began and ended in it."""
        return self.since < operation.invoked and operation.returned < self.until


class Told(msgspec.Struct, kw_only=True):
    """What the faults of a run know of it: what may be lost, and the times in which promises have exceptions.

    Unless it `rests`, changes may still be on their way into their chains.

    In `alone` a process may be led to an old primary, in `uncopied` no replica can acknowledge anything, in `restoring`
    a server is being put back to what it, or another one, held before.
    """

    rests: bool = True
    losses: list[Loss] = []
    alone: list[Window] = []
    uncopied: list[Window] = []
    restoring: list[Window] = []


def judge_freshness(
    operations: Sequence[Operation], evidence: Evidence, told: Told, *, bounds: Bounds
) -> list[Violation]:
    """Judge durable reads, copies, outcomes and moments."""
    return [
        *_stale(operations, evidence, told, bounds),
        *_uncopied(operations, told),
        *_false_outcomes(operations, evidence, told),
        *_not_held(operations, told),
    ]


def _stale(operations: Sequence[Operation], evidence: Evidence, told: Told, bounds: Bounds) -> Iterator[Violation]:
    durable = {key: _Durable(key, chain, operations, told.losses) for key, chain in evidence.chains.items()}
    gone = [loss for loss in told.losses if "postgres" in loss.levels]
    for read in operations:
        if read.kind != "read" or read.outcome != "ok":
            continue
        if any(loss.since <= read.returned and read.invoked <= loss.until for loss in gone):
            continue
        if read.mode != "fenced" and any(window.meets(read) for window in told.alone):
            continue
        age_s = 0.0 if read.mode == "fenced" else bounds.window_s
        age_s += bounds.command_s if read.mode == "local" else 0.0
        for seen in read.read:
            if seen.key in durable:
                yield from durable[seen.key].judged(read, seen, age_s)


class _Durable:
    """Since when each place of one chain was known to be durable."""

    def __init__(self, key: str, chain: Sequence[Row], operations: Sequence[Operation], losses: Sequence[Loss]) -> None:
        self._key = key
        self._chain = chain
        self._operations = operations
        self._losses = losses
        self._places = {row.change_id: at for at, row in enumerate(chain, 1)}
        said = [
            (one.returned, self._places[one.change_id], one)
            for one in operations
            if one.change_id in self._places and one.outcome == "ok" and _says_durable(one)
        ]
        said.sort(key=lambda one: one[0])
        self._times: list[float] = []
        self._highest: list[tuple[int, Operation]] = []
        for at, place, operation in said:
            if not self._highest or place > self._highest[-1][0]:
                self._times.append(at)
                self._highest.append((place, operation))

    def judged(self, read: Operation, seen: Seen, age_s: float) -> Iterator[Violation]:
        """Compare what a read saw with what was durable that long before it began."""
        at = bisect_right(self._times, read.invoked - age_s)
        place = self._places.get(seen.change_id) if seen.change_id else self._last(seen.op, read.returned)
        if not at or place is None or place >= self._highest[at - 1][0]:
            return
        wanted, by = self._highest[at - 1]
        if not seen.change_id and self._deleted_for_a_while(read, by):
            return
        sentence = (
            f"{read.tag}, {read.mode}, saw {'version ' + str(place) if seen.change_id else seen.op},"
            f" {read.invoked - by.returned:.3f} s after {by.tag} was told that version {wanted} is durable"
        )
        yield Violation(kind="durable read", key=self._key, operations=(read, by), sentence=sentence)

    def _deleted_for_a_while(self, read: Operation, by: Operation) -> bool:
        """Say whether the read, in the time of a loss, may have seen a deletion that it took; not one from before `by`.

        What is durable may be deleted at a level that the fault does not survive, and be there again when it is over.
        """
        return any(
            loss.since <= min(read.returned, one.returned) and max(read.invoked, one.invoked) <= loss.until
            for loss in self._losses
            for one in self._operations
            if one.invoked <= read.returned and one.returned > by.invoked and self._is_lost_deletion(one)
        )

    def _is_lost_deletion(self, one: Operation) -> bool:
        if one.kind != "write" or one.outcome == "fail" or self._key not in one.keys:
            return False
        if one.change_id in self._places or any(row.tag == one.tag for row in self._chain):
            return False
        told = [seen.op for seen in one.written if seen.key == self._key]
        return told == ["delete"] if told else one.verb in DELETING

    def _last(self, op: str, by: float) -> int:
        """Return the last place at which the key was absent by then, or present: what is blamed the least."""
        for at in range(len(self._chain), 0, -1):
            row = self._chain[at - 1]
            if row.op == "set" if op == "present" else row.op == "delete" or row.ends <= by:
                return at
        return 0


def _says_durable(operation: Operation) -> bool:
    return operation.kind == "confirm" or (operation.kind == "write" and operation.level == "postgres")


def _uncopied(operations: Sequence[Operation], told: Told) -> Iterator[Violation]:
    for one in operations:
        said = one.kind == "write" and one.outcome == "ok" and one.level == "replica"
        if said and any(window.holds(one) for window in told.uncopied):
            sentence = f"{one.tag}, {one.change_id}, was acknowledged at replica while no replica answered"
            yield Violation(kind="uncopied", key=one.keys[0], operations=(one,), sentence=sentence)


def _false_outcomes(operations: Sequence[Operation], evidence: Evidence, told: Told) -> Iterator[Violation]:
    for one in operations if told.rests else ():
        if one.kind != "ask" or one.outcome != "ok":
            continue
        key, change = one.keys[0], one.change_id
        there = any(row.change_id == change for row in evidence.chains.get(key, ()))
        losses = [loss for loss in told.losses if loss.since <= one.returned and one.invoked <= loss.until]
        true = {
            "applied": there or bool(losses),
            "durable": there or any("postgres" in loss.levels for loss in losses),
            "not applied": not there,
            "forked": (change, key) in evidence.conflicts,
            "quarantined": (change, key) in evidence.quarantined,
        }.get(one.verdict, True)
        if not true:
            sentence = f"{one.tag} was told {one.verdict!r} of {change}, which is {'' if there else 'not '}in the chain"
            yield Violation(kind="outcome", key=key, operations=(one,), sentence=sentence)


def _not_held(operations: Sequence[Operation], told: Told) -> Iterator[Violation]:
    for one in operations:
        if one.held == "no" and not any(window.meets(one) for window in told.restoring):
            where = "at replica, and no replica" if one.level == "replica" else "in Postgres, which"
            sentence = f"{one.tag} ({one.verb}) was told that {one.change_id} is held {where} did not hold it"
            yield Violation(kind="moment", key=one.keys[0], operations=(one,), sentence=sentence)

"""Small histories of one key, drawn from a seed: true ones, and what is left of them when one thing was falsified.

A few sessions act on a register that is played here, each operation at a moment between its sending and its return. A
write in doubt has that moment at any time later, or never. What the register did is the chain.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

import msgspec

from statecache.model import ABSENT, PRESENT
from tests.simulation.evidence import Row
from tests.simulation.history import Kind, Operation, Outcome, Seen

KEY = "runs/1"
OPERATIONS_MAX = 8

History = tuple[list[Operation], list[Row]]

_replace = msgspec.structs.replace


class _Planned(msgspec.Struct):
    """An operation before it is known how it ends."""

    tag: str
    session: str
    number: int
    verb: str
    invoked: float
    moment: float
    returned: float


class Register:
    """The register that the sessions act on."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.chain: list[Row] = []
        self._epoch = 1

    def act(self, planned: _Planned) -> Operation:
        """Apply an operation now and return how it ended."""
        if planned.verb == "read":
            return _ended(planned, "read", "ok", read=(self._shown(),))
        current = self.chain[-1] if self.chain else None
        expected, holds = self._asked(planned.verb, current)
        if not holds:
            told = (self._told(expected, current),) if self._rng.random() < 0.7 else ()
            return _ended(planned, "write", "fail", expected=expected, read=told)
        doubt = planned.returned == inf
        read = (self._shown(),) if not doubt and planned.verb == "blind" and self._rng.random() < 0.5 else ()
        row = self._written(planned, current)
        seen = () if doubt else (_shown(row, parent=True),)
        known = not doubt or self._rng.random() < 0.5
        return _ended(
            planned, "write", "unknown" if doubt else "ok", expected=expected,
            change_id=row.change_id if known else "", written=seen, read=read,
        )  # fmt: skip

    def _asked(self, verb: str, current: Row | None) -> tuple[dict[str, str], bool]:
        exists = current is not None and current.op == "set"
        if verb == "create":
            return {KEY: ABSENT}, not exists
        if verb == "delete":
            return {KEY: PRESENT}, exists
        if verb == "blind" or current is None:
            return {}, True
        wanted = self._rng.choice(self.chain).change_id if self._rng.random() < 0.4 else current.change_id
        return {KEY: wanted}, wanted == current.change_id

    def _written(self, planned: _Planned, current: Row | None) -> Row:
        self._epoch += self._rng.random() < 0.1
        row = Row(
            key=KEY, change_id=f"c{planned.tag}", parent=current.change_id if current else "", epoch=self._epoch,
            version=len(self.chain) + 1, op="delete" if planned.verb == "delete" else "set", tag=planned.tag,
            digest=planned.tag,
        )  # fmt: skip
        self.chain.append(row)
        return row

    def _shown(self) -> Seen:
        current = self.chain[-1] if self.chain else None
        if current is not None and self._rng.random() < 0.8:
            return _shown(current)
        return Seen(key=KEY, op="present" if current is not None and current.op == "set" else "absent")

    def _told(self, expected: dict[str, str], current: Row | None) -> Seen:
        """Return what a refusal tells: the change that is there, or that there is one or none."""
        if expected[KEY] not in (ABSENT, PRESENT) and current is not None:
            return _shown(current)
        return Seen(key=KEY, op="present" if expected[KEY] == ABSENT else "absent")


def _shown(row: Row, *, parent: bool = False) -> Seen:
    return Seen(
        key=KEY, op=row.op, change_id=row.change_id, parent=row.parent if parent else None, epoch=row.epoch,
        version=row.version, digest=row.digest,
    )  # fmt: skip


def _ended(
    planned: _Planned, kind: Kind, outcome: Outcome, *, expected: dict[str, str] | None = None, change_id: str = "",
    written: tuple[Seen, ...] = (), read: tuple[Seen, ...] = (),
) -> Operation:  # fmt: skip
    return Operation(
        tag=planned.tag, session=planned.session, number=planned.number, verb=planned.verb, kind=kind, keys=(KEY,),
        invoked=planned.invoked, returned=planned.returned, outcome=outcome, change_id=change_id,
        expected=expected or {}, written=written, read=read,
    )  # fmt: skip


_VERBS = ("read", "read", "read", "blind", "compare", "compare", "create", "delete")


def true_history(rng: Random) -> History:
    """Draw a history that a register has made."""
    planned = []
    for session in range(rng.randint(2, 4)):
        ends = sorted(rng.random() for _ in range(2 * rng.randint(1, 3)))
        for number, (invoked, returned) in enumerate(zip(ends[::2], ends[1::2], strict=True), 1):
            verb = rng.choice(_VERBS)
            doubt = verb != "read" and rng.random() < 0.2
            moment = rng.uniform(invoked, 1.2 if doubt else returned)
            end = inf if doubt else returned
            planned.append(_Planned(f"{session}.{number}", f"{session}", number, verb, invoked, moment, end))
    planned = planned[:OPERATIONS_MAX]
    register = Register(rng)
    operations = []
    for one in sorted(planned, key=lambda one: one.moment):
        if one.returned == inf and one.moment > 1:  # it never took effect
            operations.append(_ended(one, "write", "unknown", expected={KEY: ABSENT} if one.verb == "create" else {}))
        else:
            operations.append(register.act(one))
    operations = [_undecided(one) if one.outcome == "fail" and one.returned == inf else one for one in operations]
    return operations, register.chain


def _undecided(operation: Operation) -> Operation:
    """Return a refused write as if its sender had never learnt of the refusal."""
    return _replace(operation, outcome="unknown", read=())


def _some(rng: Random, operations: list[Operation], wanted: Callable[[Operation], object]) -> int | None:
    found = [at for at, one in enumerate(operations) if wanted(one)]
    return rng.choice(found) if found else None


def _row_gone(rng: Random, operations: list[Operation], chain: list[Row]) -> None:
    if chain:
        chain.pop(rng.randrange(len(chain)))
        _relink(rng, chain)


def _rows_swapped(rng: Random, operations: list[Operation], chain: list[Row]) -> None:
    if len(chain) > 1:
        at = rng.randrange(len(chain) - 1)
        chain[at], chain[at + 1] = chain[at + 1], chain[at]
        _relink(rng, chain)


def _row_doubled(rng: Random, operations: list[Operation], chain: list[Row]) -> None:
    if chain:
        row = rng.choice(chain)
        change_id = row.change_id + ("again" if rng.random() < 0.5 else "")
        chain.insert(rng.randrange(len(chain) + 1), _replace(row, change_id=change_id))
        _relink(rng, chain)


def _row_altered(rng: Random, operations: list[Operation], chain: list[Row]) -> None:
    if chain:
        at = rng.randrange(len(chain))
        row = chain[at]
        chain[at] = rng.choice((
            _replace(row, parent=rng.choice(chain).change_id), _replace(row, version=row.version + 1),
            _replace(row, epoch=rng.randint(1, 3)), _replace(row, op="delete" if row.op == "set" else "set"),
            _replace(row, tag="9.9", change_id="c9.9"), _replace(row, digest="other"),
        ))  # fmt: skip


def _relink(rng: Random, chain: list[Row]) -> None:
    """Make the chain look unbroken again, most of the time."""
    if rng.random() < 0.2:
        return
    parent = ""
    for at, row in enumerate(chain):
        chain[at] = _replace(row, parent=parent, version=at + 1)
        parent = row.change_id


def _read_of_another(rng: Random, operations: list[Operation], chain: list[Row]) -> None:
    at = _some(rng, operations, lambda one: one.read)
    if at is not None:
        choices = [Seen(key=KEY, op="absent"), Seen(key=KEY, op="present"), *map(_shown, chain)]
        operations[at] = _replace(operations[at], read=(rng.choice(choices),))


def _told_wrong(rng: Random, operations: list[Operation], chain: list[Row]) -> None:
    at = _some(rng, operations, lambda one: one.read or one.written)
    if at is None:
        return
    one = operations[at]
    seen = (one.read or one.written)[0]
    if not seen.change_id:
        return
    wrong = rng.choice((
        _replace(seen, version=seen.version + 1), _replace(seen, epoch=seen.epoch + 1), _replace(seen, digest="other"),
        _replace(seen, change_id="c8.8"),
    ))  # fmt: skip
    operations[at] = _replace(one, read=(wrong,)) if one.read else _replace(one, written=(wrong,))


def _end_altered(rng: Random, operations: list[Operation], chain: list[Row]) -> None:
    """Give a write another outcome than it had."""
    at = _some(rng, operations, lambda one: one.kind == "write")
    if at is None:
        return
    one = operations[at]
    later = [other.invoked for other in operations if other.session == one.session and other.number > one.number]
    returned = rng.uniform(one.invoked, min(later, default=1.0))
    change_id = one.change_id or f"c{one.tag}"
    parent = rng.choice(chain).change_id if chain else ""
    seen = Seen(key=KEY, change_id=change_id, parent=parent, epoch=1, version=len(chain), digest=one.tag)
    written = next((_shown(row, parent=True) for row in chain if row.tag == one.tag), seen)
    if one.outcome == "ok":
        outcome: Outcome = rng.choice(("fail", "unknown"))
        end = one.returned if outcome == "fail" else inf
        operations[at] = _replace(one, outcome=outcome, written=(), returned=end)
    else:
        operations[at] = _replace(
            one, outcome="ok", written=(written,), read=(), change_id=written.change_id, returned=returned
        )


def _time_altered(rng: Random, operations: list[Operation], chain: list[Row]) -> None:
    """Move an operation within the time that its session leaves it."""
    at = rng.randrange(len(operations))
    one = operations[at]
    mine = [other for other in operations if other.session == one.session]
    since = max((min(other.returned, 1.0) for other in mine if other.number < one.number), default=0.0)
    since = max([since, *(other.invoked for other in mine if other.number < one.number)])
    until = min((other.invoked for other in mine if other.number > one.number), default=1.0)
    if since < until:
        first, last = sorted((rng.uniform(since, until), rng.uniform(since, until)))
        operations[at] = _replace(one, invoked=first, returned=one.returned if one.returned == inf else last)


def _expectation_altered(rng: Random, operations: list[Operation], chain: list[Row]) -> None:
    at = _some(rng, operations, lambda one: one.kind == "write")
    if at is not None:
        wanted = rng.choice((ABSENT, PRESENT, *(row.change_id for row in chain)))
        operations[at] = _replace(operations[at], expected={KEY: wanted})


def _confirmed(rng: Random, operations: list[Operation], chain: list[Row]) -> None:
    """Add an answer that a change is durable, sometimes of a change that is in no chain."""
    if chain:
        change_id = rng.choice(chain).change_id if rng.random() < 0.6 else "c7.7"
        operations.append(
            Operation(
                tag="7.1",
                session="7",
                number=1,
                verb="wait_durable",
                kind="confirm",
                keys=(KEY,),
                invoked=1.0,
                returned=1.1,
                outcome="ok",
                change_id=change_id,
            )
        )


FALSIFICATIONS = (
    _row_gone,
    _rows_swapped,
    _row_doubled,
    _row_altered,
    _read_of_another,
    _told_wrong,
    _end_altered,
    _time_altered,
    _expectation_altered,
    _confirmed,
)


def falsified(rng: Random, history: History) -> History:
    """Change one thing in a history, which may leave it true."""
    operations, chain = list(history[0]), list(history[1])
    rng.choice(FALSIFICATIONS)(rng, operations, chain)
    return operations, chain

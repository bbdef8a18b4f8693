"""A search through all orders of a small history of one key, after Wing and Gong: slow, and plainly right.

It plays the register: a current change, its version, whether it is a deletion. An operation may take effect next if no
other one that still waits had returned before it began. Acknowledged operations must all take effect, writes in doubt
may, refused ones do not, though what their refusal told must be true at their moment. The search succeeds where the
writes that took effect are, in this order, the chain that Postgres holds. Situations that failed are remembered.

Only for histories of a few operations of sessions that do one thing at a time, without losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from statecache.model import ABSENT, PRESENT
from tests.simulation.evidence import Row
from tests.simulation.history import Operation, Seen


def linearizable(operations: Sequence[Operation], chain: Sequence[Row]) -> bool:
    """Return whether some order of the operations explains their answers and ends in this chain."""
    if any(operation.kind == "confirm" and not _confirmed(operation, chain) for operation in operations):
        return False
    playing = [one for one in operations if one.kind != "confirm" and (one.kind == "write" or one.read)]
    return _Search(playing, chain).found(0, 0)


def _confirmed(operation: Operation, chain: Sequence[Row]) -> bool:
    return operation.outcome != "ok" or any(row.change_id == operation.change_id for row in chain)


class _Search:
    def __init__(self, operations: Sequence[Operation], chain: Sequence[Row]) -> None:
        self._operations = operations
        self._chain = chain
        self._must = sum(1 << at for at, one in enumerate(operations) if one.outcome == "ok" or one.read)
        self._failed: set[tuple[int, int]] = set()

    def found(self, done: int, length: int) -> bool:
        """Return whether the operations not yet done can follow, with `length` rows of the chain written."""
        if done & self._must == self._must and length == len(self._chain):
            return True
        if (done, length) in self._failed:
            return False
        waiting = [at for at in range(len(self._operations)) if not done >> at & 1]
        first_end = min((self._operations[at].returned for at in waiting if self._must >> at & 1), default=inf)
        for at in waiting:
            operation = self._operations[at]
            if operation.invoked > first_end:
                continue
            wrote = self._effect(operation, length)
            if wrote is not None and self.found(done | 1 << at, length + wrote):
                return True
        self._failed.add((done, length))
        return False

    def _effect(self, operation: Operation, length: int) -> int | None:
        """Return how many rows the operation writes if it takes effect now; None where it cannot."""
        current = self._chain[length - 1] if length else None
        if not all(_shows(seen, current) for seen in operation.read):
            return None
        if operation.kind == "read" or operation.outcome == "fail":
            return 0
        if length == len(self._chain):
            return None
        row = self._chain[length]
        return 1 if _writes(operation, row, current) else None


def _shows(seen: Seen, current: Row | None) -> bool:
    exists = current is not None and current.op == "set"
    if not seen.change_id:
        return exists == (seen.op == "present")
    return current is not None and (seen.change_id, seen.op, seen.version, seen.epoch, seen.digest) == (
        current.change_id, current.op, current.version, current.epoch, current.digest,
    )  # fmt: skip


def _writes(operation: Operation, row: Row, current: Row | None) -> bool:
    """Return whether the operation, applied now, writes exactly this row and gets the answers that it reported."""
    parent, version, epoch = ("", 0, 0) if current is None else (current.change_id, current.version, current.epoch)
    exists = current is not None and current.op == "set"
    expected = operation.expected.get(row.key)
    if expected == ABSENT:
        holds = not exists
    elif expected == PRESENT:
        holds = exists
    else:
        holds = expected in (None, parent)
    mine = row.tag == operation.tag and (not operation.change_id or row.change_id == operation.change_id)
    continues = row.parent == parent and row.version == version + 1 and row.epoch >= epoch
    return holds and mine and continues and all(
        (seen.change_id, seen.parent, seen.op, seen.version, seen.epoch, seen.digest)
        == (row.change_id, row.parent, row.op, row.version, row.epoch, row.digest)
        for seen in operation.written
    )  # fmt: skip

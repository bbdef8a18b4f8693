"""Was every promise kept? Decided from what the sessions noted and from the chains that Postgres holds.

Writes carry the change that they continue, so a chain is the order in which a key's writes took effect, and no order
has to be searched for. With the place of a change in its chain as its position, a key's history is linearizable
exactly if, in one sweep over the operations by time,

    a write's position is above, and a read's not below, the highest position of all that had returned before it began
    a read returned after the write that it saw began

A read that says only that the key was absent, or present, takes the lowest position that fits: every later operation
is then bound the least. A `local` read may be behind, within the order of its session. Each key is judged by itself,
as locality lets it; that a commit's keys go together is judged apart.

A fault beyond what a level survives is given as a `Loss`. A write at that level that was acknowledged before it ended
may be missing afterwards: it is then counted in `lost`. A read in that time may have seen what was lost, or what was
older: it is not judged.

A state that ends is gone at that moment of the server's clock, which is that of this machine: what is committed behind
it stands behind nothing, no read that began later finds it, and nobody but a worker deletes it, no sooner. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf

from statecache.core.commit.endings import REASON
from statecache.model import ABSENT, PRESENT
from tests.simulation.evidence import Evidence, Loss, Row, Verdict, Violation
from tests.simulation.history import MOVES, Operation, Seen
from tests.simulation.modifier_verbs import made

PARTIAL = ("rollback_group",)
"""Verbs that write some of their keys, as it is found to be needed."""
LATE_S = 1.0
"""How long behind its end a state may still be read: what a client knows of the server's clock is one exchange old."""


class _Book:
    """The operations of a history, by the changes that they made."""

    def __init__(self, operations: Sequence[Operation], losses: Sequence[Loss], behind: Collection[str]) -> None:
        self.operations = operations
        self.losses = losses
        self.behind = behind
        self.verdict = Verdict()
        writes = [one for one in operations if one.kind == "write"]
        self._by_tag = {one.tag: one for one in writes}
        self._by_change = {one.change_id: one for one in writes if one.change_id}

    def writer(self, row: Row) -> Operation | None:
        """Return the write that made a row."""
        return self._by_change.get(row.change_id) or self._by_tag.get(row.tag)

    def wrote(self, change_id: str) -> Operation | None:
        """Return the write that is known by this change_id."""
        return self._by_change.get(change_id)

    def excused(self, operation: Operation, level: str = "") -> bool:
        """Return whether a loss may have taken what the operation wrote, at its own or at this level."""
        return any((level or operation.level) in loss.levels for loss in self._losses_during(operation))

    def unjudged(self, operation: Operation) -> bool:
        """Return whether the operation overlaps a loss, so that what it read is not judged."""
        return any(self._losses_during(operation))

    def _losses_during(self, operation: Operation) -> Iterator[Loss]:
        return (loss for loss in self.losses if loss.since <= operation.returned and operation.invoked <= loss.until)

    def note(self, kind: str, key: str, operations: Iterable[Operation | None], sentence: str) -> None:
        """Record a violation."""
        concerned = tuple(one for one in operations if one is not None)
        self.verdict.violations.append(Violation(kind=kind, key=key, operations=concerned, sentence=sentence))


def check(
    operations: Sequence[Operation],
    evidence: Evidence,
    *,
    losses: Sequence[Loss] = (),
    behind: Collection[str] = ("local",),
) -> Verdict:
    """Judge a whole history; an empty list of violations means that every promise was kept.

    Reads of the modes in `behind` may be older than what had returned before they began.
    """
    book = _Book(operations, losses, behind)
    places: dict[str, dict[str, int]] = {}
    for key, chain in evidence.chains.items():
        _judge_chain(book, key, chain)
        places[key] = {row.change_id: at for at, row in enumerate(chain, 1)}
    _judge_writes(book, evidence, places)
    _judge_sessions(book, places)
    touched: dict[str, list[tuple[Operation, Seen | None]]] = {key: [] for key in evidence.chains}
    for operation in operations:
        for seen in operation.read:
            touched.setdefault(seen.key, []).append((operation, seen))
        if operation.kind == "write" and operation.outcome != "fail":
            for key in operation.keys:
                touched.setdefault(key, []).append((operation, None))
    for key, told in touched.items():
        _Sweep(book, key, evidence.chains.get(key, ()), places.get(key, {}), evidence).run(told)
    return book.verdict


def _judge_chain(book: _Book, key: str, chain: Sequence[Row]) -> None:
    """Check that the chain is unbroken, and that each of its rows is what some operation asked for."""
    before: Row | None = None
    for row in chain:
        parent, version, epoch, n = ("", 0, 0, 0) if before is None else _end_of(before)
        writer = book.writer(row)
        where = f"version {row.version} ({row.change_id})"
        gap = row.gap and bool(book.losses)
        if row.parent != parent and not gap:
            book.note("chain", key, [writer], f"{where} continues {row.parent or 'nothing'}, not {parent or 'nothing'}")
        if row.version != version + 1 and not (gap and row.version > version):
            book.note("chain", key, [writer], f"{where} stands behind version {version}")
        if row.epoch < epoch or (row.n and row.n <= n):
            book.note("chain", key, [writer], f"{where} goes from {epoch}-{n} back to {row.epoch}-{row.n}")
        if writer is None and row.tag == REASON:
            book.verdict.expired += 1
            if row.op != "delete" or before is None or before.op != "set" or before.exists(row.at):
                book.note("early", key, [], f"{where} deletes what had not ended: {before}")
        elif writer is None:
            book.note("stranger", key, [], f"{where} was written by nobody (tag {row.tag!r})")
        elif key not in writer.keys:
            book.note("stranger", key, [writer], f"{where} is of {writer.tag}, which does not write this key")
        elif not gap:
            _judge_precondition(book, writer, row, before)
            _judge_modifier(book, writer, row, before)
        before = row


def _end_of(row: Row) -> tuple[str, int, int, int]:
    return row.change_id, row.version, row.epoch, row.n


def _judge_precondition(book: _Book, writer: Operation, row: Row, before: Row | None) -> None:
    expected = writer.expected.get(row.key)
    exists = before is not None and before.exists(row.at)
    if expected in (ABSENT, PRESENT):
        kept = exists == (expected == PRESENT)
    else:
        ended = before is not None and before.op == "set" and not exists
        kept = expected is None or (expected == row.parent and not ended)
    if not kept:
        sentence = f"{writer.tag} expected {expected!r} and stands behind {row.parent or 'nothing'}"
        book.note("precondition", row.key, [writer], sentence)
    stood = before.by or before.tag if before is not None and exists else ""
    if row.follows not in (None, stood) and writer.verb not in MOVES:
        sentence = f"{writer.tag} was computed from {row.follows or 'nothing'}, which is not what it stands behind"
        book.note("precondition", row.key, [writer], sentence)


def _judge_modifier(book: _Book, writer: Operation, row: Row, before: Row | None) -> None:
    """Check that a modifier has made of what was there what it has to make of it."""
    modifier = writer.modifiers.get(row.key)
    if modifier is None or row.op != "set":
        return
    there = before.value if before is not None and before.exists(row.at) else None
    if row.value != (wanted := made(modifier, there)):
        sentence = f"{writer.tag} was to make {wanted!r} of {there!r} by {modifier}, and made {row.value!r}"
        book.note("modifier", row.key, [writer], sentence)


def _judge_writes(book: _Book, evidence: Evidence, places: Mapping[str, Mapping[str, int]]) -> None:
    """Check that acknowledged writes are there, refused ones not, doubtful ones at most once, and commits whole.

    What an acknowledged write has read must have been current at the moment of its commit.
    """
    applied: dict[str, dict[str, list[str]]] = {}
    for key, chain in evidence.chains.items():
        for row in chain:
            writer = book.writer(row)
            if writer is not None:
                applied.setdefault(writer.tag, {}).setdefault(row.change_id, []).append(key)
    for operation in book.operations:
        if operation.kind in ("read", "ask"):
            continue
        if operation.kind == "confirm":
            there = operation.change_id in places.get(operation.keys[0], {})
            if operation.outcome == "ok" and not there and not book.excused(operation, "postgres"):
                sentence = f"{operation.change_id} was said to be durable and is not in the chain"
                book.note("lost", operation.keys[0], [operation], sentence)
            continue
        found = applied.get(operation.tag, {})
        _judge_outcome(book, operation, found, evidence)
        if operation.outcome == "ok" and operation.change_id in found:
            for seen in operation.written:
                if seen.change_id == operation.change_id:
                    _judge_seen(book, operation, seen, evidence, places)
                    continue
                sentence = f"{operation.tag} was told of {seen.change_id} and of {operation.change_id}"
                book.note("mismatch", seen.key, [operation], sentence)
            for seen in () if book.excused(operation, "postgres") else operation.read:
                _judge_still(book, operation, seen, evidence)


def _judge_outcome(book: _Book, operation: Operation, found: Mapping[str, Sequence[str]], evidence: Evidence) -> None:
    key = operation.keys[0]
    if len(found) > 1 or any(len(keys) > len(set(keys)) for keys in found.values()):
        book.note("twice", key, [operation], f"{operation.tag} was applied more than once: {', '.join(found)}")
    if found and operation.outcome == "fail":
        sentence = f"{operation.tag} was refused ({operation.error}) and is in the chain as {', '.join(found)}"
        book.note("refused", key, [operation], sentence)
    for change_id, keys in found.items():
        whole = set(keys) <= set(operation.keys) if operation.verb in PARTIAL else set(keys) == set(operation.keys)
        if not whole:
            sentence = f"{change_id} is in the chains of {sorted(set(keys))} and was to write {sorted(operation.keys)}"
            book.note("torn", key, [operation], sentence)
    if operation.outcome != "ok" or (operation.change_id in found if operation.change_id else found):
        return
    where = _set_aside(evidence, operation.change_id, key)
    if book.excused(operation):
        book.verdict.lost.append(operation.tag)
    else:
        sentence = f"{operation.tag}, acknowledged at {operation.level} as {operation.change_id}, is {where}"
        book.note("lost", key, [operation], sentence)


def _judge_still(book: _Book, operation: Operation, seen: Seen, evidence: Evidence) -> None:
    """Check that what a commit read was current when it was applied, at its own keys and others of its shard."""
    chain = evidence.chains.get(seen.key, ())
    own = next((at for at, row in enumerate(chain) if row.change_id == operation.change_id), None)
    rows = (row for key in operation.keys for row in evidence.chains.get(key, ()))
    made = next((row for row in rows if row.change_id == operation.change_id), None)
    n, moment = (0, 0.0) if made is None else (made.n, made.at)
    if own is None:
        own = sum(row.n < n for row in chain)  # it stands at other keys
    there = chain[own - 1] if own else None
    exists = there is not None and there.exists(moment)
    if seen.change_id:
        still = there is not None and there.change_id == seen.change_id and exists == (there.op == "set")
    else:
        still = exists == (seen.op == "present")
    if not still:
        sentence = f"{operation.tag} read {seen.change_id or seen.op} and was applied when {there} was there"
        book.note("skew", seen.key, [operation], sentence)


def _set_aside(evidence: Evidence, change_id: str, key: str) -> str:
    if (change_id, key) in evidence.conflicts:
        return "in conflict"
    return "in quarantine" if (change_id, key) in evidence.quarantined else "nowhere"


def _judge_seen(
    book: _Book, operation: Operation, seen: Seen, evidence: Evidence, places: Mapping[str, Mapping[str, int]]
) -> None:
    """Check that an answer's account of a change agrees with the chain."""
    at = places.get(seen.key, {}).get(seen.change_id)
    if at is None:
        return  # that the commit is not whole is said elsewhere
    row = evidence.chains[seen.key][at - 1]
    told = [("op", seen.op, row.op), ("version", seen.version, row.version), ("epoch", seen.epoch, row.epoch)]
    if seen.parent is not None:
        told.append(("parent", seen.parent, row.parent))
    if seen.digest and row.digest:
        told.append(("value", seen.digest, row.digest))
    for what, said, there in told:
        if said != there:
            sentence = f"{operation.tag} was told {what} {said!r} of {seen.change_id}, the chain has {there!r}"
            book.note("mismatch", seen.key, [operation], sentence)


def _judge_sessions(book: _Book, places: Mapping[str, Mapping[str, int]]) -> None:
    """Check that no session sees a key's (epoch, version) go down, except for what it saw during a loss."""
    last: dict[tuple[str, str], tuple[int, int, Operation]] = {}
    for operation in sorted(book.operations, key=lambda one: one.number):
        for seen in (*operation.read, *operation.written):
            sure = seen.change_id in places.get(seen.key, ()) and seen in operation.written
            if not seen.version or (not sure and book.unjudged(operation)):
                continue
            epoch, version, before = last.get((operation.session, seen.key), (0, 0, operation))
            if (seen.epoch, seen.version) < (epoch, version):
                sentence = (
                    f"{operation.session} saw ({epoch}, {version}) in {before.tag}"
                    f" and then ({seen.epoch}, {seen.version}) in {operation.tag}"
                )
                book.note("backwards", seen.key, [before, operation], sentence)
            last[operation.session, seen.key] = (seen.epoch, seen.version, operation)


class _Sweep:
    """One pass over a key's operations, ordered by time."""

    def __init__(
        self, book: _Book, key: str, chain: Sequence[Row], places: Mapping[str, int], evidence: Evidence
    ) -> None:
        self._book = book
        self._key = key
        self._chain = chain
        self._places = places
        self._evidence = evidence
        self._writers = [book.writer(row) for row in chain]
        self._at_write: dict[str, int] = {}
        for at, writer in enumerate(self._writers, 1):
            if writer is not None:
                self._at_write.setdefault(writer.tag, at)
        self._highest: tuple[int, Operation | None] = (0, None)

    def run(self, told: Sequence[tuple[Operation, Seen | None]]) -> None:
        """Judge every operation when it returns, by what had returned when it began."""
        events = []
        for at, (operation, _) in enumerate(told):
            events.append((operation.invoked, 0, at))
            events.append((operation.returned, 1, at))
        events.sort()
        begun: list[tuple[int, Operation | None]] = [(0, None)] * len(told)
        for _, ending, at in events:
            if not ending:
                begun[at] = self._highest
                continue
            operation, seen = told[at]
            place = self._write(operation, begun[at]) if seen is None else self._read(operation, seen, begun[at])
            if place is not None and operation.returned < inf and place > self._highest[0]:
                self._highest = (place, operation)

    def _write(self, operation: Operation, begun: tuple[int, Operation | None]) -> int | None:
        place = self._at_write.get(operation.tag)
        if place is not None and place <= begun[0]:
            self._stale(operation, place, begun, "stands at")
        return place

    def _read(self, operation: Operation, seen: Seen, begun: tuple[int, Operation | None]) -> int | None:
        place = self._places.get(seen.change_id)
        if self._book.unjudged(operation):
            return place if place is not None and self._is(seen, place) else None
        if not seen.change_id:
            return self._told_of_presence(operation, seen, begun)
        if place is None:
            self._saw_what_is_not_there(operation, seen)
            return None
        if seen.version:
            _judge_seen(self._book, operation, seen, self._evidence, {self._key: self._places})
        if operation.kind == "read" and self._chain[place - 1].ends + LATE_S < operation.invoked:
            self._book.note("ended", self._key, [operation], f"{operation.tag} saw {seen.change_id}, which had ended")
        if place < begun[0] and operation.mode not in self._book.behind:
            self._stale(operation, place, begun, "saw")
        if self._begun_at(place) > operation.returned:
            sentence = f"{operation.tag} saw {seen.change_id} before it was sent"
            self._book.note("future", self._key, [operation, self._writers[place - 1]], sentence)
        return place

    def _is(self, seen: Seen, place: int) -> bool:
        """Return whether a change was seen as it stands in the chain; one that was lost may have been applied again."""
        row = self._chain[place - 1]
        return (seen.epoch, seen.version) == (row.epoch, row.version)

    def _told_of_presence(self, operation: Operation, seen: Seen, begun: tuple[int, Operation | None]) -> int | None:
        for place in range(0 if operation.mode in self._book.behind else begun[0], len(self._chain) + 1):
            row = self._chain[place - 1] if place else None
            may = {"present": row is not None and row.op == "set" and row.ends + LATE_S >= operation.invoked,
                   "absent": row is None or row.op != "set" or row.ends <= operation.returned}  # fmt: skip
            if may[seen.op] and self._begun_at(place) <= operation.returned:
                return place
        sentence = f"{operation.tag} found it {seen.op}, which it was at no moment of that operation"
        self._book.note("stale", self._key, [operation, begun[1]], sentence)
        return None

    def _begun_at(self, place: int) -> float:
        writer = self._writers[place - 1] if place else None
        return -inf if writer is None else writer.invoked

    def _saw_what_is_not_there(self, operation: Operation, seen: Seen) -> None:
        writer = self._book.wrote(seen.change_id)
        kind = "invented" if writer is None else "vanished"
        told = "nobody is known to have written" if writer is None else f"{writer.tag} wrote"
        where = _set_aside(self._evidence, seen.change_id, self._key)
        sentence = f"{operation.tag} saw {seen.change_id}, which {told} and which is {where}"
        self._book.note(kind, self._key, [operation, writer], sentence)

    def _stale(self, operation: Operation, place: int, begun: tuple[int, Operation | None], verb: str) -> None:
        highest, before = begun
        sentence = f"{operation.tag} {verb} version {place}, after {before and before.tag} had seen {highest} and ended"
        self._book.note("stale", self._key, [operation, before], sentence)

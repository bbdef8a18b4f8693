"""Was a read as young as its mode promises? Decided from the journals of the readers, and the chains of Postgres.

What stands behind a change in its chain was there, for all to see, when the first operation that shows it had
returned. A read that began later and saw the change has seen something old; its age is the time between the two.

    local        not older than the trust window, where it was answered at once; where something was waited for, the
                 command that it waited for may have been sent by another reader before: one command more
    max_stale=   the same with the shorter of the two times
    min_version= never below that version
    primary      of no age at all: that is the `stale` of the checker

And in every mode, for everything that uses one client together: what one of its operations has shown, a later one does
not undercut. That is `own write` where the operation was a write, else `backwards`.

The age of an answer at once is counted from the beginning of its call, before the client has looked at its clock, to
the end of the commit that it does not know, after the server has pushed it: both make it smaller than it is, so a
client that keeps the bound is never blamed, however long a process sleeps in between. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf

import msgspec

from tests.simulation.evidence import Row, Violation
from tests.simulation.history import Operation

ROUNDING_S = 1e-6

_Known = list[tuple[float, Operation | None]]
"""When each place of a chain was first shown by an operation that ended, and by which one."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients were told: their trust window, and the longest time that one command may take, in seconds."""

    window_s: float
    command_s: float

    def of(self, read: Operation) -> float:
        """Return how old that local read may be, in seconds."""
        return min(self.window_s, read.stale_s) + (0.0 if read.at_once else self.command_s)


class _Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One operation at one key, and the place in the chain that it shows.

    An operation that only saw that the key was absent (`absent`) could fit several places: it gets the latest one, with
    which it breaks the fewest rules.
    """

    operation: Operation
    place: int
    absent: bool


def judge_ages(operations: Sequence[Operation], chains: Mapping[str, Sequence[Row]], bounds: Bounds) -> list[Violation]:
    """Judge every read of every key; a change that is in no chain is left to the checker."""
    violations: list[Violation] = []
    for key, shown in _by_key(operations, chains).items():
        known = _known_since(shown, len(chains[key]))
        violations += _old(key, shown, known, bounds)
        violations += _below(key, shown)
        violations += _undercut(key, shown, [_proven(one, chains[key], known, bounds) for one in shown])
    return violations


def _by_key(operations: Sequence[Operation], chains: Mapping[str, Sequence[Row]]) -> dict[str, list[_Shown]]:
    places = {key: {row.change_id: at for at, row in enumerate(chain, 1)} for key, chain in chains.items()}
    begun = _beginnings(operations, places)
    found: dict[str, list[_Shown]] = defaultdict(list)
    for operation in operations:
        if operation.outcome != "ok":
            continue
        for seen in (*operation.read, *operation.written):
            if seen.key in chains:
                place = places[seen.key].get(seen.change_id)
                if not seen.change_id:
                    place = _last_absence(chains[seen.key], begun[seen.key], operation.returned)
                if place is not None:
                    absent = not seen.change_id
                    found[seen.key].append(_Shown(operation=operation, place=place, absent=absent))
    return found


def _beginnings(operations: Sequence[Operation], places: Mapping[str, Mapping[str, int]]) -> dict[str, list[float]]:
    """Return when each change of each chain was first sent, -inf where its writer did not know its change_id."""
    begun = {key: [-inf] * (len(chain) + 1) for key, chain in places.items()}
    for operation in operations:
        for key in operation.keys if operation.kind == "write" else ():
            place = places.get(key, {}).get(operation.change_id)
            if place is not None:
                begun[key][place] = operation.invoked
    return begun


def _last_absence(chain: Sequence[Row], begun: Sequence[float], returned: float) -> int | None:
    """Return the last place at which the key was absent and that the read can have seen: the one that accuses least."""
    for place in range(len(chain), 0, -1):
        if (chain[place - 1].op == "delete" or chain[place - 1].ends <= returned) and begun[place] <= returned:
            return place
    return 0


def _old(key: str, shown: Sequence[_Shown], known: _Known, bounds: Bounds) -> Iterator[Violation]:
    """Yield the local reads that missed a change shown to somebody longer ago than their bound."""
    for one in shown:
        read = one.operation
        if read.kind != "read" or read.mode != "local":
            continue
        since, by = known[one.place + 1]
        age, bound = read.invoked - since, bounds.of(read)
        if by is not None and age > bound + ROUNDING_S:
            how = "was answered at once with" if read.at_once else "saw"
            sentence = (
                f"{read.tag} {how} version {one.place}, {age:.3f} s after {by.tag} had shown a later one and ended;"
                f" it may be {bound:.3f} s old"
            )
            yield Violation(kind="old", key=key, operations=(read, by), sentence=sentence)


def _known_since(shown: Sequence[_Shown], length: int) -> _Known:
    """Return for each place the first operation to return that showed it, or a later place, and when it returned."""
    known: _Known = [(inf, None)] * (length + 2)
    for one in shown:
        if not one.absent and one.operation.returned < known[one.place][0]:
            known[one.place] = (one.operation.returned, one.operation)
    for place in range(length, -1, -1):
        if known[place + 1][0] < known[place][0]:
            known[place] = known[place + 1]
    return known


def _proven(one: _Shown, chain: Sequence[Row], known: _Known, bounds: Bounds) -> int:
    """Return the place that no read may fall behind once the operation has ended.

    An absence counts as the earliest one that the read may have seen, given its mode.
    """
    if not one.absent:
        return one.place
    read = one.operation
    bound = bounds.of(read) if read.mode == "local" else 0.0
    absent = (place for place in range(one.place + 1) if place == 0 or chain[place - 1].op == "delete")
    return next((place for place in absent if read.invoked - known[place + 1][0] <= bound + ROUNDING_S), one.place)


def _below(key: str, shown: Sequence[_Shown]) -> Iterator[Violation]:
    """Yield the reads that saw an older version than they asked for."""
    for one in shown:
        if one.place < one.operation.version_min:
            sentence = f"{one.operation.tag} asked for version {one.operation.version_min} and saw {one.place}"
            yield Violation(kind="below", key=key, operations=(one.operation,), sentence=sentence)


def _undercut(key: str, shown: Sequence[_Shown], proven: Sequence[int]) -> Iterator[Violation]:
    """Yield the operations that showed something older than their client had shown before they began."""
    clients: dict[str, list[tuple[_Shown, int]]] = defaultdict(list)
    for one, place in zip(shown, proven, strict=True):
        clients[one.operation.session.partition(".")[0]].append((one, place))
    for ours in clients.values():
        events = [(one.operation.invoked, 0, at) for at, (one, _) in enumerate(ours)]
        events += [(one.operation.returned, 1, at) for at, (one, _) in enumerate(ours)]
        highest, before = -1, ours[0][0].operation
        for _, ending, at in sorted(events):
            one, place = ours[at]
            if ending and place > highest:
                highest, before = place, one.operation
            elif not ending and one.place < highest:
                sentence = f"{one.operation.tag} shows version {one.place}, after {before.tag} showed {highest}"
                kind = "own write" if before.kind == "write" else "backwards"
                yield Violation(kind=kind, key=key, operations=(one.operation, before), sentence=sentence)

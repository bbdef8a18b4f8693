"""What two values become that were made of one: a three-way merge of plain values, part by part.

Values are compared as `sameness` says. For each part of base, ours and theirs: what only one side changed is taken from
that side; what both changed in the same way is taken once; what they changed differently is looked into where all three
are dicts, or lists. What is left then is a **conflict**: it is listed with its path, and ours stays. To delete a part,
and to change it, is a conflict too. UNSET stands for nothing: a part that is not there, or no value at all.

**Dicts** are merged key by key. Where both sides add one at the same key, they are merged as if there had been an empty
one; lists too. Keys stand in our order, then come those that only they have.

**Lists** are sequences: which items of each side belong to those of the base, `alignment` says. Items of the base are
merged like keys, but one that a side replaced by something nothing like it is taken as a whole. What both sides insert
at the same place is never a conflict: all of it is kept, ours before theirs, and what both have there, in the same
order, once. Agents append to lists of messages, steps, results; two of them that append at once want both in it, and
neither takes anything from the other. Whoever needs to know who was first says so in the items. An index in such lists
is no identity: a vector whose length counts is better kept as a dict, or replaced as a whole.

A merge is a function of the three values. It does not change when the result is merged again with one of the sides,
where lists only grew at their ends: `merged(base, ours, result)` is the result, so a merge whose commit was repeated
doubles nothing. With the sides swapped the conflicts are at the same paths. Edits of different parts never conflict;
in a list only where those of one side, taken together, look like an item that was moved.

The path of a conflict is one of the base; below what both added, one of the dicts that they added. Deeper than
LEVELS_MAX a part is merged as a whole. Of more conflicts than STEPS_MAX steps can lead to, one is made, of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from statecache.rules.alignment import aligned, common
from statecache.rules.difference import LEVELS_MAX, STEPS_MAX
from statecache.rules.paths import Path, Step, text_of
from statecache.rules.sameness import Labels, is_dict, is_list

Way = tuple["Way", Step] | None
"""How to get to a part: the way to what it stands in, and the last step; None leads to the whole value."""


class Conflict(msgspec.Struct, frozen=True):
    """A part that both sides changed, each in its own way; UNSET stands where one has nothing at that path."""

    path: Path
    base: Any = UNSET
    ours: Any = UNSET
    theirs: Any = UNSET

    @property
    def place(self) -> str:
        """The path as text."""
        return text_of(self.path)


class Merged(msgspec.Struct, frozen=True):
    """The result of a merge: the value, with ours where there are conflicts, and these, in the order of their paths."""

    value: Any
    conflicts: tuple[Conflict, ...] = ()


def merged(base: Any, ours: Any, theirs: Any) -> Merged:
    """Merge two values that were made of `base`. The result shares parts with them; nothing is changed in place."""
    merge = _Merge(base, ours, theirs)
    value = merge.part(None, 0, base, ours, theirs)
    while merge.todo:
        merge.fill(*merge.todo.pop())
        if merge.steps > STEPS_MAX:
            return Merged(ours, (Conflict((), base, ours, theirs),))
    return Merged(value, tuple(sorted(merge.conflicts, key=_order)))


def _order(conflict: Conflict) -> list[tuple[bool, Step]]:
    return [(isinstance(step, str), step) for step in conflict.path]


class _Merge:
    """A merge under way: containers that are made and not filled yet, and the conflicts so far."""

    def __init__(self, base: Any, ours: Any, theirs: Any) -> None:
        self.labels = Labels(base, ours, theirs)
        self.todo: list[tuple[Way, int, Any, Any, Any, Any]] = []
        self.conflicts: list[Conflict] = []
        self.steps = 0

    def part(self, way: Way, level: int, base: Any, ours: Any, theirs: Any, *, whole: bool = False) -> Any:
        """Return what a part becomes; a container that both changed is returned empty, to be filled later."""
        old, our, their = self.labels.of(base), self.labels.of(ours), self.labels.of(theirs)
        if their in (our, old):
            return ours
        if our == old:
            return theirs
        if not whole and level < LEVELS_MAX and (made := _container(base, ours, theirs)) is not None:
            self.todo.append((way, level, base, ours, theirs, made))
            return made
        self.steps += level
        if self.steps <= STEPS_MAX:
            self.conflicts.append(Conflict(_path(way), base, ours, theirs))
        return ours

    def fill(self, way: Way, level: int, base: Any, ours: Any, theirs: Any, made: Any) -> None:
        """Fill a container of the result."""
        if isinstance(made, list):
            self._fill_list(way, level + 1, [] if base is UNSET else base, ours, theirs, made)
            return
        base = {} if base is UNSET else base
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            sides = (values.get(key, UNSET) for values in (base, ours, theirs))
            part = self.part((way, key), level + 1, *sides)
            if part is not UNSET:
                made[key] = part

    def _fill_list(self, way: Way, level: int, base: Any, ours: Any, theirs: Any, made: list[Any]) -> None:
        our_places, our_new = self._side(base, ours)
        their_places, their_new = self._side(base, theirs)
        for at in range(len(base) + 1):
            if at in our_new or at in their_new:
                made += self._inserted(our_new.get(at, ()), their_new.get(at, ()))
            if at == len(base):
                break
            our = ours[our_places[at]] if at in our_places else UNSET
            their = theirs[their_places[at]] if at in their_places else UNSET
            whole = self._is_replaced(base[at], our) or self._is_replaced(base[at], their)
            part = self.part((way, at), level, base[at], our, their, whole=whole)
            if part is not UNSET:
                made.append(part)

    def _side(self, base: Sequence[Any], side: Sequence[Any]) -> tuple[dict[int, int], dict[int, Sequence[Any]]]:
        """Return where a side has the items of the base, and what it inserted before each, and behind the last."""
        pairs = aligned(base, side, self.labels)
        inserted = {}
        other = 0
        for at, end in [*pairs, (len(base), len(side))]:
            if other < end:
                inserted[at] = side[other:end]
            other = end + 1
        return dict(pairs), inserted

    def _is_replaced(self, old: Any, new: Any) -> bool:
        return not self.labels.same(old, new) and not self.labels.likeness(old, new)

    def _inserted(self, ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
        """Return what both sides inserted at one place: what they have in common once, else ours before theirs."""
        pairs = common(ours, theirs, self.labels) if ours and theirs else []
        made: list[Any] = []
        at = other = 0
        for end, other_end in [*pairs, (len(ours), len(theirs))]:
            made += ours[at:end]
            made += theirs[other:other_end]
            made += ours[end : end + 1]
            at, other = end + 1, other_end + 1
        return made


def _container(base: Any, ours: Any, theirs: Any) -> Any:
    """Return an empty container of the kind that all three are, or None."""
    for is_kind, kind in ((is_dict, dict), (is_list, list)):
        if is_kind(ours) and is_kind(theirs) and (base is UNSET or is_kind(base)):
            return kind()
    return None


def _path(way: Way) -> Path:
    steps: list[Step] = []
    while way is not None:
        way, step = way
        steps.append(step)
    return tuple(reversed(steps))

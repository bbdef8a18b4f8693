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

An item that a side has at another place, relative to others, was **moved**. What both moved stands once, where ours has
it. What one moved and the other removed would come back unasked: the list is a conflict. That is so for items of which
there is one alone; of several that are the same nobody can tell which was moved.

**Crossed** merges, with a base that was itself merged, have items in another order because of merges, and nobody moved
them. There what one side removed is gone, and what it changed is changed, wherever the other side has it. In such a
base undecided parts stand for conflicts: both sides have the same there, or it is a conflict again.

The path of a conflict is one of the base; below what both added, one of the dicts that they added. Deeper than
LEVELS_MAX a part is merged as a whole. Of more conflicts than STEPS_MAX steps can lead to, one is made, of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from statecache.rules.alignment import aligned, common
from statecache.rules.difference import LEVELS_MAX, STEPS_MAX
from statecache.rules.paths import Path, Step, text_of
from statecache.rules.sameness import Label, Labels, is_dict, is_list

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


class Undecided:
    """A part of a merged base on which there was a conflict: it is the same as nothing."""


class Merged(msgspec.Struct, frozen=True):
    """The result of a merge: the value, with ours where there are conflicts, and these, in the order of their paths."""

    value: Any
    conflicts: tuple[Conflict, ...] = ()


def merged(base: Any, ours: Any, theirs: Any, *, crossed: bool = False) -> Merged:
    """Merge two values that were made of `base`. The result shares parts with them; nothing is changed in place.

    `crossed` says that the base is itself merged, by `merged_base`; conflicts do not tell it then.
    """
    return _merged(_Merge(base, ours, theirs, crossed=crossed), base, ours, theirs)


def merged_base(base: Any, ours: Any, theirs: Any) -> Any:
    """Merge two bases into one, with undecided parts where there are conflicts."""
    return _merged(_Merge(base, ours, theirs, crossed=True, undecided=True), base, ours, theirs).value


def _merged(merge: _Merge, base: Any, ours: Any, theirs: Any) -> Merged:
    value = merge.part(None, 0, base, ours, theirs)
    while merge.todo:
        merge.fill(*merge.todo.pop())
        if merge.steps > STEPS_MAX:
            return Merged(Undecided() if merge.undecided else ours, (merge.conflict(None, base, ours, theirs),))
    return Merged(value, tuple(sorted(merge.conflicts, key=_order)))


def _order(conflict: Conflict) -> list[tuple[bool, Step]]:
    return [(isinstance(step, str), step) for step in conflict.path]


class _Side(NamedTuple):
    """One side of a list: where it has the items of the base, and what it inserted before each and behind the last.

    `moved` is where among the inserted ones it has items of the base that it does not have at their place.
    """

    items: Sequence[Any]
    places: dict[int, int]
    inserted: dict[int, range]
    moved: dict[int, int]

    def at(self, place: int) -> Any:
        """Return what a side has at the place of an item of the base, or UNSET."""
        return self.items[self.places[place]] if place in self.places else UNSET

    def has(self, place: int) -> bool:
        """Return whether a side has an item of the base, somewhere."""
        return place in self.places or place in self.moved


class _Merge:
    """A merge under way: containers that are made and not filled yet, and the conflicts so far."""

    def __init__(self, base: Any, ours: Any, theirs: Any, *, crossed: bool, undecided: bool = False) -> None:
        self.labels = Labels(base, ours, theirs)
        self.crossed = crossed
        self.undecided = undecided
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
        if not whole and level < LEVELS_MAX and (made := self._begun(way, level, base, ours, theirs)) is not None:
            return made
        self.steps += level
        if self.steps <= STEPS_MAX:
            self.conflicts.append(self.conflict(way, base, ours, theirs))
        return Undecided() if self.undecided else ours

    def conflict(self, way: Way, base: Any, ours: Any, theirs: Any) -> Conflict:
        """Return a conflict; a base that was merged is not told."""
        return Conflict(_path(way), UNSET if self.crossed else base, ours, theirs)

    def _begun(self, way: Way, level: int, base: Any, ours: Any, theirs: Any) -> Any:
        """Return an empty container of the kind that all three are, to be filled later, or None."""
        if _are(is_dict, base, ours, theirs):
            made: Any = {}
            self.todo.append((way, level, {} if base is UNSET else base, ours, theirs, made))
            return made
        if not _are(is_list, base, ours, theirs):
            return None
        base = [] if base is UNSET else base
        mine, others = self._side(base, ours), self._side(base, theirs)
        gone = {at for at in mine.moved if not others.has(at)} | {at for at in others.moved if not mine.has(at)}
        if gone and not self.crossed:
            return None
        made = []
        self.todo.append((way, level, base, mine, others, made))
        return made

    def fill(self, way: Way, level: int, base: Any, ours: Any, theirs: Any, made: Any) -> None:
        """Fill a container of the result."""
        if isinstance(made, list):
            self._fill_list(way, level + 1, base, ours, theirs, made)
            return
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            sides = (values.get(key, UNSET) for values in (base, ours, theirs))
            part = self.part((way, key), level + 1, *sides)
            if part is not UNSET:
                made[key] = part

    def _fill_list(self, way: Way, level: int, base: Any, ours: _Side, theirs: _Side, made: list[Any]) -> None:
        our_moved, their_moved = self._settled(ours, theirs), self._settled(theirs, ours)
        their_moved |= {theirs.moved[at]: UNSET for at in ours.moved if at in theirs.moved}
        for at in range(len(base) + 1):
            if at in ours.inserted or at in theirs.inserted:
                made += self._inserted(_at(ours, at, our_moved), _at(theirs, at, their_moved))
            if at == len(base):
                break
            our, their = ours.at(at), theirs.at(at)
            if self.crossed and (at in ours.moved or at in theirs.moved):
                continue
            whole = self._is_replaced(base[at], our) or self._is_replaced(base[at], their)
            part = self.part((way, at), level, base[at], our, their, whole=whole)
            if part is not UNSET:
                made.append(part)

    def _settled(self, side: _Side, other: _Side) -> dict[int, Any]:
        """Return what stands for items that one side moved: in a crossed merge what the other side made of them."""
        if not self.crossed:
            return {}
        return {index: other.at(at) for at, index in side.moved.items() if at not in other.moved}

    def _side(self, base: Sequence[Any], items: Sequence[Any]) -> _Side:
        """Compare a side with the base."""
        pairs = aligned(base, items, self.labels)
        moved = self._moved(base, items, pairs)
        taken = {*moved.values()}
        pairs = [(at, index) for at, index in pairs if at not in moved and index not in taken]
        inserted = {}
        index = 0
        for at, end in [*pairs, (len(base), len(items))]:
            if index < end:
                inserted[at] = range(index, end)
            index = end + 1
        return _Side(items, dict(pairs), inserted, moved)

    def _moved(self, base: Sequence[Any], items: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Return which items of the base a side has at another place, and where."""
        same = [(at, index) for at, index in pairs if self.labels.same(base[at], items[index])]
        lost = self._by_label(base, {at for at, _ in same})
        new = self._by_label(items, {index for _, index in same}) if lost else {}
        found = lost.keys() & new.keys()
        if found and not self.crossed:
            counts = Counter(map(self.labels.of, base)) + Counter(map(self.labels.of, items))
            found = {label for label in found if counts[label] == 2}
        return {at: index for label in found for at, index in zip(lost[label], new[label], strict=False)}

    def _by_label(self, items: Sequence[Any], paired: set[int]) -> dict[Label, list[int]]:
        found: dict[Label, list[int]] = {}
        for at, item in enumerate(items):
            if at not in paired:
                found.setdefault(self.labels.of(item), []).append(at)
        return found

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


def _are(is_kind: Callable[[Any], bool], base: Any, ours: Any, theirs: Any) -> bool:
    """Return whether all three are of one kind; a base may be none."""
    return is_kind(ours) and is_kind(theirs) and (base is UNSET or is_kind(base))


def _at(side: _Side, place: int, settled: dict[int, Any]) -> list[Any]:
    """Return what a side inserted at one place, with what stands for the items that it moved."""
    items = (settled.get(index, side.items[index]) for index in side.inserted.get(place, ()))
    return [item for item in items if item is not UNSET]


def _path(way: Way) -> Path:
    steps: list[Step] = []
    while way is not None:
        way, step = way
        steps.append(step)
    return tuple(reversed(steps))

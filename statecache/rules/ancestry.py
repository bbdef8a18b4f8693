"""What two keys have in common, decided from where branches began and what was merged: the base of a three-way merge.

A version builds on all earlier versions of its key, back to the one with which the key began as a branch, and through
links on those of other keys: a branch on its origin, a merge on what was merged. So all that a version builds on is
told by one number for each key: the newest version of it. What two versions both build on is, for each key that both
reach, the lesser of the two. The bases are those of them that none of the others builds on.

Mostly there is one: after a merge the version that was merged last, before it the one from which the branch began.
A merge whose result was taken back does not count. The newest version of a key that is built upon says so: its value is
followed back from version to version, and from an undo, a redo or a rollback on with the version that it restored. The
merges that are met are those that count; those that are passed over were taken back, until a redo restores one.

There are several where two keys were merged into one another at the same time: neither merge knows of the other, and
whichever of the bases is taken lacks something that both sides have. Then the base is what a merge of the bases makes,
from their own bases, and so on: `base_value` says what is to be read and what is to be merged, step by step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import UNSET

from statecache.errors import LimitExceeded

CROSSINGS_MAX = 100
"""How many merges of bases, one below the other, are made for one merge."""


class Place(NamedTuple):
    """One version of one key."""

    key: str
    version: int


class Link(NamedTuple):
    """That a version was made from one of another key; `begins` where its key began with it."""

    key: str
    version: int
    origin: str
    origin_version: int
    begins: bool
    at: datetime


class Restore(NamedTuple):
    """That a version of a key, an undo, a redo or a rollback, is an earlier one of it again; `to` is 0 for none."""

    key: str
    version: int
    to: int


class Life(NamedTuple):
    """A key from one beginning as a branch to the next, or from its first version on, with 0."""

    key: str
    begun: int


class Span(NamedTuple):
    """The versions of a key from a first to a last one."""

    key: str
    first: int
    last: int


class Three(NamedTuple):
    """Three values of which one is to be made: what two bases make of their own base."""

    base: Any
    ours: Any
    theirs: Any


Search = Generator["Place | Three", Any, Any]
"""What asks for the value of a place, and for what three values become; it returns the value of the base."""


class Ancestry:
    """What versions build on, as links and restores tell it."""

    def __init__(self, links: Iterable[Link], restores: Iterable[Restore] = ()) -> None:
        self._links: dict[str, list[Link]] = {}
        for link in sorted(links, key=lambda link: link.version):
            self._links.setdefault(link.key, []).append(link)
        self._restores: dict[str, list[Restore]] = {}
        for restore in sorted(restores, key=lambda restore: restore.version):
            self._restores.setdefault(restore.key, []).append(restore)
        self._known: dict[tuple[tuple[Place, ...], Life | None], dict[Life, int]] = {}
        self._passed: dict[Place, list[Restore]] = {}

    def reached(self, *places: Place, without: Life | None = None) -> dict[Life, int]:
        """Return of each life that versions, as one, build on the newest version, their own included.

        With `without`, only what they build on by themselves, and not by way of that life.

        Which merges of a life count is known once its newest version is: what was found is the assumption of the next
        round, until it is what was assumed. A merge is newer than all that it leads to, so each round settles one more.
        """
        asked = places, without
        if asked not in self._known:
            assumed: dict[Life, int] = {}
            for _ in range(2 + sum(map(len, self._links.values()))):
                newest: dict[Life, int] = {}
                todo = [*places]
                while todo:
                    origins = self._origins(todo.pop(), newest, assumed)
                    todo += [one for one in origins if without is None or self._life(one) != without]
                if not self._restores or newest == assumed:
                    break
                assumed = newest
            self._known[asked] = newest
        return self._known[asked]

    def _life(self, place: Place) -> Life:
        """Return the life of its key to which a version belongs."""
        links = self._links.get(place.key, [])
        end = bisect_right(links, place.version, key=lambda link: link.version)
        return Life(place.key, next((link.version for link in reversed(links[:end]) if link.begins), 0))

    def _origins(self, place: Place, newest: dict[Life, int], assumed: dict[Life, int]) -> list[Place]:
        """Note that a place is reached, and return what is reached from it that was not from older ones of its life."""
        life = self._life(place)
        before = newest.get(life, 0)
        if before >= place.version:
            return []
        newest[life] = place.version
        links = self._links.get(place.key, [])
        start = bisect_right(links, max(before, life.begun - 1), key=lambda link: link.version)
        end = bisect_right(links, place.version, key=lambda link: link.version)
        passed = self._passed_over(Place(place.key, max(place.version, assumed.get(life, 0))))
        return [
            Place(link.origin, link.origin_version) for link in links[start:end]
            if link.begins or not _is_passed_over(link.version, passed)
        ]  # fmt: skip

    def _passed_over(self, tip: Place) -> list[Restore]:
        """Return the restores by which a version's value came, oldest first: what each passes over was taken back."""
        if tip not in self._passed:
            restores, found, version = self._restores.get(tip.key, []), list[Restore](), tip.version
            while end := bisect_right(restores, version, key=lambda restore: restore.version):
                found.append(restores[end - 1])
                version = min(found[-1].to, found[-1].version - 1)
            self._passed[tip] = found[::-1]
        return self._passed[tip]

    def bases(self, ours: Sequence[Place], theirs: Sequence[Place]) -> list[Place]:
        """Return the newest that both build on, of which none builds on another: those of our key come first.

        Each side is one version, or several that were merged.
        """
        mine, others = self.reached(*ours), self.reached(*theirs)
        common = {life: Place(life.key, min(mine[life], others[life])) for life in mine if life in others}
        below = set[Place]()
        for place in common.values():
            reach = self.reached(place)
            below |= {other for life, other in common.items() if other != place and reach.get(life, 0) >= other.version}
        return sorted({*common.values()} - below, key=lambda place: (place.key != ours[0].key, place))

    def unshared(self, ours: Sequence[Place], theirs: Sequence[Place]) -> list[Span]:
        """Return the versions on which one side builds alone: where one of them is missing, a link may be, too."""
        mine, others = self.reached(*ours), self.reached(*theirs)
        spans: list[Span] = []
        for one, other in ((mine, others), (others, mine)):
            for life, newest in one.items():
                first = max(life.begun, min(newest, other.get(life, 0)) + 1)
                if first <= newest:
                    spans.append(Span(life.key, first, newest))
        return sorted(spans)

    def taken_back(self, ours: Place, theirs: Place) -> tuple[Place, Place] | None:
        """Return a side, and the newest version that it has taken back, which the other side builds on by itself.

        None where there is none. A base builds on that version too, by way of a merge of the first side. What was done
        up to there is part of the base then, so it would count as removed by that side, which has only undone a merge.
        """
        for base in self.bases([ours], [theirs]):
            for side, other in ((ours, theirs), (theirs, ours)):
                kept, by_itself = self.reached(side), self.reached(other, without=self._life(base))
                for life, version in self.reached(base).items():
                    if (newest := min(version, by_itself.get(life, 0))) > kept.get(life, 0):
                        return side, Place(life.key, newest)
        return None


def _is_passed_over(version: int, passed: Sequence[Restore]) -> bool:
    """Return whether one of the restores, oldest first, goes back to before a version from behind it."""
    at = bisect_right(passed, version, key=lambda one: one.version)
    return at < len(passed) and passed[at].to < version


def copies_of(place: Place, links: Iterable[Link]) -> list[Place]:
    """Return the versions that were made from one, and those made from these: they may hold the same, nearest first."""
    made: dict[Place, list[Place]] = {}
    for link in links:
        made.setdefault(Place(link.origin, link.origin_version), []).append(Place(link.key, link.version))
    found = [place]
    for one in found:  # which grows
        found += [other for other in made.get(one, []) if other not in found]
    return found[1:]


def base_value(
    ancestry: Ancestry,
    ours: Sequence[Place],
    theirs: Sequence[Place],
    same: Callable[[Any, Any], bool],
    levels: int = 0,
) -> Search:
    """Search for the value of the base of two sides, UNSET where they have none; raise LimitExceeded."""
    bases = ancestry.bases(ours, theirs)
    if levels > CROSSINGS_MAX:
        raise LimitExceeded(
            "the number of times that both were merged into one another at once", actual=levels, limit=CROSSINGS_MAX,
            key=ours[0].key, hint="Delete one of the two, and branch it anew from the other.",
        )  # fmt: skip
    if not bases:
        return UNSET
    value = yield bases[0]
    for at, place in enumerate(bases[1:], 1):
        other = yield place
        if not same(value, other):
            older = yield from base_value(ancestry, bases[:at], [place], same, levels + 1)
            value = yield Three(older, value, other)
    return value

"""What two keys have in common, decided from where branches began and what was merged: the base of a three-way merge.

A version builds on all earlier versions of its key, back to the one with which the key began as a branch, and through
links on those of other keys: a branch on its origin, a merge on what was merged. So all that a version builds on is
told by one number for each key: the newest version of it. What two versions both build on is, for each key that both
reach, the lesser of the two. The base is the one of these that builds on all the others: after a merge that is the
version that was merged last, before it the one from which the branch began. Where none does (both were merged into one
another), it is the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple


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


class Life(NamedTuple):
    """A key from one beginning as a branch to the next, or from its first version on, with 0."""

    key: str
    begun: int


def reached(place: Place, links: Iterable[Link]) -> dict[Life, int]:
    """Return of each life that a version builds on the newest version, its own included."""
    by_key: dict[str, list[Link]] = {}
    for link in links:
        by_key.setdefault(link.key, []).append(link)
    newest: dict[Life, int] = {}
    todo = [place]
    while todo:
        key, version = todo.pop()
        mine = [link for link in by_key.get(key, ()) if link.version <= version]
        life = Life(key, max((link.version for link in mine if link.begins), default=0))
        if newest.get(life, 0) < version:
            newest[life] = version
            todo += [Place(link.origin, link.origin_version) for link in mine if link.version >= life.begun]
    return newest


def base_of(ours: Place, theirs: Place, links: Sequence[Link]) -> Place | None:
    """Return the version that both build on and that builds on all others that they do; None where there is none."""
    mine, others = reached(ours, links), reached(theirs, links)
    common = {life: Place(life.key, min(mine[life], others[life])) for life in mine if life in others}
    if not common:
        return None
    reaches = {place: reached(place, links) for place in common.values()}
    for place, reach in reaches.items():
        if all(reach.get(life, 0) >= other.version for life, other in common.items()):
            return place
    made = {Place(link.origin, link.origin_version): link.at for link in links}
    return max(reaches, key=lambda place: (place in made, made.get(place), place))

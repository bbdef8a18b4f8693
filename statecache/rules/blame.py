"""Which change last set what stands at a path, found by going back through the versions of a value.

From the newest version on it is asked of each older one whether the same stands there, by `sameness`. The first in
which it does not ends the search: the version after it, the last one looked at, is the one that set it. Nothing older
is read. What was set, changed, and set again was set by the change that set it again.

**Items of lists are followed**, not their indexes: where an older version has fewer items before it, or more, the item
is looked for where `alignment` says that it stood, and an item that an older version has not was set by the version
that inserted it. Messages that move to the front, as older ones are dropped, so keep whoever wrote them.

Where nothing stands at the path, the answer is the change since which nothing does. UNSET stands for no value at all:
give it for a version that was deleted, or has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET

from statecache.rules.alignment import aligned
from statecache.rules.paths import Path, Step, part_at, text_of
from statecache.rules.sameness import Labels, is_list, same

H = TypeVar("H")


class Blame(msgspec.Struct, Generic[H], frozen=True):
    """The version since which the same stands at a path: its header, the path there, and what stands, or UNSET.

    `found` says that an older version was seen with something else. Where the versions came to their end before, it is
    the oldest of them, and right only if it was the first ever.
    """

    header: H
    path: Path
    value: Any
    found: bool

    @property
    def place(self) -> str:
        """The path as text."""
        return text_of(self.path)


class BlameSearch(Generic[H]):
    """A search that is given one version after the other, the newest first, until it says that it is over."""

    def __init__(self, path: Path) -> None:
        self.blame: Blame[H] | None = None
        self._path = path
        self._version: Any = UNSET

    @property
    def over(self) -> bool:
        """Whether no older version can change the answer."""
        return self.blame is not None and self.blame.found

    def look(self, header: H, value: Any) -> bool:
        """Take the next version into account; return whether the search is over."""
        if self.blame is None:
            self.blame = Blame(header, self._path, part_at(value, self._path), found=False)
        elif not self.over:
            path = followed(self.blame.path, self._version, value)
            if path is None or not same(self.blame.value, part_at(value, path)):
                self.blame = msgspec.structs.replace(self.blame, found=True)
            else:
                self.blame = msgspec.structs.replace(self.blame, header=header, path=path)
        self._version = value
        return self.over


def blamed(versions: Iterable[tuple[H, Any]], path: Path) -> Blame[H] | None:
    """Return which version last set what stands at a path, or None where there are no versions.

    `versions` are headers and values from the newest to the oldest; no more of them are read than it takes to know.
    """
    search = BlameSearch[H](path)
    for header, value in versions:
        if search.look(header, value):
            break
    return search.blame


def followed(path: Path, newer: Any, older: Any) -> Path | None:
    """Return the path that the part had in an older version; None where that has not the item in which it stands."""
    steps: list[Step] = []
    labels: Labels | None = None
    for step in path:
        before = step
        if is_list(newer) and is_list(older) and isinstance(step, int) and 0 <= step < len(newer):
            labels = labels or Labels(newer, older)
            place = next((at for at, other in aligned(older, newer, labels) if other == step), None)
            if place is None:
                return None
            before = place
        newer, older = part_at(newer, (step,)), part_at(older, (before,))
        steps.append(before)
    return tuple(steps)

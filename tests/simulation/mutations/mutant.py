"""What a mutant is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Piece(NamedTuple):
    """A text that stands once in a file, and what comes in its place."""

    path: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One piece taken out of one file: the text `old` must occur there exactly once.

    Where several things keep the same promise, each by itself, `also` names the others.
    """

    what: str
    path: str
    old: str
    new: str
    by: str = "failpoints,chaos"
    also: tuple[Piece, ...] = ()

    def pieces(self) -> Iterator[Piece]:
        """Yield all that is taken out."""
        yield Piece(self.path, self.old, self.new)
        yield from self.also

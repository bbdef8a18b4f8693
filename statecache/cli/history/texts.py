"""What differs between two texts: of one line by words, of several by lines, with some that is the same around. Pure.

Words and lines belong together as `alignment` says of lists, so it takes time that grows with the texts. Where two
texts have little in common, the one is told whole, and then the other: a mixture of both could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from statecache.rules.alignment import common
from statecache.rules.sameness import Labels

WORDS_AROUND = 24
"""How many words, and blanks between them, are told around a change."""
LINES_AROUND = 3
_TELLS = 4
"""How many characters that are the same between two changes are worth to be told by themselves."""
_ALIKE = 4
"""What part of two texts has to be the same, at least, one in so many characters."""
_words = re.compile(r"\S+|\s+").findall


class Piece(NamedTuple):
    """A part of a text that is the same in both, or was removed or added, or is the same and left out."""

    op: Literal["same", "removed", "added", "left out"]
    text: str


def words(before: str, after: str) -> list[Piece]:
    """Return what differs between two texts, word by word; what is left out is told by its length."""
    old, new = _words(before), _words(after)
    pieces = [piece for run in _runs(old, new) for piece in run if piece.text]
    same = sum(len(piece.text) for piece in pieces if piece.op == "same")
    if same * 2 * _ALIKE < len(before) + len(after):
        return [piece for piece in (Piece("removed", before), Piece("added", after)) if piece.text]
    last = len(pieces) - 1
    return [
        part
        for at, piece in enumerate(pieces)
        for part in (_shortened(piece.text, at > 0, at < last) if piece.op == "same" else [piece])
    ]


def lines(before: str, after: str) -> list[Piece]:
    """Return what differs between two texts, line by line: pieces are whole lines without their ends."""
    if before.endswith("\n") and after.endswith("\n"):
        before, after = before[:-1], after[:-1]
    old, new = before.split("\n"), after.split("\n")
    told: list[Piece] = []
    at = other = 0
    for end, other_end in [*common(old, new, Labels()), (len(old), len(new))]:
        told += [Piece("removed", line) for line in old[at:end]]
        told += [Piece("added", line) for line in new[other:other_end]]
        told += [Piece("same", line) for line in old[end : end + 1]]
        at, other = end + 1, other_end + 1
    return _with_context(told)


def _runs(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[Piece, ...]]:
    """Yield what was removed and added, and what is the same behind it, in order."""
    removed = added = same = ""
    at = other = 0
    for end, other_end in [*common(old, new, Labels()), (len(old), len(new))]:
        gone, came = "".join(old[at:end]), "".join(new[other:other_end])
        if gone or came:
            if (removed or added) and len(same.strip()) < _TELLS:
                removed, added, same = removed + same, added + same, ""
            else:
                yield Piece("removed", removed), Piece("added", added), Piece("same", same)
                removed = added = same = ""
            removed, added = removed + gone, added + came
        same += "".join(old[end : end + 1])
        at, other = end + 1, other_end + 1
    yield Piece("removed", removed), Piece("added", added), Piece("same", same)


def _shortened(text: str, behind: bool, before: bool) -> list[Piece]:
    """Return a part that is the same, without its middle, or its end, where that is far from any change."""
    parts = _words(text)
    first, last = WORDS_AROUND * behind, WORDS_AROUND * before
    if len(parts) <= first + last + 1:
        return [Piece("same", text)]
    end = len(parts) - last
    told = [
        Piece("same", "".join(parts[:first])),
        Piece("left out", "".join(parts[first:end])),
        Piece("same", "".join(parts[end:])),
    ]
    return [piece for piece in told if piece.text]


def _with_context(told: Sequence[Piece]) -> list[Piece]:
    """Return the lines that changed and those around them; what is left out is one piece, of all these lines."""
    near = [False] * len(told)
    for at, piece in enumerate(told):
        if piece.op != "same":
            for place in range(max(at - LINES_AROUND, 0), min(at + LINES_AROUND + 1, len(told))):
                near[place] = True
    shown: list[Piece] = []
    away: list[str] = []
    for piece, is_near in zip([*told, Piece("same", "")], [*near, True], strict=True):
        if not is_near:
            away.append(piece.text)
            continue
        if away:
            shown.append(Piece("left out", "\n".join(away)) if len(away) > 1 else Piece("same", away[0]))
            away = []
        shown.append(piece)
    return shown[:-1]

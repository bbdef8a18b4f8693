"""Where undo and redo lead, decided from what the reasons of changes say.

History never goes back: an undo is a change like any other, with an older value and a reason that names where that is
from. What an editor keeps as two stacks is read from these reasons. A place is a version of a key, or the n of a commit
of a group; the one before it is the next lower of the key, or of the group.

    an edit     is every change but an undo and a redo: writes, deletes, rollbacks, merges. That a worker deletes what
                has ended is none: what was done last is undone, whether a worker was there by then or not
    a place     that an undo or a redo made shows the edit that its reason names; an edit shows itself
    undo        leads to what was shown before the edit that is shown now; before the first edit there is nothing
    redo        leads to what was shown before the last undo that no redo has taken back; an edit ends all of that

So undo after undo goes further back, an edit after undos is undone to what they had come to, and what was undone stays
in the history whatever comes later. Each asks for what it needs, one thing at a time: little for an undo, the reasons
of all undos and redos since the last edit for a redo.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, NamedTuple

from statecache.rules.provenance import Provenance, provenance_of


class Question(NamedTuple):
    """What is to be known of a place: the `reason` of its change, or the place `before` it, None where it is first."""

    what: Literal["reason", "before"]
    place: int


Search = Generator[Question, Any, int | None]
"""What asks questions, takes the answers, and returns a place, or None where there is none."""


def walked(reason: str, *, whole: bool) -> Provenance | None:
    """Return what an undo or a redo says, of a key, or with `whole` of a group; None for an edit."""
    found = provenance_of(reason)
    if found is None or found.kind not in ("undo", "redo") or (found.position is not None) != whole:
        return None
    return found


def shown(place: int, reason: str, *, whole: bool = False) -> int:
    """Return the edit that is shown at a place."""
    found = walked(reason, whole=whole)
    if found is None:
        return place
    return found.position.n if found.position is not None else int(found.version or 0)


def is_expiry(reason: str) -> bool:
    """Return whether a worker has deleted what had ended."""
    found = provenance_of(reason)
    return found is not None and found.kind == "expired"


def undo_target(tip: int, *, whole: bool = False) -> Search:
    """Search for the place to which the newest one is undone."""
    place, reason = yield from _made(tip)
    before = yield Question("before", shown(place, reason, whole=whole))
    if before is None:
        return None
    place, reason = yield from _made(before)
    return shown(place, reason, whole=whole)


def redo_target(tip: int, *, whole: bool = False, passed: int = 0) -> Search:
    """Search for the place that redo brings back, after so many that it need not bring back."""
    taken_back = passed
    place, reason = yield from _made(tip)
    while (found := walked(reason, whole=whole)) is not None:
        before = yield Question("before", place)
        if before is None:
            break
        place, reason = yield from _made(before)
        if found.kind == "redo":
            taken_back += 1
        elif taken_back:
            taken_back -= 1
        else:
            return shown(place, reason, whole=whole)
    return None


def _made(place: int) -> Generator[Question, Any, tuple[int, str]]:
    """Search for the newest place from one on that is not the end of a state, and for its reason."""
    while is_expiry(reason := (yield Question("reason", place))):
        before = yield Question("before", place)
        if before is None:
            break
        place = before
    return place, reason

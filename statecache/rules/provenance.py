"""What a change was made from, as its reason says: one grammar, for whoever writes it and whoever reads it.

    rollback to 7               the value of version 7 again; of a group, `rollback to 5-1144`: as it was at that place
    undo to 6, redo to 7        the same, on the way through the edits of a key
    branch of runs/42@7         the first change of a branch; of a group, `branch of runs/42@5-1144`
    merge of runs/42-b@5        what others did to a branch is in it from here on
    expired, erased             a delete by a worker, a value that is gone everywhere

Behind each may stand `: ` and the reason that a user gave. In keys `%` and `@` are written as `%25` and `%40`, so the
first `@` ends one. Text of a user that reads like any of these is refused as a reason: none of them can be forged.
"""

from __future__ import annotations

import re
from typing import Literal, cast

import msgspec

from statecache.errors import InvalidKey, UsageError
from statecache.keys import checked_key, group_of
from statecache.model import Position

Kind = Literal["rollback", "undo", "redo", "branch", "merge", "expired", "erased"]
_SEPARATOR = ": "
_NUMBER, _EPOCH = r"[1-9]\d{0,17}", r"\d{1,18}"
_PLACE = rf"{_NUMBER}|{_EPOCH}-{_NUMBER}"
_GRAMMAR = re.compile(
    rf"(?:(?P<walk>rollback|undo|redo) to (?P<to>{_PLACE})"
    rf"|(?P<link>branch|merge) of (?P<origin>[^@]+)@(?P<at>{_PLACE})"
    r"|(?P<end>expired|erased))(?:: (?P<why>.*))?",
    re.ASCII | re.DOTALL,
)


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What a change was made from: a version or, for all keys of a group, a position; of `origin` if that is given."""

    kind: Kind
    version: int | None = None
    position: Position | None = None
    origin: str = ""
    reason: str = ""

    def __str__(self) -> str:
        at = self.version if self.position is None else self.position
        text: str = self.kind
        if self.kind in ("rollback", "undo", "redo"):
            text = f"{self.kind} to {at}"
        elif self.kind in ("branch", "merge"):
            text = f"{self.kind} of {self.origin.replace('%', '%25').replace('@', '%40')}@{at}"
        return f"{text}{_SEPARATOR}{self.reason}" if self.reason else text

    def origin_of(self, key: str) -> str:
        """Return the key from which a change of that key was made: that of the same name in the origin's group."""
        return self.origin if self.position is None else self.origin + key.removeprefix(group_of(key))


def provenance_of(reason: str) -> Provenance | None:
    """Read a change's reason; return None for one that says nothing of what the change was made from."""
    found = _GRAMMAR.fullmatch(reason)
    if found is None:
        return None
    why = found["why"] or ""
    if found["end"]:
        return Provenance(kind=cast("Kind", found["end"]), reason=why)
    at, origin = found["to"] or found["at"], ""
    if found["link"]:
        origin = found["origin"].replace("%40", "@").replace("%25", "%")
        try:
            checked_key(origin)
        except InvalidKey:
            return None
    epoch, dash, n = at.partition("-")
    return Provenance(
        kind=cast("Kind", found["walk"] or found["link"]),
        version=None if dash else int(epoch),
        position=Position(int(epoch), int(n)) if dash else None,
        origin=origin,
        reason=why,
    )


def refuse_provenance(reason: str) -> str:
    """Return a user's reason unchanged; raise UsageError for one that would say what a change was made from."""
    if reason and provenance_of(reason) is not None:
        raise UsageError(
            f"reason={reason!r} reads like what statecache itself says of a change",
            hint="Say it in other words: rollbacks, branches and the like are told by their reasons.",
        )
    return reason

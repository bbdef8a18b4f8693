"""What `doctor` says: findings with what they cost and how to mend them, and what each level is worth."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found: what is so, what it costs, and the line that mends it.

    An error breaks a promise or stops the product; a warning costs something in some event; a note is to be known.
    """

    severity: Severity
    where: Literal["redis", "postgres", "both"]
    what: str
    costs: str = ""
    remedy: str = ""


class LevelSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A level of durability: whether it is given here, and what it is worth or why it is not given."""

    level: str
    given: bool
    why: str


def error(where: Literal["redis", "postgres", "both"], what: str, costs: str, remedy: str = "") -> Finding:
    """Return a finding that breaks a promise, or with which nothing works."""
    return Finding(severity="error", where=where, what=what, costs=costs, remedy=remedy)


def warning(where: Literal["redis", "postgres", "both"], what: str, costs: str, remedy: str = "") -> Finding:
    """Return a finding that costs something in some event."""
    return Finding(severity="warning", where=where, what=what, costs=costs, remedy=remedy)


def note(where: Literal["redis", "postgres", "both"], what: str, costs: str = "", remedy: str = "") -> Finding:
    """Return a finding that is to be known."""
    return Finding(severity="note", where=where, what=what, costs=costs, remedy=remedy)

"""Whether the table `branch` says of a change what its reason says that it was made from: see `rules.provenance`.

A reason that names a version is recorded whether that is there or not: by its version alone, or with the change_id as
well. One that names a position is recorded where the origin had a change up to there: its newest one.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple


class Linked(NamedTuple):
    """What the table says that a change was made from, and when; `change_id` is empty for a version not there then.

    Of a position, an empty one says that it was not certain which version was the newest up to there.
    """

    origin: str
    version: int
    change_id: str
    at: datetime

    def __str__(self) -> str:
        return f"{self.origin}@{self.version}"


class Due(NamedTuple):
    """What a reason says that a change was made from, and what of that is there."""

    origin: str
    said: int | None
    """The version that the reason names; None where it names a position."""
    newest: int | None
    """The newest version of the origin that is there and no later than what the reason names."""
    linked_id: str | None
    """The change_id of the version that the table names; None where there is no such change of the origin."""

    @property
    def version(self) -> int | None:
        """The version that the table has to name, as far as is known."""
        return self.newest if self.said is None else self.said


def wrong_link(link: Linked | None, due: Due | None, at: datetime, *, recorded: bool) -> str:
    """Return what is wrong with what the table says of a change made at that time, or ''.

    `recorded` is false for a change of which it is still to be recorded what it was made from.
    """
    if due is None:
        return "" if link is None else f"it is recorded as made from {link}, and its reason does not say so"
    if link is None:
        if not recorded or due.version is None:
            return ""
        return f"it is not recorded that it was made from {due.origin}@{due.version}"
    newest = due.newest or 0
    unknown = due.said is None and (
        (due.linked_id is None and link.version > newest) or (not link.change_id and link.version <= newest)
    )
    if link.origin != due.origin or (link.version != due.version and not unknown):
        made_from = due.origin if due.version is None else f"{due.origin}@{due.version}"
        return f"it is recorded as made from {link}, and its reason says {made_from}"
    if link.change_id and due.linked_id not in (None, link.change_id):
        return f"it is recorded as made from change {link.change_id}, and {link} is {due.linked_id}"
    return "" if link.at == at else f"it is recorded as made from {link} at another time than its own"

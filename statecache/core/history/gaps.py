"""Versions that are missing from a key's chain: what it held while one of them was current is not known.

Postgres may have gone on without a change: it was lost before it was flushed, or it is in quarantine. Rows may have
been deleted, too. Of each key that is read, the version that is there is compared with the next one, or with the newest
that there ever was; where others lie between, it is asked for what is known of these. As n orders a shard, a point
before the first position at which one of them can have been committed is as certain as ever. For a moment that is so
where a later one is known from before that position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from statecache.rules.versions import Version


class Gap(NamedTuple):
    """The versions of a key that are missing behind one that is there: the first and the last."""

    key: str
    first: int
    last: int


class Missing(NamedTuple):
    """What is known of a gap: why, from which n on, and when the last commit before that was."""

    gap: Gap
    why: str
    begins: int
    before: datetime | None


def gap_of(key: str, there: Version | None, following: int | None, newest: int) -> Gap | None:
    """Return the gap behind the version of a key that is there, None where the next one follows on it."""
    first = 1 if there is None else there.version + 1
    last = newest if following is None else following - 1
    return Gap(key, first, last) if last >= first else None


def asked_of(gaps: Sequence[Gap]) -> Mapping[str, Any]:
    """Return the parameters of `history_gaps` for gaps in one shard, but for that."""
    columns = zip(*gaps, strict=True)
    return dict(zip(("keys", "firsts", "lasts"), map(list, columns), strict=True))


def missing_of_row(row: Sequence[Any]) -> Missing:
    """Read a row of `history_gaps`."""
    key, first, last, lost, parked, deleted, begins, before = row
    named = f"its version {first} is" if first == last else f"its versions {first} to {last} are"
    reasons = ["lost"] * lost + ["in quarantine, or dropped from there"] * parked or [
        "no longer kept" if deleted else "missing"
    ]
    return Missing(Gap(key, first, last), f"{named} {', or '.join(reasons)}", begins, before)

"""What Postgres has recorded under a change_id, and what that says of a commit: one rule for whoever asks.

A change is known by its change_id and its key, for the same change_id may stand at several keys. Of one key, what is in
the lineage counts before what was set aside: an old branch may have brought a change along that its writer, not
knowing, had applied again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Literal, NamedTuple

from statecache.expiry import stored
from statecache.model import Write
from statecache.rules.modifiers import Made, makes

Fate = Literal["change", "conflict", "quarantine", ""]
_SET_ASIDE: tuple[Fate, ...] = ("conflict", "quarantine")


class Recorded(NamedTuple):
    """A row of the statement `lookup_change`: a change at one key, or the shard with its watermark as `n`."""

    found: str
    key: str
    version: int
    parent_change_id: str
    epoch: int
    n: int
    op: str
    at: datetime
    digest: bytes | None = None
    encoding: str = ""


class Content(NamedTuple):
    """What a change wrote, for comparison: its op, its value's SHA-256, and of a value its encoding with its end."""

    op: str
    digest: bytes
    encoding: str = ""


def fate_of(rows: Iterable[Recorded], keys: Collection[str]) -> Fate:
    """Return where a commit of these keys is: `change` if all is in the lineage, '' if it is nowhere."""
    there = {(row.found, row.key) for row in rows}
    outside = [key for key in keys if ("change", key) not in there]
    if not outside:
        return "change"
    return next((fate for fate in _SET_ASIDE if any((fate, key) in there for key in outside)), "")


def content_of(op: str, value: bytes, encoding: str) -> Content:
    """Return what is compared of a change."""
    return Content(op, sha256(value).digest(), encoding if op == "set" else "")


def another(
    writes: Sequence[Write], contents: Sequence[Content], committed_at: datetime, made: Mapping[int, Made],
    bases: Mapping[int, Made | None],
) -> int | None:  # fmt: skip
    """Return the index of the first write that differs from what was found for it, of that time; None where none does.

    A modifier differs where it would have made another value of what was there, or one with another end, if that is
    known.
    """
    for at, (write, found) in enumerate(zip(writes, contents, strict=True)):
        encoding = stored(write.encoding, committed_at)
        if write.modifier is None:
            same = content_of(write.op, write.value, encoding) == found
        else:
            base = bases.get(at)
            if write.modifier.keeps_end and (base or at not in bases):
                encoding = base.encoding if base else found.encoding
            same = (found.op, found.encoding) == ("set", encoding) and (
                at not in bases or makes(write.modifier.verb, write.value, base and base.value, made[at].value)
            )
        if not same:
            return at
    return None

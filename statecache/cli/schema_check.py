"""Whether a schema is there as a whole: a restore that was cut off, or that a row kept from a constraint, is not.

What a person renamed or made anew is there. Keys and indexes that are lacking can be made again; what else is lacking
took rows with it, or came with rows that are not there either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from statecache.cli.screen import counted
from statecache.sql import migrations

WHOLE_AGAIN = "restore the backup again, all of it, into an empty database"
"""What to do about a schema that is there in part."""
MIGRATE = "run `statecache migrate`"


class Lack(msgspec.Struct, frozen=True):
    """What a schema lacks, in words, and what to do about it; `stops` where writing fails without it."""

    parts: str = ""
    remedy: str = ""
    stops: bool = False


def lack_of(missing: Sequence[tuple[str, ...]], *, pinned: bool, rows: int, shards: int) -> Lack:
    """Return what a schema lacks: the parts that are `missing`, each with what makes it again, and rows."""
    lacking = list(_rows_lacking(pinned=pinned, left=max(0, shards - rows)))
    again = [command for _, *commands in missing for command in commands if command]
    if not missing and not lacking:
        return Lack()
    parts = ", ".join([*(name for name, *_ in missing), *lacking])
    if lacking or len(again) < len(missing):
        return Lack(parts, WHOLE_AGAIN, stops=True)
    keys = any(" key " in name for name, *_ in missing)
    refused = f"; where rows that are there twice keep a key from it, {WHOLE_AGAIN}" if keys else ""
    return Lack(parts, f"make it again: {'; '.join(again)}{refused}", stops=keys)


def _rows_lacking(*, pinned: bool, left: int) -> Iterator[str]:
    if not pinned:
        yield "the row of cluster"
    elif left:
        yield f"the rows of {counted(left, 'shard')}"


def unapplied(applied: Collection[int] | None) -> list[int]:
    """Return which migrations are still to be applied; none where no row says which were, or none can be seen."""
    return sorted({step.number for step in migrations("")} - {*applied}) if applied else []


def unapplied_text(numbers: Sequence[int]) -> str:
    """Return in words that migrations are still to be applied."""
    return f"migrations {', '.join(map(str, numbers))} are not applied"

"""Whether a schema is there as a whole: a restore that was cut off, or that a row kept from a constraint, is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statecache.cli.screen import counted

WHOLE_AGAIN = "restore the backup again, all of it, into an empty database"
"""What to do about a schema that is there in part."""


def lacking_of(missing: Sequence[str], *, pinned: bool, rows: int, shards: int) -> str:
    """Return in words what a schema lacks: the parts that are `missing`, and rows that every one has; or ''."""
    return ", ".join([*missing, *_rows_lacking(pinned=pinned, left=max(0, shards - rows))])


def _rows_lacking(*, pinned: bool, left: int) -> Iterator[str]:
    if not pinned:
        yield "the row of cluster"
    elif left:
        yield f"the rows of {counted(left, 'shard')}"

"""How full a shard's backlog is: a commit is refused where either of its two limits is reached."""

from __future__ import annotations

NEARLY_FULL = 0.8
"""What part of a shard's backlog limit is used when a person should look."""


def backlog_used(entries: int, size: int, *, entries_max: int, bytes_max: int) -> float:
    """Return what part of a shard's backlog is used by so many entries and bytes: of the limit that is nearer."""
    return max(entries / entries_max, size / bytes_max)

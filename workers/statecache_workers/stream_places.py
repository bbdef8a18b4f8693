"""Places in a shard's stream."""

from __future__ import annotations

from typing import NamedTuple

from statecache.model import Position


class StreamPlace(NamedTuple):
    """A place in a shard's stream: its n, the totals up to there, and the stream id after which to read on."""

    after: bytes
    n: int
    entries: int
    bytes: int


def place_of(entry_id: bytes) -> Position:
    """Read any stream id, however large its numbers."""
    epoch, _, n = entry_id.partition(b"-")
    return Position(int(epoch), int(n))

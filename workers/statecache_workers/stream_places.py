"""Places in a shard's stream, and gaps in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from statecache.model import Position


class StreamPlace(NamedTuple):
    """A place in a shard's stream: its n, the totals up to there, and the stream id after which to read on."""

    after: bytes
    n: int
    entries: int
    bytes: int


class LostChange(NamedTuple):
    """A change at a position that is lost, as a state remembers it."""

    change_id: str
    key: str
    epoch: int
    n: int


class Gap(NamedTuple):
    """Positions in a gap of which so many are lost, whole or in part, keys that they wrote, and the changes known."""

    first: int
    last: int
    lost: int
    keys: Sequence[str]
    changes: Sequence[LostChange] = ()


def place_of(entry_id: bytes) -> Position:
    """Read any stream id, however large its numbers."""
    epoch, _, n = entry_id.partition(b"-")
    return Position(int(epoch), int(n))

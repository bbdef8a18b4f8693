"""Places in a shard's stream, and gaps in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from statecache.model import Position

KEYS_MAX = 10
"""How many keys of lost changes are named."""


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
    """Positions in a gap of which so many are lost, whole or in part, and the changes known of those.

    `names` has keys that were written there, by position; it may have those of other positions, too.
    """

    first: int
    last: int
    lost: int
    names: Mapping[int, Sequence[str]]
    changes: Sequence[LostChange] = ()

    @property
    def run(self) -> bool:
        """Whether each of the positions is lost; else nobody knows which of them are."""
        return self.lost == self.last - self.first + 1

    @property
    def keys(self) -> list[str]:
        """Some of the keys that were written there."""
        named = (self.names[n] for n in sorted(self.names) if self.first <= n <= self.last)
        return list(dict.fromkeys(key for keys in named for key in keys))[:KEYS_MAX]

    def upto(self, n: int) -> Gap:
        """Return the part of a run up to a position; where nobody knows what is lost it stays as it is."""
        last = min(self.last, n)
        if not self.run or last == self.last:
            return self
        return self._replace(
            last=last, lost=last - self.first + 1, changes=[one for one in self.changes if one.n <= last]
        )


def place_of(entry_id: bytes) -> Position:
    """Read any stream id, however large its numbers."""
    epoch, _, n = entry_id.partition(b"-")
    return Position(int(epoch), int(n))

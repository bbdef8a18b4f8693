"""What a server takes that goes on beside the lineage: kept in pieces, of any of its shards, again and again.

Whoever looks needs no lease: nothing is changed on that server, nor in the lineage, and what is kept already stays as
it is, so several may keep the same at once. What is kept is a bounded piece each time, so that a large backlog holds up
nobody; of each shard it goes on where it ended.

A place in a stream is worth nothing on another server, nor where the lineage has begun an epoch before the common point
that was known: of what stood before it in the stream some belongs to no lineage now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from statecache.core.epoch.rescue import Rescue
    from statecache.keys import KeySpace
    from statecache.rules.looks import Look

_PAGES_MAX = 4
"""How many pages of entries are kept at once."""


class _Kept(NamedTuple):
    """How far a shard was gone through, with the common point of then; up to `n` there is nothing more."""

    common: int
    start: bytes = b"-"
    n: int = 0


class DivergedPrimary:
    """How far the streams of a server were kept that goes on beside the lineage; `changes` counts what was new."""

    def __init__(self) -> None:
        self.changes = 0
        self._server = ""
        self._kept: dict[int, _Kept] = {}
        self._first = 0
        """The shard whose turn it is."""

    def kept_upto(self, shard: int) -> int:
        """Return up to which n all of a shard is kept; 0 where it was not gone through to an end."""
        return self._kept[shard].n if shard in self._kept else 0

    async def keep(self, rescue: Rescue, keys: KeySpace, branches: Mapping[int, tuple[Look, int]]) -> bool:
        """Keep a piece of what stands beyond the common points, and return whether there is more.

        `branches` gives each shard's look and common point.
        """
        pages = _PAGES_MAX
        for shard in sorted(branches, key=lambda one: (one < self._first, one)):
            look, common = branches[shard]
            kept = self._place(shard, look, common)
            while kept.n < look.n:
                if not pages:
                    return True
                pages, self._first = pages - 1, shard + 1
                found, start, is_last = await rescue.keep(
                    shard, keys.changes(shard), look, common=common, start=kept.start
                )
                self.changes += found
                kept = self._kept[shard] = _Kept(common, start, look.n if is_last else 0)
        return False

    def _place(self, shard: int, look: Look, common: int) -> _Kept:
        if look.server != self._server:
            self._server, self._kept = look.server, {}
        kept = self._kept.get(shard)
        return kept if kept is not None and kept.common <= common else _Kept(common)

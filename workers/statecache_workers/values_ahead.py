"""How the values of the next batch will be kept, found out while Postgres writes the batch before it.

To make a delta and a digest takes time in which Postgres would wait, and while it writes this side would. So what was
read ahead is gone through meanwhile. What comes of a change is right behind the very value that it was made behind, and
used there alone: where the batch before came to something else, it is made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from statecache.concurrency import TASKS
from statecache.history import Kept, Parent, keep

if TYPE_CHECKING:
    from statecache.model import ChangeRecord
    from statecache_workers.slices import Slice
    from statecache_workers.tip_cache import TipCache

_BYTES_AT_ONCE = 128 * 1024
"""How many bytes of values are gone through before the loop has its turn, which takes a fraction of a millisecond."""


class Made(NamedTuple):
    """How a change is kept behind a value, and what the next one may build on; it holds what its id stands for."""

    change: ChangeRecord
    behind: Parent | None
    kept: Kept
    after: Parent


class ValuesAhead:
    """The newest values of keys, as they are remembered, and how those that come next will be kept."""

    def __init__(self, tips: TipCache) -> None:
        self._tips = tips
        self._made: dict[int, Made] = {}
        self._writing: dict[int, Mapping[str, Parent]] = {}

    def parent(self, shard: int, key: str) -> Parent | None:
        """Return the newest value of a shard's key, if it is remembered and still to be believed."""
        return self._tips.parent(shard, key)

    def keep(self, change: ChangeRecord, parent: Parent | None) -> tuple[Kept, Parent]:
        """Return how a change is kept behind a value, and what the next change may build on."""
        made = self._made.get(id(change))
        if made is not None and made.behind is parent:
            return made.kept, made.after
        return keep(change, parent)

    def writing(self, parents: Mapping[int, Mapping[str, Parent]]) -> None:
        """Note the newest values of the batch that is being written, by shard and key; what was made is of no use."""
        self._writing = dict(parents)
        self._made = {}

    async def make(self, slices: Sequence[Slice], latest: Collection[str], stopped: asyncio.Event) -> None:
        """Go through a batch that was read ahead, until it is stopped; namespaces of `latest` keep no values."""
        done = 0
        for one in slices:
            parents = dict(self._writing.get(one.shard, {}))
            for change in _changes(one):
                if change.key.partition("/")[0] in latest:
                    continue
                if done >= _BYTES_AT_ONCE:
                    await TASKS.sleep(0)
                    done = 0
                if stopped.is_set():
                    return
                behind = parents.get(change.key) or self.parent(one.shard, change.key)
                kept, parents[change.key] = keep(change, behind)
                self._made[id(change)] = Made(change, behind, kept, parents[change.key])
                done += len(change.value)

    def forget(self) -> None:
        """Forget what was made."""
        self.writing({})


def _changes(one: Slice) -> Iterator[ChangeRecord]:
    for entry in one.entries:
        if entry.change_set is not None:
            yield from entry.change_set.changes

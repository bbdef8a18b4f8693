"""The newest epoch of each shard that a client has met: a server whose data set is of an older one is not the primary.

An old primary that goes on by itself takes its own data set for open, and a proxy or a name may lead there once more.
Whoever knows better does not write to it. What Postgres says of a shard that is open counts for more, also where it is
less: the whole deployment may have been put back.

The highest number that was met stays known all the same: no new epoch may have one that was issued, and where Postgres'
clock was ahead and has been put right, and what both tiers knew was put back, nobody else tells of it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from statecache._process import begins_anew_after_fork, mutex


class NewestEpochs:
    """The newest epochs of one client; tasks and threads may note them at once, and every commit reads them.

    Who reads takes no mutex. The highest is raised first: nobody meets an epoch that is above it.
    """

    def __init__(self) -> None:
        self._mutex = mutex()
        self._newest: dict[int, int] = {}
        self._highest: dict[int, int] = {}
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Keep what was met, under another mutex."""
        self._mutex = mutex

    def note(self, shard: int, epoch: int) -> None:
        """Note an epoch in which the shard was found open."""
        if epoch > self._newest.get(shard, 0):
            with self._mutex:
                if epoch > self._newest.get(shard, 0):  # another thread may have been quicker
                    self._raise(shard, epoch)
                    self._newest[shard] = epoch

    def of(self, shard: int) -> int:
        """Return the newest epoch of the shard that was met, or 0."""
        return self._newest.get(shard, 0)

    def highest(self, shard: int) -> int:
        """Return the highest epoch of the shard that was ever met, or 0."""
        return self._highest.get(shard, 0)

    def prove(self, shard: int, epoch: int) -> None:
        """Note the epoch in which the shard is open by what Postgres says too, whatever was met before."""
        if epoch != self._newest.get(shard, 0):
            with self._mutex:
                self._raise(shard, epoch)
                self._newest[shard] = epoch

    def _raise(self, shard: int, epoch: int) -> None:
        if epoch > self._highest.get(shard, 0):
            self._highest[shard] = epoch

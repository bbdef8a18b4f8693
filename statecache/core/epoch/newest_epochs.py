"""The newest epoch of each shard that a client has met: a server whose data set is of an older one is not the primary.

An old primary that goes on by itself takes its own data set for open, and a proxy or a name may lead there once more.
Whoever knows better does not write to it. What Postgres says of a shard that is open counts for more, also where it is
less: the whole deployment may have been put back.

The highest number that was met stays known all the same: no new epoch may have one that was issued, and where Postgres'
clock was ahead and has been put right, and what both tiers knew was put back, nobody else tells of it.
"""

from __future__ import annotations


class NewestEpochs:
    """The newest epochs of one client; tasks and threads may note them at once."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}
        self._highest: dict[int, int] = {}

    def note(self, shard: int, epoch: int) -> None:
        """Note an epoch in which the shard was found open."""
        if epoch > self._newest.get(shard, 0):
            self._newest[shard] = epoch
        self._highest[shard] = max(epoch, self._highest.get(shard, 0))

    def of(self, shard: int) -> int:
        """Return the newest epoch of the shard that was met, or 0."""
        return self._newest.get(shard, 0)

    def highest(self, shard: int) -> int:
        """Return the highest epoch of the shard that was ever met, or 0."""
        return self._highest.get(shard, 0)

    def prove(self, shard: int, epoch: int) -> None:
        """Note the epoch in which the shard is open by what Postgres says too, whatever was met before."""
        self._newest[shard] = epoch
        self.note(shard, epoch)

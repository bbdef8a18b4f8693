"""The newest epoch of each shard that a client has met: a server whose data set is of an older one is not the primary.

An old primary that goes on by itself takes its own data set for open, and a proxy or a name may lead there once more.
Whoever knows better does not write to it. Where an opener has compared that data set with Postgres, and both say that
it is open, the newer epoch is gone: the whole deployment may have been put back.
"""

from __future__ import annotations


class MetEpochs:
    """The newest epochs of one client; tasks and threads may note them at once."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}

    def note(self, shard: int, epoch: int) -> None:
        """Note an epoch in which the shard was found open."""
        if epoch > self._newest.get(shard, 0):
            self._newest[shard] = epoch

    def of(self, shard: int) -> int:
        """Return the newest epoch of the shard that was met, or 0."""
        return self._newest.get(shard, 0)

    def forget(self, shard: int) -> None:
        """Forget what was met of a shard that is proven to be open."""
        self._newest.pop(shard, None)

"""The verb that locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from statecache._async.writes import AsyncWrites
from statecache.keys import checked_key
from statecache.leases import checked_patience, checked_ttl

if TYPE_CHECKING:
    from statecache._async.lease import AsyncLock

D = TypeVar("D")


class AsyncLocks(AsyncWrites[D], Generic[D]):
    """This is the verb that locks."""

    def lock(self, name: str, *, ttl: float = 30.0, timeout: float | None = None) -> AsyncLock[D]:
        """This locks a key for the time of a block: `async with cache.lock("runs/42") as lease:`.

        It waits for its turn, in order of arrival, for at most `timeout` seconds (0: only for an answer, and half a
        second at most for that; None: for ever), then LockTimeout. The lease renews itself while this process lives;
        `ttl` is the seconds after which others may have the lock of a holder that died. `lease` has all the verbs of
        this view, for keys of the lease's group: what they commit is refused (StaleToken) once somebody else may have
        the lock. It guards nothing else: effects outside of statecache cannot be taken back from a holder that was
        stopped for longer than its ttl.

        A block that ends after its lease was lost raises LeaseLost where it wrote nothing by the lease, for then
        nothing else has told it; where it did write, each of its commits was accepted while the lock was its own.
        The same task or thread locking the same key again is a UsageError at once.
        """
        from statecache._async.lease import AsyncLock  # a lease has all the verbs, this one too

        return AsyncLock(self, checked_key(self.full(name)), checked_ttl(ttl), checked_patience(timeout))

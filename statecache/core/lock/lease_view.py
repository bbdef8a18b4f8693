"""What the verbs of a lease start from: keys of the lock's group alone, every commit fenced by the lease's token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from statecache.core.view import View
from statecache.errors import InvalidKey
from statecache.keys import group_of
from statecache.rules.leases import Holding, Locks

D = TypeVar("D")


class LeaseView(View[D]):
    """The view that locked, under one lease more."""

    def __init__(self, view: View[D], holding: Holding) -> None:
        super().__init__(view.runtime, view.policy, view.prefix)
        if self.reads == "local":  # what the holder before has written may not have been pushed yet
            self.reads = "primary"
        self.automatic = view.automatic
        self.holding = holding
        self.holdings = (*view.holdings, holding)
        self._group = group_of(holding.key)

    def locks_of(self, keys: Sequence[str], *, repeated: bool = False) -> Locks:
        """Return the leases that fence a commit; raise LeaseLost where somebody else may have the lock by now.

        A repeat is not checked: it may have been applied while the lock was still held, and the server knows.
        """
        for holding in self.holdings:
            if not repeated:
                self.runtime.leases.check(holding)
            holding.guarded = True
        locks = super().locks_of(keys)
        return Locks(self.holdings, () if locks is None else locks.guarded, self.policy.locking)

    def full(self, name: str) -> str:
        """Return the key of a name; raise InvalidKey where it is not of the lock's group."""
        key = super().full(name)
        if isinstance(key, str) and key.count("/") > 0 and group_of(key) != self._group:
            raise InvalidKey(key, reason=f"it is not of the group {self._group!r}, which the lease guards")
        return key

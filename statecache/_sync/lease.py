# Generated from statecache/_async/lease.py by tests/unasync.py. Do not edit.

"""A lease: the verbs of the view that locked, each commit fenced with the lease's token."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from statecache._bridge import beside
from statecache._sync.verbs import Verbs
from statecache.clock import boottime
from statecache.errors import InvalidKey, LeaseLost, UsageError
from statecache.keys import group_of
from statecache.leases import Locks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statecache._sync.scope import Scope
    from statecache.leases import Holding
    from statecache.model import Token

D = TypeVar("D")
_END_S = 0.05
"""How long who is cancelled in a lock's block waits for the lease to be given back."""


class Lease(Verbs[D], Generic[D]):
    """This is a lock as its holder has it: all the verbs, for keys of the lock's group.

    `lost` says whether somebody else may have the lock by now; it is true before anybody can, on this machine's own
    clock. `check()` raises LeaseLost then.
    """

    def __init__(self, view: Scope[D], holding: Holding) -> None:
        super().__init__(view.tier, view._policy, view._prefix)
        if self._reads == "local":  # what the holder before has written may not have been pushed yet
            self._reads = "primary"
        self._holding = holding
        self._group = group_of(holding.key)
        self._above = view.holdings

    @property
    def key(self) -> str:
        """This is the key that is locked."""
        return self._holding.key

    @property
    def token(self) -> Token:
        """This is the fencing token: (epoch, count), greater than every one that this lock gave before."""
        return self._holding.token

    @property
    def lost(self) -> bool:
        """This says whether somebody else may have the lock by now."""
        return self._lost(self._holding)

    def check(self) -> None:
        """This raises LeaseLost where somebody else may have the lock by now."""
        self._check(self._holding)

    def _lost(self, holding: Holding) -> bool:
        return holding.lost(boottime()) or not self.tier.leases.holds(holding)

    def _check(self, holding: Holding) -> None:
        if self._lost(holding):
            reason = "it is over" if holding.gone else "it was not renewed in time"
            raise LeaseLost(holding.key, token=str(holding.token), reason=reason)

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """These are the leases that a commit is made under: this one, and those under which it was locked."""
        return (*self._above, self._holding)

    def locks_of(self, keys: Sequence[str], *, repeated: bool = False) -> Locks:
        """This fences a commit; LeaseLost where somebody else may have the lock by now.

        Not for a repeat: it may have been applied when the lock was still held, and the server knows.
        """
        for holding in self.holdings:
            if not repeated:
                self._check(holding)
            holding.guarded = True
        locks = super().locks_of(keys)
        return Locks(self.holdings, () if locks is None else locks.guarded, self._policy.locking)

    def full(self, name: str) -> str:
        """This gives the key of a name, which must be of the lock's group."""
        key = super().full(name)
        if isinstance(key, str) and key.count("/") > 0 and group_of(key) != self._group:
            raise InvalidKey(key, reason=f"it is not of the group {self._group!r}, which the lease guards")
        return key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r}, token={self.token})"


class Lock(Generic[D]):
    """This is a lock for one block: entering it takes the lease, leaving it gives the lease back."""

    def __init__(self, view: Scope[D], key: str, ttl: float, patience: float | None) -> None:
        self._view = view
        self._key = key
        self._ttl = ttl
        self._patience = patience
        self._lease: Lease[D] | None = None

    def take(self) -> Lease[D]:
        """This waits for the lock's turn and gives the lease."""
        if self._lease is not None:
            raise UsageError(f"this lock of {self._key!r} is in use", hint="Call lock() for each block.")
        self._view.tier.accounts.refuse_if_closing()
        if self._view._policy.locking == "enforced":
            timeout_s = self._view.tier.settings.timeout_s
            self._view.tier.policies.ensure(self._key, seconds=min(self._patience or timeout_s, timeout_s))
        holding = self._view.tier.leases.take(self._key, ttl=self._ttl, patience=self._patience)
        self._lease = Lease(self._view, holding)
        return self._lease

    def __enter__(self) -> Lease[D]:
        return self.take()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        holding = lease._holding
        if kind is not None and not issubclass(kind, Exception):  # who is cancelled waits for nobody
            beside(partial(lease.tier.leases.give_back, holding), _END_S)
            return
        stood = lease.tier.leases.give_back(holding)
        if kind is None and not stood and not holding.guarded:
            raise LeaseLost(self._key, token=str(holding.token), reason="it was over before the block was")

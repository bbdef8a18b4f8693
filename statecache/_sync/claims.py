# Generated from statecache/_async/claims.py by tests/unasync.py. Do not edit.

"""The steps that this client runs, and the leases of those that last.

A step that has just begun is its writer's because its intent is young. One that lasts needs to be seen to be alive: a
third into the time for which an intent is believed, this client takes a lease on the record's key, and renews it until
the step is over. Whoever finds an old intent waits for that lease: having it proves that the step's agent is dead.

One task or thread of the client looks after all its steps; it is started by the first and ends when it finds none.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from statecache._bridge import Background, Signal
from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic
from statecache.errors import LockTimeout, StateCacheError

if TYPE_CHECKING:
    from statecache._sync.leases import Leases
    from statecache.leases import Holding


class Claim(msgspec.Struct, eq=False):
    """This is a step that runs here, since that moment on the monotonic clock, and its lease once it has one."""

    key: str
    since: float
    lease: Holding | None = None
    over: bool = False


class Claims:
    """This knows the steps that this client runs, and takes a lease for each that lasts."""

    def __init__(self, leases: Leases, *, claim_s: float) -> None:
        self.claim_s = claim_s
        self._leases = leases
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """This forgets the steps, which another process runs."""
        self._mutex = mutex
        self._running: dict[int, Claim] = {}
        self._keeper: Background | None = None
        self._closed = Signal()

    @property
    def running(self) -> tuple[str, ...]:
        """These are the keys of the records of the steps that this client runs."""
        with self._mutex:
            return tuple(claim.key for claim in self._running.values())

    def begin(self, claim: Claim) -> Claim:
        """This looks after a step from now on."""
        with self._mutex:
            self._running[id(claim)] = claim
            if self._keeper is None or not self._keeper.alive:
                self._keeper = Background(self._keep, name="statecache-steps")
        return claim

    def end(self, claim: Claim) -> None:
        """This looks after a step no more, and gives its lease back."""
        with self._mutex:
            self._running.pop(id(claim), None)
            claim.over = True
        if claim.lease is not None:
            self._leases.give_back(claim.lease)

    def proven_dead(self, key: str, *, end: float) -> Claim | None:
        """This gives a claim on a step once nobody else has one; None where somebody still runs it at the end."""
        try:
            lease = self._leases.take(key, ttl=self.claim_s, patience=max(end - monotonic(), 0.0))
        except LockTimeout:
            return None
        return Claim(key, monotonic(), lease)

    def close(self) -> None:
        """This ends the looking after."""
        self._closed.set()
        if self._keeper is not None:
            self._keeper.stop()

    def _keep(self) -> None:
        """This takes leases for the steps that last, until there are no steps."""
        while (due := self._due()) is not None:
            for claim in due:
                self._hold(claim)
            if self._closed.wait(self.claim_s / 6):
                return

    def _due(self) -> list[Claim] | None:
        """These are the steps that need a lease by now; None where there are no steps, and nobody looks after them."""
        with self._mutex:
            if not self._running:
                self._keeper = None
                return None
            late = monotonic() - self.claim_s / 3
            return [claim for claim in self._running.values() if claim.lease is None and claim.since <= late]

    def _hold(self, claim: Claim) -> None:
        try:
            lease = self._leases.take(claim.key, ttl=self.claim_s, patience=0)
        except StateCacheError:  # somebody asks whether the step's agent is dead, or Redis is away: tried again
            return
        claim.lease = lease
        if claim.over:
            self._leases.give_back(lease)

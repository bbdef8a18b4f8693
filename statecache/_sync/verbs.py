# Generated from statecache/_async/verbs.py by tests/unasync.py. Do not edit.

"""The verbs of a client and of its namespaces: what reads, what writes, and what commits several states together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from statecache._bridge import called, sleep
from statecache._sync.accounts import Acknowledged
from statecache._sync.asking import Asks
from statecache._sync.durable import NOWHERE
from statecache._sync.locks import Locks
from statecache._sync.observing import note, observe
from statecache._sync.scope import checked_text
from statecache._sync.stepping import Stepping
from statecache._sync.transaction import Transaction
from statecache.backoff import Backoff
from statecache.clock import monotonic
from statecache.errors import Lost, VersionConflict
from statecache.model import Durability, Policy, State

if TYPE_CHECKING:
    from statecache._sync.tiers import Tiers

D = TypeVar("D")
V = TypeVar("V")


class Verbs(Stepping[D], Locks[D], Asks[D], Generic[D]):
    """This holds all the verbs; where an observer wants to know, they tell it."""

    def __init__(self, tier: Tiers, policy: Policy, prefix: str) -> None:
        super().__init__(tier, policy, prefix)
        if tier.observer is not None:
            observe(self, tier.observer)

    def transaction(
        self,
        *names: str,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> Transaction:
        """This opens a transaction over keys of one group: WATCH, your code, and one atomic commit at its end.

        `timeout` is for its begin and its end together; the time of your code in the block is not counted. While it
        is open it holds a connection: half of a client's may be held at once, and further transactions wait.
        """
        self.tier.accounts.refuse_if_closing()
        return Transaction(
            self, names, durability=durability, actor=checked_text(actor, "actor"),
            reason=checked_text(reason, "reason"), timeout=timeout,
        )  # fmt: skip

    def transact(
        self,
        names: Sequence[str],
        function: Callable[[Transaction], Any],
        *,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> Any:
        """This runs the function in a transaction, again where someone else was quicker, and gives its result."""
        end, backoff = self.end_of(timeout), Backoff(0.001, 0.1)
        who, why = checked_text(actor, "actor"), checked_text(reason, "reason")
        while True:
            left = max(end - monotonic(), 0.001)
            opened = Transaction(self, tuple(names), durability=durability, actor=who, reason=why, timeout=left)
            try:
                with self.tier.accounts.call():
                    with opened as tx:
                        result = called(function(tx))
            except VersionConflict:
                if backoff.outlasts(end):
                    raise
            else:
                return result
            note(retries=1, conflicts=1)
            sleep(backoff.take())

    def wait_durable(self, state: State[V], *, timeout: float | None = None) -> State[V]:
        """This returns when Postgres holds the state's change in the current lineage.

        Raises Forked, Quarantined or Lost where it never will, and OutcomeUnknown(change_id) when the time is up.
        """
        end, shard = self.end_of(timeout), self.tier.keys.shard(state.key)
        self.tier.levels.check("postgres")
        self.tier.durable.watch(shard, end=end)
        durable, position = self.tier.durable, state.position or NOWHERE
        while ended := durable.wait(shard, position, state.change_id, [state.key], end=end, ask=True):
            again = durable.moved(shard, state.change_id, state.key, position, end=end)
            if again is None:
                died = Acknowledged(shard, *position, state.change_id, state.key)
                self.tier.losses.met(died, seconds=max(end - monotonic(), 0.001))
                raise Lost(state.key, state.change_id, position=state.position, epoch=ended)
            position = again
        return state

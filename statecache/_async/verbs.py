"""The verbs of a client, of its namespaces and of leases.

A lease is a view like that which locked, its commits fenced with the lease's token: so both stand here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from weakref import ref

from statecache._async.branches import AsyncBranches
from statecache._async.bulk import AsyncBulk
from statecache._async.checkpoints import AsyncCheckpoints
from statecache._async.erasure import AsyncErasures
from statecache._async.feed import AsyncFeeds
from statecache._async.history import AsyncHistory
from statecache._async.modifiers import AsyncModifiers
from statecache._async.moves import AsyncMoves
from statecache._async.observer import observe
from statecache._async.reads import AsyncReads
from statecache._async.rollback import AsyncRollback
from statecache._async.searches import AsyncSearches
from statecache._async.steps import AsyncSteps
from statecache._async.transaction import AsyncTransaction
from statecache._async.writes import AsyncWrites
from statecache.backoff import Backoff
from statecache.call_notes import note
from statecache.clock import monotonic
from statecache.core.arguments import checked_position, checked_state, refuse_no_function, refuse_no_names
from statecache.core.commit.durable import NOWHERE, PASSED
from statecache.core.commit.proofs import prove
from statecache.core.lock.lease_view import LeaseView
from statecache.core.view import checked_change_id, checked_reason, checked_text
from statecache.errors import Lost, UsageError, VersionConflict
from statecache.keys import checked_key
from statecache.model import Durability, Outcome, Position, State
from statecache.rules.leases import checked_patience, checked_ttl

if TYPE_CHECKING:
    from statecache.core.view import View
    from statecache.model import Token
    from statecache.rules.leases import Holding

D = TypeVar("D")
V = TypeVar("V")
R = TypeVar("R")
_END_S = 0.05
"""How long a caller who is cancelled in a lock's block waits for the lease to be given back, in seconds."""


class AsyncVerbs(
    AsyncReads[D],
    AsyncWrites[D],
    AsyncModifiers[D],
    AsyncMoves[D],
    AsyncBulk[D],
    AsyncSearches[D],
    AsyncSteps[D],
    AsyncFeeds[D],
    AsyncHistory[D],
    AsyncCheckpoints[D],
    AsyncRollback[D],
    AsyncBranches[D],
    AsyncErasures[D],
    Generic[D],
):
    """All the verbs; where there is an observer, they tell it."""

    def __init__(self, view: View[D]) -> None:
        super().__init__(view)
        if view.runtime.observer is not None:
            observe(self, view.runtime.observer)

    def transaction(
        self,
        *names: str,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> AsyncTransaction[D]:
        """Return a transaction over keys of one group, for a block: WATCH, your code, and one atomic commit at its end.

        `timeout` bounds its begin and its end together, in seconds; the time of your code in the block is not counted.
        While it is open it holds a connection: half of a client's may be held at once, and further transactions wait.
        Leaving the block raises VersionConflict where somebody else has changed one of the keys.
        """
        self._runtime.in_flight.refuse_if_closing()
        return AsyncTransaction(
            self._view, names, durability=durability, actor=checked_text(actor, "actor"),
            reason=checked_reason(reason), timeout=timeout,
        )  # fmt: skip

    @overload
    async def transact(
        self, names: Sequence[str], function: Callable[[AsyncTransaction[D]], Awaitable[R]], *,
        durability: Durability | None = ..., actor: str = ..., reason: str = ..., timeout: float | None = ...,
    ) -> R: ...  # fmt: skip
    @overload
    async def transact(  # type: ignore[overload-cannot-match, unused-ignore]
        self, names: Sequence[str], function: Callable[[AsyncTransaction[D]], R], *,
        durability: Durability | None = ..., actor: str = ..., reason: str = ..., timeout: float | None = ...,
    ) -> R: ...  # fmt: skip
    async def transact(
        self,
        names: Sequence[str],
        function: Callable[[AsyncTransaction[D]], Any],
        *,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> Any:
        """Run the function in a transaction, again where somebody else was quicker, and return its result.

        `timeout` is in seconds; once it has passed, a conflict raises VersionConflict instead of another attempt.
        """
        refuse_no_names(names, "transact")
        refuse_no_function(function, "transact")
        names, end, backoff = tuple(names), self._view.end_of(timeout), Backoff(0.001, 0.1)
        who, why = checked_text(actor, "actor"), checked_reason(reason)
        while True:
            left = max(end - monotonic(), 0.001)
            opened = AsyncTransaction(self._view, names, durability=durability, actor=who, reason=why, timeout=left)
            try:
                with self._runtime.in_flight.call():
                    async with opened as tx:
                        result = await self._runtime.io.called(function(tx))
            except VersionConflict:
                if backoff.outlasts(end):
                    raise
            else:
                return result
            note(retries=1, conflicts=1)
            await self._runtime.io.sleep(backoff.take())

    async def wait_durable(self, state: State[V], *, timeout: float | None = None) -> State[V]:
        """Return the state once Postgres holds its change in the current lineage.

        Raises Forked, Quarantined or Lost where it never will, and OutcomeUnknown(change_id) when the time is up.
        """
        end, shard = self._view.end_of(timeout), self._runtime.keys.shard(checked_state(state, "wait_durable").key)
        self._runtime.support.check("postgres")
        await self._runtime.durable.watch(shard, end=end)
        durable, position = self._runtime.durable, state.position or NOWHERE
        while ended := await durable.wait(shard, position, state.change_id, [state.key], end=end, ask="always"):
            again = await durable.moved(shard, state.change_id, state.key, position, end=end)
            if again is None:
                seconds = max(end - monotonic(), 0.001)
                await self._runtime.losses.met(shard, position, state.change_id, (state.key,), seconds=seconds)
                ended = position.epoch if ended <= PASSED else ended
                raise Lost(state.key, state.change_id, position=state.position, epoch=ended)
            position = again
        return state

    async def _prove(self, *names: str, below: Sequence[str] = (), timeout: float | None = None) -> None:
        """Return once what these names are, and what is below prefixes, gone or there, is as durable as a write is.

        It is for adapters that find that what they are asked for was done before. Raises what `prove` does.
        """
        await prove(self._view, names, below, self._view.end_of(timeout))

    async def outcome(
        self, change_id: str, name: str, *, position: Position | None = None, timeout: float | None = None
    ) -> Outcome:
        """Return what became of a change whose outcome was never learnt; `name` is any of the keys it wrote.

        `change_id` is that of an `OutcomeUnknown`, or of one of `unknown_outcomes()` after a call was cancelled. The
        verdict `not applied` is given only to the client that sent the change, once none of its attempts can be
        executed any more: the call waits for that, at most as long as the write's own timeout. The verdict `lost` needs
        the change's `position`: given here, or that of one of the last thousand commits acknowledged to this client.
        `timeout` is in seconds; where the time is up the verdict is `unknown`.
        """
        key, end = checked_key(self._view.full(name)), self._view.end_of(timeout)
        wanted, at = checked_change_id(change_id), checked_position(position)
        return await self._runtime.outcome_lookup.outcome(wanted, key, position=at, end=end)

    def lock(self, name: str, *, ttl: float = 30.0, timeout: float | None = None) -> AsyncLock[D]:
        """Return the lock of a key, to be held for a block: `async with cache.lock("runs/42") as lease:`.

        Entering waits, in order of arrival, for at most `timeout` seconds (0: not at all, but up to half a second for
        the answer; None: for ever), then raises LockTimeout. The lease is renewed while this process lives; `ttl` is
        the seconds after which others may have the lock of a holder that died. `lease` has all the verbs of this view
        but `namespace`, for keys of the lease's group: what they commit is refused (StaleToken) once somebody else may
        have the lock. It guards nothing else: effects outside of statecache cannot be taken back from a holder that was
        stopped for longer than its ttl.

        A block whose lease was lost before its end raises LeaseLost if it wrote nothing by the lease, for then nothing
        else has told it; if it did write, each of its commits was accepted while it held the lock. Raises UsageError at
        once where the same task or thread has locked the key already.
        """
        return AsyncLock(self._view, checked_key(self._view.full(name)), checked_ttl(ttl), checked_patience(timeout))


class AsyncLease(AsyncVerbs[D], Generic[D]):
    """A held lock: all the verbs, for keys of the lock's group, with every commit fenced by its token.

    `lost` says whether somebody else may have the lock by now; by this machine's own clock, it is true before anybody
    can. `check()` raises LeaseLost then.
    """

    def __init__(self, view: LeaseView[D]) -> None:
        super().__init__(view)
        self._holding = view.holding

    @property
    def key(self) -> str:
        """The key that is locked."""
        return self._holding.key

    @property
    def token(self) -> Token:
        """The fencing token: (epoch, count), greater than every one that this lock issued before."""
        return self._holding.token

    @property
    def lost(self) -> bool:
        """Whether somebody else may have the lock by now."""
        return self._runtime.leases.lost(self._holding)

    def check(self) -> None:
        """Raise LeaseLost where somebody else may have the lock by now."""
        self._runtime.leases.check(self._holding)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r}, token={self.token})"


class AsyncLock(Generic[D]):
    """A lock for one block: entering it takes the lease, leaving it gives the lease back."""

    def __init__(self, view: View[D], key: str, ttl: float, patience: float | None) -> None:
        self._view = view
        self._key = key
        self._ttl = ttl
        self._patience = patience
        self._lease: AsyncLease[D] | None = None

    async def take(self) -> AsyncLease[D]:
        """Wait for the lock, and return the lease."""
        if self._lease is not None:
            raise UsageError(f"this lock of {self._key!r} is in use", hint="Call lock() for each block.")
        self._view.runtime.in_flight.refuse_if_closing()
        holding = await self._view.runtime.leases.take(self._key, ttl=self._ttl, patience=self._patience)
        if self._view.policy.locking == "enforced":
            await self._enforce(holding)
        self._lease = AsyncLease(LeaseView(self._view, holding))
        return self._lease

    async def _enforce(self, holding: Holding) -> None:
        """Have the namespace's locks enforced in the epoch in which the lease was taken, or give the lease back."""
        runtime = self._view.runtime
        timeout_s = runtime.settings.timeout_s
        try:
            seconds = min(self._patience or timeout_s, timeout_s)
            await runtime.policies.ensure(self._key, holding.token.epoch, seconds=seconds)
        except BaseException:  # nobody has this lock who could not say that it counts
            await self._view.runtime.io.beside(partial(runtime.leases.give_back, holding), _END_S)
            raise

    async def __aenter__(self) -> AsyncLease[D]:
        lease = await self.take()
        lease._holding.block = ref(self)
        return lease

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        holding = lease._holding
        if kind is not None and not issubclass(kind, Exception):  # who is cancelled waits for nobody
            await self._view.runtime.io.beside(partial(self._view.runtime.leases.give_back, holding), _END_S)
            return
        stood = await self._view.runtime.leases.give_back(holding)
        if kind is None and not stood and not holding.guarded:
            raise holding.lost_error("it was over before the block was")

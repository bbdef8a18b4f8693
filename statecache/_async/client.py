"""The client: connections, settings and the verbs, in one object that a process opens once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

import msgspec

from statecache._async.until_stopped import AsyncUntilStopped
from statecache._async.verbs import AsyncVerbs
from statecache._signals import SIGNALS
from statecache.clock import monotonic
from statecache.concurrency import TASKS
from statecache.core.arguments import checked_policy, refuse_unknown
from statecache.core.drain import checked_drain, leave
from statecache.core.history.automatic import AutomaticCheckpoints, make_at_shutdown
from statecache.core.runtime import Runtime
from statecache.core.view import View
from statecache.errors import UsageError
from statecache.keys import checked_key, checked_namespace
from statecache.model import (
    DrainReport,
    Durability,
    Encoding,
    Locking,
    LostCommit,
    NearStatistics,
    Policy,
    ReadMode,
    Ttl,
    UnknownCommit,
)
from statecache.settings import Settings, with_values

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from statecache.checkpoint_policy import CheckpointPolicy
    from statecache.core.redis.connection import Dial
    from statecache.model import Observer, Upgrade
    from statecache.retention import History

D = TypeVar("D")
V = TypeVar("V")
_AT_SHUTDOWN_S = 2.0
"""Half of this is what closing at once may take for the checkpoints that a policy has made at shutdown, in seconds."""
Merge = Callable[[Any, Any, Any], Any]
"""A function of base, ours and theirs, which returns the merged value."""


class AsyncNamespace(AsyncVerbs[D], Generic[D]):
    """A typed view of one namespace: every verb, with names relative to it and its policy in force."""

    @overload
    def namespace(
        self, name: str, *, encoding: Encoding | None = ..., durability: Durability | None = ...,
        read: ReadMode | None = ..., redis_ttl: timedelta | None = ..., ttl: Ttl | None = ...,
        value_bytes_max: int | None = ..., locking: Locking | None = ..., history: History | None = ...,
        retention: timedelta | None = ..., retention_count: int | None = ...,
        merge: Merge | None = ..., checkpoint: CheckpointPolicy | None = ...,
    ) -> AsyncNamespace[D]: ...  # fmt: skip
    @overload
    def namespace(
        self, name: str, *, type: type[V], encoding: Encoding | None = ..., durability: Durability | None = ...,
        read: ReadMode | None = ..., redis_ttl: timedelta | None = ..., ttl: Ttl | None = ...,
        value_bytes_max: int | None = ..., locking: Locking | None = ..., history: History | None = ...,
        retention: timedelta | None = ..., retention_count: int | None = ..., upgrade: Upgrade | None = ...,
        merge: Merge | None = ..., checkpoint: CheckpointPolicy | None = ...,
    ) -> AsyncNamespace[V]: ...  # fmt: skip
    @overload
    def namespace(
        self, name: str, *, type: object, encoding: Encoding | None = ..., durability: Durability | None = ...,
        read: ReadMode | None = ..., redis_ttl: timedelta | None = ..., ttl: Ttl | None = ...,
        value_bytes_max: int | None = ..., locking: Locking | None = ..., history: History | None = ...,
        retention: timedelta | None = ..., retention_count: int | None = ..., upgrade: Upgrade | None = ...,
        merge: Merge | None = ..., checkpoint: CheckpointPolicy | None = ...,
    ) -> AsyncNamespace[Any]: ...  # fmt: skip
    def namespace(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002
        encoding: Encoding | None = None,
        durability: Durability | None = None,
        read: ReadMode | None = None,
        redis_ttl: timedelta | None = None,
        ttl: Ttl | None = None,
        value_bytes_max: int | None = None,
        locking: Locking | None = None,
        history: History | None = None,
        retention: timedelta | None = None,
        retention_count: int | None = None,
        upgrade: Upgrade | None = None,
        merge: Merge | None = None,
        checkpoint: CheckpointPolicy | None = None,
        **unknown: Any,
    ) -> AsyncNamespace[Any]:
        """Return a view of the keys under `name/`: values of that type, and a policy for what is written.

        What is None is as in this view, or else the client's setting; see `Policy`. In a view, `name` is of one or more
        segments: `cache.namespace("runs").namespace("42")` is about `runs/42/…`. `locking="enforced"` is recorded for
        the namespace before the first lock or commit, and binds all who write to it from then on, through whatever
        view. A view without `locking` takes what is recorded. A view with `"advisory"` where enforced is recorded
        raises UsageError at its first commit. `statecache policy` changes what is recorded.

        `ttl`, in seconds or a timedelta, is how long a state lasts after each write through this view, unless the call
        says `ttl=` itself; `inf` is for ever. `redis_ttl` deletes nothing: it is how long Redis keeps what Postgres
        has.

        Postgres keeps the values of all changes, unless a policy of the namespace says otherwise. `history="latest"`
        keeps those of the newest changes alone. `retention` lets values go that were replaced so long ago, and
        `retention_count` all but the newest so many of each key; where both are given, what either keeps is kept. What
        checkpoints name stays, and so does what each change says: who, when, why. The policy is recorded once, beside
        the first commit of a view that has one, and workers act on it. Where another one is recorded, that stands, and
        a warning is logged; `statecache policy` changes it.

        `upgrade={1: function}` reads what an earlier `__schema_version__` of the type wrote: each function makes of one
        version's plain data that of the next, 0 standing for what was written without a type; the next write stores
        the newest version. `merge=function` is what `merge` calls with base, ours and theirs; `checkpoint` says when
        checkpoints are made by themselves. Raises InvalidKey for a name that cannot be one, and UsageError for a policy
        that is none.
        """
        refuse_unknown(unknown)
        given = {
            "type": type, "encoding": encoding, "durability": durability, "read": read, "redis_ttl": redis_ttl,
            "ttl": ttl, "value_bytes_max": value_bytes_max, "locking": locking, "history": history,
            "retention": retention, "retention_count": retention_count, "upgrade": upgrade,
            "merge": merge, "checkpoint": checkpoint,
        }  # fmt: skip
        more = {what: value for what, value in given.items() if value is not None}
        if self._view.prefix and not {"history", "retention", "retention_count"}.isdisjoint(more):
            raise UsageError("history, retention and retention_count are of a whole namespace, not of a part of it")
        kept = self._view.policy if type is None else msgspec.structs.replace(self._view.policy, upgrade=None)
        policy = msgspec.structs.replace(kept, **more)
        inner = checked_key(self._view.full(name)) if self._view.prefix else checked_namespace(name)
        view: View[Any] = View(self._runtime, checked_policy(policy), inner + "/")
        view.automatic = None if policy.checkpoint is None else AutomaticCheckpoints(policy.checkpoint)
        return AsyncNamespace(view)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._view.prefix!r})"


class AsyncStateCache(AsyncNamespace[Any]):
    """A client that reads and writes agent state shared by many processes.

    Settings come from `settings`, or from STATECACHE_* variables with keyword arguments winning over them. Nothing is
    connected before the first verb. One client serves all tasks of one event loop, of the one that opens it as a
    context manager, or else that first uses it (the synchronous one all threads of a process); it starts afresh in a
    forked child, and cannot be pickled. Use it as a context manager or call close; afterwards every verb raises
    UsageError. An `observer` is told of every verb as it ends.
    """

    def __init__(
        self,
        *,
        redis_url: str | None = None,
        postgres_url: str | None = None,
        settings: Settings | None = None,
        dial: Dial | None = None,
        observer: Observer | None = None,
        **more: Any,
    ) -> None:
        given = {"redis_url": redis_url, "postgres_url": postgres_url, **more}
        given = {name: value for name, value in given.items() if value is not None}
        if settings is None:
            settings = Settings(**given)
        elif given:
            settings = with_values(settings, given)
        super().__init__(View(Runtime(settings, dial=dial, observer=observer, io=TASKS), Policy(), ""))

    @classmethod
    def _on(cls, runtime: Runtime) -> Self:
        """Return a client on parts that somebody else has wired together."""
        client = cls.__new__(cls)
        AsyncNamespace.__init__(client, View(runtime, Policy(), ""))
        return client

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._runtime.settings

    @property
    def near(self) -> NearStatistics:
        """The near cache's counters and contents, and whether local reads are answered from it."""
        return self._runtime.near_statistics()

    async def namespaces(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of the namespaces that hold states, sorted; `timeout` bounds each exchange, in seconds."""
        return await self._runtime.listing.namespaces(seconds=self._view.end_of(timeout) - monotonic())

    def unknown_outcomes(self) -> tuple[UnknownCommit, ...]:
        """Return this client's commits whose outcome no caller learnt, the oldest first; ask `outcome` about them.

        It asks no server, and answers when the client is closed too: then another one can ask `outcome`.
        A call that was cancelled or ran out of time and is not among them was never sent, so it was not applied. Of one
        that had its answer, and whose return a signal handler turned into an error, only a change_id of yours tells.
        """
        return self._runtime.unknown_outcomes.all()

    async def lost(self, *, timeout: float | None = None) -> tuple[LostCommit, ...]:
        """Return those of this client's last thousand commits that were lost, with their Redis or with their entry.

        It asks Postgres, which records how far each lost tail reached: `statecache lost` lists them for all clients.
        """
        return await self._runtime.losses.look(seconds=max(self._view.end_of(timeout) - monotonic(), 0.001))

    @overload
    async def close(self) -> None: ...
    @overload
    async def close(self, *, drain: float) -> DrainReport: ...
    async def close(self, *, drain: float | None = None) -> DrainReport | None:
        """Close every connection; calls under way on them fail, and their outcome is unknown.

        With `drain`, close gracefully within that many seconds: refuse new calls (UsageError), let those under way end,
        give the leases back, wait until Postgres holds what was acknowledged to this client, and return what is left.
        Without `drain`, return None.
        """
        if not self._runtime.in_flight.closed:
            self._runtime.check_place()
        seconds, begun = _AT_SHUTDOWN_S if drain is None else checked_drain(drain), monotonic()
        try:
            if not self._runtime.in_flight.closing:
                await make_at_shutdown(self._runtime, self._view_of, seconds=seconds / 2)
            if drain is None:
                return None
            return await leave(self._runtime, max(seconds - (monotonic() - begun), 0.0))
        finally:
            await self._runtime.close()

    def _view_of(self, policy: Policy) -> View[Any]:
        return View(self._runtime, policy, "")

    def until_stopped(self, *, drain: float = 10.0, signals: Sequence[int] = SIGNALS) -> AsyncUntilStopped:
        """Return a block that SIGTERM and SIGINT ask to end: `while not told.stopping`; it closes this client.

        At the block's end the client is closed with `drain` seconds to do so gracefully, and `told.left` says what was
        left. A second signal ends the block at once. `told.stop()` does what a signal does, where there are none:
        outside of the main thread, signals are left alone.
        """
        return AsyncUntilStopped(self.close, self._runtime.check_place, drain=drain, signals=signals)

    async def __aenter__(self) -> Self:
        if not self._runtime.in_flight.closed:
            self._runtime.open_here()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings!r})"

"""What an observer is told of a client's verbs, without a cost for clients that have none.

A client with an observer gets verbs of its own, wrapped, as attributes that hide the class's; one without has the bare
verbs and none of this runs. On the way down nothing is noted but in the branches that are taken when a first attempt
was not enough: `note` finds the call under way by a context variable, which tasks and threads have each their own.

A verb that another verb is made of is not told by itself: it is called on the class.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from statecache import errors
from statecache.clock import monotonic
from statecache.errors import StateCacheError, VersionConflict
from statecache.model import Operation

if TYPE_CHECKING:
    from statecache._async.lease import AsyncLock
    from statecache._async.transaction import AsyncTransaction
    from statecache._async.verbs import AsyncVerbs
    from statecache.model import Observer, State

CALLED = (
    "get",
    "set",
    "create",
    "update",
    "delete",
    "transact",
    "wait_durable",
    "wait_for",
    "warm",
    "step",
    "resolve_step",
    "outcome",
)
"""The verbs that are called and give a result; `list` and `transaction` go on after it, of `lock` it is the waiting."""

_logger = logging.getLogger("statecache")


class Noted:
    """This is a call under way: what was tried again, lost to others, and looked for in Postgres."""

    __slots__ = ("_observer", "_verb", "conflicts", "hydrations", "retries", "seconds")

    def __init__(self, observer: Observer, verb: str) -> None:
        self._observer = observer
        self._verb = verb
        self.retries = self.conflicts = self.hydrations = 0
        self.seconds = 0.0

    def end(self, error: BaseException | None) -> None:
        """This tells the observer; what it raises is logged."""
        conflicts = self.conflicts + isinstance(error, VersionConflict)
        operation = Operation(
            verb=self._verb,
            outcome=_outcome(error),
            seconds=self.seconds,
            attempts=1 + self.retries,
            conflicts=conflicts,
            hydrations=self.hydrations,
        )
        try:
            self._observer.ended(operation)
        except Exception:  # the verb has done its work: what is wrong with the observer must not look like its failure
            _logger.warning("an observer failed", exc_info=True)


_current: ContextVar[Noted | None] = ContextVar("statecache_noted", default=None)


def note(*, retries: int = 0, conflicts: int = 0, hydrations: int = 0) -> None:
    """This adds to what is known of the call under way, where somebody wants to know."""
    noted = _current.get()
    if noted is not None:
        noted.retries += retries
        noted.conflicts += conflicts
        noted.hydrations += hydrations


@contextlib.contextmanager
def _under_way(noted: Noted) -> Iterator[None]:
    """This is a stretch of a call: its time, and what is noted during it, belong to the call."""
    token, begun = _current.set(noted), monotonic()
    try:
        yield
    finally:
        noted.seconds += monotonic() - begun
        _current.reset(token)


def observe(verbs: AsyncVerbs[Any], observer: Observer) -> None:
    """This has the verbs of one client or namespace tell the observer."""
    for verb in CALLED:
        setattr(verbs, verb, _told(observer, verb, getattr(verbs, verb)))
    bound: Any = verbs
    bound.list = _listed(observer, verbs.list)
    bound.transaction = _opened(observer, verbs.transaction)
    bound.lock = _locked(observer, verbs.lock)


def _told(observer: Observer, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    async def observed(*args: Any, **more: Any) -> Any:
        noted = Noted(observer, verb)
        try:
            with _under_way(noted):
                result = await call(*args, **more)
        except BaseException as error:  # whatever it is, it is told and raised again
            noted.end(error)
            raise
        noted.end(None)
        return result

    return observed


def _listed(observer: Observer, call: Callable[..., AsyncIterator[State[Any]]]) -> Callable[..., Any]:
    @functools.wraps(call)
    async def observed(*args: Any, **more: Any) -> AsyncIterator[State[Any]]:
        noted = Noted(observer, "list")
        begun = monotonic()
        try:
            async for state in call(*args, **more):
                noted.seconds += monotonic() - begun
                yield state
                begun = monotonic()
        except GeneratorExit:
            noted.end(None)  # the caller has seen enough
            raise
        except BaseException as error:  # whatever it is, it is told and raised again
            noted.seconds += monotonic() - begun
            noted.end(error)
            raise
        noted.seconds += monotonic() - begun
        noted.end(None)

    return observed


def _opened(observer: Observer, call: Callable[..., AsyncTransaction]) -> Callable[..., Any]:
    @functools.wraps(call)
    def observed(*args: Any, **more: Any) -> AsyncObservedTransaction:
        return AsyncObservedTransaction(call(*args, **more), Noted(observer, "transaction"))

    return observed


def _locked(observer: Observer, call: Callable[..., AsyncLock[Any]]) -> Callable[..., Any]:
    """This has the taking of a lock told, which is the waiting for it; what is done under it tells for itself."""

    @functools.wraps(call)
    def observed(*args: Any, **more: Any) -> AsyncLock[Any]:
        lock: Any = call(*args, **more)
        lock.take = _told(observer, "lock", lock.take)
        return lock  # type: ignore[no-any-return]

    return observed


class AsyncObservedTransaction:
    """This is a transaction that is told when it is over: its opening, the caller's block and its end."""

    def __init__(self, transaction: AsyncTransaction, noted: Noted) -> None:
        self._transaction = transaction
        self._noted = noted
        self._entered = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    async def __aenter__(self) -> Self:
        try:
            with _under_way(self._noted):
                await self._transaction.__aenter__()
        except BaseException as error:  # whatever it is, it is told and raised again
            self._noted.end(error)
            raise
        self._entered = monotonic()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._noted.seconds += monotonic() - self._entered
        try:
            with _under_way(self._noted):
                await self._transaction.__aexit__(kind, error, trace)
        except BaseException as failure:  # whatever it is, it is told and raised again
            self._noted.end(failure)
            raise
        self._noted.end(error)


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "ok"
    if isinstance(error, StateCacheError):
        kinds = (kind.__name__ for kind in type(error).__mro__)
        return next(kind for kind in kinds if hasattr(errors, kind))
    return "raised" if isinstance(error, Exception) else "cancelled"

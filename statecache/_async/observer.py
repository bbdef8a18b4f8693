"""What an observer is told of a client's verbs, without a cost for clients that have none.

A client with an observer gets verbs of its own, wrapped, as attributes that hide the class's; one without has the bare
verbs and none of this runs.

A verb that another verb is made of is not told by itself: it is called on the class.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Self

from statecache.call_notes import Observation, under_way
from statecache.clock import monotonic

if TYPE_CHECKING:
    from statecache._async.transaction import AsyncTransaction
    from statecache.model import Observer, State

CALLED = (
    "get",
    "get_many",
    "nearest",
    "exists",
    "set",
    "set_many",
    "create",
    "update",
    "delete",
    "delete_many",
    "erase",
    "commit",
    "increment",
    "append",
    "add",
    "remove",
    "touch",
    "copy",
    "rename",
    "transact",
    "wait_durable",
    "wait_for",
    "warm",
    "step",
    "resolve_step",
    "outcome",
    "get_at",
    "get_group_at",
    "diff",
    "checkpoint",
    "checkpoints",
    "rename_checkpoint",
    "delete_checkpoint",
    "rollback",
    "undo",
    "redo",
    "branch",
    "branches",
    "ancestry",
    "merge",
)
"""The verbs that are called and return a result; `list` and `transaction` go on after the call; of `lock`, entering. Of
`changes` and `watch` nothing is told: they wait for others. Of `history` neither: its pages are read as it goes on."""
OF_CLIENTS = ("namespaces", "lost")
"""Those that a client has and a namespace has not."""


def observe(verbs: Any, observer: Observer) -> None:
    """Have the verbs of one client or namespace tell the observer."""
    for verb in (*CALLED, *(verb for verb in OF_CLIENTS if hasattr(verbs, verb))):
        setattr(verbs, verb, _told(observer, verb, getattr(verbs, verb)))
    verbs.list = _listed(observer, verbs.list)
    verbs.transaction = _opened(observer, verbs.transaction)
    verbs.lock = _locked(observer, verbs.lock)


def _told(observer: Observer, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    async def observed(*args: Any, **more: Any) -> Any:
        noted = Observation(observer, verb)
        try:
            with under_way(noted):
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
        noted = Observation(observer, "list")
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


def _opened(observer: Observer, call: Callable[..., AsyncTransaction[Any]]) -> Callable[..., Any]:
    @functools.wraps(call)
    def observed(*args: Any, **more: Any) -> AsyncObservedTransaction:
        return AsyncObservedTransaction(call(*args, **more), Observation(observer, "transaction"))

    return observed


def _locked(observer: Observer, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `lock`: the observer is told of the wait for it; verbs within the block are told of by themselves."""

    @functools.wraps(call)
    def observed(*args: Any, **more: Any) -> Any:
        lock = call(*args, **more)
        lock.take = _told(observer, "lock", lock.take)
        return lock

    return observed


class AsyncObservedTransaction:
    """A transaction that is told of when it is over: its opening, the caller's block and its end."""

    def __init__(self, transaction: AsyncTransaction[Any], noted: Observation) -> None:
        self._transaction = transaction
        self._noted = noted
        self._entered = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    async def __aenter__(self) -> Self:
        try:
            with under_way(self._noted):
                await self._transaction.__aenter__()
        except BaseException as error:  # whatever it is, it is told and raised again
            self._noted.end(error)
            raise
        self._entered = monotonic()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._noted.seconds += monotonic() - self._entered
        try:
            with under_way(self._noted):
                await self._transaction.__aexit__(kind, error, trace)
        except BaseException as failure:  # whatever it is, it is told and raised again
            self._noted.end(failure)
            raise
        self._noted.end(error)

"""What imports have in common: what is here only goes on where an import has left it, and what is refused is named.

    never written         it is taken in
    as an import left it  what is new is added: the newest change says `import` as its reason
    anything else         it was gone on with here, or deleted, or erased, or changed at its source: it is left alone

A deleted state has a version, and one that was erased too, so that neither is taken for one that never was. Where
somebody writes to the same just now, what is there by then is looked at again: another import may have been faster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from statecache import (
    AlreadyExists,
    CodecError,
    InvalidKey,
    LimitExceeded,
    LockHeld,
    NotFound,
    Quarantined,
    UsageError,
    VersionConflict,
)

if TYPE_CHECKING:
    from statecache import AsyncNamespace, Change, State, StateCacheError

IMPORT = "import"
"""The reason of what an import writes."""
LOOKS_MAX = 1000
"""How often one thing is looked at again: where another import takes in the same, each time for some of it."""
_MOVED = (VersionConflict, AlreadyExists, NotFound)
"""What a commit raises where somebody writes to the same just now."""
REFUSED = (CodecError, InvalidKey, LimitExceeded, LockHeld, Quarantined, UsageError)
"""What is raised for one session or flow alone: others can be taken in."""
NOT_READ = (ValueError, TypeError, RecursionError)
"""What is raised for a record of a source that is not as its framework writes it: no JSON, or no UTF-8."""


class Done(Protocol):
    """What an import did: how much was written, and was there, and what was left alone, or refused and why."""

    written: int
    same: int
    kept: list[str]
    failed: dict[str, str]


class Unreadable(NamedTuple):
    """What a source holds under a name, as records that are not as its framework writes them, and why."""

    name: str
    error: Exception

    def note(self, done: Done) -> None:
        """Add it to what is refused."""
        done.failed[self.name] = f"what is stored cannot be read: {str(self.error).partition(chr(10))[0]}"


async def take_in(name: str, take: Callable[[], Awaitable[None]], done: Done) -> None:
    """Take one thing in, or add its name to what is left alone, or refused and why.

    `take` counts what is there as the same; what it has written itself, before somebody was in its way, is not.
    """
    same, written = done.same, done.written
    try:
        for _ in range(LOOKS_MAX):
            try:
                return await take()
            except _MOVED:
                done.same = same - (done.written - written)
        done.kept.append(name)
    except REFUSED as error:
        done.failed[name] = why(error)
    finally:
        done.same = max(done.same, same)


async def proven(view: AsyncNamespace[Any], *there: State[Any] | None) -> None:
    """Wait until Postgres holds what was there already, where the view's writes count once it does.

    An import that was cut off may have left it in Redis alone, and is told to be repeated. Raises what `wait_durable`
    does.
    """
    if view._view.durability_of(None) == "postgres":
        for state in there:
            if state is not None:
                await view.wait_durable(state)


async def newest(view: AsyncNamespace[Any], name: str) -> Change[Any] | None:
    """Return a state's newest change; None where there never was one."""
    async for change in view.history(name, limit=1, reverse=True):
        return change
    return None


async def may_go_on(view: AsyncNamespace[Any], name: str, there: State[Any] | None) -> bool:
    """Return whether a state, which was read, was never written, or is as an import has left it."""
    if there is not None:
        change = await newest(view, name)
        return change is not None and change.reason == IMPORT
    return not await was_here(view, name)


async def was_here(view: AsyncNamespace[Any], name: str) -> bool:
    """Return whether a state that is not there was ever written; raise VersionConflict where it is there by now."""
    state = await view.get(name, default=None, read="primary")
    if state.change_id:
        raise VersionConflict(state.key, "", state.change_id)
    return state.version > 0


def refuse_larger(what: str, sizes: Iterable[int], limit: int) -> None:
    """Raise LimitExceeded for the largest of these, where it is above a limit."""
    largest = max(sizes, default=0)
    if largest > limit:
        raise LimitExceeded(what, actual=largest, limit=limit)


def why(error: StateCacheError) -> str:
    """Return in one line why something is not taken in."""
    return error.reason if isinstance(error, UsageError) else str(error).partition("\n")[0]

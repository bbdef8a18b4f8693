"""What imports have in common: what is here only goes on where an import has left it, and what is refused is named.

    never written         it is taken in
    as an import left it  what is new is added: the newest change says `import` as its reason
    anything else         it was gone on with here, or deleted, or erased: it is left alone

A deleted state has a version, and one that was erased too, so that neither is taken for one that never was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
    from statecache import AsyncNamespace, State, StateCacheError

IMPORT = "import"
"""The reason of what an import writes."""
_MOVED = (VersionConflict, AlreadyExists, NotFound)
"""What a commit raises where somebody writes to the same just now."""
REFUSED = (CodecError, InvalidKey, LimitExceeded, LockHeld, Quarantined, UsageError)
"""What is raised for one session or flow alone: others can be taken in."""


@contextmanager
def naming(name: str, *, kept: list[str], failed: dict[str, str]) -> Iterator[None]:
    """Take one thing in, or add its name to what is left alone, or refused and why."""
    try:
        yield
    except _MOVED:
        kept.append(name)
    except REFUSED as error:
        failed[name] = why(error)


async def newest_reason(view: AsyncNamespace[Any], name: str) -> str | None:
    """Return the reason of a state's newest change; None where there never was one."""
    async for change in view.history(name, limit=1, reverse=True):
        return change.reason
    return None


async def may_go_on(view: AsyncNamespace[Any], name: str, there: State[Any] | None) -> bool:
    """Return whether a state, which was read, was never written, or is as an import has left it."""
    if there is not None:
        return await newest_reason(view, name) == IMPORT
    return not await was_here(view, name)


async def was_here(view: AsyncNamespace[Any], name: str) -> bool:
    """Return whether a state was ever written, also where it was deleted or erased since."""
    return (await view.get(name, default=None, read="primary")).version > 0


def refuse_larger(what: str, sizes: Iterable[int], limit: int) -> None:
    """Raise LimitExceeded for the largest of these, where it is above a limit."""
    largest = max(sizes, default=0)
    if largest > limit:
        raise LimitExceeded(what, actual=largest, limit=limit)


def why(error: StateCacheError) -> str:
    """Return in one line why something is not taken in."""
    return error.reason if isinstance(error, UsageError) else str(error).partition("\n")[0]

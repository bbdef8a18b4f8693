"""A session's verbs, carried out by a client: read, decide, and commit what was decided if nobody was first.

A reader asks the primary for the head, and takes pages from this process where it has them: their revisions say whether
they are the ones. If not, head and pages are read from the primary. Where these do not hold together either, somebody
has written in between, or has edited a state by itself: the head is read again, and if it is the same one still, what
was read between the two is what there is.

A writer decides on what this process has left or read first, in one exchange if that is still so. Each later attempt
reads the primary. Writers that meet too often take turns.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from math import ceil
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from statecache import (
    Delete,
    LeaseLost,
    LockTimeout,
    NotFound,
    OutcomeUnknown,
    StateCacheError,
    Unavailable,
    UsageError,
    VersionConflict,
)
from statecache.adapters.openai_agents.pages import (
    CLEARED_PAGES_MAX,
    Found,
    Head,
    Last,
    Place,
    added,
    cleared,
    popped,
    read,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from statecache import AsyncNamespace, ReadMode, State
    from statecache.adapters.openai_agents.items import Kept
    from statecache.adapters.openai_agents.pages import Writes

ATTEMPTS_MAX = 50
"""How often something is read, or tried to be written, that others are writing to."""
CROWDED = 3
"""After so many attempts a writer waits for its turn."""
TURN_S = 5.0
"""How long it waits at most; without its turn it goes on as before."""
_DELETED_AT_ONCE = 250


class Conversation:
    """What a session holds, seen from one client."""

    def __init__(self, view: AsyncNamespace[Any], place: Place, *, bytes_max: int, last: Last) -> None:
        self._view, self._place, self._bytes_max, self._last = view, place, bytes_max, last

    async def items(self, limit: int | None) -> list[Any]:
        """Return all items, or the last ones, as they were at one moment."""
        items = (await self._read(limit, head="primary", pages="local")).items()
        return items if limit is None else items[-limit:]

    async def add(self, items: Sequence[Kept]) -> None:
        """Add items, in one commit."""
        await self._commit(lambda found: added(self._place, found, items, _revision(), self._bytes_max), "")

    async def pop(self) -> Any:
        """Take the last item out and return it, or None where there is none, in one commit."""
        while True:
            found = await self._commit(lambda found: popped(self._place, found, _revision()), "pop_item")
            if found.head is None or (items := found.items()):
                return None if found.head is None else items[-1]

    async def clear(self) -> None:
        """Take all items out, in one commit; what stays of a very long session is deleted by others after it."""
        gone = set[str]()
        found = await self._commit(lambda found: cleared(self._place, found, gone), "clear_session", gone)
        left = [*map(self._place.page, range(CLEARED_PAGES_MAX + 1, found.known.pages + 1))]
        for at in range(0, len(left), _DELETED_AT_ONCE):
            states = await self._view.get_many(left[at : at + _DELETED_AT_ONCE], read="primary")
            deletes = [Delete(name, expected=state) for name, state in states.items() if state is not None]
            try:
                await self._view.commit(deletes, reason="clear_session")
            except (VersionConflict, NotFound):
                return  # the session has grown as long again; what is left of the old one is written over

    async def _read(self, limit: int | None, *, head: ReadMode, pages: ReadMode) -> Found:
        """Read the head and as many pages as hold that many items; the last page at least."""
        found, before, change_id = None, "", ""
        for _ in range(ATTEMPTS_MAX):
            state = await self._view.get(self._place.head, read=head)
            if state is None:
                return self._place.nothing()
            change_id = state.change_id
            if found is not None and before == change_id:
                return found
            found = await self._pages(state, limit, pages)
            if found.holds_together():
                return found
            before = change_id if (head, pages) == ("primary", "primary") else ""
            head = pages = "primary"
        raise VersionConflict(self._place.head, before, change_id)

    async def _pages(self, head: State[Any], limit: int | None, mode: ReadMode) -> Found:
        known, pages = read(head, Head), list["State[Any] | None"]()
        first = known.pages + 1
        more = known.pages if limit is None else ceil(limit * known.pages / max(known.items, 1)) + bool(limit)
        while first > 1:
            upto, first = first, max(first - max(more, 1), 1)
            states = await self._view.get_many([*map(self._place.page, range(first, upto))], read=mode)
            pages = [*states.values(), *pages]
            found = Found(head, known, pages)
            missing = 0 if limit is None else limit - sum(len(page.items) for page in found.documents())
            if missing <= 0:
                return found
            more = known.pages - first + 1
        return Found(head, known, pages)

    async def _commit(self, decide: Callable[[Found], Writes], reason: str, gone: set[str] | None = None) -> Found:
        """Commit what is decided on what was found, again while somebody is first; return what it was decided on."""
        asked = False
        failed: StateCacheError = UsageError(f"nothing came of {ATTEMPTS_MAX} attempts")
        async with AsyncExitStack() as turn:
            for attempt in range(ATTEMPTS_MAX):
                if attempt == CROWDED:
                    await self._wait_for_turn(turn)
                mode: ReadMode = "primary" if attempt else "local"
                left = self._last.take()
                found = left if left is not None and not attempt else await self._read(0, head=mode, pages=mode)
                writes = decide(found)
                if not writes:
                    if attempt:
                        return found
                    continue
                try:
                    made = await self._view.commit(writes, reason=reason)
                except (VersionConflict, NotFound) as error:
                    failed = error
                    if gone is not None and isinstance(error, NotFound):
                        gone.add(error.key.partition("/")[2])
                except OutcomeUnknown as error:
                    if asked:
                        raise
                    if await self._is_applied(error):
                        return found
                    asked, failed = True, error
                else:
                    self._last.left(self._place, writes, made)
                    return found
        raise failed

    async def _is_applied(self, unknown: OutcomeUnknown) -> bool:
        """Return whether a commit whose answer was lost is applied; raise that where nobody knows."""
        verdict = (await self._view.outcome(unknown.change_id, self._place.head)).verdict
        if verdict not in ("applied", "not applied"):
            raise unknown
        return verdict == "applied"

    async def _wait_for_turn(self, turn: AsyncExitStack) -> None:
        """Wait for a lock that those in each other's way take; it guards nothing, so its loss is nobody's concern."""
        lock = self._view.lock(f"{self._place.head}/turn", ttl=TURN_S, timeout=TURN_S)
        with suppress(LockTimeout):
            await lock.__aenter__()
            turn.push_async_callback(_give_back, lock)


async def _give_back(lock: AbstractAsyncContextManager[Any]) -> None:
    with suppress(LeaseLost, Unavailable):
        await lock.__aexit__(None, None, None)


def _revision() -> str:
    return token_hex(8)

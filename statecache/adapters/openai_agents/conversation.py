"""A session's verbs, carried out by a client: read, decide, and commit what was decided if nobody was first.

A writer decides on what this process has left or has first, in one exchange if that is still so. Each later attempt
reads the primary. Writers that meet too often take turns.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from statecache import (
    DurabilityNotMet,
    LeaseLost,
    LockTimeout,
    NotFound,
    OutcomeUnknown,
    StateCacheError,
    Unavailable,
    UsageError,
    VersionConflict,
)
from statecache.adapters.applied import is_applied
from statecache.adapters.openai_agents.pages import CLEARED_PAGES_MAX, Last, Place, added, cleared, popped
from statecache.adapters.pages import ATTEMPTS_MAX, Found, read_pages
from statecache.adapters.plans import arun, proven
from statecache.adapters.remains import remains

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from statecache import AsyncNamespace, AsyncTransaction, Durability, ReadMode
    from statecache.adapters.items import Kept
    from statecache.adapters.openai_agents.pages import Writes

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
        """Take all items out, in one commit; what stays of a very long session is deleted by others after it.

        Who was killed before these has left it: it is looked for where there is no session to clear.
        """
        gone = set[str]()
        try:
            found = await self._commit(lambda found: cleared(self._place, found, gone), "clear_session", gone)
        except DurabilityNotMet:  # which is applied
            await self._delete_surplus(await self._remains(), durability="memory")
            raise
        if found.head is None:
            await self._delete_surplus(await self._remains())
            await arun(self._view, proven(self._place.head, below=[self._place.pages]))
        else:
            surplus = range(CLEARED_PAGES_MAX + 1, found.known.pages + 1)
            await self._delete_surplus([self._place.page(found.known, number) for number in surplus])

    async def _remains(self) -> list[str]:
        """Return the names of the pages that are there."""
        return [*await arun(self._view, remains(self._place.pages))]

    async def _delete_surplus(self, pages: Sequence[str], durability: Durability | None = None) -> None:
        """Delete pages, but those that the session has."""
        for some in (pages[at : at + _DELETED_AT_ONCE] for at in range(0, len(pages), _DELETED_AT_ONCE)):
            delete, names = partial(self._delete_pages, some), [self._place.head, *some]
            with suppress(VersionConflict):  # of a session that is added to all the time: it is written over
                await self._view.transact(names, delete, reason="clear_session", durability=durability)

    async def _delete_pages(self, pages: Sequence[str], transaction: AsyncTransaction[Any]) -> None:
        """Delete pages that the session does not have: it may have grown as long again since it was cleared."""
        head = await transaction.get(self._place.head)
        known = self._place.nothing().known if head is None else self._place.read(head)
        there = {self._place.page(known, number) for number in range(1, known.pages + 1)}
        for name in pages:
            if name not in there and await transaction.get(name) is not None:
                transaction.delete(name)

    async def _read(self, limit: int | None, *, head: ReadMode, pages: ReadMode) -> Found:
        return await arun(self._view, read_pages(self._place, limit, head=head, pages=pages))

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
                    if await arun(self._view, is_applied(error, self._place.head)):
                        return found
                    asked, failed = True, error
                else:
                    self._last.left(self._place, writes, made)
                    return found
        raise failed

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

"""The synchronous client in the clothes of the asynchronous one, so that one story is told of both.

Every verb runs in a thread, so a proxy or a second client in the test's event loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from statecache import AsyncStateCache, StateCache


class Awaited:
    """This awaits what a synchronous client does in a thread."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        async def called(*args: Any, **more: Any) -> Any:
            return await asyncio.to_thread(found, *args, **more)

        return called

    def __repr__(self) -> str:
        return repr(self._client)

    def namespace(self, *args: Any, **more: Any) -> Awaited:
        """This gives a typed view, awaited too."""
        return Awaited(self._client.namespace(*args, **more))

    async def list(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """This gives the whole listing at once."""
        for state in await asyncio.to_thread(lambda: [*self._client.list(*args, **more)]):
            yield state

    @asynccontextmanager
    async def transaction(self, *names: str, **more: Any) -> AsyncIterator[Awaited]:
        """This enters and leaves a transaction in threads."""
        transaction = self._client.transaction(*names, **more)
        entered = await asyncio.to_thread(transaction.__enter__)
        try:
            yield _InTransaction(entered)
        except BaseException as error:
            await asyncio.to_thread(transaction.__exit__, type(error), error, None)
            raise
        await asyncio.to_thread(transaction.__exit__, None, None, None)

    async def transact(self, names: Any, function: Callable[[Any], Any], **more: Any) -> Any:
        """This runs the function, which must be a plain one, in a thread."""
        return await asyncio.to_thread(self._client.transact, names, function, **more)


class _InTransaction(Awaited):
    """This awaits reads; writes are only noted by a transaction, so they are plain calls here as well."""

    def __getattr__(self, name: str) -> Any:
        if name in ("set", "create", "delete", "states"):
            return getattr(self._client, name)
        return super().__getattr__(name)


def awaited(client: StateCache) -> AsyncStateCache:
    """This gives the synchronous client to a story that is written for the asynchronous one."""
    return cast("AsyncStateCache", Awaited(client))

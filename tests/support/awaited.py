"""The synchronous client in the clothes of the asynchronous one, so that one story is told of both.

Every verb runs in a thread, so a proxy or a second client in the test's event loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, cast

from statecache import AsyncStateCache, StateCache

_threads = ThreadPoolExecutor(64)
"""Enough for all tasks of a story; asyncio's own are four more than the machine has cores."""


async def _in_thread(function: Callable[..., Any], /, *args: Any, **more: Any) -> Any:
    call = partial(copy_context().run, function, *args, **more)
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


class Awaited:
    """A synchronous client whose calls are awaited: each one runs in a thread."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        async def called(*args: Any, **more: Any) -> Any:
            return await _in_thread(found, *args, **more)

        return called

    def __repr__(self) -> str:
        return repr(self._client)

    def namespace(self, *args: Any, **more: Any) -> Awaited:
        """Return a typed view, awaited too."""
        return Awaited(self._client.namespace(*args, **more))

    async def list(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """Read the whole listing at once and yield its states."""
        for state in await _in_thread(lambda: [*self._client.list(*args, **more)]):
            yield state

    async def history(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """Read the whole history at once and yield its changes."""
        for change in await _in_thread(lambda: [*self._client.history(*args, **more)]):
            yield change

    @asynccontextmanager
    async def transaction(self, *names: str, **more: Any) -> AsyncIterator[Awaited]:
        """Open a transaction and close it at the end, each in a thread."""
        transaction = self._client.transaction(*names, **more)
        entered = await _in_thread(transaction.__enter__)
        try:
            yield _InTransaction(entered)
        except BaseException as error:
            await _in_thread(transaction.__exit__, type(error), error, None)
            raise
        await _in_thread(transaction.__exit__, None, None, None)

    @asynccontextmanager
    async def lock(self, name: str, **more: Any) -> AsyncIterator[Awaited]:
        """Take a lock and release it at the end, both in one thread of its own: a lock's holder is a thread."""
        with ThreadPoolExecutor(1) as thread:
            run = asyncio.get_running_loop().run_in_executor
            lock = self._client.lock(name, **more)
            lease = await run(thread, lock.__enter__)
            try:
                yield _Lease(lease)
            except BaseException as error:
                await run(thread, lock.__exit__, type(error), error, None)
                raise
            await run(thread, lock.__exit__, None, None, None)

    async def transact(self, names: Any, function: Callable[[Any], Any], **more: Any) -> Any:
        """Run the function, which must be a plain one, in a transaction in a thread."""
        return await _in_thread(self._client.transact, names, function, **more)


class _InTransaction(Awaited):
    """A transaction with awaited reads; a transaction only notes its writes, so they are plain calls here as well."""

    def __getattr__(self, name: str) -> Any:
        if name in ("set", "create", "delete", "states"):
            return getattr(self._client, name)
        return super().__getattr__(name)


class _Lease(Awaited):
    """A lease with awaited verbs; `check` is a plain call."""

    def check(self) -> None:
        self._client.check()


def awaited(client: StateCache) -> AsyncStateCache:
    """Wrap the synchronous client for a story that is written for the asynchronous one."""
    return cast("AsyncStateCache", Awaited(client))

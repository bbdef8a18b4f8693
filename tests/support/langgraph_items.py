"""Stores to be told stories: awaited or called in threads, one or several in turn, whatever comes in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, Op, Result

from statecache.adapters.langgraph import StateCacheStore


class Told(BaseStore):
    """Carries out operations on stores in turn, whatever comes in between; `called` says that nothing is awaited."""

    supports_ttl = True

    def __init__(
        self, stores: Sequence[StateCacheStore], *, called: bool = False,
        between: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        self._stores, self._called, self._between = stores, called, between
        self._count, self._alone = 0, asyncio.Lock()
        self.ttl_config = stores[0].ttl_config

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Nothing that is not awaited is asked of this one."""
        raise NotImplementedError

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do what is asked for on the next store."""
        if self._between is None:
            return await self._told(ops)
        async with self._alone:
            await self._between()
            return await self._told(ops)

    async def _told(self, ops: Iterable[Op]) -> list[Result]:
        self._count += 1
        store = self._stores[self._count % len(self._stores)]
        return await (asyncio.to_thread(store.batch, ops) if self._called else store.abatch(ops))


class Letters(Embeddings):
    """Vectors that count the letters of a text; `asked` are the texts that were given, call by call."""

    def __init__(self, dims: int = 26) -> None:
        self.dims = dims
        self.asked: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return how often each letter stands in each of the texts."""
        self.asked.append(texts)
        return [self._vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return how often each letter stands in the text."""
        return self._vector(text)

    def _vector(self, text: str) -> list[float]:
        counted = Counter(ord(letter.lower()) % self.dims for letter in text)
        return [float(counted[at]) for at in range(self.dims)]


class Waiting(Letters):
    """A maker of vectors that begins, and waits until it may end; `queries` counts those that have begun."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.queries = 0

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors, once."""
        self.begun.set()
        await self.go.wait()
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Return the vector, once."""
        self.queries += 1
        await self.go.wait()
        return self.embed_query(text)


async def keys(store: BaseStore, *prefix: str, **more: Any) -> list[str]:
    """Return the keys of the items that a search finds."""
    return [found.key for found in await store.asearch(prefix, **more)]


async def put_all(store: BaseStore, items: dict[tuple[str, ...], dict[str, Any]]) -> None:
    """Put items, given by their namespaces and keys, one after the other."""
    for (*namespace, key), value in items.items():
        await store.aput(tuple(namespace), key, value)

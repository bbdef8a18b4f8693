"""The puts of one event loop: in batches, those that wait for vectors apart from those that do not.

Puts of one item are carried out in the order in which they were asked for. So one that follows a put which waits for
vectors waits with it, and one with vectors follows the puts without that were asked for before it. Nobody else waits
for who makes vectors. Of the puts of one item in a batch the last is written. Where that is given up, or too large,
those before it are carried out again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from statecache import LimitExceeded
from statecache.adapters.langgraph.batching import Again, Batch, Queue, ask
from statecache.adapters.langgraph.store.items import Put, last_of_each, put_items
from statecache.adapters.langgraph.store.names import group_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from statecache import StateCacheError
    from statecache.adapters.clients import Clients
    from statecache.adapters.langgraph.store.vectors import Index
    from statecache.adapters.plans import Plan

_PUTS_PER_BATCH = 5000
"""As many that those of a few hundred namespaces, mixed, are still few commits."""
_EMBEDDED_ALONE = 8
"""Of how many puts the texts are embedded at once, each put's by themselves, where those of all were refused."""
_LANES = 4
"""Puts of one namespace wait in one lane, so they are carried out in the order in which they were asked for."""


class _Lane(NamedTuple):
    """Puts that are written as they are asked for, and those that wait for vectors, or for such a put of their item."""

    at_once: Queue[Put, None]
    embedded: Queue[Put, None]


class Putting:
    """Puts items of one event loop."""

    def __init__(self, clients: Clients, index: Index | None) -> None:
        self._clients, self._index = clients, index
        self._lanes = [self._lane() for _ in range(_LANES)]
        self._embedded = Counter[str]()
        """How many puts of each item are under way among those that wait for vectors."""

    async def put(self, puts: Sequence[Put]) -> None:
        """Put items, those of one namespace together, and raise the first error once all have been tried."""
        groups: dict[str, list[Put]] = {}
        for one in puts:
            groups.setdefault(group_of(one.name), []).append(one)
        asked: dict[Queue[Put, None], list[Put]] = {}
        waiting: list[str] = []
        for group, some in groups.items():
            lane = self._lanes[crc32(group.encode()) % _LANES]
            if waits := any(one.lacks_vectors or one.name in self._embedded for one in some):
                waiting += [one.name for one in some]
            asked.setdefault(lane.embedded if waits else lane.at_once, []).extend(some)
        self._embedded.update(waiting)
        try:
            await ask(asked)
        finally:
            for name in waiting:
                self._embedded[name] -= 1
                if not self._embedded[name]:
                    del self._embedded[name]

    def _lane(self) -> _Lane:
        at_once: Queue[Put, None] = Queue(self._put, batch_max=_PUTS_PER_BATCH, in_flight_max=1)
        put = partial(self._put_embedded, at_once)
        return _Lane(at_once, Queue(put, batch_max=_PUTS_PER_BATCH, in_flight_max=1))

    async def _put_embedded(self, at_once: Queue[Put, None], batch: Batch[Put, None]) -> list[Any]:
        """Do what `_put` does, once there are vectors, and what was asked for before has been put."""
        asked = batch.wanted()
        hindered = await self._hindered(asked)
        names = {one.name for one in asked}
        await at_once.until_none(lambda one: one.name in names)
        return await self._put(batch, hindered)

    async def _put(self, batch: Batch[Put, None], hindered: Mapping[Put, Exception] | None = None) -> list[Any]:
        """Carry out the last put of each item that is still waited for, and return what each comes to."""
        return await self._clients.arun(_put_last(batch, hindered or {}))

    async def _hindered(self, asked: Sequence[Put]) -> dict[Put, Exception]:
        """Make the vectors of the last put of each item, or of the last but one where there are none to be had of that.

        Return what hindered those that stay without, and those that were put before them.
        """
        failed = await self._embed([one for one in last_of_each(asked) if one.lacks_vectors])
        if not failed:
            return {}
        before = last_of_each(one for one in asked if one not in failed)
        failed_again = await self._embed([one for one in before if one.lacks_vectors])
        names = {one.name: error for one, error in failed_again.items()}
        return failed | {one: names[one.name] for one in asked if one.name in names and one not in failed}

    async def _embed(self, puts: Sequence[Put]) -> dict[Put, Exception]:
        """Make the vectors of puts, and return what hindered some of them.

        Where the texts of all are refused, those of each are tried by themselves; where the first few all fail, it is
        not the texts, and the others fail with them.
        """
        if self._index is None or not puts:
            return {}
        try:
            take_vectors(puts, (texts := texts_of(puts)), await self._index.aembed(texts))
        except Exception as error:  # whatever it is, it is raised to those who wait
            if len(puts) == 1:
                return {puts[0]: error}
            first, rest = puts[:_EMBEDDED_ALONE], puts[_EMBEDDED_ALONE:]
            hindered = await self._embed_each(first)
            more = dict.fromkeys(rest, error)
            return hindered | (more if len(hindered) == len(first) else await self._embed_each(rest))
        return {}

    async def _embed_each(self, puts: Sequence[Put]) -> dict[Put, Exception]:
        hindered: dict[Put, Exception] = {}
        for at in range(0, len(puts), _EMBEDDED_ALONE):
            some = [self._embed([one]) for one in puts[at : at + _EMBEDDED_ALONE]]
            for found in await asyncio.gather(*some):
                hindered |= found
        return hindered


def _put_last(batch: Batch[Put, None], hindered: Mapping[Put, Exception]) -> Plan[list[Any]]:
    """Put the last of each item that is not hindered, and return what each put of a batch comes to.

    One that was to be put over, and is not, is to be carried out again: the last is given up, or refused as too large.
    """
    asked: list[Put] = []
    last: dict[str, Put] = {}

    def begin_to_write() -> list[Put]:
        asked.extend(batch.begin_to_write())
        puts = [one for one in last_of_each(one for one in asked if one not in hindered) if not one.lacks_vectors]
        last.update((one.name, one) for one in puts)
        return puts

    answers = yield from put_items(batch.wanted(), begin_to_write)
    ends = dict(zip(last, answers, strict=True))
    return [hindered.get(one) or _end(one, last.get(one.name), ends.get(one.name)) for one in asked]


def _end(one: Put, last: Put | None, end: StateCacheError | None) -> Exception | None:
    """Return what a put comes to where the last of its item came to that."""
    if last is None or (last is not one and isinstance(end, LimitExceeded)):
        return Again()
    return end


def texts_of(puts: Iterable[Put]) -> list[str]:
    """Return the texts to be embedded, each once."""
    return [*dict.fromkeys(text for one in puts for text in one.texts.values())]


def take_vectors(puts: Iterable[Put], texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
    """Have puts take the vectors of their texts."""
    by_text = dict(zip(texts, vectors, strict=True))
    for one in puts:
        one.take(by_text)

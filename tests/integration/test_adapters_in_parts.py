"""What takes several commits is applied as a whole where its error says that it is applied, and waits but once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from statecache import AsyncNamespace, AsyncStateCache, Durability, DurabilityNotMet, OutcomeUnknown, Settings
from statecache.adapters.langgraph import StateCacheSaver
from statecache.adapters.llama_index import StateCacheKVStore
from statecache.testing.embedded import Servers
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeSettings
from tests.support.langgraph_stories import config, got, ids, put

pytestmark = pytest.mark.counts_seconds

Verb = Callable[[], Awaitable[object]]
Left = Callable[[], Awaitable[int]]
Case = Callable[[AsyncStateCache, Durability], Awaitable[tuple[Verb, Left, int]]]
THREADS = ("41", "42", "43")
MANY = 600
"""So many states that they take three commits."""


async def put_all(cache: AsyncStateCache, level: Durability) -> tuple[Verb, Left, int]:
    """Return what puts values of LlamaIndex, what counts those that are there, and how many these are to be."""
    store = StateCacheKVStore(cache, durability=level)

    async def there() -> int:
        return len(await store.aget_all())

    return lambda: store.aput_all([(str(at), {"n": at}) for at in range(MANY)]), there, MANY


async def delete_thread(cache: AsyncStateCache, level: Durability) -> tuple[Verb, Left, int]:
    """Return what deletes a thread of LangGraph, and what counts its states."""
    at = await put(StateCacheSaver(cache), "42")
    await _write(StateCacheSaver(cache), at)

    async def there() -> int:
        return len([state async for state in cache.list("langgraph/42/", values=False)])

    return lambda: StateCacheSaver(cache, durability=level).adelete_thread("42"), there, 0


async def delete_for_runs(cache: AsyncStateCache, level: Durability) -> tuple[Verb, Left, int]:
    """Return what deletes the checkpoints that a run has put in several threads, and what counts those that stay."""
    there = await _threads(cache)
    return lambda: StateCacheSaver(cache, durability=level).adelete_for_runs(["one"]), there, len(THREADS)


async def prune(cache: AsyncStateCache, level: Durability) -> tuple[Verb, Left, int]:
    """Return what thins several threads out, and what counts the checkpoints that stay."""
    there = await _threads(cache)
    return lambda: StateCacheSaver(cache, durability=level).aprune(THREADS), there, len(THREADS)


async def prune_all(cache: AsyncStateCache, level: Durability) -> tuple[Verb, Left, int]:
    """Return what deletes several threads, and what counts the checkpoints that stay."""
    there = await _threads(cache)
    return lambda: StateCacheSaver(cache, durability=level).aprune(THREADS, strategy="delete"), there, 0


async def _threads(cache: AsyncStateCache) -> Left:
    saver = StateCacheSaver(cache)
    for thread in THREADS:
        first = await put(saver, thread, metadata={"source": "loop", "step": 0, "parents": {}, "run_id": "one"})
        await put(saver, thread, parent=first, metadata={"source": "loop", "step": 1, "parents": {}, "run_id": "two"})

    async def there() -> int:
        return sum([len(await ids(saver, config(thread))) for thread in THREADS])

    return there


async def put_writes(cache: AsyncStateCache, level: Durability) -> tuple[Verb, Left, int]:
    """Return what puts what tasks have written at one moment, and what counts the tasks that have."""
    at = await put(StateCacheSaver(cache), "42")
    return _putting(cache, level, at)


async def put_early_writes(cache: AsyncStateCache, level: Durability) -> tuple[Verb, Left, int]:
    """Return what puts what tasks have written before their checkpoint comes."""
    return _putting(cache, level, config("42", "1f000000-0000-6000-8000-000000000001"))


def _putting(cache: AsyncStateCache, level: Durability, at: Any) -> tuple[Verb, Left, int]:
    async def there() -> int:
        await put(StateCacheSaver(cache), "42", id=at["configurable"]["checkpoint_id"])
        return len((await got(StateCacheSaver(cache), at)).pending_writes or ())

    return lambda: _write(StateCacheSaver(cache, durability=level), at), there, MANY


async def _write(saver: StateCacheSaver, at: Any) -> None:
    told = await asyncio.gather(
        *(saver.aput_writes(at, [("n", task)], f"{task}") for task in range(MANY)), return_exceptions=True
    )
    for error in filter(None, told):
        raise error


@contextmanager
def waits_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note the verbs that wait until what they write is durable."""
    waited = list[str]()
    with monkeypatch.context() as patched:
        for verb in ("commit", "update"):
            patched.setattr(AsyncNamespace, verb, _noted(verb, getattr(AsyncNamespace, verb), waited))
        yield waited


def _noted(verb: str, real: Any, waited: list[str]) -> Any:
    async def noted(view: Any, *given: Any, **more: Any) -> Any:
        if more.get("durability") != "memory":
            waited.append(verb)
        return await real(view, *given, **more)

    return noted


BATCHED = (put_writes, put_early_writes)
"""What comes in batches, each of which waits."""
each_case = pytest.mark.parametrize(
    "case",
    [put_all, delete_thread, delete_for_runs, prune, prune_all, put_writes, put_early_writes],
    ids=lambda case: case.__name__,
)


@each_case
async def test_all_of_it_is_applied_where_no_worker_brings_it_into_postgres(
    case: Case, make_settings: MakeSettings, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncStateCache(settings=make_settings(timeout_s=1.0, hydrate_token_s=1.0)) as cache:
        call, there, wanted = await case(cache, "postgres")
        await flush(worker)
        with waits_counted(monkeypatch) as waited, pytest.raises(OutcomeUnknown, match="not yet known to be in Post"):
            await call()
        assert await there() == wanted
        assert len(waited) == 1 or case in BATCHED


@each_case
async def test_all_of_it_is_applied_where_too_few_copies_acknowledge_it(
    case: Case, paired: Settings, pair: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncStateCache(settings=paired.model_copy(update={"timeout_s": 2.0, "hydrate_token_s": 2.0})) as cache:
        call, there, wanted = await case(cache, "replica")
        pair.pause("replica-1")
        try:
            with waits_counted(monkeypatch) as waited, pytest.raises(DurabilityNotMet, match="0 of 1 copies"):
                await call()
        finally:
            pair.resume("replica-1")
        assert await there() == wanted
        assert len(waited) == 1 or case in BATCHED

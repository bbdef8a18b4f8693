"""Items that the library's verbs have copied: they are of the namespace and the key under which they stand."""

from __future__ import annotations

import pytest

from statecache import AsyncStateCache, UsageError
from statecache.adapters.langgraph import StateCacheStore
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing

ADA, BOB = ("users", "ada"), ("users", "b o/b")
LONG = ("long", "x" * 90, "y" * 90, "z" * 90)
OTHER = (*LONG[:3], "o" * 90)


@pytest.fixture
async def store(cache: AsyncStateCache, worker: Worker) -> StateCacheStore:
    """A store with two items in each of two namespaces, each of which was copied to another."""
    store = StateCacheStore(cache)
    for labels in (ADA, LONG):
        for key in ("k", "m"):
            await store.aput(labels, key, {"of": labels[-1][0]})
    async with flushing(worker):
        await cache.branch(store.group_of(ADA), store.group_of(BOB), group=True)
        await cache.branch(store.group_of(LONG), store.group_of(OTHER), group=True)
    return store


async def found(store: StateCacheStore, *prefix: str) -> list[tuple[tuple[str, ...], str]]:
    """Return of which namespaces and keys the items say that they are which a search finds."""
    return sorted((one.namespace, one.key) for one in await store.asearch(prefix, limit=50))


async def test_a_copied_namespace_holds_items_of_its_own(store: StateCacheStore) -> None:
    got = await store.aget(BOB, "k")
    assert got is not None
    assert (got.namespace, got.key) == (BOB, "k")
    assert await found(store, *BOB) == [(BOB, "k"), (BOB, "m")]
    assert await found(store, "users") == [(ADA, "k"), (ADA, "m"), (BOB, "k"), (BOB, "m")]
    assert await store.alist_namespaces(prefix=("users",)) == [ADA, BOB]
    for one in await store.asearch(BOB):
        await store.aput(one.namespace, one.key, {"of": "b"})
    assert [one.value for one in await store.asearch(ADA)] == [{"of": "a"}] * 2
    assert [one.value for one in await store.asearch(BOB)] == [{"of": "b"}] * 2


async def test_one_that_was_copied_by_itself_is_of_its_new_key(
    store: StateCacheStore, cache: AsyncStateCache, worker: Worker
) -> None:
    long = "l" * 400
    async with flushing(worker):
        await cache.branch(f"{store.group_of(ADA)}/k", f"{store.group_of(ADA)}/n%2F")
    assert await found(store, *ADA) == [(ADA, "k"), (ADA, "m"), (ADA, "n/")]
    await store.aput(BOB, long, {"of": "b"})
    assert await found(store, *BOB) == [(BOB, "k"), (BOB, long), (BOB, "m")]
    (state,) = [one async for one in cache.list(f"{store.group_of(BOB)}/l")]
    async with flushing(worker):
        await cache.branch(f"{store.group_of(ADA)}/k", f"{store.group_of(ADA)}/{state.key.rpartition('/')[2]}")
    got = await store.aget(ADA, long)
    assert got is not None
    assert (got.namespace, got.key) == (ADA, long)
    with pytest.raises(UsageError, match="copied from the item 'k'"):
        await store.asearch(ADA)


async def test_what_a_digest_hides_is_told_by_who_names_it_and_by_what_is_put_there(store: StateCacheStore) -> None:
    got = await store.aget(OTHER, "m")
    assert got is not None
    assert (got.namespace, got.key) == (OTHER, "m")
    assert await found(store, *OTHER) == [(OTHER, "k"), (OTHER, "m")]
    assert await found(store, *LONG) == [(LONG, "k"), (LONG, "m")]
    for asked in (store.asearch(("long",)), store.alist_namespaces(prefix=("long",))):
        with pytest.raises(UsageError, match="copied from the namespace"):
            await asked
    for one in await store.asearch(OTHER):
        await store.aput(one.namespace, one.key, one.value)
    assert await found(store, "long") == [(OTHER, "k"), (OTHER, "m"), (LONG, "k"), (LONG, "m")]
    assert await store.alist_namespaces(prefix=("long",)) == sorted([LONG, OTHER])

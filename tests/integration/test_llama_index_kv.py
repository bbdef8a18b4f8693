"""What a key-value store for LlamaIndex has to do, whatever it stands on, compared with LlamaIndex's own."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from llama_index.core.schema import NodeRelationship, TextNode
from llama_index.core.storage.docstore.keyval_docstore import KVDocumentStore
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.storage.kvstore.types import BaseKVStore

from statecache import AsyncStateCache, CodecError, LimitExceeded, Settings, StateCache, UsageError
from statecache.adapters.langgraph import StateCacheStore
from statecache.adapters.llama_index import StateCacheKVStore
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, rows
from tests.support.fault_proxy import FaultProxy
from tests.support.llama_index_stores import VARIANTS, Asked, asked
from tests.support.openai_sessions import World

MIB = 1024 * 1024
HARD: list[Any] = [
    {}, {"": ""}, {"text": "日本語 🌍 café \u2028 \0 \x7f"}, {"text": "cut \ud83d off"}, {"$json": "{}"},
    {"of": "llama-index value", "key": "x", "value": 1},
    {"n": [0, -1, 2**53 + 1, 2**63, 2**64 + 1, 1.0, -0.0, 1e300, 5e-324, None, True, [], {}, [[{"a": [None]}]]]},
    {"infinite": float("inf")}, {"long": "x" * 100_000},
]  # fmt: skip
NAMES = ["", "-", "/", "a/b", "a", "a/kv/b", "a%2Fb", "用户 1", "\ud83d", "{1}", "a.b", "x" * 250, "x" * 900]


@pytest.fixture(params=VARIANTS)
async def make(
    request: pytest.FixtureRequest, settings: Settings, worker: Worker, redis_raw: Any
) -> AsyncIterator[Callable[..., Asked]]:
    """A maker of stores, over everything that they may stand on, called or awaited."""
    async with asked(request.param, StateCacheKVStore, World(settings, worker, redis_raw)) as made:
        yield made


async def test_it_answers_as_the_frameworks_own_store(make: Callable[..., Asked]) -> None:
    store, own, drawn = make(), SimpleKVStore(), random.Random(1)
    assert isinstance(store.stores[0], BaseKVStore)
    keys, collections = [str(number) for number in range(6)], [("data",), (), ("other/data",)]
    for number in range(90):
        verb = drawn.choice(["put", "put", "get", "get_all", "delete", "put_all"])
        arguments: list[Any] = [] if verb == "get_all" else [drawn.choice(keys)]
        if verb == "put":
            arguments.append({"number": number, "more": drawn.choice(HARD[:5])})
        elif verb == "put_all":
            arguments = [[(drawn.choice(keys), {"number": number, "at": at}) for at in range(drawn.randrange(9))]]
        arguments.extend(drawn.choice(collections))
        assert await getattr(store, verb)(*arguments) == getattr(own, verb)(*arguments), (verb, arguments)
    for collection in ("data", "other/data", "never"):
        assert await store.get_all(collection) == own.get_all(collection)
        assert await store.get_all(collection=collection) == own.get_all(collection=collection)


async def test_values_come_back_exactly_as_they_were_and_each_caller_has_its_own(make: Callable[..., Asked]) -> None:
    store = make()
    await store.put_all([(str(at), value) for at, value in enumerate(HARD)], batch_size=3)
    for at, value in enumerate(HARD):
        assert repr(await store.get(str(at))) == repr(value)
    assert await store.get_all() == {str(at): value for at, value in enumerate(HARD)}
    held: Any = {"a": [1]}
    await store.put("own", held)
    held["a"].append(2)
    for _ in range(2):
        found = await store.get("own")
        assert found == {"a": [1]}
        found["a"].append(3)


async def test_keys_and_collections_are_apart_whatever_they_are_called(make: Callable[..., Asked]) -> None:
    store, some = make(), NAMES[:-1:2] + NAMES[-1:]
    for name in some:
        await store.put_all([(key, {"key": ascii(key), "of": ascii(name)}) for key in NAMES], name)
    for name in some:
        assert await store.get_all(name) == {key: {"key": ascii(key), "of": ascii(name)} for key in NAMES}
    assert await store.delete("a", some[1]) is True
    assert await store.delete("a", some[1]) is False
    assert await store.get("a", some[1]) is None
    assert await store.get("a", some[0]) == {"key": "'a'", "of": ascii(some[0])}
    assert await make(namespace="others").get_all(some[0]) == {}


async def test_a_document_store_of_the_framework_stands_on_it(make: Callable[..., Asked]) -> None:
    store = KVDocumentStore(make().stores[0])
    nodes = [TextNode(id_=str(number), text=f"text {number}") for number in range(30)]
    for one, after in pairwise(nodes):
        one.relationships[NodeRelationship.NEXT] = after.as_related_node_info()
    await store.async_add_documents(nodes)
    assert await store.aget_document("7") == nodes[7]
    await store.adelete_document("7")
    assert await store.aget_document("7", raise_error=False) is None
    assert await store.adocument_exists("8")


async def test_values_that_are_put_at_once_are_one_commit_and_writers_never_conflict(
    settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    async with AsyncStateCache(settings=settings) as one, AsyncStateCache(settings=settings) as two:
        stores = [StateCacheKVStore(cache) for cache in (one, two)]

        async def put(store: StateCacheKVStore, by: int) -> None:
            for number in range(10):
                await store.aput_all([(str(key), {"by": by, "number": number}) for key in range(100)])

        await asyncio.gather(put(stores[0], 0), put(stores[1], 1))
        found = await stores[0].aget_all()
        assert len({(value["by"], value["number"]) for value in found.values()}) == 1
        assert found["0"]["number"] == 9
        await stores[1].aput_all([(str(key), {"key": key}) for key in range(600)])
        assert len(await stores[0].aget_all()) == 600
    await flush(worker)
    assert rows(psql, "SELECT count(*), count(DISTINCT change_id) FROM change") == [(2600, 23)]
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_what_cannot_be_kept_is_refused_and_nothing_is_put(cache: AsyncStateCache, settings: Settings) -> None:
    store = StateCacheKVStore(cache)
    for value in ({"a": object()}, {"a": {1}}, {"a": b"x"}):
        with pytest.raises(CodecError) as refused:
            await store.aput_all([("1", {}), ("2", value)])
        assert refused.value.path == "$[1]"
    with pytest.raises(LimitExceeded):
        await store.aput_all([("1", {}), ("2", {"a": "x" * (8 * MIB)})])
    await store.aput_all([(str(number), {"a": "x" * (5 * MIB)}) for number in range(5)])
    assert [len(value["a"]) for value in (await store.aget_all()).values()] == [5 * MIB] * 5
    for call in (store.aput("a\0", {}), store.aget("a\0"), store.aget_all("a\0")):
        with pytest.raises(UsageError, match="NUL"):
            await call
    with pytest.raises(UsageError, match="more than one segment"):
        StateCacheKVStore(cache, namespace="a/b")
    with pytest.raises(UsageError, match="not on a int"):
        StateCacheKVStore(1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="wait for its own event loop"):
        store.put("1", {})
    own = StateCacheKVStore(settings)
    await own.aput("1", {"a": 1})
    await own.aclose()
    with pytest.raises(UsageError, match="the store is closed"):
        await own.aget("1")
    assert await store.aget("1") == {"a": 1}


async def test_a_namespace_that_others_use_too_keeps_them_apart_and_says_of_whom_a_state_is(
    cache: AsyncStateCache,
) -> None:
    store, other = StateCacheKVStore(cache, namespace="both"), StateCacheStore(cache, namespace="both")
    await other.aput(("data",), "kv", {"mine": True})
    await store.aput("kv", {"mine": False})
    assert await store.aget_all() == {"kv": {"mine": False}}
    item = await other.aget(("data",), "kv")
    assert item is not None
    assert item.value == {"mine": True}
    await cache.set("both/data/kv/strange", {"of": "somebody else"})
    for call in (store.aget("strange"), store.aget_all()):
        with pytest.raises(CodecError, match=r"both/data/kv/strange"):
            await call


async def test_a_put_whose_answer_is_lost_is_there(settings: Settings, proxy: FaultProxy) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as cache:
        store = StateCacheKVStore(cache)
        await store.aput("0", {})
        fault = proxy.arm("drop_reply", at=b"llama-index/data/kv/1")
        await store.aput("1", {"a": 1})
        assert fault.struck
        assert await store.aget("1") == {"a": 1}


def test_without_await_on_a_client_of_ones_own(settings: Settings) -> None:
    with StateCache(settings=settings) as cache:
        store = StateCacheKVStore(cache, durability="memory", read="local")
        store.put("1", {"a": 1})
        assert store.get("1") == {"a": 1}
        store.setup()
    with StateCacheKVStore.from_url(
        url=settings.redis_url, postgres_url=settings.postgres_url, prefix=settings.prefix,
        postgres_schema=settings.postgres_schema, shards=settings.shards,
    ) as again:  # fmt: skip
        assert again.get_all() == {"1": {"a": 1}}
        assert again.group_of("a/b") == "llama-index/a%2Fb"


def test_a_store_is_pickled_with_the_settings_that_it_stands_on(settings: Settings, sync_cache: StateCache) -> None:
    with StateCacheKVStore(settings, namespace="mine", durability="memory", read="local") as store:
        store.put("1", {"a": 1})
        with pickle.loads(pickle.dumps(store)) as again:
            assert (again._clients._settings, again._read) == (settings, "local")
            assert again._clients._policy == {"durability": "memory", "read": "local"}
            assert again.get_all() == {"1": {"a": 1}}
        assert store.get("1") == {"a": 1}, "it has clients of its own"
    with pytest.raises(UsageError, match="stands on a client that was given"):
        pickle.dumps(StateCacheKVStore(sync_cache))

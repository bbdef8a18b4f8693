"""What LangGraph's stores do, told on statecache: wherever states are, whatever the store stands on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from statecache import AsyncStateCache, Settings, StateCache
from statecache.adapters.langgraph import StateCacheStore
from statecache.keys import KeySpace
from statecache.testing import memory
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing
from tests.support.langgraph_items import Letters, Told, keys, put_all

LETTERS = Letters()
INDEX: Any = {"dims": LETTERS.dims, "embed": LETTERS, "fields": ["text", "tags[*]"]}
HARD = ("-", "%", "a/b", "a%2Fb", " ", "é", "用户", "{7}", "_", "*", "\n", "alice\n", "x" * 101, "y" * 600)

VARIANTS = [
    "awaited async_client unflushed", "awaited async_client flushing", "awaited async_client cold",
    "awaited async_client two_clients", "called sync_client unflushed", "called sync_client flushing",
    "called sync_client cold", "called sync_client two_clients", "awaited settings unflushed",
    "called settings unflushed", "awaited sync_client unflushed", "called async_client unflushed",
    "awaited memory unflushed", "called memory unflushed",
]  # fmt: skip


async def client(stack: AsyncExitStack, kind: str, settings: Settings) -> Any:
    """What a store stands on."""
    if kind == "settings":
        return settings
    if kind == "memory":
        return await stack.enter_async_context(memory())
    if kind == "sync_client":
        return stack.enter_context(StateCache(settings=settings))
    return await stack.enter_async_context(AsyncStateCache(settings=settings))


@pytest.fixture(params=VARIANTS)
async def store(
    request: pytest.FixtureRequest, settings: Settings, worker: Worker, keys: KeySpace, redis_raw: Any
) -> AsyncIterator[BaseStore]:
    """A store: awaited or not, on this or that, with its states in Redis, in both, in Postgres, or for two clients."""
    calls, kind, where = request.param.split()

    async def cold() -> None:
        await flush(worker)
        names = [name for shard in range(keys.shards) for name in redis_raw.keys(f"{keys.state_stem(shard)}*")]
        if names:
            redis_raw.unlink(*names)

    async with AsyncExitStack() as stack:
        if where == "flushing":
            await stack.enter_async_context(flushing(worker))
        count = 2 if where == "two_clients" else 1
        stores = [StateCacheStore(await client(stack, kind, settings), index=INDEX) for _ in range(count)]
        for one in stores:
            await stack.enter_async_context(one)
        yield Told(stores, called=calls == "called", between=cold if where == "cold" else None)


async def test_an_item_is_put_changed_and_deleted(store: BaseStore) -> None:
    where = ("test", "documents")
    assert await store.aget(where, "doc") is None
    await store.aput(where, "doc", {"title": "first", "parts": [1, 2.5, None, {"deep": True}]})
    first = await store.aget(where, "doc")
    assert first is not None
    assert (first.namespace, first.key) == (where, "doc")
    assert first.value == {"title": "first", "parts": [1, 2.5, None, {"deep": True}]}
    assert first.created_at == first.updated_at
    await store.aput(where, "doc", {"title": "second"})
    second = await store.aget(where, "doc")
    assert second is not None
    assert second.value == {"title": "second"}
    assert second.created_at == first.created_at
    assert second.updated_at > first.updated_at
    assert await store.aget(("test", "other"), "doc") is None
    await store.adelete(where, "doc")
    await store.adelete(where, "doc")
    assert await store.aget(where, "doc") is None
    await store.aput(where, "doc", {"title": "third"})
    third = await store.aget(where, "doc")
    assert third is not None
    assert third.created_at > second.updated_at


async def test_a_batch_reads_what_was_there_before_its_puts_in_the_order_of_its_operations(store: BaseStore) -> None:
    await put_all(store, {("test", "foo", "key1"): {"data": "value1"}, ("test", "bar", "key2"): {"data": "value2"}})
    first = await store.abatch(
        [
            GetOp(("test", "foo"), "key1"),
            PutOp(("test", "bar"), "key2", {"data": "changed"}),
            GetOp(("test", "bar"), "key2"),
            SearchOp(("test",), {"data": "value1"}),
            ListNamespacesOp(limit=10),
            GetOp(("test",), "key3"),
        ]
    )
    got, put, before, found, namespaces, nothing = first
    assert isinstance(got, Item)
    assert isinstance(before, Item)
    assert isinstance(found, list)
    assert (got.value, put, before.value, nothing) == ({"data": "value1"}, None, {"data": "value2"}, None)
    assert [one.key for one in found if isinstance(one, Item)] == ["key1"]
    assert namespaces == [("test", "bar"), ("test", "foo")]
    changed = await store.aget(("test", "bar"), "key2")
    assert changed is not None
    assert changed.value == {"data": "changed"}


async def test_of_the_puts_of_one_item_in_a_batch_the_last_counts(store: BaseStore) -> None:
    where = ("test",)
    await store.aput(where, "gone", {"n": 0})
    ops: list[Any] = [PutOp(where, "a", {"n": 1}), PutOp(where, "gone", {"n": 1}), PutOp(where, "b", None)]
    ops += [
        PutOp(where, "a", None),
        PutOp(where, "gone", None),
        PutOp(where, "b", {"n": 2}),
        PutOp(where, "a", {"n": 3}),
    ]
    assert await store.abatch(ops) == [None] * len(ops)
    found = {one.key: one.value for one in await store.asearch(where)}
    assert found == {"a": {"n": 3}, "b": {"n": 2}}


async def test_a_search_finds_the_newest_first_page_by_page(store: BaseStore) -> None:
    await put_all(store, {("test", f"n{number % 3}", f"k{number}"): {"n": number} for number in range(7)})
    await store.aput(("test", "n2"), "k2", {"n": 2})
    newest = ["k2", "k6", "k5", "k4", "k3", "k1", "k0"]
    assert await keys(store, "test") == newest
    assert await keys(store, "test", limit=3) == newest[:3]
    assert await keys(store, "test", limit=3, offset=2) == newest[2:5]
    assert await keys(store, "test", offset=6) == newest[6:]
    assert await keys(store, "test", offset=7) == []
    assert await keys(store, "test", limit=0) == []
    assert await keys(store) == newest
    assert await keys(store, "test", "n2") == ["k2", "k5"]


async def test_filters_compare_members_however_deep(store: BaseStore) -> None:
    items: dict[str, dict[str, Any]] = {
        "red": {"color": "red", "score": 4.5, "on": True, "meta": {"by": "ada", "n": 1}, "tags": ["a", "b"]},
        "blue": {
            "color": "blue",
            "score": 10,
            "on": 1,
            "meta": {"by": "bob", "n": 2},
            "note": None,
            "day": "2026-02-01",
        },
        "none": {"score": "7", "day": "2026-01-01", "meta": "text"},
    }  # fmt: skip
    await put_all(store, {("f", key): value for key, value in items.items()})
    expected: list[tuple[dict[str, Any], set[str]]] = [
        ({}, {"red", "blue", "none"}),
        ({"color": "red"}, {"red"}),
        ({"color": {"$eq": "red"}}, {"red"}),
        ({"color": {"$ne": "red"}}, {"blue"}),
        ({"score": {"$gt": 4.5}}, {"blue", "none"}),
        ({"score": {"$gte": 4.5, "$lt": 10}}, {"red", "none"}),
        ({"score": {"$lte": 7}}, {"red", "none"}),
        ({"day": {"$gt": "2026-01-15"}}, {"blue"}),
        ({"on": True}, {"red"}),
        ({"on": 1}, {"blue"}),
        ({"note": None}, {"blue"}),
        ({"meta": {"by": "ada"}}, {"red"}),
        ({"meta": {"n": {"$gt": 1}}}, {"blue"}),
        ({"meta": {"by": "ada", "n": {"$gt": 1}}}, set()),
        ({"tags": ["a", "b"]}, {"red"}),
        ({"tags": ["b", "a"]}, set()),
        ({"color": "red", "score": {"$gt": 5}}, set()),
        ({"nothing": "red"}, set()),
    ]
    for wanted, found in expected:
        assert ({*await keys(store, "f", filter=wanted)}, wanted) == (found, wanted)
    assert await keys(store, "f", filter={"score": {"$gt": 0}}, limit=1, offset=1) == ["blue"]
    with pytest.raises(ValueError, match="Unsupported operator: \\$in"):
        await store.asearch(("f",), filter={"color": {"$in": ["red"]}})


async def test_prefixes_end_where_labels_do(store: BaseStore) -> None:
    namespaces = [
        ("foo",), ("foo", "child"), ("foo", "child", "deep"), ("foobar",), ("foobar", "baz"), ("foo2",), ("foo-x",),
        ("user_1",), ("user_1", "child"), ("userX1",), ("a%b",), ("axxb",),
    ]  # fmt: skip
    await asyncio.gather(*(store.aput(one, "k", {"v": 1}) for one in namespaces))
    for prefix in [(), ("fo",), ("foo",), ("foo", "child"), ("foo2",), ("foobar",), ("user_1",), ("a%b",)]:
        expected = {one for one in namespaces if one[: len(prefix)] == prefix}
        assert {one.namespace for one in await store.asearch(prefix, limit=100)} == expected
        assert await store.alist_namespaces(prefix=prefix) == sorted(expected)


async def test_namespaces_are_listed_by_prefix_suffix_and_depth(store: BaseStore) -> None:
    kinds = [("documents", "public"), ("documents", "private"), ("images", "public"), ("images", "private")]
    namespaces = [(root, *kind) for root in ("test", "prod") for kind in kinds] + [("uid", "users", "malice"), ("uid",)]
    await asyncio.gather(*(store.aput(one, "k", {"v": 1}) for one in namespaces))
    model = InMemoryStore()
    for one in namespaces:
        model.put(one, "k", {"v": 1})
    asked: list[dict[str, Any]] = [
        {}, {"prefix": ("test",)}, {"suffix": ("public",)}, {"prefix": ("test",), "suffix": ("public",)},
        {"prefix": ("test", "*", "public")}, {"prefix": ("*", "documents")}, {"suffix": ("images", "*")},
        {"suffix": ("alice",)}, {"prefix": ("uid",)}, {"prefix": ("none",)}, {"max_depth": 1}, {"max_depth": 2},
        {"prefix": ("test",), "max_depth": 2}, {"limit": 3}, {"limit": 3, "offset": 4}, {"offset": 100},
        {"prefix": ("*", "*"), "max_depth": 1, "limit": 1}, {"limit": 0},
    ]  # fmt: skip
    for bounds in asked:
        assert (await store.alist_namespaces(**bounds), bounds) == (model.list_namespaces(**bounds), bounds)
    await store.adelete(("uid",), "k")
    assert await store.alist_namespaces(prefix=("uid",)) == [("uid", "users", "malice")]
    both = (MatchCondition("prefix", ("prod",)), MatchCondition("suffix", ("private",)))
    (found,) = await store.abatch([ListNamespacesOp(both, max_depth=2)])
    assert found == [("prod", "documents"), ("prod", "images")]


async def test_what_is_hard_to_name_is_kept_under_its_own_name(store: BaseStore) -> None:
    deep = tuple(f"level{number}" + "z" * 40 for number in range(8))
    namespaces = [("hard", label) for label in HARD] + [("hard", *deep), ("hard", *deep, "x"), ("hard", *deep[:7], "x")]
    ops = [PutOp(one, key, {"at": [*one], "key": key}) for one in namespaces for key in ("", ".", "a.b", *HARD)]
    await store.abatch(ops)
    found = await store.abatch([GetOp(one.namespace, one.key) for one in ops])
    for op, item in zip(ops, found, strict=True):
        assert isinstance(item, Item)
        assert (item.namespace, item.key, item.value) == (op.namespace, op.key, op.value)
    assert await store.alist_namespaces(limit=1000) == sorted(namespaces)
    assert await store.alist_namespaces(prefix=("hard", *deep)) == [("hard", *deep), ("hard", *deep, "x")]
    assert await store.alist_namespaces(prefix=("hard", *deep[:2]), suffix=("x",)) == sorted(
        [("hard", *deep[:7], "x"), ("hard", *deep, "x")]
    )
    assert await store.alist_namespaces(suffix=("alice",)) == []
    assert len(await store.asearch(("hard", *deep), limit=100)) == 2 * len(("", ".", "a.b", *HARD))
    assert len(await store.asearch(("hard", *deep[:7]), limit=100)) == 3 * len(("", ".", "a.b", *HARD))


async def test_namespaces_that_are_none_are_refused(store: BaseStore) -> None:
    for wrong in [(), ("langgraph", "x"), ("a.b",), ("a", ""), ("a\0",), (7,)]:
        with pytest.raises(InvalidNamespaceError):
            await store.aput(wrong, "k", {"v": 1})  # type: ignore[arg-type]
    for op in (GetOp(("a.b",), "k"), PutOp(("a.b",), "k", {"v": 1}), SearchOp(("",))):
        with pytest.raises(InvalidNamespaceError):
            await store.abatch([op])
    with pytest.raises(ValueError, match="Unknown operation type"):
        await store.abatch(["get"])  # type: ignore[list-item]
    assert await store.alist_namespaces() == []


async def test_queries_find_what_is_nearest_as_langgraphs_own_store_does(store: BaseStore) -> None:
    model = InMemoryStore(index=INDEX)
    texts = ["red apple", "red car", "green apple", "blue car", "这是中文", "zany zebra Xerxes", "", "long text " * 9]
    for at, text in enumerate(texts):
        value = {"text": text, "even": at % 2 == 0, "tags": [text[:3], f"tag{at}"][: at % 3], "score": at / 2}
        await store.aput(("q", f"n{at % 2}"), f"doc{at}", value)
        model.put(("q", f"n{at % 2}"), f"doc{at}", value)
    asked: list[dict[str, Any]] = [
        {"query": "apple"}, {"query": "car", "limit": 2}, {"query": "car", "limit": 2, "offset": 2},
        {"query": "apple", "filter": {"even": True}}, {"query": "car", "filter": {"score": {"$gt": 1}}},
        {"query": "这是中文"},
    ]  # fmt: skip
    for one in asked:
        found, expected = await store.asearch(("q",), **one), model.search(("q",), **one)
        scores = [item.score for item in found if item.score is not None]
        assert scores == pytest.approx([item.score for item in expected if item.score is not None], abs=1e-6)
        assert scores == sorted(scores, reverse=True)
        assert found[0].key == expected[0].key
    await store.aput(("q", "n1"), "doc5", {"text": "about dogs"})
    assert (await store.asearch(("q",), query="zany zebra Xerxes"))[0].key != "doc5"
    await store.aput(("q", "n0"), "plain", {"text": "zany zebra Xerxes"}, index=False)
    await store.aput(("q", "n0"), "other", {"name": "zany zebra Xerxes", "text": "qqq"}, index=["name"])
    nearest, *_, last = await store.asearch(("q",), query="zany zebra Xerxes", limit=100)
    assert nearest.key == "other"
    assert nearest.score == pytest.approx(1)
    assert last.score is None
    assert "plain" in await keys(store, "q", query="", limit=100)


@pytest.mark.parametrize("seed", range(3))
async def test_any_story_ends_as_in_memory(store: BaseStore, seed: int) -> None:
    drawn, model = random.Random(seed), InMemoryStore()
    namespaces = [("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("b", "a")]
    for _ in range(12):
        ops: list[Any] = []
        for _ in range(drawn.randrange(1, 8)):
            where, key = drawn.choice(namespaces), f"k{drawn.randrange(4)}"
            value = drawn.choice([None, {"n": drawn.randrange(4), "s": drawn.choice("xy")}])
            wanted = drawn.choice([None, {"s": "x"}, {"n": {"$gte": 2}}, {"n": {"$ne": 1}, "s": {"$eq": "y"}}])
            ops.append(drawn.choice([GetOp(where, key), PutOp(where, key, value), SearchOp(where[:1], wanted, 100)]))
        assert _plain(await store.abatch(ops)) == _plain(model.batch(ops))
    assert {one.namespace for one in await store.asearch((), limit=100)} == {*await store.alist_namespaces()}


def _plain(results: list[Any]) -> list[Any]:
    """Return what items hold, without their dates, and what a search found in the order of its keys."""
    return [
        sorted((one.namespace, one.key, str(one.value)) for one in found)
        if isinstance(found, list)
        else found and (found.namespace, found.key, found.value)
        for found in results
    ]

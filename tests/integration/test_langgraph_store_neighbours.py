"""Calls of one moment share exchanges, and nothing else: what hinders one of them hinders no other."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest
from langgraph.store.base import GetOp, Item
from langgraph.store.memory import InMemoryStore

from statecache import AsyncStateCache, CodecError, LimitExceeded, Settings, StateCache, UsageError
from statecache.adapters.langgraph import StateCacheStore
from statecache.adapters.langgraph.store import items
from statecache.adapters.langgraph.store.documents import ITEM_BYTES_MAX
from statecache.adapters.langgraph.store.names import item_name
from statecache.adapters.langgraph.store.vectors import TEXTS_MAX
from statecache.adapters.plans import call
from statecache.rules.vectors import VECTORS_MAX
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.langgraph_items import Letters, Waiting

ADA = ("users", "ada")
MIB = 1024 * 1024


class Refusing(Letters):
    """A maker of vectors that refuses texts which hold a word, and the whole call with them; or everything."""

    def __init__(self, *, everything: bool = False) -> None:
        super().__init__()
        self.everything = everything

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors, or raise."""
        found = super().embed_documents(texts)
        if self.everything or any("forbidden" in text for text in texts):
            raise RuntimeError("the provider refuses this")
        return found


class Infinite(Letters):
    """A maker of vectors whose first number is that one, of texts that hold a word."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self._number = number

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors."""
        found = super().embed_documents(texts)
        return [[self._number, *one[1:]] if "odd" in text else one for text, one in zip(texts, found, strict=True)]


def indexed(cache: AsyncStateCache | StateCache, letters: Letters) -> StateCacheStore:
    """Return a store whose items have vectors of their texts."""
    return StateCacheStore(cache, index={"dims": letters.dims, "embed": letters, "fields": ["text"]})


async def test_a_key_that_is_none_is_refused_to_who_asks_for_it(cache: AsyncStateCache) -> None:
    store = StateCacheStore(cache)
    await store.aput(ADA, "k", {"n": 1})
    calls: list[Any] = [store.aget(ADA, "k"), store.aget(ADA, "a\0b"), store.adelete(ADA, "a\0b")]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers[0], Item)
    assert [type(one) for one in answers[1:]] == [UsageError] * 2


async def test_large_items_that_last_as_long_as_they_are_read_are_read_at_once(cache: AsyncStateCache) -> None:
    store, large = StateCacheStore(cache), ["x" * (6 * MIB)] * 3
    for at, text in enumerate(large):
        await store.aput(ADA, f"k{at}", {"text": text}, ttl=60.0)
    before = [one.expires_at async for one in cache.list("langgraph-store/")]
    found = await asyncio.gather(*(store.aget(ADA, f"k{at}") for at in range(3)))
    assert [one and one.value["text"] for one in found] == large
    assert [one.value["text"] for one in await store.asearch(ADA)] == large
    batch: list[Any] = await store.abatch([GetOp(ADA, f"k{at}") for at in range(3)])
    assert [one.value["text"] for one in batch] == large
    after = [one.expires_at async for one in cache.list("langgraph-store/")]
    assert all(one < other for one, other in zip(before, after, strict=True) if one and other)
    assert None not in after


async def test_a_text_that_is_refused_hinders_no_other_put(cache: AsyncStateCache) -> None:
    letters = Refusing()
    store = indexed(cache, letters)
    await store.aput(ADA, "gone", {"n": 1})
    letters.asked.clear()
    texts = [f"text {number}" for number in range(20)]
    texts[7] = "forbidden"
    answers = await asyncio.gather(
        *(store.aput(ADA, f"k{at}", {"text": text}) for at, text in enumerate(texts)),
        store.adelete(ADA, "gone"),
        return_exceptions=True,
    )
    assert [at for at, one in enumerate(answers) if one is not None] == [7]
    assert isinstance(answers[7], RuntimeError)
    assert sorted(map(len, letters.asked)) == [1] * 20 + [20]
    found = await store.asearch(ADA, query="text", limit=30)
    assert sorted(one.value["text"] for one in found) == sorted(text for text in texts if text != "forbidden")
    assert all(one.score for one in found)


@pytest.mark.parametrize("seed", range(4))
async def test_a_query_finds_what_langgraphs_own_does_however_far_away(cache: AsyncStateCache, seed: int) -> None:
    """Vectors that point away, others of nothing but zeros, and items of two of them, a page at a time."""
    drawn = random.Random(seed)
    vectors = {str(at): [drawn.choice((-1.0, -0.5, 0.0, 0.25, 1.0)) for _ in range(3)] for at in range(12)}
    vectors |= {"zeros": [0.0] * 3, "query": [1.0, 0.5, -0.25]}
    index: Any = {"dims": 3, "embed": lambda texts: [vectors[text] for text in texts], "fields": ["a", "b"]}
    store, model = StateCacheStore(cache, index=index), InMemoryStore(index=index)
    for at in range(16):
        value = dict(zip(drawn.choice(("a", "ab", "ab", "")), drawn.sample([*vectors], 2), strict=False))
        await store.aput(ADA, f"k{at}", value)
        model.put(ADA, f"k{at}", value)
    for query in ("query", *(name for name in ("0", "1", "2") if any(vectors[name]))):
        for limit, offset in ((1, 0), (3, 0), (3, 5), (4, 10), (16, 0), (40, 0)):
            found = await store.asearch(ADA, query=query, limit=limit, offset=offset)
            expected = model.search(ADA, query=query, limit=limit, offset=offset)
            scores = [[one.score for one in some if one.score is not None] for some in (found, expected)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-6), (query, limit, offset)
            assert len(found) == len(expected)
            alone = [one for one in found if one.score is not None and scores[0].count(one.score) == 1]
            there = {one.key: one.score for one in model.search(ADA, query=query, limit=40)}
            assert all(one.score == pytest.approx(there[one.key], abs=1e-6) for one in alone)


async def test_an_item_of_very_many_texts_is_found_by_its_first_hundred(cache: AsyncStateCache) -> None:
    letters = Letters()
    store = StateCacheStore(cache, index={"dims": letters.dims, "embed": letters, "fields": ["lines[*]", "last"]})
    await store.aput(ADA, "many", {"lines": ["aaa", *["bbb"] * 200], "last": "zzz"})
    await store.aput(ADA, "other", {"lines": ["bbbc"]})
    assert sum(map(len, letters.asked)) == 3
    assert TEXTS_MAX == VECTORS_MAX
    found = await store.asearch(ADA, query="aaa")
    assert [one.key for one in found] == ["many", "other"]
    assert found[0].score == pytest.approx(1.0)


async def test_items_with_vectors_of_other_dimensions_come_behind_as_those_without(cache: AsyncStateCache) -> None:
    """As those do that were put before another maker of vectors was taken."""
    before: Any = {"dims": 2, "embed": lambda texts: [[0.0, float(text == "b")] for text in texts], "fields": ["text"]}
    for key in "ab":
        await StateCacheStore(cache, index=before).aput(ADA, key, {"text": key})
    store = indexed(cache, Letters())
    await store.aput(ADA, "c", {"text": "ccc"})
    await store.aput(ADA, "d", {"n": 1})
    for query in ("ccc", ""):
        found = await store.asearch(ADA, query=query) if query else await store.asearch(ADA)
        assert sorted(one.key for one in found) == ["a", "b", "c", "d"]
        assert [one.score is not None for one in found] == [bool(query), False, False, False]


async def test_where_no_text_is_taken_each_is_not_tried(cache: AsyncStateCache) -> None:
    letters = Refusing(everything=True)
    store = indexed(cache, letters)
    calls = [store.aput(ADA, f"k{number}", {"text": f"text {number}"}) for number in range(50)]
    answers = await asyncio.gather(*calls, store.aput(ADA, "n", {"n": 1}), return_exceptions=True)
    assert [type(one) for one in answers] == [RuntimeError] * 50 + [type(None)]
    assert len(letters.asked) == 9
    assert [one.key for one in await store.asearch(ADA)] == ["n"]


async def test_a_put_whose_text_is_refused_leaves_the_one_before_it(cache: AsyncStateCache) -> None:
    """As one after the other."""
    letters = Refusing()
    store = indexed(cache, letters)
    texts = ["first", "good", "forbidden", "also forbidden"]
    for values in (texts[:3], texts, texts[::-1]):
        calls = [store.aput(ADA, "k", {"text": text}) for text in values]
        answers = await asyncio.gather(*calls, store.aput(ADA, "n", {"text": "n"}), return_exceptions=True)
        found = await store.aget(ADA, "k")
        if values is texts:  # the last two fail, and how many more would is not tried
            assert [type(one) for one in answers] == [RuntimeError] * 4 + [type(None)]
            assert found is None
        else:
            last = [text for text in values if "forbidden" not in text][-1]
            assert (found and found.value) == {"text": last}
            assert [type(one) is RuntimeError for one in answers[:-1]] == [
                "forbidden" in text and text == values[-1] for text in values
            ]
        await store.adelete(ADA, "k")


async def test_an_item_that_its_vectors_make_too_large_hinders_no_other(cache: AsyncStateCache) -> None:
    letters = Letters(400_000)
    store = indexed(cache, letters)
    asked: list[dict[str, Any]] = [{"n": 1}, {"text": "a", "n": "x" * (7 * MIB)}, {"text": "b"}]
    for puts in (
        [asyncio.ensure_future(store.aput(ADA, f"k{at}", value)) for at, value in enumerate(asked)],
        [asyncio.ensure_future(asyncio.to_thread(store.put, ADA, f"s{at}", value)) for at, value in enumerate(asked)],
    ):
        answers = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(one) for one in answers] == [type(None), LimitExceeded, type(None)]
    assert {one.key for one in await store.asearch(ADA)} == {"k0", "k2", "s0", "s2"}


async def test_what_a_deployment_takes_for_too_large_hinders_no_other(settings: Settings) -> None:
    """Also where reading it anew has to write dates for which there is no room."""
    small = settings.model_copy(update={"value_bytes_max": 1000})
    async with AsyncStateCache(settings=small) as cache:
        store = StateCacheStore(cache)
        asked: list[dict[str, Any]] = [{"n": 1}, {"n": "x" * 2000}, {"n": "x" * 850}]
        puts = [store.aput(ADA, f"k{at}", value, ttl=60.0) for at, value in enumerate(asked)]
        answers = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(one) for one in answers] == [type(None), LimitExceeded, type(None)]
        before = [one.expires_at async for one in cache.list("langgraph-store/")]
        found = await asyncio.gather(*(store.aget(ADA, f"k{at}") for at in range(3)))
        assert [one and one.value for one in found] == [asked[0], None, asked[2]]
        after = [one.expires_at async for one in cache.list("langgraph-store/")]
        assert all(one < other for one, other in zip(before, after, strict=True) if one and other)


async def test_the_largest_items_may_be_put_again_and_last_anew(cache: AsyncStateCache) -> None:
    store = StateCacheStore(cache)
    room = ITEM_BYTES_MAX - len('{"namespace":["users","ada"],"key":"k","value":{"text":""},"ttl":60.0}')
    with pytest.raises(LimitExceeded, match="an item is"):
        await store.aput(ADA, "k", {"text": "x" * (room + 1)}, ttl=60.0)
    for _ in range(2):
        await store.aput(ADA, "k", {"text": "x" * room}, ttl=60.0)
        found = await store.aget(ADA, "k")
        assert found is not None
        assert len(found.value["text"]) == room


STRANGE: list[Any] = [{"x": 1}, {"namespace": "users", "key": "k", "value": {}}, [1, 2], "text"]


@pytest.mark.parametrize("strange", STRANGE, ids=str)
@pytest.mark.parametrize("labels", [ADA, ("users", "x" * 90, "y" * 90, "z" * 90)], ids=["short", "long"])
async def test_what_no_store_has_written_is_named_left_alone_and_hinders_nobody_else(
    cache: AsyncStateCache, worker: Worker, labels: tuple[str, ...], strange: Any
) -> None:
    """A key that is an item's by its name holds something else: a user has written it, or another framework."""
    store = StateCacheStore(cache)
    name = f"langgraph-store/{item_name(labels, 'strange')}"
    async with flushing(worker):
        await cache.set(name, strange, durability="postgres")
        if isinstance(strange, dict):
            with pytest.raises(CodecError, match="no item of a store of LangGraph"):
                await store.asearch(labels)
            if labels != ADA:  # its name alone does not say which it is
                with pytest.raises(CodecError, match="no item of a store of LangGraph"):
                    await store.alist_namespaces()
        await store.aput(labels, "before", {"n": 1})
        calls: list[Any] = [
            store.aget(labels, "strange"), store.aput(labels, "strange", {"n": 2}), store.adelete(labels, "strange"),
            store.aput(labels, "after", {"n": 3}), store.aget(labels, "before"),
        ]  # fmt: skip
        *refused, put, got = await asyncio.gather(*calls, return_exceptions=True)
        assert [(type(one), name in str(one)) for one in refused] == [(CodecError, True)] * 3
        assert put is None
        assert isinstance(got, Item)
        assert got.value == {"n": 1}
        left = await cache.get(name)
        assert left is not None
        assert left.value == strange
        await cache.delete(name, durability="postgres")
        assert [one.key for one in await store.asearch(labels)] == ["after", "before"]
        assert await store.aget(labels, "strange") is None


@pytest.mark.parametrize("strange", STRANGE, ids=str)
async def test_what_comes_between_the_reading_and_the_writing_is_not_written_over(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch, strange: Any
) -> None:
    store, name, read = StateCacheStore(cache), f"langgraph-store/{item_name(ADA, 'strange')}", items._found
    came: list[str] = []

    def read_before(names: Any, mode: Any) -> Any:
        found = yield from read(names, mode)
        if not came:
            came.append((yield from call("set", item_name(ADA, "strange"), strange)).key)
        return found

    monkeypatch.setattr(items, "_found", read_before)
    refused, put = await asyncio.gather(
        store.aput(ADA, "strange", {"n": 2}), store.aput(ADA, "after", {"n": 3}), return_exceptions=True
    )
    assert came == [name]
    assert (type(refused), put) == (CodecError, None)
    left = await cache.get(name)
    assert left is not None
    assert left.value == strange
    assert await store.aget(ADA, "after") is not None


async def test_a_put_that_is_given_up_while_its_vectors_are_made_writes_nothing_and_waits_for_nothing(
    cache: AsyncStateCache,
) -> None:
    """The put of the same item before it counts then, and has its own vectors."""
    letters = Waiting()
    store = indexed(cache, letters)
    kept = asyncio.ensure_future(store.aput(ADA, "k", {"text": "kept"}))
    alone = asyncio.ensure_future(store.aput(ADA, "alone", {"text": "alone"}))
    over = asyncio.ensure_future(store.aput(ADA, "k", {"text": "over"}))
    await letters.begun.wait()
    for one in (over, alone):
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
    letters.go.set()
    await kept
    found = await store.asearch(("users",), query="kept")
    assert [(one.key, one.value) for one in found] == [("k", {"text": "kept"})]
    assert found[0].score == pytest.approx(1.0)
    assert letters.asked == [["over", "alone"], ["kept"]]


@pytest.mark.parametrize("number", [float("nan"), float("-inf"), 1e300])
async def test_an_item_with_a_vector_that_is_not_finite_is_refused_and_hinders_no_other(
    number: float, cache: AsyncStateCache, settings: Settings
) -> None:
    """No search would find it: a number counts as the 32-bit float that is kept."""
    store = indexed(cache, Infinite(number))
    told = r"a vector of 'text' in 'users\.ada/odd' that has a number which is not finite"
    fine, odd = await asyncio.gather(
        store.aput(ADA, "fine", {"text": "fine"}), store.aput(ADA, "odd", {"text": "odd"}), return_exceptions=True
    )
    assert (fine, type(odd)) == (None, UsageError)
    assert re.search(told, str(odd))
    with StateCache(settings=settings) as threaded, pytest.raises(UsageError, match=told):
        indexed(threaded, Infinite(number)).put(ADA, "odd", {"text": "odd"})
    assert [one.key for one in await store.asearch(ADA, query="fine")] == ["fine"]
    assert await store.aget(ADA, "odd") is None

"""Makers of vectors that hang, or raise no Exception, and items too large: whom that hinders, and whom not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langgraph.store.base import PutOp, SearchOp

from statecache import AsyncNamespace, AsyncStateCache, LimitExceeded, Settings, StateCache
from statecache.adapters.langgraph import StateCacheStore
from tests.support.langgraph_items import Letters, Waiting, keys
from tests.support.polling import pause

ADA = ("users", "ada")
MIB = 1024 * 1024
PLACES = [("users", str(number)) for number in range(16)]
"""So many namespaces that there are some in every lane."""
SEARCHES = 12
TURNS = 40
"""How many looks a call has to end that waits for nothing but servers that answer."""


def indexed(cache: AsyncStateCache | StateCache, letters: Letters) -> StateCacheStore:
    """Return a store whose items have vectors of their texts."""
    return StateCacheStore(cache, index={"dims": letters.dims, "embed": letters, "fields": ["text"]})


async def ended(calls: list[asyncio.Future[Any]]) -> list[Any]:
    """Return what calls come to that wait for nothing but servers."""
    for _ in range(TURNS):
        await pause()
    assert [at for at, one in enumerate(calls) if not one.done()] == []
    return [one.result() for one in calls]


async def cancelled(calls: list[asyncio.Future[Any]]) -> None:
    """Give up calls."""
    for one in calls:
        one.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in answers] == [asyncio.CancelledError] * len(calls)


async def hung(store: StateCacheStore, letters: Waiting) -> list[asyncio.Future[Any]]:
    """Return puts in every lane and searches that wait for vectors."""
    calls: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(store.aput(place, "hung", {"text": "hung"})) for place in PLACES
    ]
    calls += [asyncio.ensure_future(store.asearch(("users",), query=f"q{at}")) for at in range(SEARCHES)]
    while not (letters.begun.is_set() and letters.queries):
        await pause()
    return calls


async def test_a_maker_of_vectors_that_hangs_holds_up_only_who_needs_them(cache: AsyncStateCache) -> None:
    letters = Waiting()
    store, plain = indexed(cache, letters), StateCacheStore(cache)
    for place in PLACES:
        await plain.aput(place, "gone", {"text": "gone"})
    waiting = await hung(store, letters)
    calls: list[Awaitable[Any]] = []
    for place in PLACES:
        calls += [store.aput(place, "k", {"n": 1}), store.aput(place, "off", {"text": "x"}, index=False)]
        calls += [store.adelete(place, "gone"), store.aget(place, "gone")]
    await ended([asyncio.ensure_future(one) for one in calls])
    looks: list[Awaitable[Any]] = [store.asearch(("users",), limit=100), store.alist_namespaces()]
    found, namespaces = await ended([asyncio.ensure_future(one) for one in looks])
    assert sorted((one.namespace, one.key) for one in found) == sorted((p, k) for p in PLACES for k in ("k", "off"))
    assert namespaces == sorted(PLACES)
    assert not any(one.done() for one in waiting)
    letters.go.set()
    await asyncio.gather(*waiting)
    assert sorted(await keys(store, *PLACES[0])) == ["hung", "k", "off"]


async def test_who_gives_up_vectors_leaves_their_place_to_others(cache: AsyncStateCache) -> None:
    letters = Waiting()
    store = indexed(cache, letters)
    await cancelled(await hung(store, letters))
    letters.go = asyncio.Event()  # what has begun goes on waiting
    letters.go.set()
    calls: list[Awaitable[Any]] = [store.aput(place, "k", {"text": "k"}) for place in PLACES]
    await ended([asyncio.ensure_future(one) for one in calls])
    calls = [store.asearch(("users",), query="k", limit=100) for _ in range(SEARCHES)]
    for found in await ended([asyncio.ensure_future(one) for one in calls]):
        assert sorted((one.namespace, one.key) for one in found) == sorted((place, "k") for place in PLACES)


async def test_puts_of_one_item_keep_their_order_while_some_wait_for_vectors(cache: AsyncStateCache) -> None:
    letters = Waiting()
    store = indexed(cache, letters)
    calls: list[Any] = [store.aput(ADA, "a", {"n": 1}), store.aput(ADA, "a", {"text": "a"})]
    calls += [store.aput(ADA, "b", {"text": "b"}), store.aput(ADA, "b", {"n": 2})]
    calls += [store.aput(ADA, "c", {"text": "c"}), store.adelete(ADA, "c")]
    calls += [store.abatch([PutOp(ADA, "d", {"text": "d"}), PutOp(ADA, "e", {"n": 3})]), store.adelete(ADA, "e")]
    asked = [asyncio.ensure_future(one) for one in calls]
    await letters.begun.wait()
    later = [asyncio.ensure_future(one) for one in (store.adelete(ADA, "d"), store.aput(ADA, "c", {"n": 4}))]
    for _ in range(TURNS):
        await pause()
    assert [one.done() for one in asked + later] == [True] + [False] * 9
    letters.go.set()
    await asyncio.gather(*asked, *later)
    found = {one.key: one.value for one in await store.asearch(ADA)}
    assert found == {"a": {"text": "a"}, "b": {"n": 2}, "c": {"n": 4}}


async def test_a_put_with_vectors_follows_one_without_that_is_still_being_written(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, commit, go = indexed(cache, Letters()), AsyncNamespace.commit, asyncio.Event()
    commits: list[Any] = []

    async def held(self: AsyncNamespace[Any], writes: Any, **more: Any) -> None:
        commits.append([one.value["value"] for one in writes])
        await go.wait()
        await commit(self, writes, **more)

    monkeypatch.setattr(AsyncNamespace, "commit", held)
    values: list[dict[str, Any]] = [{"n": 1}, {"text": "a"}]
    calls = [asyncio.ensure_future(store.aput(ADA, "k", value)) for value in values]
    calls.append(asyncio.ensure_future(store.aput(ADA, "other", {"text": "b"})))
    for _ in range(TURNS):
        await pause()
    assert commits == [[{"n": 1}]]
    calls[0].cancel()
    for _ in range(TURNS):
        await pause()
    assert commits == [[{"n": 1}]]
    go.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert commits == [[{"n": 1}], [{"text": "a"}, {"text": "b"}]]
    found = await store.aget(ADA, "k")
    assert found is not None
    assert found.value == {"text": "a"}


async def test_puts_of_one_call_in_one_namespace_are_one_commit_with_or_without_vectors(cache: AsyncStateCache) -> None:
    store = indexed(cache, Letters())
    await store.abatch([PutOp(ADA, "a", {"text": "a"}), PutOp(ADA, "b", {"n": 1}), PutOp(ADA, "c", {"text": "c"})])
    assert len({state.change_id async for state in cache.list("langgraph-store/users.ada/")}) == 1


@pytest.mark.parametrize("limit", ["its vectors", "the deployment"])
async def test_an_item_that_is_refused_as_too_large_leaves_the_put_before_it(settings: Settings, limit: str) -> None:
    """Each as one after the other: the small one is written, and the large one is told why it is not."""
    letters = Letters(400_000) if limit == "its vectors" else Letters()
    large = {"text": "large", "n": "x" * (7 * MIB if limit == "its vectors" else 2000)}
    bounded = settings if limit == "its vectors" else settings.model_copy(update={"value_bytes_max": 1000})
    async with AsyncStateCache(settings=bounded) as cache:
        store = indexed(cache, letters)
        values = [{"text": "first"}, {"text": "small"}, large, large]
        calls: list[Any] = [store.aput(ADA, "k", value) for value in values]
        answers = await asyncio.gather(*calls, store.aput(ADA, "n", {"n": 1}), return_exceptions=True)
        assert [type(one) for one in answers] == [type(None)] * 2 + [LimitExceeded] * 2 + [type(None)]
        assert {one.key: one.value for one in await store.asearch(ADA)} == {"k": {"text": "small"}, "n": {"n": 1}}
        state = await cache.get("langgraph-store/users.ada/k")
        assert state is not None
        assert [*state.value["vectors"]] == ["text"]


class PanicException(BaseException):
    """What extensions in Rust raise."""


class Raising(Letters):
    """A maker of vectors that raises, of some texts, what is no Exception."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self._raised = raised

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors, or raise."""
        if any("forbidden" in text for text in texts):
            raise self._raised
        return super().embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        """Return the vector, or raise."""
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Do what `embed_documents` does."""
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Do what `embed_query` does."""
        return self.embed_query(text)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (asyncio.CancelledError(), "`embed` raised CancelledError, and nobody had cancelled it"),
        (PanicException("a None value"), "`embed` raised PanicException: a None value"),
        (GeneratorExit(), "`embed` raised GeneratorExit"),
        (BaseExceptionGroup("both", [PanicException()]), "`embed` raised BaseExceptionGroup: both (1 sub-exception)"),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_what_a_maker_of_vectors_raises_that_is_no_exception_is_told_as_an_error(
    raised: BaseException, told: str, cache: AsyncStateCache, settings: Settings
) -> None:
    """Raised as it is it would end the task that makes the vectors, and cancel all who wait for them."""
    store = indexed(cache, Raising(raised))
    calls: list[Any] = [store.aput(ADA, "k", {"text": "k"}), store.aput(ADA, "forbidden", {"text": "forbidden"})]
    calls += [store.asearch(ADA, query="forbidden")]
    put, *refused = await asyncio.gather(*calls, return_exceptions=True)
    assert (put, [(type(one), str(one)) for one in refused]) == (None, [(RuntimeError, told)] * 2)
    with StateCache(settings=settings) as threaded:
        called = indexed(threaded, Raising(raised))
        for op in (PutOp(ADA, "forbidden", {"text": "forbidden"}), SearchOp(ADA, query="forbidden")):
            with pytest.raises(RuntimeError, match=re.escape(told)):
                called.batch([op])
    assert await keys(store, *ADA) == ["k"]


async def read(store: StateCacheStore) -> object:
    """Get an item."""
    return await store.aget(ADA, "k")


async def search(store: StateCacheStore) -> object:
    """Search for items."""
    return await store.asearch(ADA)


@pytest.mark.parametrize("look", [read, search], ids=lambda look: look.__name__)
async def test_who_gives_up_reading_an_item_waits_while_it_is_written_to_last_anew(
    cache: AsyncStateCache, look: Callable[[StateCacheStore], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, commit = StateCacheStore(cache), AsyncNamespace.commit
    begun, go, written = asyncio.Event(), asyncio.Event(), list[Any]()
    await store.aput(ADA, "k", {"n": 1}, ttl=60.0)

    async def held(self: AsyncNamespace[Any], *given: Any, **more: Any) -> None:
        begun.set()
        await go.wait()
        written.append(await commit(self, *given, **more))

    monkeypatch.setattr(AsyncNamespace, "commit", held)
    task = asyncio.ensure_future(look(store))
    await begun.wait()
    task.cancel()
    for _ in range(TURNS):
        await pause()
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(written) == 1


@pytest.mark.parametrize("look", [read, search], ids=lambda look: look.__name__)
async def test_who_gives_up_reading_an_item_before_it_is_written_leaves_it_as_it_is(
    cache: AsyncStateCache, look: Callable[[StateCacheStore], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though another who reads at the same moment goes on: what he asks for alone lasts anew."""
    store, name = StateCacheStore(cache), "langgraph-store/users.ada/"
    await store.abatch([PutOp(ADA, key, {"n": 1}, ttl=60.0) for key in ("k", "other")])
    begun, go = asyncio.Event(), asyncio.Event()
    for verb in ("get_many", "list"):
        monkeypatch.setattr(AsyncNamespace, verb, _after(getattr(AsyncNamespace, verb), begun, go))
    task = asyncio.ensure_future(look(store))
    other = asyncio.ensure_future(store.aget(ADA, "other"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    assert await other is not None
    versions = {key: await cache.get(name + key, read="primary") for key in ("k", "other")}
    assert {key: state and state.version for key, state in versions.items()} == {"k": 1, "other": 2}


def _after(verb: Any, begun: asyncio.Event, go: asyncio.Event) -> Any:
    """Return a verb of a view that begins, and waits until it may go on."""

    async def awaited(*given: Any, **more: Any) -> Any:
        begun.set()
        await go.wait()
        return await verb(*given, **more)

    async def listed(*given: Any, **more: Any) -> Any:
        begun.set()
        await go.wait()
        async for one in verb(*given, **more):
            yield one

    return listed if verb.__name__ == "list" else awaited

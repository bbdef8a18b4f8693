"""What could go wrong with items on statecache, each once: nothing is lost, doubled, too old, or another one's."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from threading import Thread
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore, GetOp, PutOp

from statecache import (
    AsyncNamespace,
    AsyncStateCache,
    Backpressure,
    LimitExceeded,
    LockHeld,
    OutcomeUnknown,
    Settings,
    StateCache,
    StateCacheError,
    Unavailable,
    UsageError,
)
from statecache.adapters.langgraph import StateCacheSaver, StateCacheStore
from statecache.adapters.langgraph.store import searching
from statecache.core.read import nearest as core_nearest
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.langgraph_items import Letters
from tests.support.langgraph_items import keys as keys_of
from tests.support.polling import pause

ADA = ("users", "ada")
HOUR = 60.0


@pytest.fixture
def store(cache: AsyncStateCache) -> StateCacheStore:
    """A store on an asynchronous client."""
    return StateCacheStore(cache)


async def changes(cache: AsyncStateCache, name: str) -> int:
    """Return how many commits an item has seen."""
    state = await cache.get(f"langgraph-store/{name}", read="primary")
    return 0 if state is None else state.version


async def test_an_item_can_be_read_in_redis_and_postgres(
    store: StateCacheStore, keys: KeySpace, worker: Worker, redis_raw: Any, psql: psycopg.Connection[Any]
) -> None:
    await store.aput(ADA, "a/b", {"theme": "dark"})
    name = "langgraph-store/users.ada/a%2Fb"
    told = {"namespace": ["users", "ada"], "key": "a/b", "value": {"theme": "dark"}}
    assert json.loads(redis_raw.hget(keys.state(name), "value")) == told
    await flush(worker)
    query = "SELECT value_json FROM state_view WHERE key = %s AND value_json->'value'->>'theme' = 'dark'"
    assert rows(psql, query, name) == [(told,)]
    assert store.group_of(ADA) == "langgraph-store/users.ada"


async def test_the_puts_of_one_namespace_are_one_commit(store: StateCacheStore, cache: AsyncStateCache) -> None:
    await store.abatch([PutOp(ADA, f"k{number}", {"n": number}) for number in range(300)])
    states = [state async for state in cache.list("langgraph-store/users.ada/")]
    counts = sorted(sum(1 for one in states if one.change_id == given) for given in {one.change_id for one in states})
    assert counts == [50, 250]
    await asyncio.gather(*(store.aput(("together",), f"k{number}", {"n": number}) for number in range(40)))
    assert len({state.change_id async for state in cache.list("langgraph-store/together/")}) == 1


async def test_large_items_of_one_batch_are_as_many_commits_as_they_need(
    store: StateCacheStore, cache: AsyncStateCache
) -> None:
    await store.abatch([PutOp(ADA, f"k{number}", {"x": "x" * 5_000_000}) for number in range(5)])
    states = [state async for state in cache.list("langgraph-store/users.ada/", values=False)]
    assert len(states) == 5
    assert len({state.change_id for state in states}) == 3


async def test_writers_of_one_item_leave_what_one_of_them_put_last(
    settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    async with AsyncStateCache(settings=settings) as one, AsyncStateCache(settings=settings) as other, flushing(worker):
        stores = [StateCacheStore(one), StateCacheStore(other)]
        await stores[0].aput(ADA, "k", {"by": -1, "n": -1})
        first = await stores[1].aget(ADA, "k")
        assert first is not None

        async def write(by: int) -> None:
            for number in range(20):
                await stores[by].aput(ADA, "k", {"by": by, "n": number})

        await asyncio.gather(write(0), write(1))
        last = [await store.aget(ADA, "k") for store in stores]
        assert last[0] == last[1]
        assert last[0] is not None
        assert last[0].value["n"] == 19
        assert last[0].created_at == first.created_at
        assert await changes(one, "users.ada/k") == 41
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_puts_of_one_item_that_are_awaited_at_once_end_with_the_last_asked_for(store: StateCacheStore) -> None:
    await asyncio.gather(*(store.aput(ADA, "k", {"n": number}) for number in range(2000)))
    found = await store.aget(ADA, "k")
    assert found is not None
    assert found.value == {"n": 1999}


async def test_an_item_that_is_not_there_is_deleted_though_somebody_puts_it_meanwhile(settings: Settings) -> None:
    async with AsyncStateCache(settings=settings) as one, AsyncStateCache(settings=settings) as other:
        await StateCacheStore(one).adelete(ADA, "k")
        await StateCacheStore(other).aput(ADA, "k", {"n": 1})
        await StateCacheStore(one).adelete(ADA, "k")
        assert await StateCacheStore(other).aget(ADA, "k") is None


async def test_what_a_caller_changes_afterwards_changes_nothing(store: StateCacheStore) -> None:
    value = {"list": [1]}
    put = asyncio.create_task(store.aput(ADA, "k", value))
    await put
    value["list"].append(2)
    one, other = await asyncio.gather(store.aget(ADA, "k"), store.aget(ADA, "k"))
    assert one is not None
    assert other is not None
    one.value["list"].append(3)
    assert other.value == {"list": [1]}
    again = await store.aget(ADA, "k")
    assert again is not None
    assert again.value == {"list": [1]}


async def test_one_call_that_is_refused_hinders_no_other(store: StateCacheStore) -> None:
    calls: list[Any] = [store.aput(ADA, f"k{number}", {"n": number}) for number in range(5)]
    calls += [store.aput(ADA, "none", {"n": object()}), store.aput(ADA, "large", {"x": "x" * 9_000_000})]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert answers[:5] == [None] * 5
    assert isinstance(answers[5], UsageError)
    assert isinstance(answers[6], LimitExceeded)
    assert sorted(await keys_of(store, *ADA)) == ["k0", "k1", "k2", "k3", "k4"]


async def test_thousands_of_calls_at_one_moment_are_a_few_commits(
    store: StateCacheStore, cache: AsyncStateCache, worker: Worker
) -> None:
    count, users = 6000, 60
    places = [(("u", str(number % users)), str(number)) for number in range(count)]
    await asyncio.gather(*(store.aput(*place, {"n": number}) for number, place in enumerate(places)))
    assert len({state.change_id async for state in cache.list("langgraph-store/", values=False)}) <= 2 * users
    for _ in range(2):
        found = await asyncio.gather(*(store.aget(*place) for place in places))
        assert [one and one.value["n"] for one in found] == [*range(count)]
        lists = await asyncio.gather(*(store.asearch(("u", str(number)), limit=1) for number in range(users)))
        assert [one.namespace for (one,) in lists] == [("u", str(number)) for number in range(users)]
        await flush(worker)


async def test_an_item_lasts_from_its_last_put_or_reading(store: StateCacheStore, cache: AsyncStateCache) -> None:
    name = "langgraph-store/users.ada/k"
    await store.aput(ADA, "k", {"n": 1}, ttl=HOUR)
    await store.aput(ADA, "forever", {"n": 1})
    first = await cache.get(name)
    assert first is not None
    assert first.expires_at is not None
    assert first.expires_at - first.updated_at == pytest.approx(timedelta(hours=1), abs=timedelta(seconds=1))
    put = await store.aget(ADA, "k", refresh_ttl=False)
    assert await changes(cache, "users.ada/k") == 1
    assert await store.aget(ADA, "k") == put
    assert await changes(cache, "users.ada/k") == 2
    renewed = await cache.get(name)
    assert renewed is not None
    assert renewed.expires_at is not None
    assert renewed.expires_at > first.expires_at
    (found, _) = sorted(await store.asearch(ADA), key=lambda one: one.key, reverse=True)
    assert put is not None
    assert (found.created_at, found.updated_at, found.value) == (put.created_at, put.updated_at, {"n": 1})
    assert await changes(cache, "users.ada/k") == 3
    assert await changes(cache, "users.ada/forever") == 1
    await store.aput(ADA, "k", {"n": 2})
    lasting = await cache.get(name)
    assert lasting is not None
    assert lasting.expires_at is None
    again = await store.aget(ADA, "k")
    assert again is not None
    assert again.created_at == put.created_at
    assert again.updated_at > put.updated_at


@pytest.mark.parametrize(
    "error",
    [
        Backpressure(0, reason="Redis is out of memory"), Unavailable("epoch"), OutcomeUnknown("a"),
        LockHeld("langgraph-store/users.ada/k", holder="somebody"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
async def test_an_item_is_read_although_nothing_can_be_written(
    store: StateCacheStore, error: StateCacheError, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.aput(ADA, "k", {"n": 1}, ttl=HOUR)
    await store.aput(ADA, "forever", {"n": 2})

    async def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(AsyncNamespace, "commit", refuse)
    found = await store.aget(ADA, "k")
    assert found is not None
    assert found.value == {"n": 1}
    assert await keys_of(store, *ADA) == ["forever", "k"]


async def test_an_item_is_gone_from_its_end_on_and_begins_anew(
    cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    config: Any = {"default_ttl": 0.001, "refresh_on_read": False}
    store = StateCacheStore(cache, ttl=config)
    await store.aput(ADA, "k", {"n": 1})
    await store.aput(ADA, "forever", {"n": 1}, ttl=None)
    while await store.aget(ADA, "k") is not None:
        await pause()
    assert await keys_of(store, *ADA) == ["forever"]
    await store.adelete(ADA, "forever")
    assert await store.alist_namespaces() == []
    await store.aput(ADA, "k", {"n": 2}, ttl=HOUR)
    found = await store.aget(ADA, "k")
    assert found is not None
    assert found.created_at == found.updated_at
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_reading_leaves_the_order_of_a_search_as_it_is(store: StateCacheStore, worker: Worker) -> None:
    for number in range(12):
        await store.aput(ADA, f"k{number}", {"n": number}, ttl=HOUR)
    newest = [f"k{number}" for number in reversed(range(12))]
    for _ in range(2):
        for number in (0, 5, 1):
            await store.aget(ADA, f"k{number}")
        assert await keys_of(store, *ADA, limit=2, refresh_ttl=False) == newest[:2]
        assert await keys_of(store, *ADA, limit=3, offset=5) == newest[5:8]
        assert await keys_of(store, *ADA, limit=100, filter={"n": {"$lt": 3}}) == ["k2", "k1", "k0"]
        await flush(worker)


async def test_readers_at_once_of_an_item_that_they_renew_all_have_it(settings: Settings) -> None:
    async with AsyncStateCache(settings=settings) as one, AsyncStateCache(settings=settings) as other:
        stores = [StateCacheStore(one), StateCacheStore(other)]
        await stores[0].abatch([PutOp(ADA, f"k{number}", {"n": number}, ttl=HOUR) for number in range(6)])
        gets = [GetOp(ADA, f"k{number}") for number in range(6)]
        answers = await asyncio.gather(*(stores[number % 2].abatch(gets) for number in range(20)))
        for found in answers:
            assert [one.value["n"] for one in found] == [*range(6)]  # type: ignore[union-attr]


async def test_a_search_that_would_compare_too_much_is_refused(
    store: StateCacheStore, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, limit in ((searching, "ITEMS_COMPARED_MAX"), (core_nearest, "COMPARED_MAX")):
        monkeypatch.setattr(module, limit, 150)
    letters = Letters()
    near = StateCacheStore(cache, index={"dims": letters.dims, "embed": letters})
    await near.abatch([PutOp(("n", str(number % 2)), str(number), {"n": number}) for number in range(300)])
    assert len(letters.asked) <= 2
    assert sorted(map(len, letters.asked)) in ([150, 150], [300])
    with pytest.raises(LimitExceeded, match=r"items to be compared is \d+, more than the limit"):
        await store.asearch(("n",), filter={"n": {"$lt": 0}})
    with pytest.raises(LimitExceeded, match="states to be compared is 151, more than the limit of 150"):
        await near.asearch(("n",), query="x")
    assert len(await near.asearch(("n", "1"), query="x", limit=200)) == 150
    assert len(await store.asearch(("n",), filter={"n": {"$gte": 0}}, limit=200)) == 200
    assert await keys_of(store, "n", filter={"n": 7}) == ["7"]


async def test_vectors_change_with_their_item_and_stay_when_it_is_read(cache: AsyncStateCache) -> None:
    letters = Letters()
    store = StateCacheStore(cache, index={"dims": letters.dims, "embed": letters, "fields": ["text"]})
    assert store.embeddings is letters
    assert store.index_config == {"dims": 26, "embed": letters, "fields": ["text"]}
    await store.aput(ADA, "k", {"text": "zebra"}, ttl=HOUR)
    await store.aget(ADA, "k")
    (found,) = await store.asearch(ADA, query="zebra")
    assert found.score == pytest.approx(1)
    assert found.value == {"text": "zebra"}
    await store.aput(ADA, "k", {"text": None})
    (found,) = await store.asearch(ADA, query="zebra")
    assert found.score is None


async def test_sessions_end_clearly(settings: Settings) -> None:
    with StateCacheStore(settings) as closed:
        await closed.asetup()
        await asyncio.to_thread(closed.setup)
    with pytest.raises(UsageError, match="the store is closed"):
        closed.get(ADA, "k")
    with pytest.raises(UsageError, match="the store is closed"):
        await closed.aput(ADA, "k", {})
    client = AsyncStateCache(settings=settings)
    store = StateCacheStore(client)
    await store.aput(ADA, "k", {"n": 1})
    with pytest.raises(UsageError, match=r"wait for its own event loop.*\n?.*Await the asynchronous one \(aput, aget"):
        store.get(ADA, "k")
    await client.close()
    with pytest.raises(UsageError, match="closed"):
        await store.aget(ADA, "k")
    with pytest.raises(UsageError, match="a store stands on a StateCache or an AsyncStateCache, not on a int"):
        StateCacheStore(7)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="more than one segment"):
        StateCacheStore(settings, namespace="a/b")


def test_threads_share_a_store_that_makes_its_own_client(settings: Settings) -> None:
    with StateCacheStore.from_conn_string(**settings.model_dump(exclude_unset=True)) as store:
        threads = [Thread(target=store.put, args=(ADA, str(number), {"n": number})) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {item.value["n"] for item in store.search(ADA)} == {*range(8)}


class Told(TypedDict):
    user: str
    seen: list[str]


def remember(state: Told, *, store: BaseStore) -> Any:
    """Read what is remembered, and remember one more thing."""
    known = store.search(("memories", state["user"]), limit=10)
    store.put(("memories", state["user"]), f"m{len(known)}", {"number": len(known)})
    return {"seen": [item.key for item in known]}


async def aremember(state: Told, *, store: BaseStore) -> Any:
    """Do what `remember` does."""
    known = await store.asearch(("memories", state["user"]), limit=10)
    await store.aput(("memories", state["user"]), f"m{len(known)}", {"number": len(known)})
    return {"seen": [item.key for item in known]}


def graph(node: Any) -> StateGraph[Told]:
    """Return a graph of one node."""
    made = StateGraph(Told)
    made.add_node("remember", node)
    made.add_edge(START, "remember")
    made.add_edge("remember", END)
    return made


async def test_a_graph_remembers_across_threads(settings: Settings, worker: Worker) -> None:
    async with StateCacheSaver(settings) as saver, StateCacheStore(settings) as store, flushing(worker):
        awaited = graph(aremember).compile(checkpointer=saver, store=store)
        for number in range(3):
            thread: Any = {"configurable": {"thread_id": f"t{number}"}}
            told = await awaited.ainvoke({"user": "ada", "seen": []}, thread)
            assert told["seen"] == [f"m{one}" for one in reversed(range(number))]


def test_a_graph_that_is_not_awaited_remembers_too(settings: Settings) -> None:
    with StateCache(settings=settings) as cache:
        compiled = graph(remember).compile(checkpointer=StateCacheSaver(cache), store=StateCacheStore(cache))
        for number in range(3):
            told = compiled.invoke({"user": "bob", "seen": []}, {"configurable": {"thread_id": f"t{number}"}})
            assert told["seen"] == [f"m{one}" for one in reversed(range(number))]

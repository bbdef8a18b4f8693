"""Searching by nearness: an index of Postgres finds what comparing all does, and nothing older than what is written."""

from __future__ import annotations

import asyncio
import random
from array import array
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from statecache import AsyncStateCache, Settings
from statecache.adapters.langgraph import StateCacheStore
from statecache.clock import monotonic
from statecache.core.postgres import connection
from statecache.core.postgres.vector_indexes import VectorIndex, create, drop, indexes
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.langgraph_items import Letters
from tests.support.polling import pause
from tests.support.vectors import DIMS, QUERY, Vector, cosine, found, near, need_pgvector, packed, table, take_in


@pytest.fixture(autouse=True)
def _with_pgvector(psql: psycopg.Connection[Any]) -> None:
    need_pgvector(psql)


@pytest.fixture
async def other(settings: Settings) -> AsyncIterator[AsyncStateCache]:
    """Another client."""
    async with AsyncStateCache(settings=settings) as client:
        yield client


def drawn(count: int, seed: int) -> dict[str, dict[str, Any]]:
    """Return values with vectors in every form, and some with none, by key."""
    rng, values = random.Random(seed), dict[str, dict[str, Any]]()
    for at in range(count):
        one, more = ([rng.gauss(0, 1) for _ in range(DIMS)] for _ in range(2))
        held: Any = [
            one, packed(one), {"$": packed(one)}, {"a": one, "b": packed(more), "c": "none"}, None, one[:3],
            [0.0] * DIMS, "no base64!", {"deep": {"er": one}}, [*one[:-1], "x"], [*one[:-1], True], packed(one)[:-4],
        ][at if at < 12 else rng.choice([0, 1, 2, 3, 3, at % 12])]  # fmt: skip
        values[f"notes/{at % 5}/{at:04}"] = {"kind": "even" if at % 2 == 0 else "odd", "at": at, "vectors": held}
    return values


def expected(values: dict[str, dict[str, Any]], query: Vector) -> dict[str, float]:
    """Return the score of each value that has one, by comparing in the plainest way."""
    scores = dict[str, float]()
    for key, value in values.items():
        held = value["vectors"]
        for one in held.values() if isinstance(held, dict) else [held]:
            if isinstance(one, str) and len(one) == len(packed(query)):
                one = array("f", b64decode(one))
            if not isinstance(one, (list, array)) or len(one) != DIMS or not all(type(n) is float for n in one):
                continue
            if any(one):
                scores[key] = max(scores.get(key, -1.0), cosine(one, query))
    return scores


async def test_all_ways_find_the_same(
    client: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    values = drawn(240, 7)
    await client.set_many(values)

    async def compare() -> None:
        for query in drawn(3, 8).values():
            vector = query["vectors"]
            vector = vector if isinstance(vector, list) else near(0.3)
            scores = expected(values, vector)
            assert len(scores) > 150
            for prefix, more, means in (
                ("notes/", {}, lambda _key: True),
                ("notes/3/", {"limit": 100}, lambda key: key.startswith("notes/3/")),
                (
                    "notes/",
                    {"after": "notes/1/0100", "before": "notes/4"},
                    lambda key: "notes/1/0100" < key < "notes/4",
                ),
                ("notes/", {"where": {"kind": "odd"}, "limit": 40}, lambda key: values[key]["kind"] == "odd"),
            ):
                limit = int(str(more.get("limit", 10)))
                best = sorted((-score, key) for key, score in scores.items() if means(key))[:limit]
                answer = await client.nearest(vector, prefix, **more)
                assert [state.key for state, _ in answer] == [key for _, key in best]
                assert [score for _, score in answer] == pytest.approx([-score for score, _ in best], abs=1e-5)
                assert all(state.value == values[state.key] for state, _ in answer)

    await compare()
    await flush(worker)
    assert await create(settings, "notes", member="vectors", dims=DIMS) == 240
    client._runtime.nearest._known.clear()
    await compare()
    take_in(psql)
    assert len(table(psql)) > 200
    await compare()


async def test_an_index_is_used_and_finds_nearly_all(
    settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    rng, hits = random.Random(3), 0
    vectors = {f"notes/{at % 7}/{at:04}": [rng.gauss(0, 1) for _ in range(DIMS)] for at in range(3000)}
    async with AsyncStateCache(settings=settings) as cache:
        await cache.set_many({key: {"vectors": packed(one)} for key, one in vectors.items()})
        await flush(worker)
        await create(settings, "notes", member="vectors", dims=DIMS)
        take_in(psql)
        psql.execute("ANALYZE")
        for _ in range(20):
            query = [rng.gauss(0, 1) for _ in range(DIMS)]
            best = sorted(vectors, key=lambda key: -cosine(vectors[key], query))[:10]
            hits += len({*best} & {*await found(cache, query)})
    assert hits >= 190
    scans = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname ~ 'embedding_idx$' AND schemaname = %s"
    until = monotonic() + 20
    while rows(psql, scans, settings.postgres_schema)[0][0] < 20 and monotonic() < until:
        await pause()  # until the session that searched has ended, which counts then
    assert rows(psql, scans, settings.postgres_schema)[0][0] >= 20


async def test_what_is_written_is_found_at_every_stage(
    client: AsyncStateCache, other: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    await client.set_many({f"notes/a/{at}": {"vectors": near(at / 10)} for at in range(10)})
    await flush(worker)
    await create(settings, "notes", member="vectors", dims=DIMS)
    take_in(psql)

    async def both(*keys: str) -> None:
        for one in (client, other):
            assert await found(one, limit=len(keys)) == [*keys]

    async def throughout(*keys: str) -> None:
        await both(*keys)  # in Redis alone
        await flush(worker)
        await both(*keys)  # in Postgres, and not in the index
        take_in(psql)
        await both(*keys)

    await throughout("notes/a/9", "notes/a/8", "notes/a/7")
    await client.set("notes/b/new", {"vectors": near(0.95)})
    await throughout("notes/b/new", "notes/a/9", "notes/a/8")
    await client.set("notes/b/new", {"vectors": {"x": near(-0.5), "y": near(0.85, rest=2)}})
    await throughout("notes/a/9", "notes/b/new", "notes/a/8")
    await client.delete("notes/a/9")
    await throughout("notes/b/new", "notes/a/8", "notes/a/7")
    await client.set("notes/a/8", {"text": "it has none any more"})
    await throughout("notes/b/new", "notes/a/7", "notes/a/6")
    await client.create("notes/a/9", {"vectors": near(0.99)})
    await throughout("notes/a/9", "notes/b/new", "notes/a/7")
    await client.rollback("notes/b/new", 1)
    await throughout("notes/a/9", "notes/b/new", "notes/a/7")
    assert (await client.nearest(QUERY, "notes/b/"))[0].score == pytest.approx(0.95, abs=1e-6)


async def test_a_state_of_many_vectors_leaves_room_for_others(
    client: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    many = {str(at): near(0.9 + at / 3000) for at in range(100)}
    await client.set_many(
        {"notes/many": {"vectors": many}} | {f"notes/{at}": {"vectors": near(at / 10)} for at in range(9)}
    )
    await flush(worker)
    await create(settings, "notes", member="vectors", dims=DIMS)
    take_in(psql)
    assert await found(client, limit=3) == ["notes/many", "notes/8", "notes/7"]


async def test_what_is_flushed_or_indexed_while_it_is_looked_for_is_found(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    await cache.set("notes/a", {"vectors": near(0.1)})
    await flush(worker)
    await create(settings, "notes", member="vectors", dims=DIMS)
    overlay = cache._runtime.listing.overlay
    for at in range(2):
        await cache.set("notes/b", {"vectors": near(0.5 + at / 10)})

        async def then(*given: Any, **more: Any) -> Any:
            dirty = await overlay(*given, **more)
            await flush(worker)
            take_in(psql)
            return dirty

        monkeypatch.setattr(cache._runtime.listing, "overlay", then)
        assert await found(cache) == ["notes/b", "notes/a"]
        monkeypatch.setattr(cache._runtime.listing, "overlay", overlay)


async def test_a_postgres_that_was_put_back_hides_nothing(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any], keys: KeySpace
) -> None:
    await cache.set("notes/a", {"vectors": near(0.1)})
    await flush(worker)
    await create(settings, "notes", member="vectors", dims=DIMS)
    shard = keys.shard("notes/b")
    ((before,),) = rows(psql, "SELECT flushed FROM shard WHERE shard = %s", shard)
    await cache.set("notes/b", {"vectors": near(0.5)})
    await flush(worker)
    for statement in ("DELETE FROM state WHERE key = 'notes/b'", "DELETE FROM change WHERE key = 'notes/b'"):
        psql.execute(statement)
    psql.execute("UPDATE shard SET flushed = %s WHERE shard = %s", [before, shard])
    assert await found(cache) == ["notes/b", "notes/a"]


async def test_what_goes_leaves_no_vector(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    await cache.set_many({f"notes/{name}": {"vectors": near(0.5)} for name in ("kept", "deleted", "erased")})
    await cache.set("notes/ending", {"vectors": near(0.9)}, ttl=1)
    await cache.set("other/x", {"vectors": near(0.5)})
    await flush(worker)
    await create(settings, "notes", member="vectors", dims=DIMS)
    take_in(psql)
    assert [key for key, _ in table(psql)] == ["notes/deleted", "notes/ending", "notes/erased", "notes/kept"]
    await cache.delete("notes/deleted")
    await flush(worker)
    assert [key for key, _ in table(psql)] == ["notes/ending", "notes/erased", "notes/kept"]
    async with flushing(worker):
        await cache.erase("notes/erased")
    assert [key for key, _ in table(psql)] == ["notes/ending", "notes/kept"]
    until = monotonic() + 10
    while await found(cache) != ["notes/kept"] and monotonic() < until:
        await pause()
    assert await found(cache) == ["notes/kept"]
    psql.execute("DELETE FROM state WHERE key = 'notes/kept'")
    assert [key for key, _ in table(psql)] == ["notes/ending"]


async def test_a_worker_keeps_the_index(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    await create(settings, "notes", member="vectors", dims=DIMS)
    async with flushing(worker):
        for at in range(3):
            await cache.set(f"notes/{at}", {"vectors": near(at / 10)}, durability="postgres")
            until = monotonic() + 20
            while len(table(psql)) <= at and monotonic() < until:
                await pause()
            assert [key for key, _ in table(psql)] == [f"notes/{one}" for one in range(at + 1)]
        until = monotonic() + 20
        while worker.janitor.vectors.indexed < 3 and monotonic() < until:  # it counts behind its commit
            await pause()
    assert worker.janitor.vectors.indexed >= 3
    told = VectorIndex(
        namespace="notes", member="vectors", dims=DIMS, ready=True, table=(await indexes(settings))[0].table, waiting=0,
        refused=0,
    )  # fmt: skip
    assert await indexes(settings) == [told]


async def test_a_worker_that_is_at_it_holds_up_no_flush(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(connection, "LOCK_TIMEOUT_S", 60.0)  # who would wait for a lock does
    await cache.set("notes/a", {"vectors": near(0.1)})
    await flush(worker)
    await create(settings, "notes", member="vectors", dims=DIMS)
    take_in(psql)
    await cache.set("notes/a", {"vectors": near(0.2)})
    await flush(worker)
    with psycopg.connect(settings.postgres_url, options=f"-c search_path={settings.postgres_schema}") as at_it:
        assert at_it.execute("SELECT index_vectors(1000)").fetchone() == (1,)
        assert rows(psql, "SELECT index_vectors(1000)") == [(0,)]  # one at a time
        await cache.delete("notes/a")
        async with asyncio.timeout(10):
            await flush(worker)
        assert await found(cache) == []
        at_it.commit()
    assert [key for key, _ in table(psql)] == ["notes/a"]
    assert await found(cache) == []
    take_in(psql)
    assert table(psql) == []


async def test_an_index_that_goes_is_not_missed(
    client: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    await client.set("notes/a", {"vectors": near(0.1), "spare": near(0.2)})
    await flush(worker)
    await create(settings, "notes", member="vectors", dims=DIMS)
    take_in(psql)
    assert await found(client) == ["notes/a"]
    assert await found(client, member="spare") == ["notes/a"]
    assert await drop(settings, "notes")
    assert not await drop(settings, "notes")
    assert await found(client) == ["notes/a"]
    assert rows(psql, "SELECT FROM pg_trigger WHERE tgrelid = 'state'::regclass AND NOT tgisinternal") == []
    await client.set("notes/b", {"vectors": near(0.05)}, durability="memory")
    await flush(worker)
    assert rows(psql, "SELECT FROM vector_pending") == []
    await create(settings, "notes", member="spare", dims=DIMS)
    take_in(psql)
    client._runtime.nearest._known.clear()
    ((_, score),) = await client.nearest(QUERY, "notes/", member="spare")
    assert await found(client) == ["notes/a", "notes/b"]
    assert score == pytest.approx(0.2, abs=1e-6)


async def test_a_langgraph_store_is_answered_by_the_index(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    index: Any = {"dims": 26, "embed": Letters(), "fields": ["text"]}
    store, model, rng = StateCacheStore(cache, index=index), InMemoryStore(index=index), random.Random(11)

    async def put(count: int) -> None:
        for at in range(count):
            text = "".join(rng.choices("abcdefghijklmnop", k=rng.choice([0, 5, 9])))
            op = PutOp(("n", str(at % 3)), f"{rng.randrange(60)}", {"text": text, "odd": at % 2})
            await store.abatch([op])
            model.batch([op])

    async def compare() -> None:
        for asked in ({}, {"filter": {"odd": 1}}, {"filter": {"odd": {"$ne": 1}}}, {"limit": 4, "offset": 3}):
            for query in ("abc", "pony", "zzz"):
                options: Any = {"query": query, "limit": 20, **asked}
                ours, theirs = await store.asearch(("n",), **options), model.search(("n",), **options)
                assert [one.score for one in ours] == pytest.approx([one.score or 0.0 for one in theirs], abs=1e-5)

    await put(90)
    await flush(worker)
    await create(settings, "langgraph-store", member="vectors", dims=26)
    await compare()
    take_in(psql)
    await put(20)
    await compare()
    await flush(worker)
    await compare()
    take_in(psql)
    await compare()

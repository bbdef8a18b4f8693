"""What no search by nearness is, what does not fit an index, and what Postgres takes for a vector."""

from __future__ import annotations

import math
import random
from base64 import b64encode
from contextlib import suppress
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as some

from statecache import AsyncStateCache, LimitExceeded, Settings, UsageError
from statecache.core.postgres.vector_indexes import create
from statecache.core.read import nearest as searching
from statecache.errors import ConfigurationError
from statecache.records import absence
from statecache.rules.vectors import checked_vector
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows
from tests.support.vectors import DIMS, QUERY, cosine, found, near, need_pgvector, packed, take_in


@pytest.fixture(autouse=True)
def _with_pgvector(psql: psycopg.Connection[Any]) -> None:
    need_pgvector(psql)


async def test_what_is_too_much_to_compare_is_refused(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(searching, "COMPARED_MAX", 5)
    await cache.set_many({f"notes/a/{at}": {"vectors": near(at / 10), "odd": at % 2 == 1} for at in range(9)})
    with pytest.raises(LimitExceeded, match="states to be compared is 6, more than the limit of 5"):
        await cache.nearest(QUERY, "notes/")
    assert await found(cache, where={"odd": True}, limit=1) == ["notes/a/7"]
    await flush(worker)
    await create(settings, "notes", member="vectors", dims=DIMS)
    cache._runtime.nearest._known.clear()
    with pytest.raises(LimitExceeded, match="states to be compared is 6"):
        await cache.nearest(QUERY, "notes/")
    assert await found(cache, prefix="notes/a/8") == ["notes/a/8"]
    take_in(psql)
    assert await found(cache, limit=3) == ["notes/a/8", "notes/a/7", "notes/a/6"]


NUMBER = some.one_of(
    some.floats(width=32), some.integers(-(2**70), 2**70), some.booleans(), some.text(max_size=2), some.none()
)
VECTOR = some.one_of(
    some.lists(NUMBER, max_size=4),
    some.lists(some.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
    some.binary(max_size=16).map(lambda data: b64encode(data).decode()),
    some.binary(min_size=12, max_size=12).map(lambda data: b64encode(data).decode()),
    some.text(max_size=17),
    NUMBER,
)


@settings_of_hypothesis(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some.one_of(VECTOR, some.dictionaries(some.text(max_size=2), VECTOR, max_size=3)))
def test_postgres_takes_the_same_for_vectors(psql: psycopg.Connection[Any], held: Any) -> None:
    value = msgspec.json.encode({"vectors": held})
    record = msgspec.structs.replace(absence("notes/a", 1), op="set", value=value, encoding="json")
    there = list[float]()
    with suppress(psycopg.errors.UntranslatableCharacter):
        query = "SELECT vector FROM vectors_of(json_or_null(%s, 'json') -> 'vectors', 3)"
        there = [cosine(one, QUERY[:3]) for (one,) in rows(psql, query, value)]
    score = checked_vector(QUERY[:3]).nearness(record, "vectors")
    assert (score is None) == (there == [])
    if score is not None:
        assert score == pytest.approx(max(there), abs=1e-5)


async def test_many_dimensions_are_kept_in_half_precision(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    rng = random.Random(5)
    vectors = {f"notes/{at}": [rng.gauss(0, 1) for _ in range(2500)] for at in range(5)}
    await cache.set_many({key: {"vectors": packed(one)} for key, one in vectors.items()})
    await flush(worker)
    await create(settings, "notes", member="vectors", dims=2500)
    take_in(psql)
    for key, vector in vectors.items():
        best = await cache.nearest(vector, "notes/", limit=5)
        assert best[0].state.key == key
        assert best[0].score == pytest.approx(1, abs=1e-5)
        assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)


@pytest.mark.parametrize(
    ("vector", "more", "why"),
    [
        ("abc", {}, "not a list of numbers"),
        ([1, "x"], {}, "not a list of numbers"),
        (None, {}, "not a list of numbers"),
        ([], {}, "0 dimensions"),
        ([1.0] * 4001, {}, "4,001 dimensions"),
        ([0.0, 0.0], {}, "no direction"),
        ([math.nan, 1.0], {}, "no direction"),
        ([1e300, 1.0], {}, "no direction"),
        (QUERY, {"member": "a.b"}, "member='a.b'"),
        (QUERY, {"member": ""}, "member=''"),
        (QUERY, {"limit": 0}, "limit=0"),
        (QUERY, {"prefix": ""}, "one namespace is searched"),
        (QUERY, {"where": {"": 1}}, "names ''"),
    ],
)
async def test_what_is_no_search_is_refused(client: AsyncStateCache, vector: Any, more: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        await client.nearest(vector, **({"prefix": "notes/"} | more))


async def test_what_does_not_fit_an_index_is_told(
    cache: AsyncStateCache, settings: Settings, psql: psycopg.Connection[Any]
) -> None:
    for dims in (0, 4001):
        with pytest.raises(UsageError, match="number of dimensions"):
            await create(settings, "notes", member="vectors", dims=dims)
    assert await create(settings, "notes", member="vectors", dims=DIMS) == 0
    with pytest.raises(UsageError, match="indexed already"):
        await create(settings, "notes", member="vectors", dims=3)
    with pytest.raises(UsageError, match="have 8 dimensions, and this one has 2"):
        await cache.nearest([1.0, 2.0], "notes/")
    psql.execute("DROP FUNCTION create_vector_index")
    with pytest.raises(ConfigurationError, match="earlier release"):
        await create(settings, "jobs", member="vectors", dims=DIMS)

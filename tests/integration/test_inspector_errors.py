"""What the inspector says where something cannot be read: in its place, with the rest of the page shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.core.history import tail
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.inspected import TOKEN, Web, inspected

Psql = psycopg.Connection[Any]
KEY = "runs/42"
AWAY = "redis://127.0.0.1:1"
PG_AWAY = "postgresql://127.0.0.1:1/postgres"


@pytest.fixture
def web(settings: Settings) -> Iterator[Web]:
    """An inspector of the test's deployment."""
    with inspected(settings) as found:
        yield found


async def _written(cache: AsyncStateCache, worker: Worker) -> None:
    for step in range(1, 5):
        await cache.set(KEY, {"step": step, "text": f"word {step} " * 30})
    await cache.set("runs/42/plan", {"next": "search"})
    await flush(worker)


async def test_without_redis_history_is_shown_as_far_as_postgres_holds_it(
    settings: Settings, cache: AsyncStateCache, worker: Worker
) -> None:
    await _written(cache, worker)
    with inspected(settings.model_copy(update={"redis_url": AWAY, "timeout_s": 0.5})) as web:
        page = web.get("key", key=KEY)
        assert page.status == 200
        assert "step : 4" in page.text
        assert "There may be newer changes than this: Redis cannot be asked" in page.text
        assert "What agents see now is not known. Redis is unavailable" in page.text
        assert [query["b"] for query in page.links_to("diff")] == ["4", "3", "2"]
        assert "step : 2" in web.get("key", key=KEY, version=2).text
        assert "changed step 1 3" in web.get("diff", key=KEY, a=1, b=3).text
        run = web.get("run", group=KEY, n=2)
        assert "step : 2" in run.text
        for page in (web.get(), web.get("keys", prefix="runs/")):
            assert page.status == 503
            assert "Redis is unavailable" in page.text
        page = web.get("shards")
        assert page.status == 200
        assert "Redis does not answer" in page.text
        assert "primary, synchronous_commit" in page.text
        assert "There are none" in web.get("aside").text


async def test_without_postgres_what_redis_holds_is_shown(
    settings: Settings, cache: AsyncStateCache, worker: Worker
) -> None:
    await _written(cache, worker)
    with inspected(settings.model_copy(update={"postgres_url": PG_AWAY, "timeout_s": 0.5})) as web:
        page = web.get("key", key=KEY)
        assert page.status == 200
        assert "Postgres cannot be asked: this is what Redis holds." in page.text
        assert "step : 4" in page.text
        assert "They cannot be listed. Postgres is unavailable" in page.text
        page = web.get("key", key=KEY, version=2)
        assert page.status == 503
        assert "This version cannot be shown. Postgres is unavailable" in page.text
        for page in (web.get("run", group=KEY), web.get("diff", key=KEY, a=1, b=2), web.get("keys", prefix="runs/")):
            assert page.status == 503
            assert "Postgres is unavailable" in page.text
        assert web.get("aside").text.count("Postgres is unavailable") == 3
        assert "Postgres does not answer" in web.get("shards").text


async def test_passwords_are_in_no_page(settings: Settings) -> None:
    away = {
        "redis_url": "redis://me:hidden-word@127.0.0.1:1", "postgres_url": "postgresql://me:hidden-word@127.0.0.1:1/x",
        "timeout_s": 0.3,
    }  # fmt: skip
    with inspected(settings.model_copy(update=away)) as web:
        for path in ("", "keys?prefix=runs/", f"key?key={KEY}", f"run?group={KEY}", "shards", "aside"):
            page = web.client.get(f"/{TOKEN}/{path}").text
            assert "hidden-word" not in page
            assert "me:***@127.0.0.1:1" in page


async def test_where_too_much_is_waiting_history_says_that_it_is_incomplete(
    web: Web, cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _written(cache, worker)
    for step in range(5, 12):
        await cache.set(KEY, {"step": step})
    monkeypatch.setattr(tail, "ENTRIES_MAX", 3)
    page = web.get("key", key=KEY)
    assert page.status == 200
    assert "There may be newer changes than this: more than" in page.text
    assert "step : 4" in page.text
    assert "Agents see version 11" in page.text
    page = web.get("run", group=KEY)
    assert page.status == 503
    assert "waiting to be flushed" in page.text


async def test_damaged_rows_are_told_and_the_other_versions_are_shown(
    web: Web, cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await _written(cache, worker)
    psql.execute(
        "UPDATE change SET packed = set_byte(packed, 12, get_byte(packed, 12) # 255), value = NULL"
        " WHERE key = %s AND version = 2",
        (KEY,),
    )
    page = web.get("key", key=KEY, version=2)
    assert page.status == 200
    assert (
        "The value cannot be shown. Version 2 of 'runs/42' cannot be read from what Postgres keeps of it" in page.text
    )
    assert page.facts()["kept"] == "not known"
    assert [query["b"] for query in page.links_to("diff")] == ["4", "3", "2"]
    assert "step : 1" in web.get("key", key=KEY, version=1).text
    damaged = web.get("diff", key=KEY, a=1, b=2)
    assert damaged.status == 500
    assert "HistoryDamaged" in damaged.text
    assert web.get("raw", key=KEY, version=2).status == 500
    assert "The value cannot be shown" in web.get("run", group=KEY, n=2).text
    assert "next : search" in web.get("run", group=KEY).text


async def test_a_value_that_is_no_longer_kept_is_told_with_the_nearest_one(
    web: Web, cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    for step in range(1, 5):
        await cache.set(KEY, step)
    await flush(worker)
    psql.execute("UPDATE change SET value = NULL, packed = NULL WHERE version = 2")
    page = web.get("key", key=KEY, version=2)
    assert page.status == 200
    assert "its value is no longer kept" in page.facts()["kept"]
    assert "There is no version 2 of 'runs/42' in its history: its value is no longer kept" in page.text
    assert [(query["a"], query["b"]) for query in page.links_to("diff")] == [("3", "4")]
    assert page.text.count("value not kept") == 1
    refused = web.get("diff", key=KEY, a=1, b=2)
    assert refused.status == 404
    assert refused.links_to("key") == [{"key": KEY, "version": "1"}]


async def test_bytes_that_are_not_what_their_encoding_says_are_shown_as_they_are(
    web: Web, cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await cache.set(KEY, {"a": 1})
    await cache.set(KEY, 2)
    await flush(worker)
    broken = b'{"a": <script>\xff\xfe'
    psql.execute("UPDATE change SET value = %s, size = 16, digest = NULL, hash = NULL WHERE version = 1", (broken,))
    page = web.get("key", key=KEY, version=1)
    assert page.status == 200
    assert "The value cannot be shown. The value of 'runs/42' cannot be decoded" in page.text
    assert '00000000 7b 22 61 22 3a 20 3c 73 63 72 69 70 74 3e ff fe {"a": <script>..' in page.text
    assert web.client.get(f"/{TOKEN}/raw?key={KEY}&version=1").content == broken
    psql.execute("UPDATE change SET value = %s, encoding = 'strange' WHERE version = 1", (b"{}",))
    page = web.get("key", key=KEY, version=1)
    assert "the encoding 'strange' is not known" in page.text
    assert web.get("diff", key=KEY, a=1, b=2).status == 400


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("key", 400, "InvalidKey"),
        ("key?key=runs", 400, "one segment"),
        ("key?key=a%00b/c", 400, "NUL"),
        ("key?key=%ff%fe/x", 400, "InvalidKey"),
        ("key?key=runs/1&version=two", 400, "version='two' is not a number"),
        ("key?key=runs/1&version=-1", 400, "is not a number"),
        ("key?key=runs/1&version=1&n=1", 400, "one of version= and n="),
        ("key?key=runs/1&version=99999999999999999999999", 400, "is not a number"),
        ("key?key=runs/1&n=9223372036854775807", 404, "There is nothing at"),
        ("keys?prefix=a b/", 400, "InvalidKey"),
        ("keys?prefix=runs/&skip=99999999", 200, "No key begins so"),
        ("keys?prefix=runs/&order=key&after=%00", 400, "is not the name"),
        ("live?prefix=runs", 400, "names a whole namespace"),
        ("confirm", 403, "read-only"),
        ("no/such/page", 404, "There is no such page"),
        ("raw?key=runs/1", 404, "There is no"),
    ],
)
def test_what_cannot_be_asked_for_is_said(web: Web, path: str, status: int, words: str) -> None:
    answer = web.client.get(f"/{TOKEN}/{path}")
    assert answer.status_code == status
    assert words in answer.text.replace("&#39;", "'")
    assert "Traceback" not in answer.text


def test_the_page_of_a_deep_address_finds_what_it_loads(web: Web) -> None:
    page = web.get("no/such/page")
    loaded = [given.get("href") for tag, given in page.tags if tag == "link"]
    assert loaded[0] == "../../assets/inspector.css"
    assert web.follow(page, str(loaded[0])).status == 200


def test_what_nobody_expected_is_said_without_a_traceback(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with inspected(settings) as web:

        async def failing(*_: object) -> None:
            raise ZeroDivisionError("a secret of the inside")

        monkeypatch.setattr(web.source, "sights", failing)
        web.client._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
        page = web.get("keys", prefix="runs/")
        assert page.status == 500
        assert "The inspector failed with ZeroDivisionError" in page.text
        assert "secret of the inside" not in page.source
        assert page.headers["content-security-policy"].startswith("default-src 'self'")

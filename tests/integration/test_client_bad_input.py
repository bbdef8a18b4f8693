"""Bad input: one clear error that names key, reason and remedy; nothing half done; other keys go on."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    CodecError,
    ForeignData,
    InvalidKey,
    LimitExceeded,
    Settings,
    StateCacheError,
)
from statecache.keys import KeySpace
from statecache.model import VALUE_BYTES_MAX
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, flush, rows
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.fault_proxy import FaultProxy
from tests.support.workers import at_work

KEY = "runs/42"
FIXED = ("meta", "changes", "unflushed", "hydrating")

Psql = psycopg.Connection[Any]
Call = Callable[..., Awaitable[Any]]
Snapshot = Callable[[], dict[bytes, bytes]]


@pytest.fixture
def snapshot(redis_raw: Any, settings: Settings) -> Snapshot:
    """Everything that the test's deployment holds in Redis."""

    def dump() -> dict[bytes, bytes]:
        names = sorted(redis_raw.scan_iter(f"{settings.prefix}:*", count=1000))
        return {name: redis_raw.dump(name) for name in names}

    return dump


def _cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def _always(value: Any, _: Any) -> Any:
    return value


BAD_VALUES: tuple[tuple[Callable[[], Any], str], ...] = (
    (lambda: {"a": [math.nan]}, "$.a[0]"),
    (lambda: math.inf, "$"),
    (lambda: [1, -math.inf], "$[1]"),
    (_deep, ""),
    (_cycle, "$"),
    (lambda: {"raw": b"bytes"}, "$.raw"),
    (lambda: {"a": object()}, "$.a"),
    (lambda: {"f": len}, "$.f"),
    (lambda: "\ud800", "$"),
    (lambda: {"at": datetime(2026, 1, 1)}, "$.at"),  # noqa: DTZ001
    (lambda: {1: "a", "1": "b"}, "$"),
)


async def test_a_value_that_cannot_be_stored_is_refused_before_any_effect(
    client: AsyncStateCache, snapshot: Snapshot
) -> None:
    await client.set(KEY, "before")
    assert await client.get(f"{KEY}/new") is None
    before = snapshot()
    for make, path in BAD_VALUES:
        value = make()
        calls: list[Call] = [
            partial(client.set, KEY, value),
            partial(client.create, f"{KEY}/new", value),
            partial(client.update, KEY, partial(_always, value)),
        ]
        for call in calls:
            with pytest.raises(CodecError, match=f"'{KEY}") as caught:
                await call()
            assert caught.value.path.startswith(path)
            assert len(str(caught.value)) < 500
        with pytest.raises(CodecError):  # noqa: PT012
            async with client.transaction(KEY, f"{KEY}/new") as tx:
                tx.set(f"{KEY}/new", "good")
                tx.set(KEY, value)
    assert snapshot() == before
    assert (await client.set(KEY, "after")).version == 2


@every_redis
async def test_what_is_unusual_and_allowed_comes_back_exactly(
    client: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    values: list[Any] = [
        2**53 + 1, -(2**63), 2**64 - 1, 0.1, 1e308, 5e-324, -0.0, "", "\0", "\u2028\U0010ffff", [], {}, None, False,
        {"": {"": [[]]}}, {composed: 1, decomposed: 2}, 10**30, "a" * 100_000, [None] * 1000, {"text": "\x00\x1f\x7f"},
    ]  # fmt: skip
    for number, value in enumerate(values):
        key = f"odd/{number}"
        await client.set(key, value)
        assert repr((await client.get(key)).value) == repr(value)  # type: ignore[union-attr]
        assert redis_raw.hget(keys.state(key), "value") == msgspec.json.encode(value)
    await flush(worker)
    stored = dict(rows(psql, "SELECT key, value FROM state"))
    assert stored == {f"odd/{number}": msgspec.json.encode(value) for number, value in enumerate(values)}
    assert rows(psql, "SELECT * FROM quarantine") == []
    shown = dict(rows(psql, "SELECT key, value_json FROM state_view"))
    assert shown["odd/8"] is None
    assert shown["odd/0"] == 2**53 + 1


@every_redis
async def test_a_value_may_have_eight_mebibytes_and_not_one_byte_more(
    client: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    most = "x" * (VALUE_BYTES_MAX - 2)
    await client.set("big/1", "x")
    state = await client.set("big/1", most)
    with pytest.raises(LimitExceeded, match="'big/1'") as caught:
        await client.set("big/1", most + "x")
    assert (caught.value.actual, caught.value.limit) == (VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX)
    assert "Split the value" in str(caught.value)
    assert (await client.get("big/1")).change_id == state.change_id  # type: ignore[union-attr]
    await flush(worker)
    assert rows(psql, "SELECT octet_length(value) FROM state") == [(VALUE_BYTES_MAX,)]


async def test_too_much_is_not_even_sent(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, snapshot: Snapshot
) -> None:
    client = make_client(through(settings, redis=proxy))
    await client.set(KEY, 1)
    assert await client.get(f"{KEY}/b") is None
    before, sent = snapshot(), len(proxy.requests)
    with pytest.raises(LimitExceeded):
        await client.set(KEY, "x" * 2**26)
    with pytest.raises(LimitExceeded, match="the commit's size"):  # noqa: PT012
        async with client.transaction(KEY, f"{KEY}/b") as tx:
            tx.set(KEY, "x" * (VALUE_BYTES_MAX - 2))
            tx.set(f"{KEY}/b", "x" * (VALUE_BYTES_MAX - 2))
    assert len(proxy.requests) - sent < 10_000
    assert snapshot() == before


@every_redis
async def test_the_script_checks_sizes_itself(agents: Agents, snapshot: Snapshot) -> None:
    before = snapshot()
    assert agents.ask(("big/1", "x" * (VALUE_BYTES_MAX + 1)))[1:3] == [b"LIMIT", 1]
    most = "x" * VALUE_BYTES_MAX
    assert agents.ask(("big/1", most), ("big/1/b", most))[1:3] == [b"LIMIT", 0]
    assert snapshot() == before


BAD_KEYS: tuple[Any, ...] = (
    "", "runs", "/42", "runs/", "runs//42", "runs/4\0002", "runs/\ud800", "runs/" + "x" * 508, "{runs}/42", None, 42,
)  # fmt: skip


async def test_a_key_that_cannot_be_one_is_refused_before_any_effect(
    client: AsyncStateCache, snapshot: Snapshot
) -> None:
    before = snapshot()
    for key in BAD_KEYS:
        calls: list[Call] = [client.get, partial(client.set, value=1), client.delete]
        for call in calls:
            with pytest.raises(InvalidKey) as caught:
                await call(key)
            assert "namespace/name" in str(caught.value)
        with pytest.raises(InvalidKey):
            async with client.transaction("runs/42", key):
                pass
    assert snapshot() == before


@every_redis
async def test_keys_that_look_alike_or_like_redis_keys_never_meet(
    client: AsyncStateCache, worker: Worker, settings: Settings, psql: Psql
) -> None:
    composed, decomposed = (unicodedata.normalize(form, "runs/é") for form in ("NFC", "NFD"))
    names = [
        composed, decomposed, "runs/{42}", "runs/42", "runs/}{", "runs/{00}:state:runs/42",
        "runs/a/b:c", "runs/a/b/c", "runs/a/b{c",
        f"runs/{settings.prefix}:{{00}}:meta", "runs/ ", "runs/.", "runs/*", "runs/\\", "runs/'\"", "runs/%s",
        "runs/" + "x" * 507, "runs/" + "é" * 253,
    ]  # fmt: skip
    for name in names:
        await client.set(name, name)
    for name in names:
        state = await client.get(name)
        assert state is not None
        assert (state.value, state.version) == (name, 1)
    await flush(worker)
    assert {row[0] for row in rows(psql, "SELECT key FROM state")} == set(names)
    assert [state.key async for state in client.list("runs/")] == sorted(names, key=str.encode)


# What others do to our keys.


def _other(keys: KeySpace) -> str:
    """Return a key of another shard than KEY's."""
    return next(key for number in range(99) if keys.shard(key := f"runs/{number}") != keys.shard(KEY))


@every_redis
async def test_a_foreign_type_at_one_of_our_keys_is_named_and_other_shards_go_on(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace, snapshot: Snapshot
) -> None:
    for name in FIXED:
        state = await client.set(KEY, "before")
        await client.set(_other(keys), 1)
        redis_key = getattr(keys, name)(keys.shard(KEY))
        redis_raw.rename(redis_key, f"{redis_key}-aside")
        redis_raw.set(redis_key, "somebody's")
        before = snapshot()
        writes: list[Call] = [
            partial(client.set, KEY, 2),
            partial(client.create, f"{KEY}/new-{name}", 2),
            partial(client.delete, KEY),
        ]
        for call in writes:
            with pytest.raises(ForeignData) as caught:
                await call()
            assert caught.value.redis_key == redis_key
            assert "remove or rename it" in str(caught.value)
        with pytest.raises(ForeignData):
            async with client.transaction(KEY) as tx:
                tx.set(KEY, 2)
        if name == "unflushed":
            with pytest.raises(ForeignData, match="unflushed"):
                [one async for one in client.list("runs/")]
        if name == "meta":  # whether Redis may be believed stands there
            with pytest.raises(ForeignData):
                await client.get(KEY)
        else:
            assert await client.get(KEY) == state
        assert {key: value for key, value in snapshot().items() if not key.endswith(f"/new-{name}".encode())} == before
        assert (await client.set(_other(keys), 2)).key == _other(keys)
        redis_raw.rename(f"{redis_key}-aside", redis_key)
        assert (await client.set(KEY, "after")).version == state.version + 1


@every_redis
async def test_a_foreign_type_at_a_states_key_is_named_and_other_states_go_on(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace, snapshot: Snapshot
) -> None:
    await client.set(KEY, 1)
    spoils: list[Callable[[str], Any]] = [
        lambda name: redis_raw.set(name, "somebody's"),
        lambda name: redis_raw.hset(name, "field", "somebody's"),
        lambda name: redis_raw.xadd(name, {"a": "b"}),
    ]
    for spoil in spoils:
        redis_raw.unlink(keys.state(KEY))
        spoil(keys.state(KEY))
        before = snapshot()
        calls: list[Call] = [
            partial(client.get, KEY), partial(client.set, KEY, 2), partial(client.delete, KEY),
            partial(client.create, KEY, 2, assume_new=True), partial(client.update, KEY, lambda value: value),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(ForeignData) as caught:
                await call()
            assert caught.value.redis_key == keys.state(KEY)
            assert ("missing" if redis_raw.type(keys.state(KEY)) == b"hash" else "WRONGTYPE") in caught.value.reason
            assert "remove or rename it" in str(caught.value)
        with pytest.raises(ForeignData):
            async with client.transaction(KEY, f"{KEY}/b"):
                pass
        if redis_raw.type(keys.state(KEY)) != b"hash":
            with pytest.raises(ForeignData):
                [one async for one in client.list("runs/")]
        assert snapshot() == before
        await client.set(f"{KEY}/sibling", "goes on")


@every_redis
async def test_a_state_that_lacks_a_field_is_named(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace, snapshot: Snapshot
) -> None:
    for field in ("key", "op", "value", "version", "epoch", "change_id", "encoding", "recent"):
        key = f"runs/without-{field}"
        await client.set(key, 1)
        redis_raw.hdel(keys.state(key), field)
        before = snapshot()
        if field != "recent":
            with pytest.raises(ForeignData, match=f"{field}|fields are missing") as caught:
                await client.get(key)
            assert caught.value.redis_key == keys.state(key)
            assert "remove or rename it" in str(caught.value)
        if field not in ("value", "epoch", "encoding"):
            with pytest.raises(ForeignData, match="fields are missing"):
                await client.set(key, 2)
        assert snapshot() == before
    assert (await client.set("runs/whole", 1)).version == 1


async def test_a_state_whose_change_id_is_none_of_ours_is_named(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace, snapshot: Snapshot
) -> None:
    await client.set(KEY, 1)
    await client.set(f"{KEY}/b", 1)
    redis_raw.hset(keys.state(KEY), "change_id", "of somebody else")
    before = snapshot()
    with pytest.raises(ForeignData, match="hold no change_id"):
        await client.set(KEY, 2)
    with pytest.raises(ForeignData, match="hold no change_id"):  # noqa: PT012
        async with client.transaction(f"{KEY}/b", KEY) as tx:
            tx.set(f"{KEY}/b", 2)
            tx.set(KEY, 2)
    assert snapshot() == before


async def test_a_state_in_an_encoding_of_the_future_is_named(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    await client.set(KEY, 1)
    redis_raw.hset(keys.state(KEY), "encoding", "cbor")
    with pytest.raises(CodecError, match="'cbor'"):
        await client.get(KEY)
    redis_raw.hset(keys.state(KEY), mapping={"encoding": "json", "value": "{"})
    with pytest.raises(CodecError, match=f"'{KEY}'"):
        await client.get(KEY)
    assert (await client.set(KEY, 2)).version == 2


@every_redis
async def test_somebodys_entry_in_our_stream_holds_up_only_until_a_worker_removes_it(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace, settings: Settings, snapshot: Snapshot, psql: Psql
) -> None:
    """Its id is higher than any of ours for a long time, so that Redis takes no entry of ours behind it."""
    await client.set(KEY, 1)
    await client.set(_other(keys), 1)
    redis_raw.xadd(keys.changes(keys.shard(KEY)), {"somebody": "else"})
    before = snapshot()
    with pytest.raises(ForeignData, match="equal or smaller") as caught:
        await client.set(KEY, 2, timeout=1.0)
    assert caught.value.redis_key == keys.changes(keys.shard(KEY))
    assert snapshot() == before
    assert (await client.set(_other(keys), 2)).version == 2
    async with at_work(settings):
        assert (await client.set(KEY, 2, durability="postgres")).version == 2
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(1,)]


async def test_every_error_is_one_of_ours(client: AsyncStateCache, redis_raw: Any, keys: KeySpace) -> None:
    """Whatever stands at the keys of a shard, no error of a library comes through."""
    await client.set(KEY, 1)
    shard = keys.shard(KEY)
    for name in (*(getattr(keys, fixed)(shard) for fixed in FIXED), keys.state(KEY)):
        for spoil in (redis_raw.set, lambda name, _: redis_raw.sadd(name, "x"), lambda name, _: redis_raw.unlink(name)):
            redis_raw.unlink(name)
            spoil(name, "x")
            for call in (partial(client.get, KEY), partial(client.set, KEY, 2), partial(client.get, f"{KEY}/b")):
                try:
                    await call(timeout=0.1)
                except StateCacheError:
                    continue

"""What a writer is shown of its value is what readers get; raw bytes stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import psycopg
import pytest

from statecache import AsyncStateCache, Set, Settings
from statecache.errors import CodecError, LimitExceeded, SchemaNewer, UsageError
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.command_line import CommandLine
from tests.support.workers import at_work

Psql = psycopg.Connection[Any]
KEY = "runs/1"
BYTES = bytes(range(256))
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


class Job(msgspec.Struct):
    """A value."""

    goal: str


class Renamed(msgspec.Struct):
    """The same, with another name for its field."""

    aim: str


class Named(TypedDict, total=False):
    """Plain data of which the keys are known."""

    goal: str


@dataclass
class Dated:
    """A value that JSON has no form of its own for."""

    at: datetime


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (NOON, "2026-11-01T12:00:00Z"),
        (Decimal("1.50"), "1.50"),
        ((1, 2), [1, 2]),
        ({3}, [3]),
        ({1: "one"}, {"1": "one"}),
        (Job("buy"), {"goal": "buy"}),
        (Dated(NOON), {"at": "2026-11-01T12:00:00Z"}),
        ({"at": NOON, "pair": (1, 2), "plain": [1]}, {"at": "2026-11-01T12:00:00Z", "pair": [1, 2], "plain": [1]}),
    ],
)
async def test_a_writer_is_shown_what_readers_get(client: AsyncStateCache, value: Any, seen: Any) -> None:
    written = await client.set(KEY, value)
    assert (written.value, type(written.value)) == (seen, type(seen))
    assert await client.get(KEY) == written
    assert (await client.update(KEY, lambda _: value)).value == seen
    (state,) = await client.commit([Set(KEY, value)])
    assert state is not None
    assert state.value == seen
    async with client.transaction(KEY) as tx:
        tx.set(KEY, value)
    assert tx.states[KEY].value == seen


async def test_a_typed_writer_is_shown_a_value_of_its_type(client: AsyncStateCache) -> None:
    """Without a type he is shown what readers without one get, and the value is known by its class all the same."""
    job, jobs = Job("buy"), client.namespace("runs", type=Job)
    untyped, typed = await client.set(KEY, job), await jobs.set("2", job)
    assert (untyped.value, typed.value, untyped.schema) == ({"goal": "buy"}, job, typed.schema)
    read = await jobs.get("1")
    assert read is not None
    assert read.value == job


async def test_a_writer_of_floats_is_shown_floats(client: AsyncStateCache) -> None:
    prices = client.namespace("prices", type=float)
    (committed,) = await prices.commit([Set("1", 4)])
    async with prices.transaction("1") as tx:
        tx.set("1", 5)
    many = await prices.set_many({"1": 6})
    updated = await prices.update("1", lambda _: 2)
    written = await prices.set("1", 1)
    assert [repr(one.value) for one in (committed, tx.states["1"], many["1"], updated, written) if one] == [
        "4.0", "5.0", "6.0", "2.0", "1.0"
    ]  # fmt: skip
    assert repr(await prices.get("1")) == repr(written)


async def test_bytes_are_stored_as_they_are(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    files = client.namespace("files", encoding="raw")
    written = await files.set("1", BYTES)
    assert (written.value, written.schema) == (BYTES, "")
    assert redis_raw.hget(keys.state("files/1"), "value") == BYTES
    await flush(worker)
    row = psql.execute("SELECT value, encoding FROM state").fetchone()
    assert row == (BYTES, "raw")
    redis_raw.delete(keys.state("files/1"))
    for reader in (files, client, client.namespace("files", type=bytes), client.namespace("files", encoding="msgpack")):
        name = "files/1" if reader is client else "1"
        state = await reader.get(name, read="primary")
        assert state is not None
        assert state.value == BYTES
    assert [state.value async for state in files.list()] == [BYTES]
    assert (await files.update("1", lambda before: before[:2] + bytearray(b"!"))).value == b"\0\1!"


async def test_what_is_not_bytes_is_refused_by_name(client: AsyncStateCache) -> None:
    files = client.namespace("files", encoding="raw", value_bytes_max=10)
    with pytest.raises(CodecError, match="it is a dict, and raw values are bytes"):
        await files.set("1", {"a": 1})
    with pytest.raises(LimitExceeded):
        await files.set("1", b"x" * 11)
    with pytest.raises(UsageError, match="raw values are bytes, not of type Job"):
        client.namespace("files", encoding="raw", type=Job)
    await client.set("files/2", {"a": 1})
    with pytest.raises(CodecError, match="stored as json; read it through a view with that encoding"):
        await files.get("2")
    await files.set("3", b"{}")
    with pytest.raises(CodecError, match="raw bytes; read it with encoding='raw', or with type=bytes"):
        await client.get("files/3", type=Job)


async def test_a_raw_namespace_has_steps(client: AsyncStateCache, settings: Settings) -> None:
    files = client.namespace("files", encoding="raw")
    async with at_work(settings):
        await files.set("1", b"before")
        assert await files.step("1", "count", lambda step: 7, apply=lambda value, result: value + b" %d" % result) == 7
        assert await files.step("1", "count", lambda step: 8) == 7
    state = await files.get("1")
    assert state is not None
    assert state.value == b"before 7"


async def test_raw_bytes_are_shown_by_hand(
    client: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await client.namespace("files", encoding="raw").set("1", b"\0hello")
    shown = await CommandLine(settings, monkeypatch, capsys).beside("get", "files/1", "--json")
    assert (shown.json["encoding"], shown.json["value"]) == ("raw", {"base64": "AGhlbGxv"})


async def test_a_value_of_before_a_rename_says_how_to_go_on(client: AsyncStateCache) -> None:
    await client.set(KEY, Job("buy"))
    with pytest.raises(CodecError, match="give a new field a default, a renamed one its old name"):
        await client.get(KEY, type=Renamed)


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_an_update_with_a_type_gives_writes_and_returns_values_of_it(
    client: AsyncStateCache, encoding: Any
) -> None:
    plain = client.namespace("runs", encoding=encoding)
    await plain.set("1", Dated(NOON))
    later = NOON.replace(hour=13)
    for view in (plain, client.namespace("runs", type=Job, encoding=encoding)):
        state = await view.update("1", lambda dated: Dated(dated.at.replace(hour=13)), type=Dated)
        assert (state.value, state.schema[:8]) == (Dated(later), "Dated@1#")
        assert await view.get("1", type=Dated) == state
    made = await plain.update("2", lambda jobs: {**jobs, "b": Job("sell")}, type=dict[str, Job], default=dict)
    assert made.value == {"b": Job("sell")}
    assert made.schema == (await plain.namespace("jobs", type=dict[str, Job], encoding=encoding).set("2", {})).schema


async def test_an_update_writes_nothing_that_is_not_of_its_type(client: AsyncStateCache) -> None:
    before = await client.set(KEY, Job("buy"))
    for other, kind in (("text", "str"), ({"goal": "sell"}, "dict"), (Renamed("sell"), "Renamed")):
        with pytest.raises(CodecError, match=f"it is a {kind}, not a Job"):
            await client.update(KEY, lambda job, other=other: other, type=Job)  # type: ignore[misc]
    assert await client.get(KEY) == before


async def test_what_an_update_writes_is_stamped_with_its_own_class(client: AsyncStateCache) -> None:
    of_job = (await client.set(KEY, Job("buy"))).schema
    assert of_job.startswith("Job@1#")
    types: list[Any] = [None, Job, Job | None, object]
    for type_ in types:
        assert (await client.update(KEY, lambda job: Job("sell"), type=type_)).schema == of_job
    assert (await client.update(KEY, lambda value: {"goal": "x"}, type=dict)).schema == ""


async def test_keys_that_a_typed_dict_does_not_name_are_dropped_by_nobody(client: AsyncStateCache) -> None:
    named = client.namespace("runs", type=Named)
    before = await client.set(KEY, {"goal": "buy", "more": 1})
    with pytest.raises(CodecError, match=r"\$.more: readers would not get it"):
        await named.set("1", {"goal": "buy", "more": 1})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(SchemaNewer, match=r"\$.more"):
        await named.update("1", lambda value: value)
    with pytest.raises(SchemaNewer, match=r"\$.more"):
        await client.update(KEY, lambda value: value, type=Named)
    assert await client.get(KEY) == before

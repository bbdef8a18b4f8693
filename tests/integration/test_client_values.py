"""What a writer is shown of its value is what readers get; raw bytes stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import AsyncStateCache, Set, Settings
from statecache.errors import CodecError, LimitExceeded, UsageError
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

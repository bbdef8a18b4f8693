"""Rollback, undo and redo of one key: commits with older values, decided on what is there, flushed or not."""

from __future__ import annotations

import asyncio
import contextlib
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import (
    AlreadyCurrent,
    AsyncStateCache,
    ChangeIdReused,
    CheckpointNotFound,
    CodecError,
    InvalidKey,
    LockHeld,
    Position,
    Settings,
    StaleToken,
    State,
    UsageError,
    VersionConflict,
    VersionNotFound,
)
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.fixtures.servers import MakeClient, MakeSettings
from tests.support.local_reads import LIMIT_S
from tests.support.polling import pause

KEY = "runs/42"
Psql = psycopg.Connection[Any]


class Run(msgspec.Struct, frozen=True):
    """What an agent has come to."""

    step: int


async def _written(client: AsyncStateCache, *values: Any, key: str = KEY) -> None:
    for value in values:
        await client.set(key, value)


def _reasons(psql: Psql, key: str = KEY) -> list[tuple[Any, ...]]:
    return rows(psql, "SELECT version, op, reason, actor FROM change WHERE key = %s ORDER BY version", key)


@pytest.mark.parametrize("flushed", [True, False])
async def test_an_older_value_comes_back_by_a_new_commit(
    client: AsyncStateCache, worker: Worker, psql: Psql, flushed: bool
) -> None:
    await _written(client, "a" * 500, "b" * 500)
    mark = await client.checkpoint(KEY, "mark", durability="memory")
    third = await client.set(KEY, "c" * 500)
    await _written(client, "d")
    if flushed:
        await flush(worker)
    state = await client.rollback(KEY, 1, reason="it went wrong", actor="ada")
    assert (state.value, state.version, state.key) == ("a" * 500, 5, KEY)
    assert (await client.rollback(KEY, "mark")).value == "b" * 500
    assert (await client.rollback(KEY, 1)).value == "a" * 500
    assert (await client.rollback(KEY, mark)).value == "b" * 500
    assert (await client.rollback(KEY, at=third.updated_at)).value == "c" * 500
    assert third.position is not None
    await client.rollback(KEY, 4)
    state = await client.rollback(KEY, third.position)
    assert (state.value, state.version) == ("c" * 500, 11)
    got = await client.get(KEY)
    assert got == state
    await flush(worker)
    assert [one[1:] for one in _reasons(psql)[4:]] == [
        ("set", "rollback to 1: it went wrong", "ada"),
        *[("set", f"rollback to {version}", "") for version in (2, 1, 2, 3, 4, 3)],
    ]
    for version, value in ((5, "a" * 500), (6, "b" * 500), (11, "c" * 500)):
        then = await client.get_at(KEY, version=version)
        assert then is not None
        assert then.value == value


async def test_a_delete_comes_back_as_one_and_is_itself_gone_back_behind(
    client: AsyncStateCache, worker: Worker
) -> None:
    await _written(client, 1)
    await client.delete(KEY)
    await _written(client, 3)
    tombstone = await client.rollback(KEY, 2)
    assert (tombstone.value, tombstone.version) == (None, 4)
    assert await client.get(KEY) is None
    with pytest.raises(AlreadyCurrent):
        await client.rollback(KEY, 2)
    assert (await client.rollback(KEY, 3)).value == 3
    assert (await client.create("runs/other", 1)).version == 1
    await flush(worker)
    assert [change.op async for change in client.history(KEY)] == ["set", "delete", "set", "delete", "set"]


async def test_what_would_change_nothing_is_refused(client: AsyncStateCache) -> None:
    await _written(client, 1, 2)
    mark = await client.checkpoint(KEY, "mark", durability="memory")
    for to in (2, mark, "mark", mark.position):
        with pytest.raises(AlreadyCurrent) as caught:
            await client.rollback(KEY, to)
        assert caught.value.key == KEY
    await client.rollback(KEY, 1)
    with pytest.raises(AlreadyCurrent):
        await client.rollback(KEY, 1)
    with pytest.raises(AlreadyCurrent):
        await client.rollback(KEY, at=datetime.now(UTC))
    for yet_to_come in ({"at": datetime.now(UTC) + timedelta(days=1)}, {"to": Position(1, 1000)}):
        with pytest.raises(VersionNotFound) as missed:
            await client.rollback(KEY, **yet_to_come)
        assert missed.value.nearest == 3
    state = await client.get(KEY)
    assert state is not None
    assert state.version == 3


@pytest.mark.parametrize("flushed", [True, False])
async def test_what_never_was_is_told_with_what_is_nearest(
    client: AsyncStateCache, worker: Worker, flushed: bool
) -> None:
    await _written(client, 1, 2, 3)
    if flushed:
        await flush(worker)
    for to, nearest in ((0, 1), (4, 3), (-1, 1)):
        with pytest.raises(VersionNotFound) as caught:
            await client.rollback(KEY, to)
        assert caught.value.nearest == nearest
    with pytest.raises(VersionNotFound):
        await client.rollback(KEY, at=datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(VersionNotFound):
        await client.rollback("runs/43", 1)
    with pytest.raises(CheckpointNotFound):
        await client.rollback(KEY, "no such label")
    state = await client.get(KEY)
    assert state is not None
    assert state.version == 3


async def test_a_version_whose_value_is_no_longer_kept_is_told_with_what_is_nearest(
    client: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await _written(client, *("x" * 20 + str(number) for number in range(6)))
    await flush(worker)
    psql.execute("UPDATE change SET value = NULL, packed = NULL WHERE key = %s AND version IN (2, 3)", [KEY])
    with pytest.raises(VersionNotFound) as caught:
        await client.rollback(KEY, 2)
    assert caught.value.nearest in (1, 4)
    assert (await client.rollback(KEY, 4)).version == 7


async def test_bad_input_is_refused_before_any_effect(client: AsyncStateCache) -> None:
    await _written(client, 1, 2)
    other = await client.set("runs/43", 1)
    await client.set("runs/43", 2)
    theirs = await client.checkpoint("runs/43", "theirs", durability="memory")
    naive = datetime.now()  # noqa: DTZ005 - that is what is bad about it
    calls: list[Any] = [
        client.rollback(KEY),
        client.rollback(KEY, 1, at=datetime.now(UTC)),
        client.rollback(KEY, at=naive),
        client.rollback(KEY, True),
        client.rollback(KEY, 1.5),  # type: ignore[call-overload]
        client.rollback(KEY, ""),
        client.rollback(KEY, "a/b"),
        client.rollback(KEY, theirs),
        client.rollback(KEY, 1, expected=other),
        client.rollback(KEY, 1, steps=True),  # type: ignore[call-overload]
        client.rollback(KEY, 1, group=True),  # type: ignore[call-overload]
        client.rollback(KEY, "label", group=True, change_id="c" * 24),  # type: ignore[call-overload]
        client.rollback(KEY, "label", group=True, expected=None),  # type: ignore[call-overload]
        client.rollback(KEY, 1, reason="rollback to 1"),
        client.undo(KEY, reason="undo to 1: it was me"),
        client.redo(KEY, durability="forever"),  # type: ignore[call-overload]
        client.undo(KEY, change_id="x"),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            await call
    for call in (client.rollback("runs", 1), client.rollback(f"{KEY}/plan", "label", group=True), client.undo("runs")):
        with pytest.raises(InvalidKey):
            await call
    state = await client.get(KEY)
    assert state is not None
    assert state.version == 2


async def test_it_is_done_on_the_state_that_is_expected_and_on_no_other(client: AsyncStateCache) -> None:
    await _written(client, 1, 2)
    third = await client.set(KEY, 3)
    await client.set(KEY, 4)
    for expected in (third, third.change_id, None):
        with pytest.raises(VersionConflict):
            await client.rollback(KEY, 1, expected=expected)
        with pytest.raises(VersionConflict):
            await client.undo(KEY, expected=expected)
    state = await client.get(KEY)
    assert (await client.rollback(KEY, 1, expected=state)).value == 1
    await client.delete(KEY)
    assert (await client.rollback(KEY, 2, expected=None)).value == 2


async def test_a_value_comes_back_as_it_was_stored_whatever_the_type_is_now(
    make_client: MakeClient, settings: Settings, worker: Worker, redis_raw: Any
) -> None:
    client = make_client(settings)
    await client.set(KEY, {"step": 1})
    old = client.namespace("runs", type=Run)
    await old.set("42", Run(2))
    packed = client.namespace("runs", encoding="msgpack", type=Run)
    await packed.set("42", Run(3))
    await client.namespace("runs", encoding="raw").set("42", b"\0raw")
    await flush(worker)
    state = await old.rollback("42", 3)
    assert (state.value, state.schema) == (Run(3), (await packed.rollback("42", 2)).schema)
    state = await old.rollback("42", 1)
    assert (state.value, state.schema) == (Run(1), "")
    assert await client.get(KEY) == await client.get(KEY, read="fenced")
    with pytest.raises(CodecError):
        await old.rollback("42", 4)
    raw = await client.rollback(KEY, 4)
    assert raw.value == b"\0raw"
    for version, original in ((5, 3), (6, 2), (7, 1), (8, 4)):
        one, other = [change async for change in client.history(KEY) if change.version in (version, original)]
        assert (one.sha256, one.schema, one.size) == (other.sha256, other.schema, other.size)


async def test_older_schemas_are_upgraded_as_they_are_read(client: AsyncStateCache, worker: Worker) -> None:
    await client.set(KEY, {"steps": 1})
    view = client.namespace("runs", type=Run, upgrade={0: lambda old: {"step": old["steps"]}})
    await view.set("42", Run(2))
    state = await view.rollback("42", 1)
    assert state.value == Run(1)
    plain = await client.get(KEY)
    assert plain is not None
    assert plain.value == {"steps": 1}


async def test_how_long_what_comes_back_lasts(client: AsyncStateCache) -> None:
    first = await client.set(KEY, 1, ttl=3600)
    await client.set(KEY, 2, ttl=0.001)
    await client.set(KEY, 3)
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                state = await client.rollback(KEY, 2)
            except UsageError:
                break
            await client.set(KEY, 3)
            await pause()
    state = await client.rollback(KEY, 1)
    assert state.expires_at == first.expires_at
    assert (await client.rollback(KEY, 2, ttl=math.inf)).expires_at is None
    later = await client.namespace("runs", ttl=7200).rollback("42", 1)
    assert later.expires_at is not None
    assert first.expires_at is not None
    assert later.expires_at > first.expires_at


async def test_a_rollback_gets_through_whoever_writes_meanwhile(
    make_client: MakeClient, settings: Settings, worker: Worker, psql: Psql
) -> None:
    one, other = make_client(settings), make_client(settings)
    await _written(one, "target")
    over = asyncio.Event()

    async def write() -> int:
        number = 0
        while not over.is_set():
            number += 1
            await other.set(KEY, number)
        return number

    writing, states = asyncio.create_task(write()), list[State[Any]]()
    while len(states) < 10:
        with contextlib.suppress(AlreadyCurrent):  # it was the quicker one
            states.append(await one.rollback(KEY, 1, timeout=LIMIT_S))
    over.set()
    written = await writing
    await flush(worker)
    assert [state.value for state in states] == ["target"] * 10
    told = _reasons(psql)
    assert len(told) == 1 + written + 10
    assert [one[0] for one in told if one[2] == "rollback to 1"] == [state.version for state in states]


async def test_a_call_may_be_repeated_by_its_change_id(
    make_client: MakeClient, settings: Settings, worker: Worker
) -> None:
    client, ids = make_client(settings), [letter * 24 for letter in "abcde"]
    await _written(client, 1, 2, 3)
    undone = await client.undo(KEY, change_id=ids[0])
    assert (await make_client(settings).undo(KEY, change_id=ids[0])) == undone
    back = await client.rollback(KEY, 1, change_id=ids[1])
    await _written(client, *range(10))  # more than a state remembers
    for _ in range(2):
        other = make_client(settings)
        assert (await other.undo(KEY, change_id=ids[0])).version == undone.version
        assert (await other.rollback(KEY, 1, change_id=ids[1])) == back
        await flush(worker)
    async with flushing(worker):
        assert (await make_client(settings).rollback(KEY, 1, change_id=ids[1], durability="postgres")) == back
    state = await client.get(KEY)
    assert state is not None
    assert (state.value, state.version) == (9, 15)
    await client.set(KEY, "x", change_id=ids[2])
    for call in (client.undo(KEY, change_id=ids[2]), client.rollback(KEY, 1, change_id=ids[2])):
        with pytest.raises(ChangeIdReused):
            await call


@pytest.mark.parametrize("flushed", [True, False])
async def test_a_change_id_of_another_verb_or_another_point_is_refused(
    make_client: MakeClient, settings: Settings, worker: Worker, flushed: bool
) -> None:
    client, used, redone = make_client(settings), "a" * 24, "b" * 24
    await _written(client, *range(4))
    third = await client.get_at(KEY, version=3)
    assert third is not None
    assert third.position is not None
    mark = await client.checkpoint(KEY, "fourth", durability="memory")
    back = await client.rollback(KEY, 3, change_id=used)
    await client.undo(KEY)
    again = await client.redo(KEY, change_id=redone)
    late = await client.checkpoint(KEY, "late", durability="memory")
    if flushed:
        await flush(worker)
    soon = datetime.now(UTC) + timedelta(hours=1)
    same = ({"to": 3}, {"to": third.position}, {"at": third.updated_at}, {"to": "late"}, {"to": "gone"})
    for aim in same:
        assert await make_client(settings).rollback(KEY, change_id=used, **aim) == back
    other: tuple[dict[str, Any], ...] = (
        {"to": 1}, {"to": 4}, {"to": "fourth"}, {"to": mark}, {"to": late}, {"to": Position(third.position.epoch, 0)},
        {"at": datetime(2020, 1, 1, tzinfo=UTC)}, {"at": soon},
    )  # fmt: skip
    for aim in other:
        with pytest.raises(ChangeIdReused):
            await client.rollback(KEY, change_id=used, **aim)
    for call in (
        client.undo(KEY, change_id=used),
        client.redo(KEY, change_id=used),
        client.undo(KEY, change_id=redone),
    ):
        with pytest.raises(ChangeIdReused) as caught:
            await call
        assert caught.value.version in (back.version, again.version)
    assert await client.redo(KEY, change_id=redone) == again
    state = await client.get(KEY)
    assert state is not None
    assert state.version == again.version


async def test_leases_go_back_and_locks_are_in_the_way_of_others(make_client: MakeClient, settings: Settings) -> None:
    runs = make_client(settings).namespace("runs", locking="enforced")
    other = make_client(settings).namespace("runs", locking="enforced")
    for value in (1, 2, 3):
        await runs.set("42", value)
    async with runs.lock("42") as lease:
        assert (await lease.rollback("42", 1)).value == 1
        assert (await lease.undo("42")).value == 3
        for call in (other.rollback("42", 1), other.undo("42"), other.redo("42")):
            with pytest.raises(LockHeld):
                await call
        with pytest.raises(InvalidKey):
            await lease.rollback("43", 1)
    assert (await other.undo("42")).value == 2


async def test_a_lost_lease_goes_back_no_more(
    make_client: MakeClient, settings: Settings, redis_raw: Any, keys: Any
) -> None:
    client = make_client(settings)
    await _written(client, 1, 2)
    async with client.lock(KEY) as lease:
        redis_raw.hdel(keys.leases(keys.shard(KEY)), KEY)
        with pytest.raises(StaleToken):
            await lease.rollback(KEY, 1)


async def test_near_caches_are_told(make_client: MakeClient, make_settings: MakeSettings) -> None:
    settings = make_settings(read="local")
    one, other = make_client(settings), make_client(settings)
    await _written(one, 1, 2)
    for client in (one, other):
        assert (await client.get(KEY, default=None)).value == 2
    state = await one.rollback(KEY, 1)
    assert await one.get(KEY) == state
    async with asyncio.timeout(LIMIT_S):
        while (await other.get(KEY, default=None)).value != 1:
            await pause()

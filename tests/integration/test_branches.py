"""Branches: keys and groups that begin with what others held; Postgres keeps a reference to that, and no bytes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import (
    AlreadyExists,
    AsyncStateCache,
    Branch,
    ChangeIdReused,
    CodecError,
    HistoryIncomplete,
    InvalidKey,
    LimitExceeded,
    NotFound,
    Settings,
    UsageError,
    VersionNotFound,
)
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.fixtures.servers import MakeClient
from tests.support.polling import pause

KEY, NEW = "runs/42", "runs/43"
LONG = [f"this is what was said in step {number}, and it is some words long" for number in range(40)]
Psql = psycopg.Connection[Any]


class Run(msgspec.Struct, frozen=True):
    """What an agent has come to."""

    step: int


@pytest.fixture
async def at_work(worker: Worker) -> AsyncIterator[None]:
    """A worker that flushes beside the test."""
    async with flushing(worker):
        yield


def _stored(psql: Psql, key: str) -> list[tuple[Any, ...]]:
    asked = "SELECT version, kept, stored_bytes < 120 FROM change_view WHERE key = %s ORDER BY version"
    return rows(psql, asked, key)


async def test_a_branch_holds_what_its_origin_held_and_a_reference_is_kept(
    client: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    for number in (1, 2, 3):
        await client.set(KEY, {"n": number, "said": LONG})
    async with flushing(worker):
        state = await client.branch(KEY, NEW, at=2, reason="another way", actor="ada")
    assert (state.key, state.version, state.value) == (NEW, 1, {"n": 2, "said": LONG})
    assert await client.get(NEW) == state
    await client.set(NEW, {"n": 20, "said": LONG})
    await flush(worker)
    assert rows(psql, "SELECT key, version, origin, origin_version FROM branch") == [(NEW, 1, KEY, 2)]
    assert _stored(psql, NEW) == [(1, "delta", True), (2, "delta", True)]
    for version, number in ((1, 2), (2, 20)):
        then = await client.get_at(NEW, version=version)
        assert then is not None
        assert then.value == {"n": number, "said": LONG}
    (one,) = await client.branches(KEY)
    assert one == Branch(
        kind="branch", key=NEW, version=1, change_id=state.change_id, origin=KEY, origin_version=2,
        origin_change_id=one.origin_change_id, at=one.at, writer=state.writer, actor="ada", reason="another way",
    )  # fmt: skip
    second = await client.get_at(KEY, version=2)
    assert second is not None
    assert one.origin_change_id == second.change_id
    assert await client.ancestry(NEW) == [one]
    assert await client.ancestry(KEY) == await client.branches(NEW) == []
    async with AsyncStateCache(settings=client.settings) as reader:
        changes = [change.value async for change in reader.changes("runs/", follow=False)]
    assert len(changes) == 5
    assert {"n": 2, "said": LONG} in changes


@pytest.mark.usefixtures("at_work")
async def test_there_are_any_number_and_branches_of_branches(client: AsyncStateCache, psql: Psql) -> None:
    await client.set(KEY, LONG)
    names = [f"runs/b{number}" for number in range(25)]
    for before, name in zip([KEY, *names], names, strict=False):  # more in a row than are read on from one another
        await client.branch(before, name)
        await client.branch(KEY, f"{name}-too")
    for name in names:
        state = await client.get_at(name, version=1)
        assert state is not None
        assert state.value == LONG
    assert len(await client.branches(KEY)) == 26
    assert [one.origin for one in await client.ancestry(names[-1])] == [*names[-2::-1], KEY]
    whole = rows(psql, "SELECT key FROM change_view WHERE kept = 'whole'")
    assert sorted(key for (key,) in whole) == ["runs/42", "runs/b16"]


@pytest.mark.usefixtures("at_work")
async def test_where_it_may_begin(client: AsyncStateCache) -> None:
    await client.set(KEY, 1)
    second = await client.set(KEY, 2)
    mark = await client.checkpoint(KEY, "mark", durability="memory")
    await client.set(KEY, 3)
    await client.delete(KEY)
    for number, at in enumerate((2, mark, "mark", second.position)):
        assert (await client.branch(KEY, f"runs/b{number}", at=at)).value == 2
    with pytest.raises(NotFound):
        await client.branch(KEY, NEW)
    with pytest.raises(VersionNotFound) as caught:
        await client.branch(KEY, NEW, at=4)
    assert caught.value.nearest == 3
    for at in (0, 5):
        with pytest.raises(VersionNotFound):
            await client.branch(KEY, NEW, at=at)
    with pytest.raises(NotFound):
        await client.branch("runs/none", NEW)
    assert await client.exists(NEW) is False


@pytest.mark.usefixtures("at_work")
async def test_nothing_that_exists_is_overwritten(client: AsyncStateCache) -> None:
    await client.set(KEY, 1)
    await client.set(NEW, "mine")
    with pytest.raises(AlreadyExists):
        await client.branch(KEY, NEW)
    await client.delete(NEW)
    state = await client.branch(KEY, NEW)
    assert (state.version, state.value) == (3, 1)
    found = await asyncio.gather(*(client.branch(KEY, "runs/x") for _ in range(4)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in found) == [*["AlreadyExists"] * 3, "State"]


async def test_bad_input_is_refused_before_any_effect(client: AsyncStateCache) -> None:
    await client.set(KEY, 1)
    calls: list[Any] = [
        client.branch(KEY, KEY),
        client.branch(KEY, KEY, group=True),
        client.branch(KEY, NEW, at=True),
        client.branch(KEY, NEW, at="a/b"),
        client.branch(KEY, NEW, at=1, group=True),  # type: ignore[call-overload]
        client.branch(KEY, NEW, group=True, change_id="c" * 24),  # type: ignore[call-overload]
        client.branch(KEY, NEW, at=datetime.now(UTC)),  # type: ignore[call-overload]
        client.branch(KEY, NEW, reason="branch of runs/41@1"),
        client.merge(KEY, KEY),
        client.merge(KEY, NEW, reason="merge of runs/41@1"),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            await call
    for call in (
        client.branch(KEY, "runs"),
        client.branch(f"{KEY}/plan", NEW, group=True),
        client.branch(KEY, f"{NEW}/plan", group=True),
        client.branches(f"{KEY}/plan", group=True),
        client.ancestry("runs"),
    ):
        with pytest.raises(InvalidKey):
            await call
    assert await client.exists(NEW) is False


async def test_its_origin_is_waited_for(client: AsyncStateCache, worker: Worker) -> None:
    await client.set(KEY, 1)
    for more in ({}, {"group": True}):
        with pytest.raises(HistoryIncomplete, match="not known to be in Postgres yet"):
            await client.branch(KEY, NEW, timeout=0.5, **more)  # type: ignore[call-overload]
    assert await client.exists(NEW) is False
    async with flushing(worker):
        assert (await client.branch(KEY, NEW)).value == 1


@pytest.mark.usefixtures("at_work")
async def test_typed_values_schemas_and_ends_go_along(client: AsyncStateCache) -> None:
    runs = client.namespace("runs", type=Run)
    first = await runs.set("42", Run(1), ttl=3600)
    state = await runs.branch("42", "43", durability="postgres")
    assert (state.value, state.schema, state.expires_at) == (Run(1), first.schema, first.expires_at)
    assert (await runs.branch("42", "44", ttl=math.inf)).expires_at is None
    await client.set("runs/other", {"no": "run"})
    with pytest.raises(CodecError):
        await runs.branch("other", "45")


@pytest.mark.usefixtures("at_work")
async def test_a_call_may_be_repeated_by_its_change_id(make_client: MakeClient, settings: Settings) -> None:
    client, change_id = make_client(settings), "c" * 24
    await client.set(KEY, 1)
    state = await client.branch(KEY, NEW, change_id=change_id)
    await client.set(KEY, 2)
    for number in range(10):
        await client.set(NEW, number)
    again = await make_client(settings).branch(KEY, NEW, change_id=change_id, durability="postgres")
    assert again == state
    with pytest.raises(AlreadyExists):
        await client.branch(KEY, NEW, change_id="d" * 24)
    await client.set("runs/44", 1, change_id="e" * 24)
    with pytest.raises(ChangeIdReused):
        await client.branch(KEY, "runs/44", change_id="e" * 24)
    assert await client.branch(KEY, NEW, at=1, change_id=change_id) == state
    await client.branch(KEY, "runs/45")
    for name, at in ((KEY, 2), ("runs/45", None)):
        with pytest.raises(ChangeIdReused):
            await client.branch(name, NEW, at=at, change_id=change_id)


async def test_a_whole_group_begins_in_one_commit(client: AsyncStateCache, worker: Worker, psql: Psql) -> None:
    for name, value in (("", LONG), ("/plan", LONG[:20]), ("/plan/a", 1), ("/gone", 1)):
        await client.set(KEY + name, value)
    await client.delete(f"{KEY}/gone")
    async with flushing(worker):
        assert await client.step(KEY, "charge", lambda step: 5) == 5
        mark = await client.checkpoint(KEY, "mark", group=True)
        await client.set(f"{KEY}/plan", "later")
        states = await client.branch(KEY, NEW, at=mark, group=True, reason="try it")
        now = await client.branch(KEY, "runs/44", group=True, durability="postgres")
    assert {key: state.value for key, state in states.items() if "/steps/" not in key} == {
        NEW: LONG, f"{NEW}/plan": LONG[:20], f"{NEW}/plan/a": 1,
    }  # fmt: skip
    assert now["runs/44/plan"].value == "later"
    assert len({state.position for state in states.values()}) == 1
    assert await client.step(NEW, "charge", lambda step: 6, durability="memory") == 5
    await flush(worker)
    assert _stored(psql, NEW) == [(1, "delta", True)]
    assert _stored(psql, f"{NEW}/plan") == [(1, "delta", True)]
    origins = rows(psql, "SELECT key, origin, origin_version FROM branch WHERE key LIKE 'runs/43%%' ORDER BY key")
    assert origins == [
        (NEW, KEY, 1), (f"{NEW}/plan", f"{KEY}/plan", 1), (f"{NEW}/plan/a", f"{KEY}/plan/a", 1),
        (f"{NEW}/steps/charge", f"{KEY}/steps/charge", 2),
    ]  # fmt: skip
    reasons = {change.reason async for change in client.history(f"{NEW}/plan")}
    assert reasons == {f"branch of {KEY}@{mark.position}: try it"}
    assert len(await client.branches(KEY, group=True)) == 8
    assert [one.key for one in await client.branches(f"{KEY}/plan")] == [f"{NEW}/plan", "runs/44/plan"]
    assert await client.checkpoints(NEW) == []
    for new in (NEW, "runs/44"):
        with pytest.raises(AlreadyExists):
            await client.branch(KEY, new, group=True)
    with pytest.raises(NotFound):
        await client.branch("runs/none", "runs/x", group=True)
    await client.delete_many(prefix="runs/44/")
    await client.delete("runs/44")
    await flush(worker)
    with pytest.raises(NotFound):
        await client.branch("runs/44", "runs/x", group=True)


@pytest.mark.usefixtures("at_work")
async def test_a_group_that_no_commit_holds_is_refused_before_any_effect(client: AsyncStateCache) -> None:
    await client.set_many({f"{KEY}/{number:03}": 1 for number in range(257)})
    with pytest.raises(LimitExceeded, match="number of the group's keys"):
        await client.branch(KEY, NEW, group=True)
    await client.delete(f"{KEY}/000")
    assert len(await client.branch(KEY, NEW, group=True)) == 256
    for name in "abc":
        await client.set(f"runs/big/{name}", name * (6 * 1024 * 1024))
    with pytest.raises(LimitExceeded, match="the group's size in bytes"):
        await client.branch("runs/big", "runs/bigger", group=True)
    assert [state.key async for state in client.list("runs/bigger/")] == []


async def test_a_group_is_one_consistent_point_whoever_writes(
    make_client: MakeClient, settings: Settings, worker: Worker
) -> None:
    one, other = make_client(settings), make_client(settings)
    over = asyncio.Event()

    async def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            async with other.transaction(KEY, f"{KEY}/twin") as tx:
                tx.set(KEY, number)
                tx.set(f"{KEY}/twin", number)
            await pause()

    await one.set(KEY, 0)
    async with flushing(worker):
        writing = asyncio.create_task(write())
        for number in range(10):
            states = await one.branch(KEY, f"runs/b{number}", group=True)
            values = {state.value for key, state in states.items()}
            assert len(values) == 1, states
        over.set()
        await writing

"""Checkpoints, rollbacks and branches in memory: the real verbs, on dictionaries that stand for Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from statecache import (
    AlreadyCurrent,
    AlreadyExists,
    AsyncStateCache,
    CheckpointExists,
    CheckpointPolicy,
    MergeConflict,
    Position,
    VersionNotFound,
)
from statecache.testing import memory
from tests.support.awaited import awaited

KEY = "runs/42"


@pytest.fixture(params=["async", "sync"])
async def cache(request: pytest.FixtureRequest) -> AsyncIterator[AsyncStateCache]:
    """A client in memory: the asynchronous one, and again the synchronous one."""
    deployment = memory()
    client: Any = deployment.async_client() if request.param == "async" else awaited(deployment.client())
    yield client
    await client.close()


async def test_checkpoints_and_rollbacks(cache: AsyncStateCache) -> None:
    await cache.set(KEY, 1)
    mark = await cache.checkpoint(KEY, "mark", metadata=[1])
    await cache.set(KEY, 2)
    with pytest.raises(CheckpointExists):
        await cache.checkpoint(KEY, "mark")
    assert [one.version for one in await cache.checkpoints(KEY)] == [1]
    assert (await cache.rollback(KEY, mark)).value == 1
    assert (await cache.undo(KEY)).value == 2
    assert (await cache.redo(KEY)).value == 1
    with pytest.raises(AlreadyCurrent):
        await cache.rollback(KEY, "mark")
    with pytest.raises(VersionNotFound) as caught:
        await cache.rollback(KEY, 9)
    assert caught.value.nearest == 5
    for none_of_its in ({"at": datetime(2020, 1, 1, tzinfo=UTC)}, {"to": Position(2, 1)}, {"to": Position(0, 1)}):
        with pytest.raises(VersionNotFound) as caught:
            await cache.rollback(KEY, **none_of_its)
        assert caught.value.nearest == 1
    assert [change.reason async for change in cache.history(KEY)] == ["", "", "rollback to 1", "undo to 2", "redo to 3"]
    found = [change.value async for change in cache.history(KEY, values=True, reverse=True)]
    assert found == [1, 2, 1, 2, 1]
    await cache.rename_checkpoint(KEY, "mark", "other")
    assert (await cache.delete_checkpoint(KEY, "other")).pinned is False


async def test_a_checkpoint_of_another_deployment_is_not_there(cache: AsyncStateCache) -> None:
    async with memory() as other:
        await other.set(KEY, 1)
        mark = await other.checkpoint(KEY, "mark")
    await cache.set(KEY, 2)
    with pytest.raises(VersionNotFound, match="lost or set aside, or is of another deployment: another one is there"):
        await cache.rollback(KEY, mark)


async def test_a_group_goes_back(cache: AsyncStateCache) -> None:
    await cache.set(KEY, 1)
    await cache.set(f"{KEY}/plan", ["a"])
    await cache.checkpoint(KEY, "mark", group=True)
    await cache.delete(KEY)
    await cache.set(f"{KEY}/new", 1)
    await cache.rollback(KEY, "mark", group=True)
    for yet_to_come in ({"time": datetime.now(UTC) + timedelta(days=1)}, {"position": Position(1, 1000)}):
        with pytest.raises(VersionNotFound):
            await cache.get_group_at(KEY, **yet_to_come)
    group = await cache.namespace("runs", type=Any).get_group_at("42", time=datetime.now(UTC))
    assert {key: state.value for key, state in group.items() if "checkpoints" not in key} == {
        KEY: 1, f"{KEY}/plan": ["a"],
    }  # fmt: skip
    await cache.undo(KEY, group=True)
    assert await cache.get(KEY) is None


async def test_branches_and_merges(cache: AsyncStateCache) -> None:
    await cache.set(KEY, {"said": ["a"]})
    await cache.branch(KEY, "runs/43")
    with pytest.raises(AlreadyExists):
        await cache.branch(KEY, "runs/43")
    await cache.set(KEY, {"said": ["a", "b"]})
    await cache.set("runs/43", {"said": ["a", "c"]})
    assert (await cache.merge("runs/43", KEY)).value == {"said": ["a", "b", "c"]}
    await cache.set(KEY, {"said": ["x"]})
    await cache.set("runs/43", {"said": "y"})
    with pytest.raises(MergeConflict):
        await cache.merge("runs/43", KEY)
    assert [one.kind for one in await cache.ancestry(KEY)] == ["merge", "branch"]
    assert [one.key for one in await cache.branches(KEY)] == ["runs/43"]
    states = await cache.branch(KEY, "runs/44", group=True)
    assert [*states] == ["runs/44"]
    assert [one.origin for one in await cache.branches(KEY, group=True)] == [KEY, KEY]


async def test_merges_that_were_taken_back(cache: AsyncStateCache) -> None:
    await cache.set(KEY, {"said": ["a"], "step": 1})
    await cache.branch(KEY, "runs/43")
    await cache.set("runs/43", {"said": ["a", "b"], "step": 1})
    await cache.set(KEY, {"said": ["a"], "step": 2})
    for group in (False, True):
        merged = await cache.merge("runs/43", KEY)
        assert merged.value == {"said": ["a", "b"], "step": 2}
        assert await cache.merge("runs/43", KEY) == merged
        await cache.undo(KEY, group=group)
        assert (await cache.merge("runs/43", KEY)).value == {"said": ["a", "b"], "step": 2}
        await cache.undo(KEY, group=group)


async def test_policies(cache: AsyncStateCache) -> None:
    runs = cache.namespace("runs", checkpoint=CheckpointPolicy(before_step=True))
    await runs.set("42", 1)
    await runs.step("42", "charge", lambda step: 1)
    assert [one.automatic for one in await cache.checkpoints(KEY)] == [True]


async def test_from_its_end_on_no_moment_has_a_state(cache: AsyncStateCache) -> None:
    state = await cache.set(KEY, 1, ttl=0.2)
    assert await cache.get_at(KEY, time=state.expires_at) is None
    assert await cache.get_group_at(KEY, time=state.expires_at) == {}
    then = await cache.get_at(KEY, position=state.position)
    assert then is not None
    assert then.value == 1

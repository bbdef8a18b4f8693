"""Deletes of many states: by name, and of all that is under a prefix."""

from __future__ import annotations

from typing import Any

import pytest

from statecache import AsyncStateCache, BulkError, LockHeld, Settings, UsageError
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import every_redis
from tests.support.dirtiness import evict
from tests.support.workers import at_work

NAMES = [f"runs/{number:04d}" for number in range(1_100)]


async def _there(client: AsyncStateCache) -> list[str]:
    return [state.key async for state in client.list("runs/", values=False)]


@every_redis
async def test_named_states_are_deleted_and_those_that_are_absent_are_not_counted(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    await client.set_many(dict.fromkeys(NAMES[:20], 1))
    await flush(worker)
    for name in NAMES[:5]:
        assert evict(redis_raw, keys, name)
    assert await client.delete_many([*NAMES[:10], "runs/absent", *NAMES[:3]], dry_run=True) == 10
    assert await client.delete_many([*NAMES[:10], "runs/absent", *NAMES[:3]], actor="ada", reason="done") == 10
    assert await _there(client) == NAMES[10:20]
    assert await client.get_many(NAMES[:10]) == dict.fromkeys(NAMES[:10])
    assert await client.delete_many([]) == 0
    await flush(worker)
    assert await _there(client) == NAMES[10:20]


async def test_all_under_a_prefix_is_deleted_dirty_and_clean_and_nothing_else(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    await client.set_many(dict.fromkeys([*NAMES, "runs0/1", "run/1"], 1))
    await flush(worker)
    await client.set_many(dict.fromkeys(NAMES[::2], 2))
    for name in NAMES[1:100:2]:
        assert evict(redis_raw, keys, name)
    counts: list[int] = []
    assert await client.delete_many(prefix="runs/", dry_run=True) == len(NAMES)
    assert len(await _there(client)) == len(NAMES)
    assert await client.delete_many(prefix="runs/", progress=counts.append) == len(NAMES)
    assert counts == [500, 1_000, 1_100]
    assert await _there(client) == []
    assert await client.delete_many(prefix="runs/") == 0
    assert await client.exists("runs0/1")
    assert await client.exists("run/1")


async def test_the_prefix_of_a_view_is_below_it_and_records_of_steps_go_too(
    client: AsyncStateCache, settings: Settings
) -> None:
    runs = client.namespace("runs")
    async with at_work(settings):
        await runs.step("42", "charge", lambda step: 1, type=int)
    await runs.set_many({"42": 1, "42/plan": 1, "43": 1})
    assert await runs.delete_many(prefix="42/") == 2  # the plan, and the record of the step
    assert await _there(client) == ["runs/42", "runs/43"]
    assert await runs.delete_many(prefix="") == 2


async def test_what_is_written_meanwhile_stays(cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> None:
    await cache.set_many({"runs/1": 1, "runs/2": 1})
    commit = cache._runtime.many_commits.commit

    async def late(commits: Any) -> Any:
        await cache.set("runs/1", "newer")
        return await commit(commits)

    monkeypatch.setattr(cache._runtime.many_commits, "commit", late)
    assert await cache.delete_many(prefix="runs/") == 1
    state = await cache.get("runs/1")
    assert state is not None
    assert state.value == "newer"


async def test_one_that_fails_is_told_with_its_error_and_the_others_are_deleted(client: AsyncStateCache) -> None:
    view = client.namespace("runs", locking="enforced")
    await view.set_many({"1": 1, "2": 1, "3": 1})
    async with view.lock("2"):
        with pytest.raises(BulkError) as caught:
            await view.delete_many(["1", "2", "3"])
    assert {name: type(error) for name, error in caught.value.errors.items()} == {"2": LockHeld}
    assert sorted(caught.value.states) == ["1", "3"]
    assert {(state.value, state.version) for state in caught.value.states.values()} == {(None, 2)}
    assert await _there(client) == ["runs/2"]


@pytest.mark.parametrize("given", [{}, {"names": "runs/1"}, {"names": ["runs/1"], "prefix": "runs/"}])
async def test_names_or_a_prefix_are_asked_for(client: AsyncStateCache, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="names, or a prefix"):
        await client.delete_many(**given)

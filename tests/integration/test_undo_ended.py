"""Going back where states have ended: they are not brought back, whether a worker has deleted them by then or not."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from statecache import AsyncStateCache, State, UsageError, VersionNotFound
from statecache.core.commit.endings import delete_ended
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.polling import pause

KEY = "runs/42"
GRANT = "runs/42/grant"
LIMIT_S = 20.0
Ended = Callable[[str], Awaitable[None]]
pytestmark = pytest.mark.counts_seconds


@pytest.fixture(params=[False, True], ids=["not deleted yet", "deleted"])
def ended(request: pytest.FixtureRequest, client: AsyncStateCache, cache: AsyncStateCache, worker: Worker) -> Ended:
    """Wait until a state has ended, and perhaps has been deleted by a worker."""

    async def wait(key: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while await client.exists(key):
                await pause()
            while request.param and (await _newest(cache, key)).op != "delete":
                await flush(worker)
                await delete_ended(cache._runtime, range(worker.settings.shards), seconds=5.0)

    return wait


async def _newest(cache: AsyncStateCache, key: str) -> Any:
    return [one async for one in cache.history(key)][-1]


def _values(states: dict[str, State[Any]]) -> dict[str, Any]:
    return {key: state.value for key, state in states.items()}


async def test_what_was_done_last_is_undone(client: AsyncStateCache, ended: Ended) -> None:
    await client.set(KEY, 1)
    await client.set(KEY, 2, ttl=0.05)
    await ended(KEY)
    assert (await client.undo(KEY)).value == 1
    with pytest.raises(UsageError, match=r"'runs/42' held at version 2 has ended since.*ttl="):
        await client.redo(KEY)
    assert (await client.redo(KEY, ttl=math.inf)).value == 2
    assert (await client.undo(KEY)).value == 1


async def test_what_was_done_first_is_not_undone_by_its_end(client: AsyncStateCache, ended: Ended) -> None:
    await client.set(KEY, 1, ttl=0.05)
    await ended(KEY)
    for ttl in (None, 60):
        with pytest.raises(VersionNotFound, match="what the first change made"):
            await client.undo(KEY, ttl=ttl)
    with pytest.raises(VersionNotFound, match="no undo came"):
        await client.redo(KEY)
    assert (await client.rollback(KEY, 1, ttl=60)).value == 1


async def test_what_was_written_over_what_had_ended_is_undone_to_that(client: AsyncStateCache, ended: Ended) -> None:
    """Which does not come back unasked."""
    await client.set(KEY, 1, ttl=0.05)
    await ended(KEY)
    await client.set(KEY, 2)
    await client.set(KEY, 3)
    assert (await client.undo(KEY)).value == 2
    with pytest.raises(UsageError, match=r"'runs/42' held at version 1 has ended since"):
        await client.undo(KEY)
    assert (await client.undo(KEY, ttl=60)).value == 1
    assert (await client.redo(KEY)).value == 2
    assert (await client.redo(KEY)).value == 3


async def test_what_was_created_over_a_delete_is_undone_past_it_once_it_has_ended(
    client: AsyncStateCache, ended: Ended
) -> None:
    """To delete what is gone would change nothing, so what was done before the delete is there again."""
    await client.set(KEY, 1)
    await client.delete(KEY)
    await client.set(KEY, 2, ttl=0.05)
    await ended(KEY)
    assert (await client.undo(KEY)).value == 1
    with pytest.raises(VersionNotFound, match="what the first change made"):
        await client.undo(KEY)
    assert (await client.redo(KEY, ttl=60)).value == 2
    assert (await client.undo(KEY)).value is None
    assert (await client.undo(KEY)).value == 1


async def test_a_delete_that_would_change_nothing_is_passed_by_a_redo_too(
    client: AsyncStateCache, ended: Ended
) -> None:
    await client.set(KEY, 1)
    await client.delete(KEY)
    await client.set(KEY, 2)
    assert (await client.undo(KEY)).value is None
    await client.undo(KEY, ttl=0.05)
    await ended(KEY)
    assert (await client.redo(KEY)).value == 2
    assert (await client.undo(KEY)).value is None


async def test_the_end_of_a_state_is_no_edit_of_its_group(client: AsyncStateCache, ended: Ended) -> None:
    await client.set(KEY, 1)
    await client.set(KEY, 2)
    await client.set(GRANT, "by ada", ttl=0.05)
    await client.set(KEY, 3)
    assert _values(await client.undo(KEY, group=True)) == {KEY: 2}
    await ended(GRANT)
    assert _values(await client.redo(KEY, group=True)) == {KEY: 3}
    assert _values(await client.undo(KEY, group=True)) == {KEY: 2}
    assert _values(await client.undo(KEY, group=True)) == {KEY: 1}
    assert await client.get(GRANT) is None


async def test_where_a_namespace_says_how_long_states_last_none_that_has_ended_comes_back(
    client: AsyncStateCache, ended: Ended
) -> None:
    runs = client.namespace("runs", ttl=timedelta(hours=1))
    await runs.set("42/plan", "book")
    begun = await runs.set("42/grant", "by ada", ttl=0.05)
    await runs.set("42/plan", "pay")
    await ended(GRANT)
    assert begun.position is not None
    assert _values(await runs.undo("42", group=True)) == {"runs/42/plan": "book"}
    assert _values(await runs.redo("42", group=True)) == {"runs/42/plan": "pay"}
    assert _values(await runs.rollback("42", begun.position, group=True)) == {"runs/42/plan": "book"}
    for going in (runs.rollback("42/grant", 1), runs.branch("42/grant", "42/other", at=1)):
        with pytest.raises(UsageError, match=r"'runs/42/grant' held at version 1 has ended since"):
            await going
    assert not await client.exists(GRANT)
    assert (await runs.rollback("42/grant", 1, ttl=60)).value == "by ada"


async def test_a_branch_of_a_group_begins_without_what_has_ended(
    client: AsyncStateCache, cache: AsyncStateCache, worker: Worker, ended: Ended
) -> None:
    runs = client.namespace("runs", ttl=timedelta(hours=1))
    await runs.set("42", 1)
    begun = await runs.set("42/grant", "by ada", ttl=0.05)
    await ended(GRANT)
    await flush(worker)
    assert _values(await runs.branch("42", "43", at=begun.position, group=True)) == {"runs/43": 1}


@pytest.mark.parametrize("following", [1, 2])
async def test_what_was_replaced_before_its_end_would_have_been_prolonged(
    client: AsyncStateCache, following: int
) -> None:
    """A session that is written to again and again, each time for a while, goes back to what it was."""
    runs = client.namespace("runs", ttl=timedelta(hours=1))
    first = await runs.set("42", 1, ttl=1)
    mark = await runs.set("42/other", 1, ttl=1)
    for number in range(following):
        await runs.set("42", number + 2)
    await client.set("runs/clock", 1, ttl=1.5)
    async with asyncio.timeout(LIMIT_S):
        while await client.exists("runs/clock"):
            await pause()
    assert first.expires_at is not None
    assert mark.position is not None
    state = await runs.rollback("42", 1)
    assert state.value == 1
    assert state.expires_at is not None
    assert state.expires_at > first.expires_at
    await runs.set("42", 5)
    assert _values(await runs.rollback("42", mark.position, group=True)) == {KEY: 1}
    assert (await runs.undo("42")).value == 5

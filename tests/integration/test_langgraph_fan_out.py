"""Many tasks of a superstep end at one moment: their writes are put together, each once, and each has its say."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, LimitExceeded, OutcomeUnknown, RedisUnavailable, Settings, StateCache
from statecache.adapters.langgraph import StateCacheSaver
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, rows
from tests.support.fault_proxy import FaultProxy
from tests.support.langgraph_stories import config, put

TASKS, BYTES = 100, 10 * 1024
MIB = 1024 * 1024


@pytest.fixture
def saver(cache: AsyncStateCache) -> StateCacheSaver:
    """A saver on an asynchronous client."""
    return StateCacheSaver(cache)


def _text(task: int) -> str:
    return f"{task} " + "x" * BYTES


async def _writes(saver: StateCacheSaver, at: Any, tasks: range) -> list[Any]:
    """Have that many tasks write at one moment; return what each was told."""
    calls = (saver.aput_writes(at, [("text", _text(task))], f"task-{task}") for task in tasks)
    return await asyncio.gather(*calls, return_exceptions=True)


async def _pending(saver: StateCacheSaver, at: Any) -> dict[str, list[Any]]:
    """Return what every task has written at a checkpoint."""
    found = await saver.aget_tuple(at)
    assert found is not None
    told: dict[str, list[Any]] = {}
    for task_id, _, value in found.pending_writes or ():
        told.setdefault(task_id, []).append(value)
    return told


def _wanted(tasks: range) -> dict[str, list[Any]]:
    return {f"task-{task}": [_text(task)] for task in tasks}


async def test_they_take_a_few_commits_and_none_is_lost(
    saver: StateCacheSaver, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    at = await put(saver, "t")
    assert await _writes(saver, at, range(TASKS)) == [None] * TASKS
    assert await _pending(saver, at) == _wanted(range(TASKS))
    await flush(worker)
    ((commits,),) = rows(psql, "SELECT count(DISTINCT change_id) FROM change WHERE key LIKE '%/w/%'")
    assert commits <= 3
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]
    assert await _writes(saver, at, range(TASKS)) == [None] * TASKS
    assert await _pending(saver, at) == _wanted(range(TASKS))
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change WHERE key LIKE '%/w/%'") == [(TASKS,)]


async def test_few_of_them_stand_in_the_checkpoint_itself(
    saver: StateCacheSaver, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    at = await put(saver, "t")
    calls = (saver.aput_writes(at, [("n", task)], f"task-{task}") for task in range(8))
    await asyncio.gather(*calls)
    assert await _pending(saver, at) == {f"task-{task}": [task] for task in range(8)}
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change WHERE key LIKE '%/w/%'") == [(0,)]
    assert rows(psql, "SELECT max(version) FROM change WHERE key LIKE '%/cp/%'") == [(2,)]


async def test_before_their_checkpoint_has_come_they_are_its_own(saver: StateCacheSaver) -> None:
    checkpoint_id = "1f000000-0000-6000-8000-000000000001"
    at = config("t", checkpoint_id)
    await _writes(saver, at, range(TASKS))
    await put(saver, "t", id=checkpoint_id)
    assert await _pending(saver, at) == _wanted(range(TASKS))


async def test_two_processes_writing_at_once_lose_nothing_of_each_other(
    saver: StateCacheSaver, settings: Settings
) -> None:
    async with AsyncStateCache(settings=settings) as other:
        at = await put(saver, "t")
        both = StateCacheSaver(other)
        halves = await asyncio.gather(_writes(saver, at, range(60)), _writes(both, at, range(40, TASKS)))
        assert [*halves] == [[None] * 60, [None] * 60]
        assert await _pending(saver, at) == _wanted(range(TASKS))


async def test_what_is_refused_is_refused_to_its_task_alone(saver: StateCacheSaver) -> None:
    at = await put(saver, "t")
    others = (saver.aput_writes(at, [("text", _text(task))], f"task-{task}") for task in range(20))
    *told, refused = await asyncio.gather(
        *others, saver.aput_writes(at, [("text", b"x" * 12 * MIB)], "too large"), return_exceptions=True
    )
    assert told == [None] * 20
    assert isinstance(refused, LimitExceeded)
    assert await _pending(saver, at) == _wanted(range(20))


async def test_large_writes_of_several_tasks_are_put_in_several_commits(saver: StateCacheSaver) -> None:
    at = await put(saver, "t")
    values = {f"task-{number}": str(number) * 4 * MIB for number in range(5)}
    await asyncio.gather(*(saver.aput_writes(at, [("text", value)], task) for task, value in values.items()))
    assert await _pending(saver, at) == {task: [value] for task, value in values.items()}


async def test_the_same_task_may_write_twice_at_one_moment(saver: StateCacheSaver) -> None:
    at = await put(saver, "t")
    writes = ([("a", 1)], [("a", 2), ("b", 3)])
    await asyncio.gather(*(saver.aput_writes(at, some, "task") for some in writes))
    assert await _pending(saver, at) == {"task": [1, 3]}


async def test_who_is_cancelled_takes_no_other_along(saver: StateCacheSaver) -> None:
    at = await put(saver, "t")
    tasks = [
        asyncio.create_task(saver.aput_writes(at, [("text", _text(task))], f"task-{task}")) for task in range(TASKS)
    ]
    await asyncio.sleep(0)
    for one in tasks[::2]:
        one.cancel()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert told[1::2] == [None] * 50
    found = await _pending(saver, at)
    assert {name: found.get(name) for name in _wanted(range(1, TASKS, 2))} == _wanted(range(1, TASKS, 2))


@pytest.mark.parametrize("kind", ["drop_request", "drop_reply"])
async def test_where_the_connection_ends_each_is_put_once_or_told(
    kind: Any, settings: Settings, proxy: FaultProxy, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as client:
        saver = StateCacheSaver(client)
        at = await put(saver, "t")
        lost = proxy.arm(kind, at=b"task-77")
        told = await _writes(saver, at, range(TASKS))
        assert lost.struck
        for task in [number for number, one in enumerate(told) if one is not None]:
            assert isinstance(told[task], (OutcomeUnknown, RedisUnavailable))
            with suppress(OutcomeUnknown):
                await saver.aput_writes(at, [("text", _text(task))], f"task-{task}")
        assert await _pending(saver, at) == _wanted(range(TASKS))
        await flush(worker)
        assert rows(psql, "SELECT count(*), count(DISTINCT key) FROM change WHERE key LIKE '%/w/%'") == [(100, 100)]


def test_nothing_is_kept_of_checkpoints_and_loops_of_which_no_task_writes_any_more(settings: Settings) -> None:
    with StateCache(settings=settings) as cache:
        saver = StateCacheSaver(cache)

        async def story() -> None:
            for _ in range(5):
                at = await put(saver, "t")
                await _writes(saver, at, range(3))

        for _ in range(3):
            asyncio.run(story())
        assert len(saver._writing) <= 1


@pytest.mark.parametrize(("tasks", "size"), [(20, BYTES), (5, 4 * MIB), (300, 400)])
async def test_a_thread_with_writes_of_many_tasks_can_be_copied_again(
    tasks: int, size: int, saver: StateCacheSaver
) -> None:
    at = await put(saver, "t")
    values = {f"task-{number}": f"{number} " + "x" * size for number in range(tasks)}
    await asyncio.gather(*(saver.aput_writes(at, [("text", value)], task) for task, value in values.items()))
    for _ in range(2):
        await saver.acopy_thread("t", "copied")
        assert await _pending(saver, config("copied")) == {task: [value] for task, value in values.items()}


@pytest.mark.parametrize("channel", ["__interrupt__", "__resume__", "__error__"])
async def test_a_copy_of_many_tasks_writes_has_what_replaced_others_since(channel: str, saver: StateCacheSaver) -> None:
    """The first stands in the checkpoint itself, to which nothing is added once it has no room for other tasks."""
    at = await put(saver, "t")
    await saver.aput_writes(at, [(channel, ["yes"])], "asking")
    await asyncio.gather(*(saver.aput_writes(at, [("n", number)], f"task-{number}") for number in range(12)))
    await saver.aput_writes(at, [(channel, ["yes", "and 500"])], "asking")
    wanted = {f"task-{number}": [number] for number in range(12)} | {"asking": [["yes", "and 500"]]}
    assert await _pending(saver, at) == wanted
    for _ in range(2):
        await saver.acopy_thread("t", "copied")
        assert await _pending(saver, config("copied")) == wanted

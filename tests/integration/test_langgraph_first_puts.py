"""A put that vouches for a checkpoint nobody has put before is right about that, whatever became of the thread.

Redis is emptied of what Postgres holds before each put that could be wrong: then nothing but the head says whether
there ever was a state of the checkpoint, and a wrong word would show as a conflict in Postgres.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.adapters.langgraph import StateCacheSaver
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.langgraph_stories import METADATA, Interfering, checkpoint, config, got, ids
from tests.support.openai_sessions import World

STEPS = 4


@pytest.fixture
def world(settings: Settings, worker: Worker, redis_raw: Any) -> World:
    """A deployment whose worker flushes when it is told to."""
    return World(settings, worker, redis_raw)


@pytest.fixture
def saver(cache: AsyncStateCache) -> StateCacheSaver:
    """A saver on an asynchronous client."""
    return StateCacheSaver(cache)


def made(count: int = STEPS) -> list[Any]:
    """Return checkpoints to be put one after the other."""
    return [checkpoint({"count": number}, version=number) for number in range(1, count + 1)]


async def play(
    saver: StateCacheSaver, checkpoints: list[Any], *, thread: str = "42", parent: str | None = None
) -> None:
    """Put them."""
    for one in checkpoints:
        await saver.aput(config(thread, parent), one, METADATA, one["channel_versions"])
        parent = one["id"]


async def no_conflicts(world: World, psql: psycopg.Connection[Any]) -> bool:
    """Flush, and return whether Postgres took all that there was."""
    await flush(world.worker)
    return rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


def vouched(saver: StateCacheSaver, cache: AsyncStateCache, verbs: list[list[str]]) -> None:
    """Have noted what every commit of the saver is made of."""

    class Noting(Interfering):
        def __getattr__(self, verb: str) -> Any:
            if verb != "commit":
                return getattr(self.view, verb)

            def commit(writes: Any) -> Any:
                verbs.append([type(one).__name__ for one in writes if "/cp/" in one.name])
                return self.view.commit(writes)

            return commit

    view: Any = Noting(cache.namespace("langgraph"), None, 0)
    loops = saver._clients._loops
    assert loops is not None
    assert loops._given is not None
    loops._given = loops._given._replace(view=view)


async def test_each_but_the_first_put_of_a_thread_vouches_for_its_checkpoint(
    saver: StateCacheSaver, cache: AsyncStateCache, world: World, psql: psycopg.Connection[Any]
) -> None:
    verbs: list[list[str]] = []
    vouched(saver, cache, verbs)
    await play(saver, made())
    assert verbs == [["Set"], ["Create"], ["Create"], ["Create"]]
    assert await no_conflicts(world, psql)


async def test_another_process_vouches_on_though_redis_has_let_the_head_go(
    saver: StateCacheSaver, cache: AsyncStateCache, world: World, psql: psycopg.Connection[Any]
) -> None:
    checkpoints, verbs, other = made(), list[list[str]](), StateCacheSaver(cache)
    await play(saver, checkpoints[:2])
    await flush(world.worker)
    await world.empty()
    vouched(other, cache, verbs)
    await play(other, checkpoints[2:], parent=checkpoints[1]["id"])
    assert verbs == [["Create"], ["Create"]]
    assert await no_conflicts(world, psql)


@pytest.mark.parametrize("what", ["same", "deleted", "pruned", "rolled back", "erased"])
async def test_what_is_put_again_is_no_conflict(
    saver: StateCacheSaver, cache: AsyncStateCache, world: World, psql: psycopg.Connection[Any], what: str
) -> None:
    checkpoints = made()
    await play(saver, checkpoints[:1])
    head = await cache.get("langgraph/42/head/-")
    assert head is not None
    await play(saver, checkpoints[1:], parent=checkpoints[0]["id"])
    await flush(world.worker)
    if what == "deleted":
        await saver.adelete_thread("42")
    elif what == "pruned":
        await saver.aprune(["42"])
    elif what == "rolled back":
        await cache.rollback("langgraph/42", to=head.position, group=True)
    elif what == "erased":
        await saver.adelete_thread("42")
        async with flushing(world.worker):
            await cache.erase("langgraph/42", group=True)
    for again in (saver, StateCacheSaver(cache)):
        await world.empty()
        await play(again, checkpoints)
        assert await no_conflicts(world, psql)
        assert await ids(again, config("42")) == [one["id"] for one in reversed(checkpoints)]
        values = (await got(again, config("42"))).checkpoint["channel_values"]
        assert values == {"count": STEPS}


async def test_a_thread_that_is_copied_once_more_after_its_end_is_no_conflict(
    saver: StateCacheSaver, world: World, psql: psycopg.Connection[Any]
) -> None:
    checkpoints = made()
    await play(saver, checkpoints)
    for _ in range(3):
        await saver.acopy_thread("42", "43")
        await world.empty()
        await saver.acopy_thread("42", "43")
        assert await ids(saver, config("43")) == [one["id"] for one in reversed(checkpoints)]
        assert await no_conflicts(world, psql)
        await saver.adelete_thread("43")
        await world.empty()


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_writes_that_came_first_are_the_checkpoints_own_though_redis_has_let_them_go(
    saver: StateCacheSaver, cache: AsyncStateCache, world: World, psql: psycopg.Connection[Any], before: int
) -> None:
    checkpoints = made()
    await play(saver, checkpoints[:before])
    one = checkpoints[before]
    await saver.aput_writes(config("42", one["id"]), [("count", 7)], "task")
    assert await ids(saver, config("42")) == [one["id"] for one in reversed(checkpoints[:before])]
    latest = await saver.aget_tuple(config("42"))
    assert (latest is None) == (before == 0)
    await world.empty()
    parent = checkpoints[before - 1]["id"] if before else None
    await play(saver, checkpoints[before:], parent=parent)
    assert await no_conflicts(world, psql)
    found = await got(StateCacheSaver(cache), config("42", one["id"]))
    assert found.pending_writes == [("task", "count", 7)]


async def test_what_another_process_has_put_meanwhile_is_not_written_over(
    saver: StateCacheSaver, cache: AsyncStateCache, world: World, psql: psycopg.Connection[Any]
) -> None:
    checkpoints, other = made(6), StateCacheSaver(cache)
    await play(saver, checkpoints[:2])
    await play(other, checkpoints[2:4], parent=checkpoints[1]["id"])
    await other.aput_writes(config("42", checkpoints[1]["id"]), [("count", 1)], "a")
    await saver.aput_writes(config("42", checkpoints[1]["id"]), [("count", 2)], "b")
    await play(saver, checkpoints[4:], parent=checkpoints[1]["id"])
    assert await ids(other, config("42")) == [one["id"] for one in reversed(checkpoints)]
    assert (await got(other, config("42"))).config == config("42", checkpoints[5]["id"])
    found = await got(other, config("42", checkpoints[1]["id"]))
    assert found.pending_writes == [("a", "count", 1), ("b", "count", 2)]
    assert await no_conflicts(world, psql)

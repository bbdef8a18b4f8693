"""Runs, deletes and prunes of one thread at once, by several processes' savers: what is left is whole."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.adapters.langgraph import StateCacheSaver
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.langgraph_stories import config, got, ids, put

LARGE = 6000


@pytest.fixture
async def savers(settings: Settings) -> AsyncIterator[list[StateCacheSaver]]:
    """Savers as three processes have them."""
    async with AsyncExitStack() as stack:
        caches = [await stack.enter_async_context(AsyncStateCache(settings=settings)) for _ in range(3)]
        yield [StateCacheSaver(cache) for cache in caches]


async def run(saver: StateCacheSaver, name: str, steps: int, drawn: random.Random) -> None:
    """Put checkpoints as a run does, each with writes that may come before it."""
    parent = None
    for step in range(steps):
        latest = await saver.aget_tuple(config("42")) if drawn.random() < 0.3 else None
        parent = latest.config if latest else parent
        values = {"large": f"{name} {step} " * LARGE, "small": f"{name} {step}"}
        made = put(saver, "42", values, parent=parent, version=f"{name}{step}", metadata={"run_id": name, "step": step})
        if parent is not None and drawn.random() < 0.5:
            writes = (saver.aput_writes(parent, [("small", step)], f"{name}{task}") for task in range(3))
            parent, *_ = await asyncio.gather(made, *writes)
        else:
            parent = await made


async def disturb(saver: StateCacheSaver, drawn: random.Random) -> None:
    """Delete and prune what the runs put."""
    for _ in range(8):
        what = drawn.choice(["prune", "run", "run", "thread"])
        if what == "prune":
            await saver.aprune(["42"])
        elif what == "run":
            await saver.adelete_for_runs([drawn.choice("ab")])
        else:
            await saver.adelete_thread("42")


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_left_of_a_thread_is_whole(
    savers: list[StateCacheSaver], worker: Worker, psql: psycopg.Connection[Any], seed: int
) -> None:
    drawn = random.Random(seed)
    first, second, third = savers
    async with flushing(worker):
        await asyncio.gather(run(first, "a", 15, drawn), run(second, "b", 15, drawn), disturb(third, drawn))
    await put(first, "42", {"large": "last " * LARGE, "small": "last"}, version="last")
    for saver in savers:
        left = [one async for one in saver.alist(config("42"))]
        assert left[0].config == (await got(saver, config("42"))).config
        assert [one.config["configurable"]["checkpoint_id"] for one in left] == await ids(saver, config("42"))
        for one in left:
            values = one.checkpoint["channel_values"]
            assert values["large"] == f"{values['small']} " * LARGE
            assert values["small"] == "last" or values["small"] == "{run_id} {step}".format_map(one.metadata)
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]

"""A task that is cancelled while it waits for Postgres lets go of the connection at once, however often that is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.concurrency import TASKS
from statecache.core.postgres.connection import connect
from tests.fixtures.faults import through
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause

KEY = "runs/42"


async def _listed(cache: AsyncStateCache) -> None:
    async for _ in cache.list("runs/", limit=5):
        pass


CALLS: dict[str, Callable[[AsyncStateCache], Awaitable[Any]]] = {
    "list": _listed,
    "get_at": lambda cache: cache.get_at(KEY, version=1),
    "outcome": lambda cache: cache.outcome("a" * 24, KEY),
    "history": lambda cache: anext(cache.history(KEY)),
}


async def _turns(task: asyncio.Task[Any], *, times: int) -> None:
    """Cancel a task in each of so many turns of the loop, as a cancel scope of anyio does."""
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("times", [1, 2, 50])
async def test_nothing_goes_on_behind_a_call_that_was_cancelled(
    settings: Settings, postgres_proxy: FaultProxy, what: str, times: int
) -> None:
    """What went on used the connection that somebody else was lent, and libpq's memory of one that was closed."""
    async with AsyncStateCache(settings=through(settings, postgres=postgres_proxy)) as cache:
        await cache.set(KEY, 1)
        await CALLS[what](cache)
        before, held = asyncio.all_tasks(), postgres_proxy.arm("hold_reply", at=b"SELECT")
        task = asyncio.ensure_future(CALLS[what](cache))
        await held.wait()
        standing = postgres_proxy.standing
        await _turns(task, times=times)
        for _ in range(5):
            await asyncio.sleep(0)
        assert task.cancelled()
        assert asyncio.all_tasks() <= before | postgres_proxy.tasks
        held.release()
        while postgres_proxy.standing == standing:
            await pause()
        await CALLS[what](cache)


@pytest.fixture
async def connection(settings: Settings) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection as clients and workers open it."""
    made = await connect(settings, "statecache", io=TASKS)
    yield made
    await made.close()


async def _in_a_transaction(connection: psycopg.AsyncConnection[Any]) -> None:
    async with connection.transaction():
        await connection.execute("SELECT pg_sleep(600)")


async def _in_a_pipeline(connection: psycopg.AsyncConnection[Any]) -> None:
    async with connection.pipeline():
        await connection.execute("SELECT 1")
        await (await connection.execute("SELECT pg_sleep(600)")).fetchall()


async def _streamed(connection: psycopg.AsyncConnection[Any]) -> None:
    async for _ in connection.cursor().stream("SELECT pg_sleep(600)"):
        pass


@pytest.mark.parametrize("work", [_in_a_transaction, _in_a_pipeline, _streamed])
@pytest.mark.parametrize("times", [1, 50])
async def test_a_block_on_a_connection_is_left_at_once(
    connection: psycopg.AsyncConnection[Any], settings: Settings, work: Callable[[Any], Awaitable[None]], times: int
) -> None:
    """The server that works on is not waited for, and the cancellation is no error of psycopg's."""
    task = asyncio.ensure_future(work(connection))
    asked = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND query ~ 'pg_sleep'"
    async with await psycopg.AsyncConnection.connect(settings.postgres_url, autocommit=True) as other:
        while not (await (await other.execute(asked, [connection.info.backend_pid])).fetchone() or [0])[0]:
            await pause()
    await _turns(task, times=times)
    for _ in range(5):
        await asyncio.sleep(0)
    assert task.cancelled()
    assert connection.closed

"""Undo and redo of one key walk through its edits, whoever made them, flushed or not."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, NotFound, Settings, VersionNotFound
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.fixtures.servers import MakeClient

KEY = "runs/42"
Psql = psycopg.Connection[Any]


async def _written(client: AsyncStateCache, *values: Any, key: str = KEY) -> None:
    for value in values:
        await client.set(key, value)


def _reasons(psql: Psql, key: str = KEY) -> list[tuple[Any, ...]]:
    return rows(psql, "SELECT version, op, reason, actor FROM change WHERE key = %s ORDER BY version", key)


async def test_undo_and_redo_walk_through_the_edits(client: AsyncStateCache, worker: Worker, psql: Psql) -> None:
    await _written(client, "a", "b", "c")
    assert (await client.undo(KEY)).value == "b"
    await flush(worker)
    assert (await client.undo(KEY, reason="a slip", actor="ada")).value == "a"
    with pytest.raises(VersionNotFound, match="what the first change made"):
        await client.undo(KEY)
    assert (await client.redo(KEY)).value == "b"
    await client.set(KEY, "d")
    with pytest.raises(VersionNotFound, match="no undo came"):
        await client.redo(KEY)
    assert (await client.undo(KEY)).value == "b"
    assert (await client.undo(KEY)).value == "a"
    assert (await client.redo(KEY)).value == "b"
    assert (await client.redo(KEY)).value == "d"
    with pytest.raises(VersionNotFound):
        await client.redo(KEY)
    await client.rollback(KEY, 3)
    assert (await client.undo(KEY)).value == "d"
    await flush(worker)
    assert [one[2] for one in _reasons(psql)] == [
        "", "", "", "undo to 2", "undo to 1: a slip", "redo to 2", "", "undo to 2", "undo to 1", "redo to 2",
        "redo to 7", "rollback to 3", "undo to 7",
    ]  # fmt: skip
    assert _reasons(psql)[4][3] == "ada"


async def test_a_delete_is_undone_and_redone(client: AsyncStateCache) -> None:
    await _written(client, 1)
    await client.delete(KEY)
    assert (await client.undo(KEY)).value == 1
    assert (await client.redo(KEY)).value is None
    assert await client.get(KEY) is None
    assert (await client.undo(KEY)).value == 1
    with pytest.raises(NotFound):
        await client.undo("runs/never")


async def test_the_same_value_twice_is_two_edits(client: AsyncStateCache) -> None:
    await _written(client, 1, 2, 2)
    assert (await client.undo(KEY)).value == 2
    assert (await client.undo(KEY)).value == 1


async def test_undos_of_many_who_race_are_each_one_step(
    make_client: MakeClient, settings: Settings, worker: Worker
) -> None:
    clients = [make_client(settings) for _ in range(4)]
    await _written(clients[0], *range(13))
    async with flushing(worker):
        states = await asyncio.gather(*(client.undo(KEY) for client in clients for _ in range(2)))
    assert {state.value for state in states} == {*range(4, 12)}
    final = await clients[0].get(KEY)
    assert final is not None
    assert final.value == 4

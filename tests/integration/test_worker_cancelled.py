"""Who is told to end a worker's work once need not say it again: a cancellation counts wherever it comes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statecache.errors import PostgresUnavailable
from statecache_workers.database import Call
from statecache_workers.worker import Worker


@pytest.mark.parametrize("left_by", [None, PostgresUnavailable("left")], ids=["nothing", "an error"])
async def test_who_is_cancelled_while_a_transaction_is_rolled_back_ends(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, left_by: Exception | None
) -> None:
    """Whatever the transaction was left by: who is told to end once would else go on for ever."""
    _, database = await worker.connect()
    execute = database._connection.execute

    async def cancelled(text: Any, *more: Any, **options: Any) -> Any:
        if text == "ROLLBACK" and (task := asyncio.current_task()) is not None:
            task.cancel()
        return await execute(text, *more, **options)

    monkeypatch.setattr(database._connection, "execute", cancelled)

    async def left() -> None:
        async with database.transaction() as transaction:
            await transaction.run(Call("session_probe", {"pid": 0, "name": "", "end": False}))
            if left_by is not None:
                raise left_by

    leaving = asyncio.create_task(left())
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    assert not database.alive

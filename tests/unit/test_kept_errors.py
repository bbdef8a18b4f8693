"""An exchange that went wrong keeps nothing of what it was for: its error refers to nothing that refers to it.

A task keeps its error, and an error the frames through which it went, with all that stands in them: a commit's bytes.
Where such a frame names the task, only a search for garbage frees them, and that may be far away.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from weakref import ref

import pytest

from statecache.concurrency.sockets import TaskDeadline
from tests.support.polling import pause


class Bytes:
    """What an exchange is for."""


@pytest.fixture(autouse=True)
def no_garbage_is_looked_for() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_a_cancelled_exchange_keeps_nothing() -> None:
    kept: list[ref[Bytes]] = []

    async def exchange() -> None:
        sent, bound = Bytes(), TaskDeadline(None, 60.0)
        kept.append(ref(sent))
        async with bound:
            await asyncio.Event().wait()

    task = asyncio.create_task(exchange())
    await pause()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert kept[0]() is not None
    del task
    assert kept[0]() is None

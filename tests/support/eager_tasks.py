"""Eager tasks, which run at once as far as they come: Python's own from 3.12 on, and before that the same by hand."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any


@types.coroutine
def _gone_on(begun: Coroutine[Any, Any, Any], waited: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that waits for something already."""
    while True:
        try:
            answer = yield waited
        except BaseException as error:
            resume: Any = begun.throw
            given: Any = error
        else:
            resume, given = begun.send, answer
        try:
            waited = resume(given)
        except StopIteration as end:
            return end.value


async def _ended(value: Any) -> Any:
    return value


def _begun_at_once(loop: asyncio.AbstractEventLoop, begun: Any, **more: Any) -> asyncio.Task[Any]:
    try:
        waited = begun.send(None)
    except StopIteration as end:
        return asyncio.Task(_ended(end.value), loop=loop, **more)

    async def rest() -> Any:
        return await _gone_on(begun, waited)

    return asyncio.Task(rest(), loop=loop, **more)


FACTORY: Any = getattr(asyncio, "eager_task_factory", _begun_at_once)
"""What an event loop makes its tasks by. By hand, a task takes its maker for the current one until it has waited."""

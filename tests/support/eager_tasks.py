"""Eager tasks, which run at once as far as they come: Python's own from 3.12 on, and before that the same by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any


class _Begun(Coroutine[Any, Any, Any]):
    """A coroutine that has run up to where it first waits, for a task to go on with."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self._ended: BaseException | None = None
        self._waited: Any = None
        self._handed_on = False

    def begin(self) -> None:
        """Run up to there."""
        try:
            self._waited = self._work.send(None)
        except (StopIteration, Exception, asyncio.CancelledError) as end:
            self._ended = end

    def send(self, value: Any, /) -> Any:
        """Tell the task what is waited for, and go on once it is there."""
        if self._ended is not None:
            raise self._ended
        if not self._handed_on:
            self._handed_on = True
            return self._waited
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise the error where the coroutine waits; one that has ended is too late to be cancelled."""
        if self._ended is not None:
            raise self._ended
        self._handed_on = True
        return self._work.throw(*error)

    def close(self) -> None:
        """End the coroutine."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise AssertionError("a task drives it")


def _begun_at_once(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
    context, begun, maker = more.pop("context", None) or copy_context(), _Begun(work), asyncio.current_task(loop)
    task = asyncio.Task(begun, loop=loop, context=context, **more)
    if maker is not None:
        asyncio.tasks._leave_task(loop, maker)
    asyncio.tasks._enter_task(loop, task)
    try:
        context.run(begun.begin)
    finally:
        asyncio.tasks._leave_task(loop, task)
        if maker is not None:
            asyncio.tasks._enter_task(loop, maker)
    return task


FACTORY: Any = getattr(asyncio, "eager_task_factory", _begun_at_once)
"""What an event loop makes its tasks by."""

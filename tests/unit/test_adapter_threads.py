"""What is awaited and runs in a thread: who is cancelled leaves nothing behind that writes later."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import pytest

from statecache.adapters.in_threads import run_in_thread
from statecache.adapters.plans import Plan, call, together

WAIT_S = 60.0


class View:
    """A view whose verbs last until they may end."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.ended: list[str] = []
        self.begun, self.go = Event(), Event()

    def __getattr__(self, verb: str) -> Any:
        def answer(name: str) -> str:
            self.called.append(verb)
            self.begun.set()
            assert self.go.wait(WAIT_S)
            self.ended.append(verb)
            return name

        return answer


def _plan(*verbs: str) -> Plan[list[str]]:
    found: list[str] = []
    for verb in verbs:
        found += [(yield from call(verb, verb))]
    return found


async def _begun(view: View, plan: Plan[Any]) -> asyncio.Task[Any]:
    """Begin a plan, and return its task once a verb of it is under way."""
    task = asyncio.create_task(run_in_thread(view, plan))  # type: ignore[arg-type]
    assert await asyncio.to_thread(view.begun.wait, WAIT_S)
    return task


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("verb", ["set", "commit", "delete_many", "touch", "update"])
@pytest.mark.parametrize("again", [0, 2])
async def test_who_is_cancelled_waits_for_a_write(verb: str, again: int) -> None:
    view = View()
    task = await _begun(view, _plan(verb, "delete"))
    for _ in range(1 + again):
        task.cancel()
        await _turns()
    assert not task.done()
    view.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert view.ended == view.called == [verb]


async def test_the_same_of_plans_that_are_carried_out_together() -> None:
    view = View()
    task = await _begun(view, together([_plan("set", "get"), _plan("delete")]))  # type: ignore[list-item]
    task.cancel()
    await _turns()
    assert not task.done()
    view.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert view.ended == view.called == ["set"]


@pytest.mark.parametrize("verb", ["get", "get_many", "list"])
async def test_who_is_cancelled_does_not_wait_for_a_read_and_nothing_is_written_after_it(verb: str) -> None:
    view, failed = View(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, told: failed.append(told))
    task = await _begun(view, _plan(verb, "set"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    view.go.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    await _turns()
    assert view.called == [verb]
    assert not failed


async def test_what_has_not_begun_does_not_begin() -> None:
    view = View()
    task = asyncio.create_task(run_in_thread(view, _plan("set")))  # type: ignore[arg-type]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.get_running_loop().shutdown_default_executor()
    assert view.called == []


async def test_who_is_not_cancelled_gets_what_it_comes_to() -> None:
    view = View()
    view.go.set()
    assert await run_in_thread(view, _plan("get", "set")) == ["get", "set"]  # type: ignore[arg-type]

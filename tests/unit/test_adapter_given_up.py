"""Waiting for what was begun for a caller who is cancelled."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import anyio

from statecache.adapters.given_up import until_ended


async def turns(count: int) -> None:
    """Let the event loop take some turns."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_it_ends_with_all_that_was_begun_however_often_it_is_cancelled() -> None:
    loop = asyncio.get_running_loop()
    begun = [loop.create_future() for _ in range(3)]
    task = asyncio.create_task(until_ended(begun))
    for number, one in enumerate(begun):
        await turns(3)
        task.cancel()
        await turns(3)
        assert not task.done()
        if number == 1:
            one.set_exception(ValueError("told to"))
            one.exception()
        else:
            one.set_result(None)
    await task
    await until_ended(begun)


async def test_a_cancelled_scope_of_anyio_does_not_disturb_it_at_every_turn() -> None:
    """Such a scope cancels again and again whoever does not end: a core would be busy while a server is away."""
    begun = asyncio.get_running_loop().create_future()
    scopes = list[anyio.CancelScope]()

    async def work() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            try:
                await asyncio.shield(begun)
            finally:
                await until_ended([begun])

    task = asyncio.create_task(work())
    await turns(3)
    scopes[0].cancel()
    await turns(50)
    assert (task.done(), task.cancelling()) == (False, 1)
    begun.set_result(None)
    await task


NEVER_LOADED = """
import anyio, asyncio, sys
from statecache.adapters.given_up import until_ended

async def main():
    begun = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(until_ended([begun]))
    await asyncio.sleep(0)
    task.cancel()
    begun.set_result(None)
    await task

asyncio.run(main())
print([name for name in sys.modules if name.startswith("anyio._backends._asyncio")])
"""


def test_it_imports_nothing_which_in_a_forked_child_might_never_end() -> None:
    done = subprocess.run([sys.executable, "-c", NEVER_LOADED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"

"""Agents as processes that are told to stop by SIGTERM, in the middle of a step: what they end, give back and say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest

from statecache import AsyncStateCache, Settings
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.polling import pause_thread

KEY = "runs/42"
WAIT_S = 30.0

ASYNC = """
    import asyncio, sys
    from statecache import AsyncStateCache

    async def line():
        return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    async def main(drain):
        steps = 0
        asyncio.get_running_loop().slow_callback_duration = 10.0  # a machine may be busy
        async with AsyncStateCache() as cache, cache.until_stopped(drain=drain) as told:
            print("ready", flush=True)
            while not told.stopping:
                async with cache.lock("runs/42", ttl=60) as lease:
                    steps += 1
                    print("began", steps, flush=True)
                    await line()
                    await lease.set("runs/42", steps)
                    print("ended", steps, flush=True)
                    await told.wait(5.0)
        print("left:", told.left, flush=True)
        return told.status

    sys.exit(asyncio.run(main(float(sys.argv[1]))))
"""

SYNC = """
    import sys
    from statecache import StateCache

    steps = 0
    with StateCache() as cache, cache.until_stopped(drain=float(sys.argv[1])) as told:
        print("ready", flush=True)
        while not told.stopping:
            with cache.lock("runs/42", ttl=60) as lease:
                steps += 1
                print("began", steps, flush=True)
                sys.stdin.readline()
                lease.set("runs/42", steps)
                print("ended", steps, flush=True)
                told.wait(5.0)
    print("left:", told.left, flush=True)
    sys.exit(told.status)
"""

both = pytest.mark.parametrize("program", [ASYNC, SYNC], ids=["async", "sync"])


@contextlib.asynccontextmanager
async def agent(program: str, settings: Settings, *, drain: float) -> AsyncIterator[Process]:
    """Start the agent's process, yield it once it has begun its first step, and end it."""
    names = ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards")
    variables = {f"STATECACHE_{name.upper()}": str(getattr(settings, name)) for name in names}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program), str(drain),
        stdin=PIPE, stdout=PIPE, stderr=PIPE, env=os.environ | variables,
    )  # fmt: skip
    try:
        assert await _line(process) == "ready"
        assert await _line(process) == "began 1"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _line(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        line = (await process.stdout.readline()).decode().strip()
    if not line and process.stderr is not None:
        pytest.fail((await process.stderr.read()).decode())
    return line


async def _go_on(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go on\n")
    await process.stdin.drain()


async def _ended(process: Process) -> tuple[list[str], int]:
    """Return what the process still writes, and its exit status."""
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
    assert err == b""
    return out.decode().splitlines(), process.returncode or 0


@both
async def test_an_agent_that_is_told_to_stop_ends_its_step_and_leaves_nothing(
    program: str, settings: Settings, worker: Worker, cache: AsyncStateCache
) -> None:
    async with flushing(worker), agent(program, settings, drain=20) as process:
        process.send_signal(signal.SIGTERM)
        await _go_on(process)
        assert await _ended(process) == (["ended 1", "left: nothing is left"], 0)
        state = await cache.get(KEY)
        assert state is not None
        assert await cache.wait_durable(state, timeout=1) == state
        async with cache.lock(KEY, timeout=0):
            pass


@both
async def test_an_agent_says_what_postgres_did_not_get_in_time(
    program: str, settings: Settings, cache: AsyncStateCache
) -> None:
    async with agent(program, settings, drain=0.3) as process:
        process.send_signal(signal.SIGINT)
        await _go_on(process)
        said = f"left: 1 commits ('{KEY}') of 1 shards are not known to be in Postgres"
        lines, status = await _ended_warning(process)
        assert (lines, status) == (["ended 1", said], 1)
        async with cache.lock(KEY, timeout=0):
            pass


async def _ended_warning(process: Process) -> tuple[list[str], int]:
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
    assert b"closed after" in err  # the log's line, by the handler of last resort
    return out.decode().splitlines(), process.returncode or 0


@both
async def test_a_second_signal_ends_an_agent_in_the_middle_of_its_step(
    program: str, settings: Settings, cache: AsyncStateCache
) -> None:
    async with agent(program, settings, drain=1000) as process:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(_handled, process.pid, signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        if program is ASYNC:
            await _go_on(process)  # its thread reads a line, and no thread can be cancelled
        async with asyncio.timeout(WAIT_S):
            out, _ = await process.communicate()
        assert (out, process.returncode) == (b"", 128 + signal.SIGTERM)
        assert await cache.get(KEY) is None
        async with cache.lock(KEY, timeout=0):
            pass


def _handled(pid: int, number: int) -> None:
    """Wait until the signal is no longer pending in the process, so that the next one is not merged with it."""
    bit = 1 << (number - 1)
    while True:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            pending = [int(line.split()[1], 16) for line in status if line.startswith(("SigPnd", "ShdPnd"))]
        if not any(mask & bit for mask in pending):
            return
        pause_thread()

"""Steps that run once, beside DBOS on the same Postgres: 64 runs at a time, each of 20 steps that do nothing.

Both note each step in Postgres, with fsync, so that a run that is cut off goes on behind its last step. Ours notes that
a step begins, too, before it lets it begin; a DBOS step that was cut off is run again without a word. Either side has a
process to itself, in which all runs are tasks of one loop, and they take turns. DBOS stands as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from time import monotonic
from typing import Any

from statecache import AsyncStateCache, Settings
from tests.benchmarks.measuring import Row, left_out, rates
from tests.benchmarks.processes import Processes

RUNS, STEPS = 64, 20
ROUNDS_MAX = 5
BOUND = 4.0
TIMEOUT_S = 120.0
OURS, THEIRS = f"steps/s, {RUNS} runs of {STEPS} that do nothing", "DBOS on the same Postgres"


def steps(settings: Settings, rounds: int) -> Row:
    """Measure the row; one worker runs."""
    if find_spec("dbos") is None:
        return left_out(OURS, "DBOS is not installed: the extra `bench` brings it")
    ours: list[float] = []
    theirs: list[float] = []
    with Processes(stepping, settings, count=1) as of_ours, Processes(by_dbos, settings, count=1) as of_theirs:
        sides = [(of_ours, ours), (of_theirs, theirs)]
        for turn in range(min(rounds, ROUNDS_MAX) + 1):
            for processes, seen in sides[:: 1 if turn % 2 else -1]:
                _, (seconds,) = processes.all(turn)
                seen.append(RUNS * STEPS / seconds)
    return rates((OURS, ours[1:]), (THEIRS, theirs[1:]), bound=BOUND)


@contextmanager
def stepping(number: int, settings: Settings) -> Iterator[Callable[[int], float]]:
    """Yield the job of our process, which answers how many seconds all runs took together."""
    cache = AsyncStateCache(settings=settings)

    async def run(key: str) -> None:
        for step in range(STEPS):
            if await cache.step(key, f"step-{step}", _nothing, step, timeout=TIMEOUT_S) != step:
                raise RuntimeError("a step gave another one's result")

    async def runs(turn: int) -> float:
        begun = monotonic()
        await asyncio.gather(*(run(f"runs/{turn}-{which}") for which in range(RUNS)))
        return monotonic() - begun

    with asyncio.Runner() as runner:
        try:
            yield lambda turn: runner.run(runs(turn))
        finally:
            runner.run(cache.close())


async def _nothing(step: Any, number: int) -> int:
    return number


@contextmanager
def by_dbos(number: int, settings: Settings) -> Iterator[Callable[[int], float]]:
    """Yield the same job done with DBOS."""
    dbos: Any = import_module("dbos").DBOS
    dbos(config={"name": "bench", "system_database_url": settings.postgres_url, "log_level": "ERROR"})

    @dbos.step()  # type: ignore[untyped-decorator]
    async def nothing(number: int) -> int:
        return number

    @dbos.workflow()  # type: ignore[untyped-decorator]
    async def run() -> int:
        return sum([await nothing(step) for step in range(STEPS)])

    async def runs() -> float:
        begun = monotonic()
        handles = [await dbos.start_workflow_async(run) for _ in range(RUNS)]
        sums = await asyncio.gather(*(handle.get_result() for handle in handles))
        if set(sums) != {sum(range(STEPS))}:
            raise RuntimeError("a run of DBOS lacks steps")
        return monotonic() - begun

    dbos.launch()
    with asyncio.Runner() as runner:
        try:
            yield lambda turn: runner.run(runs())
        finally:
            dbos.destroy()

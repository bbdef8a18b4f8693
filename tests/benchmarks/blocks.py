"""Calls that take less than a look at the clock: loops of thousands of them, timed from outside, which take turns.

One block is one side's loop. The sides follow each other block by block and each is the first in turn, so that they
meet the same moments; a call's time is its block's divided by their number, the loop's own few nanoseconds included.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Mapping
from itertools import repeat
from time import perf_counter
from typing import Any

Loop = Callable[[int], float]
"""A function that makes so many calls and returns the seconds that they took."""


def looped(call: Callable[[Any], Any], argument: Any) -> Loop:
    """Return the loop of one call."""

    def loop(calls: int) -> float:
        turns = repeat(None, calls)
        started = perf_counter()
        for _ in turns:
            call(argument)
        return perf_counter() - started

    return loop


def awaited(
    runner: asyncio.Runner, call: Callable[[Any], Awaitable[Any]], argument: Any, *, first: Callable[[], Awaitable[Any]]
) -> Loop:
    """Return the loop of a call on an event loop that stands still between blocks; `first` catches up, untimed."""

    async def loop(calls: int) -> float:
        await first()
        await call(argument)
        turns = repeat(None, calls)
        started = perf_counter()
        for _ in turns:
            await call(argument)
        return perf_counter() - started

    return lambda calls: runner.run(loop(calls))


def in_blocks(sides: Mapping[str, Loop], *, rounds: int, blocks: int, calls: int) -> dict[str, list[list[float]]]:
    """Return, for each side and round, the seconds of a call in each block."""
    for loop in sides.values():
        loop(calls)
    spent: dict[str, list[list[float]]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        gc.collect()
        for times in spent.values():
            times.append([])
        for _ in range(blocks):
            for name in order:
                spent[name][-1].append(sides[name](calls) / calls)
            order.append(order.pop(0))
    return spent

"""What a state of one kilobyte costs Redis, on a server that holds nothing else.

States are laid while the worker stands still: memory grows by each and its unflushed change. Then the worker flushes
them and, with a retention of nothing, lets the changes leave the stream: what remains are the clean states.
Growth over many states shows what the allocator really gave, rounding and the tables' growth included. What
connections and the append-only file hold in passing is taken off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statecache.testing.embedded import Servers
from tests.benchmarks.backlog import Backlog
from tests.benchmarks.flushing import stopped
from tests.benchmarks.measuring import Measure, Row

STATES = 20_000
ROUNDS_MAX = 5
CLEAN_KB_MAX = 2.4
DIRTY_KB_MAX = 3.8
IN_PASSING = ("mem_clients_normal", "mem_aof_buffer", "mem_replication_backlog")


def state_memory(running: Servers, bare: Any, backlog: Backlog, *, rounds: int) -> list[Row]:
    """Measure both rows; one worker runs, with no retention."""
    clean: list[float] = []
    dirty: list[float] = []
    _lay(backlog, 0, STATES // 10)
    backlog.until_flushed()
    backlog.until_trimmed()
    for number in range(1, min(rounds, ROUNDS_MAX) + 1):
        with stopped(running.worker_pids):
            before = held(bare.info("memory"))
            _lay(backlog, number, STATES)
            dirty.append(kilobytes_each(before, held(bare.info("memory")), STATES))
        backlog.until_flushed()
        backlog.until_trimmed()
        clean.append(kilobytes_each(before, held(bare.info("memory")), STATES))
    return [
        _row(f"Redis memory of a clean 1 KB state, N={STATES:,}", clean, CLEAN_KB_MAX),
        _row("Redis memory of one with its unflushed change", dirty, DIRTY_KB_MAX),
    ]


def held(info: Mapping[str, Any]) -> int:
    """Return the bytes that data takes, given the server's INFO on its memory."""
    return int(info["used_memory"]) - sum(int(info.get(name, 0)) for name in IN_PASSING)


def kilobytes_each(before: int, after: int, states: int) -> float:
    """Return the growth per state, in units of 1,024 bytes."""
    return (after - before) / states / 1024


def _lay(backlog: Backlog, number: int, states: int) -> None:
    backlog.lay(f"memory/{number}-{state}" for state in range(states))


def _row(name: str, figures: list[float], bound: float) -> Row:
    return Row(subject=Measure(name=name), figures=figures, unit="KB", bound=bound)

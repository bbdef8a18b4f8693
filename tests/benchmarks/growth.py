"""Whether a worker grows with what it has flushed: its resident memory over a million changes.

It remembers the tips of 50,000 keys and no more, so there are more keys than that, and the first fifth of the changes
is its warm-up. After it, memory may go up and down by 20 MB; a leak of two dozen bytes a change would show. Values are
short, so that a million of them need a gigabyte of disk and not five.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter

from statecache.testing.embedded import Servers
from tests.benchmarks.backlog import Backlog
from tests.benchmarks.measuring import Measure, Row

KEYS = 60_000
STEPS = 50
GROWTH_MB_MAX = 20.0


def status_of(pid: int) -> Path:
    """Return the file in which Linux shows a process's memory; elsewhere it does not exist."""
    return Path(f"/proc/{pid}/status")


def worker_growth(running: Servers, backlog: Backlog, *, changes: int) -> Row:
    """Measure the row; one worker runs."""
    status = status_of(running.worker_pids[0])
    keys = cycle(f"growth/{number}" for number in range(KEYS))
    seen: list[float] = []
    heads: list[tuple[int, int]] | None = None
    backlog.until_flushed()
    started = perf_counter()
    for _ in range(STEPS):
        backlog.lay(islice(keys, changes // STEPS))
        if heads is not None:
            backlog.until_flushed(heads)  # of the step before, so that there is always some to flush
        heads = backlog.heads()
        seen.append(resident_mb(status.read_text()))
    backlog.until_flushed()
    seen.append(resident_mb(status.read_text()))
    return Row(
        subject=Measure(name=f"worker's RSS over {changes:,} changes", ops_s=changes / (perf_counter() - started)),
        figures=[departure(seen)],
        unit="MB",
        bound=GROWTH_MB_MAX,
    )


def resident_mb(status: str) -> float:
    """Return a process's resident memory, in MB of 1,048,576 bytes."""
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


def departure(seen: Sequence[float]) -> float:
    """Return how far memory went at most, up or down, from where it stood after the first fifth."""
    warm = seen[len(seen) // 5 :]
    return max(abs(one - warm[0]) for one in warm)

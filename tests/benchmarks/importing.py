"""What importing statecache costs beside `import redis`: fresh interpreters in turns, less what an empty one takes.

`import statecache` brings names and loads what stands behind them at their first use; so the client is a row as well.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median
from time import perf_counter

from tests.benchmarks.measuring import Measure, Row, measure

RUNS = 5
RATIO_MAX = 2.5
PACKAGE, CLIENT, REDIS, NOTHING = "import statecache", "from statecache import StateCache", "import redis", "pass"
NAMES = {PACKAGE: "import statecache", CLIENT: "import of StateCache", REDIS: "import redis"}


def importing(rounds: int) -> list[Row]:
    """Measure both rows."""
    spent: dict[str, list[list[float]]] = {code: [] for code in (PACKAGE, CLIENT, REDIS, NOTHING)}
    for code in spent:
        _run(code)  # its bytecode is written now, if it was not
    for _ in range(rounds):
        for times in spent.values():
            times.append([])
        for run in range(RUNS):
            for code in list(spent)[:: 1 if run % 2 else -1]:
                spent[code][-1].append(_run(code))
    empty = spent.pop(NOTHING)
    took = {code: less(times, empty) for code, times in spent.items()}
    return [_row(code, took[code], took[REDIS]) for code in (PACKAGE, CLIENT)]


def less(rounds: list[list[float]], empty: list[list[float]]) -> list[list[float]]:
    """Subtract a round's median of the empty interpreter from each time of that round."""
    return [[one - median(bare) for one in spent] for spent, bare in zip(rounds, empty, strict=True)]


def _row(code: str, ours: list[list[float]], theirs: list[list[float]]) -> Row:
    return Row(
        subject=_measure(code, ours),
        against=_measure(REDIS, theirs),
        figures=[median(one) / median(other) for one, other in zip(ours, theirs, strict=True)],
        bound=RATIO_MAX,
    )


def _measure(code: str, rounds: list[list[float]]) -> Measure:
    return measure(f"{NAMES[code]}, less a bare start", rounds, ops_s=[1 / median(spent) for spent in rounds])


def _run(code: str) -> float:
    started = perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return perf_counter() - started

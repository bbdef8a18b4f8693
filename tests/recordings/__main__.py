"""Record faults into the files beside this module; see the package."""

from __future__ import annotations

import argparse
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from statecache.clock import monotonic
from tests.recordings.faults import FAULTS
from tests.recordings.scene import Scene, Scrape

FOLDER = Path(__file__).parent
RULES = FOLDER.parents[1] / "config/alerts.yml"
EVERY_S = 15
AT_ONCE = 3
HEAD = """# {what}
# Recorded by `python -m tests.recordings {name}`; what is expected stands at the end, and was written by hand.
"""


def recorded(name: str) -> list[Scrape]:
    """Put a deployment through a fault, and return what was scraped every quarter of a minute."""
    fault = FAULTS[name]
    scrapes: list[Scrape] = []
    with Scene(**fault.options) as scene, _beside(fault.moments(scene)):
        begun = monotonic()
        for tick in range(fault.minutes * 60 // EVERY_S + 1):
            _until(begun + tick * EVERY_S)
            scrapes.append(scene.scrape())
    return scrapes


def _until(moment: float) -> None:
    threading.Event().wait(max(0.0, moment - monotonic()))


@contextmanager
def _beside(moments: Iterator[int]) -> Iterator[None]:
    """Go through the moments in a thread of its own during the block; raise what went wrong there at its end."""
    begun = monotonic()

    def go() -> None:
        for second in moments:
            _until(begun + second)

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(go)
        yield
        going.result()


def read_by_rules(series: str, rules: str) -> bool:
    """Return whether the rules name the metric of a series."""
    return re.search(rf"\b{series.partition('{')[0]}\b", rules) is not None


def values(samples: Sequence[float | None]) -> str:
    """Return samples as promtool writes them: what stays the same once, with how often it comes again.

    Where a series ends its first missing sample is `stale`, as Prometheus marks it.
    """
    words: list[str] = []
    at = 0
    while at < len(samples):
        end = at
        while end + 1 < len(samples) and samples[end + 1] == samples[at]:
            end += 1
        value = samples[at]
        if value is None:
            missing = end - at + 1
            if at and samples[at - 1] is not None:
                words.append("stale")
                missing -= 1
            words += [f"_x{missing}"] if missing else []
        else:
            words.append(f"{round(value, 3):.15g}" + (f"x{end - at}" if end > at else ""))
        at = end + 1
    return " ".join(words)


def document(name: str, scrapes: Sequence[Scrape], before: str) -> str:
    """Return the file of a recording; what the one before expected is kept."""
    rules = RULES.read_text()
    expected = yaml.safe_load(before)["tests"][0]["promql_expr_test"] if before else []
    series = sorted({one for scrape in scrapes for one in scrape if read_by_rules(one, rules)})
    test: dict[str, Any] = {
        "name": name,
        "interval": f"{EVERY_S}s",
        "input_series": [
            {"series": one, "values": values([scrape.get(one) for scrape in scrapes])} for one in series
        ],
        "promql_expr_test": expected,
    }  # fmt: skip
    file = {"rule_files": ["../../config/alerts.yml"], "evaluation_interval": f"{EVERY_S}s", "tests": [test]}
    what = (FAULTS[name].moments.__doc__ or "").strip()
    return HEAD.format(what=what, name=name) + yaml.safe_dump(file, sort_keys=False, width=118)


def main(arguments: Sequence[str]) -> int:
    """Record the faults that are named, or all, and write their files."""
    parser = argparse.ArgumentParser(prog="python -m tests.recordings", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*FAULTS, []], help="the faults; without any, all of them")
    names = parser.parse_args(arguments).names or [*FAULTS]

    def record(name: str) -> None:
        path = FOLDER / f"{name}.yaml"
        scrapes = recorded(name)
        path.write_text(document(name, scrapes, path.read_text() if path.exists() else ""))
        sys.stdout.write(f"{path}: {len(scrapes)} scrapes\n")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(record, name) for name in names]:
            done.result()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the measurements show: a table for people, JSON for whoever draws it."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.benchmarks.measuring import Measure, Row

_COLUMNS = "{:<50} {:>9} {:>9} {:>9} {:>11} {:>7} {:>8}  {}"


def table(rows: Sequence[Row]) -> str:
    """This gives the rows as text, each with what it is held against below it."""
    lines = [_COLUMNS.format("", "ops/s", "p50 µs", "p99 µs", "longest µs", "ratio", "bound", "").rstrip()]
    lines += (line for row in rows for line in _lines(row))
    return "\n".join(lines) + "\n"


def document(rows: Sequence[Row], *, rounds: int, versions: dict[str, str]) -> bytes:
    """This gives the rows as JSON."""
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()}
    content: dict[str, Any] = {
        "rounds": rounds,
        "machine": machine | versions,
        "rows": [msgspec.to_builtins(row) | {"ratio": row.ratio, "met": row.met} for row in rows],
    }
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"


def _lines(row: Row) -> list[str]:
    sign = "≤" if row.at_most else "≥"
    verdict = "met" if row.met else "not met"
    return [
        _line(row.subject, f"{row.ratio:.2f}", f"{sign} {row.bound:g}", verdict),
        _line(row.against, "", "", "", indent="  "),
    ]


def _line(measure: Measure, ratio: str, bound: str, verdict: str, *, indent: str = "") -> str:
    times = [_number(time) for time in (measure.p50_us, measure.p99_us, measure.longest_us)]
    return _COLUMNS.format(indent + measure.name, _number(measure.ops_s), *times, ratio, bound, verdict).rstrip()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"

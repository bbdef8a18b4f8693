"""What the measurements show: a table for people, JSON for whoever draws it."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tests.benchmarks.measuring import Measure, Row

WIDTH = 120
_COLUMNS = "{:<46} {:>7} {:>7} {:>8} {:>9} {:>8} {:>12} {:>8} {}"
_HEADINGS = ("", "ops/s", "p50 µs", "p99 µs", "longest", "ratio", "rounds", "bound", "")
_LEGEND = (
    "ratio: the median of the rounds, and the least and the greatest of them; with a unit it is no ratio but a",
    "difference, a time or a size, as the row says. p50, p99: medians of the rounds. longest: of all rounds, in µs.",
)


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """The circumstances of a run."""

    rounds: int
    cores: int
    load: tuple[float, float]
    """How many processes wanted to run, on average over a minute, before and after."""
    seconds: float
    servers: Mapping[str, str] = {}
    notes: Sequence[str] = ()


def table(rows: Sequence[Row], about: Circumstances) -> str:
    """Return the rows as text, each with what it is compared with below it."""
    lines = [_COLUMNS.format(*_HEADINGS).rstrip()]
    lines += (line for row in rows for line in _lines(row))
    lines += ["", *_LEGEND, *about.notes]
    before, after = about.load
    took = f"{about.rounds} rounds in {about.seconds:,.0f} s on {about.cores} cores"
    lines.append(f"{took}; load average {before:.1f} before, {after:.1f} after, which includes the benchmark's own.")
    lines.append("On a machine that does other work too, no figure is a verdict.")
    failed = [row.subject.name for row in rows if row.met is False]
    if missing := sum(row.figure is None for row in rows):
        lines.append(f"LEFT OUT: {missing} of {len(rows)} rows.")
    if failed:
        lines.append(f"NOT MET: {len(failed)} of {sum(row.bound is not None for row in rows)} bounds.")
    return "\n".join(lines) + "\n"


def document(rows: Sequence[Row], about: Circumstances) -> bytes:
    """Return the rows as JSON."""
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": about.cores}
    content: dict[str, Any] = {
        "rounds": about.rounds,
        "machine": machine | dict(about.servers),
        "load": about.load,
        "seconds": about.seconds,
        "notes": about.notes,
        "rows": [msgspec.to_builtins(row) | {"figure": row.figure, "met": row.met} for row in rows],
    }
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"


def _lines(row: Row) -> list[str]:
    if row.figure is None:
        return [f"{row.subject.name:<46} LEFT OUT: {row.left_out}"]
    sign, unit = "≤" if row.at_most else "≥", f" {row.unit}" if row.unit else ""
    spread = f"{_figure(min(row.figures))} to {_figure(max(row.figures))}" if len(row.figures) > 1 else ""
    bound = "" if row.bound is None else f"{sign} {row.bound:g}{unit}"
    verdict = {None: "", True: "met", False: "NOT MET"}[row.met]
    lines = [_line(row.subject, _figure(row.figure) + unit, spread, bound, verdict)]
    return lines if row.against is None else [*lines, _line(row.against, "", "", "", "", indent="  ")]


def _line(measure: Measure, figure: str, spread: str, bound: str, verdict: str, *, indent: str = "") -> str:
    numbers = [_number(value) for value in (measure.ops_s, measure.p50_us, measure.p99_us, measure.longest_us)]
    return _COLUMNS.format(indent + measure.name, *numbers, figure, spread, bound, verdict).rstrip()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2f}"


def _figure(value: float) -> str:
    size = abs(value)
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 100 else f"{value:,.0f}"

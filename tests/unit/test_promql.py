"""The evaluator of PromQL that tries out config/alerts.yml: it gives what promtool gives, where that is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml

from tests.support.promql import NAME, Labels, Rule, evaluate, firing, metrics_of, series_from

PROMTOOL = shutil.which("promtool")
EVERY_S = 15.0
SERIES = {
    'a_total{job="j",i="1"}': "0+3x40",
    'a_total{job="j",i="2"}': "0x19 7x2 1x18",
    'late_total{job="j"}': "_x30 5x10",
    'up{job="j",i="1"}': "1x10 0x29",
    'up{job="j",i="2"}': "1x10 stale _x28",
    'up{job="j",i="3"}': "1x25 _x14",
    'b{job="j",i="1"}': "4x40",
    'b{job="j",i="2"}': "0x40",
    **{f's_bucket{{job="j",le="{le}"}}': f"0+{n}x40" for le, n in (("0.5", 2), ("1", 5), ("2.5", 9), ("+Inf", 10))},
}


class Case(NamedTuple):
    """What an expression gives by its labels, at a second that is no sample's: releases differ in whose an end is."""

    expression: str
    gives: dict[str, float]
    at_s: int = 607


CASES = [
    Case('up{i="1"} == 0', {'up{i="1", job="j"}': 0}),
    Case("up", {'up{i="1", job="j"}': 0, 'up{i="3", job="j"}': 1}),
    Case("up", {f'up{{i="{i}", job="j"}}': 1 for i in (1, 2, 3)}, at_s=157),
    Case('up{i=~"2|3"} == 1', {}, at_s=780),
    Case('absent(up{i="2"} == 1)', {"{}": 1}),
    Case('absent(up{i="3"} == 1)', {}),
    Case("increase(a_total[5m])", {'{i="1", job="j"}': 60, '{i="2", job="j"}': 20 / 19}),
    Case("increase(a_total[10m])", {'{i="1", job="j"}': 120, '{i="2", job="j"}': 8 * 592 / 585}),
    Case('rate(a_total{i="1"}[5m])', {'{i="1", job="j"}': 0.2}),
    Case("sum by (job) (rate(a_total[5m])) > 0", {'{job="j"}': 0.2 + 1 / 285}),
    Case("increase(late_total[15m]) > 0", {}),
    Case("late_total > 0 unless late_total offset 5m", {'late_total{job="j"}': 5}),
    Case("late_total > 0 unless late_total offset 1m", {}),
    Case("late_total or b", {'late_total{job="j"}': 5, 'b{i="1", job="j"}': 4, 'b{i="2", job="j"}': 0}),
    Case('b and a_total{i="1"}', {'b{i="1", job="j"}': 4}),
    Case("max by (job) (b) - min by (job) (b)", {'{job="j"}': 4}),
    Case("count by (job) (b) / 4 > 0.25", {'{job="j"}': 0.5}),
    Case("b != 0", {'b{i="1", job="j"}': 4}),
    Case("b * b", {'{i="1", job="j"}': 16, '{i="2", job="j"}': 0}),
    Case("histogram_quantile(0.5, s_bucket)", {'{job="j"}': 1}),
    Case("histogram_quantile(0.99, s_bucket)", {'{job="j"}': 2.5}),
    Case("histogram_quantile(0.1, sum by (job, le) (rate(s_bucket[5m])))", {'{job="j"}': 0.25}),
]


def named(labels: Labels) -> str:
    """Return labels as promtool writes them."""
    name = dict(labels).get(NAME, "")
    pairs = ", ".join(f'{key}="{value}"' for key, value in sorted(labels) if key != NAME)
    return f"{name}{{{pairs}}}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.expression)
def test_it_gives(case: Case) -> None:
    made = [series_from(name, samples, EVERY_S) for name, samples in SERIES.items()]
    found = evaluate(promql_parser.parse(case.expression), made, case.at_s)
    assert isinstance(found, dict)
    assert {named(labels): value for labels, value in found.items()} == pytest.approx(case.gives)


@pytest.mark.parametrize("program", [PROMTOOL] if PROMTOOL else [])
def test_promtool_gives_the_same(tmp_path: Path, program: str) -> None:
    tests: list[dict[str, Any]] = [
        {
            "interval": "15s",
            "input_series": [{"series": name, "values": samples} for name, samples in SERIES.items()],
            "promql_expr_test": [
                {
                    "expr": f"round(({case.expression}) * 1e6)",
                    "eval_time": f"{case.at_s}s",
                    "exp_samples": [
                        {"labels": labels[labels.index("{") :], "value": float(round(value * 1e6))}
                        for labels, value in case.gives.items()
                    ],
                }
                for case in CASES
            ],
        }
    ]
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "15s", "tests": tests}))
    command = [program, "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("held_s", "fires"), [(435, True), (450, False)])
def test_an_alert_fires_once_its_expression_has_held_for_its_time(held_s: int, fires: bool) -> None:
    rule = Rule("Down", promql_parser.parse('up{i="1"} == 0'), held_s)
    series = [series_from(name, samples, EVERY_S) for name, samples in SERIES.items()]
    assert firing([rule], series, 600.0, EVERY_S) == ({"Down"} if fires else set())


@pytest.mark.parametrize(
    "expression",
    ["sum without (i) (b)", "b > bool 1", "b / on (job) c", "b @ 0", "absent(b)", "avg(b)", "b[5m]", "deriv(b[5m])"],
)
def test_what_it_does_not_know_it_refuses(expression: str) -> None:
    series = [series_from(name, samples, EVERY_S) for name, samples in SERIES.items()]
    with pytest.raises((TypeError, KeyError)):
        evaluate(promql_parser.parse(expression), series, 600.0)


def test_the_metrics_of_an_expression_come_with_what_selects_them() -> None:
    query = 'sum by (x) (rate(a_total{job="j",k!="v"}[5m])) / b > 1 or absent(c)'
    assert metrics_of(query) == {"a_total": {"job", "k"}, "b": set(), "c": set()}

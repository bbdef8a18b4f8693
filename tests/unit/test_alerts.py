"""config/alerts.yml: its expressions parse, read what is exported, are explained, and fire on what was recorded.

The recordings are tests of promtool, too. Where it is installed it is asked what the evaluator of these tests is asked.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from statecache import errors
from statecache.rules.backlog import NEARLY_FULL
from tests.recordings.__main__ import EVERY_S, FOLDER, document, values
from tests.recordings.faults import FAULTS
from tests.recordings.scene import Scrape
from tests.support.promql import Rule, firing, metrics_of, series_from

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config"
ALERTS = CONFIG / "alerts.yml"
PAGE = (ROOT / "docs/alerts.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
NAMES = [rule["alert"] for rule in RULES]
PROMTOOL = shutil.which("promtool")
FIRING = 'group by (alertname) (ALERTS{alertstate="firing"})'
every_rule = pytest.mark.parametrize("rule", RULES, ids=NAMES)
every_recording = pytest.mark.parametrize("name", FAULTS)


def seconds(duration: str) -> float:
    return promql_parser.parse_duration(duration).total_seconds()


@cache
def rules() -> tuple[Rule, ...]:
    """The rules, parsed."""
    return tuple(
        Rule(rule["alert"], promql_parser.parse(rule["expr"]), seconds(rule["for"]) if "for" in rule else 0.0)
        for rule in RULES
    )


@cache
def recording(name: str) -> dict[str, Any]:
    """A recording's test, as its file has it."""
    file = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert (FOLDER / file["rule_files"][0]).resolve() == ALERTS
    (test,) = file["tests"]
    assert seconds(test["interval"]) == seconds(file["evaluation_interval"]) == EVERY_S
    return dict(test)


def expected(name: str) -> dict[float, set[str]]:
    """Return which alerts have to fire at which second of a recording."""
    found = {}
    for one in recording(name)["promql_expr_test"]:
        assert one["expr"] == FIRING
        labels = " ".join(sample["labels"] for sample in one["exp_samples"])
        found[seconds(one["eval_time"])] = set(re.findall(r'"(\w+)"', labels))
    return found


def evaluated(name: str) -> None:
    """Ask the evaluator of these tests what fires."""
    series = [series_from(one["series"], one["values"], EVERY_S) for one in recording(name)["input_series"]]
    fired = {at_s: firing(rules(), series, at_s, EVERY_S) for at_s in expected(name)}
    assert fired == expected(name)


def asked_of_promtool(name: str) -> None:
    """Ask promtool."""
    command = [PROMTOOL or "", "test", "rules", str(FOLDER / f"{name}.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# What they read, and what is said about them.


@every_rule
def test_a_rule_says_how_bad_it_is_and_where_it_is_explained(rule: dict[str, Any]) -> None:
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "runbook"}
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"


def test_every_rule_has_its_section_and_the_other_way_round() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == NAMES


@every_rule
def test_a_rule_reads_documented_metrics_by_their_labels(rule: dict[str, Any]) -> None:
    """What is documented is what is exported: test_metrics compares that with real workers and clients."""
    rows = dict(re.findall(r"^\| `(statecache_\w+)` \| \w+ \| ([^|]*)\|", METRICS, re.MULTILINE))
    for metric, labels in metrics_of(rule["expr"]).items():
        known = set(re.findall(r"\w+", rows.get(re.sub(r"_bucket$", "", metric), "")))
        assert metric == "up" or re.sub(r"_bucket$", "", metric) in rows
        assert labels <= known | {"job"}


@every_rule
def test_what_a_summary_names_is_left_by_its_expression(rule: dict[str, Any]) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    expression = promql_parser.parse(rule["expr"])
    while isinstance(expression, promql_parser.BinaryExpr):
        expression = expression.lhs
    left = {"instance"}
    if isinstance(expression, promql_parser.AggregateExpr):
        assert expression.modifier is not None
        left = set(expression.modifier.labels)
    assert named <= left


def test_jobs_and_outcomes_are_those_that_there_are() -> None:
    text = ALERTS.read_text(encoding="utf-8")
    scraped = yaml.safe_load((CONFIG / "prometheus.yml").read_text(encoding="utf-8"))
    assert set(re.findall(r'job="([\w-]+)"', text)) <= {job["job_name"] for job in scraped["scrape_configs"]}
    for pattern in set(re.findall(r'outcome=~?"([^"]+)"', text)):
        assert [name for name in dir(errors) if re.fullmatch(pattern, name)], pattern
        for word in re.sub(r"\((\w+)\|(\w+)\)\??(\w+)", r"\1\3|\2\3", pattern).split("|"):
            assert hasattr(errors, word), word


def test_a_backlog_is_nearly_full_for_the_alert_when_it_is_for_status() -> None:
    (rule,) = (rule for rule in RULES if rule["alert"] == "StatecacheBacklogNearlyFull")
    assert rule["expr"].endswith(f"> {NEARLY_FULL}")


def test_every_prometheus_loads_them() -> None:
    for name in ("prometheus.yml", "prometheus.compose.yml"):
        assert yaml.safe_load((CONFIG / name).read_text(encoding="utf-8"))["rule_files"] == ["alerts.yml"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert "./config/alerts.yml:/etc/prometheus/alerts.yml:ro" in compose["services"]["prometheus"]["volumes"]


# Recordings.


@every_recording
@pytest.mark.parametrize("ask", [evaluated, *([asked_of_promtool] if PROMTOOL else [])], ids=lambda ask: ask.__name__)
def test_what_was_recorded_lets_these_fire_and_no_others(name: str, ask: Callable[[str], None]) -> None:
    assert len(expected(name)) >= 2
    ask(name)


def test_each_fires_in_a_fault_and_none_where_nothing_is_wrong() -> None:
    seen = set().union(*(fired for name in FAULTS for fired in expected(name).values()))
    assert set(NAMES) - seen == set()
    assert set().union(*expected("calm").values()) == set()
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(FAULTS)


@every_recording
def test_a_recording_has_every_metric_that_the_rules_read(name: str) -> None:
    read = {metric for rule in RULES for metric in metrics_of(rule["expr"])}
    recorded = {one["series"].partition("{")[0] for one in recording(name)["input_series"]}
    assert read == recorded


def test_samples_are_written_as_promtool_reads_them() -> None:
    assert values([None, 1.0, 1.0, 1.0, 2.5, None, None, None, 0.0001]) == "_x1 1x2 2.5 stale _x2 0"
    series = series_from('up{job="a"}', "_x1 1x2 2.5 stale _x2 0", 15.0)
    assert series.samples == [None, 1.0, 1.0, 1.0, 2.5, "stale", None, None, 0.0]


def test_a_recording_made_anew_keeps_what_is_expected() -> None:
    scrape: Scrape = {'up{job="a"}': 1.0, 'statecache_ready{job="a"}': 1.0, 'something_else{job="a"}': 1.0}
    kept = [{"expr": FIRING, "eval_time": "1m", "exp_samples": []}]
    before = yaml.safe_dump({"tests": [{"promql_expr_test": kept}]})
    (test,) = yaml.safe_load(document("calm", [scrape, scrape], before))["tests"]
    assert test["promql_expr_test"] == kept
    assert [one["series"] for one in test["input_series"]] == ['statecache_ready{job="a"}', 'up{job="a"}']

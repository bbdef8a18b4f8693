"""Agents that are killed in the middle of a step: its effect happens once, or is said to be unknown."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.acceptance.step_kills import BOUNDARIES, DEADLY, WAYS, Case, Ended, fault_of

TIMES = 2
SECONDS = 300

UNKNOWN = Ended(Case("effect", "plain", 1), ["unknown"], [-9, 0], ["k"], completed=False)
KNOWN = Ended(Case("effect", "check", 1), ["result k"], [-9, 0], ["k"], completed=True)
RACED = Ended(Case("race", "plain", 1), ["result k"] * 3, [0, 0, 0], ["k"], completed=True)
WOKEN = Ended(Case("paused", "plain", 1), ["unknown", "result k", "unknown"], [0, 0, 0], ["k"], completed=True)


def test_no_kill_makes_an_effect_happen_twice_in_silence() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.acceptance.step_kills", "--times", str(TIMES)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    killed = TIMES * len(WAYS) * len(DEADLY)
    assert told["violations"] == []
    assert told["cases"] == TIMES * len(WAYS) * len(BOUNDARIES)
    assert killed - 2 * TIMES * len(WAYS) <= told["killed"] <= killed  # whoever dies at any moment may be done by then
    assert told["unknown"] >= TIMES * 3  # intent, effect and apply, where nothing but the step goes on


@pytest.mark.parametrize("ended", [UNKNOWN, UNKNOWN._replace(effects=[]), KNOWN, RACED, WOKEN])
def test_the_judge_finds_nothing_where_all_is_well(ended: Ended) -> None:
    assert fault_of(ended) == ""


@pytest.mark.parametrize(
    ("ended", "fault"),
    [
        (UNKNOWN._replace(effects=["k", "k"]), "2 effects"),
        (UNKNOWN._replace(completed=True), "one commit"),
        (UNKNOWN._replace(told=[]), "the last agent told"),
        (KNOWN._replace(effects=["k", "k"]), "2 effects"),
        (KNOWN._replace(effects=["k", "l"]), "several idempotency keys"),
        (KNOWN._replace(effects=[]), "is not what the effect gave"),
        (KNOWN._replace(told=["result other"]), "is not what the effect gave"),
        (KNOWN._replace(told=["unknown"], completed=False), "still unknown"),
        (KNOWN._replace(completed=False), "one commit"),
        (KNOWN._replace(case=Case("effect", "idempotent", 1), effects=["k", "l"]), "several idempotency keys"),
        (RACED._replace(effects=["k", "k"]), "2 effects"),
        (RACED._replace(told=["unknown", "result k", "result k"]), "the racers told"),
        (RACED._replace(case=Case("outage", "idempotent", 1), effects=["k", "k"]), "the racers told"),
        (RACED._replace(case=Case("slow", "check", 1), told=["unknown", "result k", "result k"]), "the racers told"),
        (WOKEN._replace(effects=["k", "k"]), "effects"),
        (WOKEN._replace(case=Case("paused", "idempotent", 1), effects=["k", "l"]), "effects"),
        (WOKEN._replace(case=Case("paused", "check", 1)), "the agents told"),
        (WOKEN._replace(completed=False), "the agents told"),
    ],
)
def test_the_judge_finds_what_is_wrong(ended: Ended, fault: str) -> None:
    assert fault in fault_of(ended)

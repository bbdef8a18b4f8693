"""The benchmark itself: what it counts, what it says, what it takes."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import msgspec
import pytest

from tests.benchmarks.__main__ import Choices, choices_of
from tests.benchmarks.measuring import Measure, Row, in_turns, rates
from tests.benchmarks.report import document, table
from tests.benchmarks.values import SAMPLE, VALUE_BYTES, encoded, values_of


def row(ratios: list[float], *, bound: float, at_most: bool) -> Row:
    side = Measure(name="a side", ops_s=1.0)
    return Row(subject=side, against=side, ratios=ratios, bound=bound, at_most=at_most)


@pytest.mark.parametrize(
    ("ratios", "bound", "at_most", "met"),
    [
        ([1.0, 1.6, 9.0], 1.6, True, True),
        ([1.0, 1.7, 1.8], 1.6, True, False),
        ([0.1, 0.7, 0.9], 0.65, False, True),
        ([0.1, 0.6, 0.9], 0.65, False, False),
    ],
)
def test_the_median_of_the_rounds_is_held_against_the_bound(
    ratios: list[float], bound: float, at_most: bool, met: bool
) -> None:
    assert row(ratios, bound=bound, at_most=at_most).met is met


def test_both_sides_take_turns_within_a_round_and_neither_is_always_first() -> None:
    order: list[str] = []
    measured = in_turns(
        ("ours", lambda: order.append("o")), ("theirs", lambda: order.append("t")), bound=1.0, rounds=2, calls=8
    )
    assert "".join(order) == "oott" + 2 * "toottoottoottoot"
    assert len(measured.ratios) == 2
    assert measured.subject.p50_us is not None
    assert measured.subject.longest_us is not None
    assert measured.subject.p50_us <= measured.subject.longest_us


def test_a_table_for_people_and_the_same_as_json() -> None:
    numbers = count(1)
    rows = [
        in_turns(("ours", lambda: next(numbers)), ("theirs", lambda: None), bound=1e9, rounds=5, calls=4),
        rates(("flush", [10.0, 30.0, 20.0]), ("by hand", [10.0, 20.0, 40.0]), bound=5),
    ]
    lines = table(rows).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["ours", "theirs", "flush", "by"]
    assert lines[1].endswith(" met")
    assert lines[3].endswith("1.00      ≥ 5  not met")
    found = msgspec.json.decode(document(rows, rounds=5, versions={"redis": "valkey 9.1"}))
    assert [one["met"] for one in found["rows"]] == [True, False]
    assert found["machine"]["redis"] == "valkey 9.1"


def test_values_have_one_kilobyte_whatever_was_said(tmp_path: Path) -> None:
    runs = tmp_path / "runs.jsonl"
    said = ["short", 'quotes " and \\ and é ' * 90, None, "\N{SNOWMAN}" * 700]
    runs.write_bytes(msgspec.json.encode({"id": "1", "messages": [{"content": text} for text in said]}) + b"\n")
    assert [len(encoded(value)) for value in values_of(runs)] == [VALUE_BYTES] * 3
    assert {len(encoded(value)) for value in values_of(SAMPLE)} == {VALUE_BYTES}


def test_what_is_asked_for_comes_as_arguments_or_from_the_environment() -> None:
    assert choices_of([], {}) == Choices()
    environment = {"JSON": "a.json", "RUNS": __file__, "ROUNDS": ""}
    assert choices_of([], environment) == Choices(json=Path("a.json"), runs=Path(__file__))
    assert choices_of(["JSON=c.json", "ROUNDS=5"], environment).json == Path("c.json")


@pytest.mark.parametrize(
    "wrong", ["json=a", "ROUNDS", "ROUNDS=4", "ROUNDS=many", "RUNS=/nowhere.jsonl", "JSON=/nowhere/a.json"]
)
def test_what_cannot_be_done_is_said_before_anything_is_measured(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"ROUNDS|many|nowhere"):
        choices_of([wrong], {})

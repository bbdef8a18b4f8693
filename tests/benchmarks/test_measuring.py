"""The benchmark itself: what it counts, what it says, what it takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest

from tests.benchmarks.agents import Commit, Order, orders, schedule
from tests.benchmarks.choices import SECTIONS, Choices, choices_of
from tests.benchmarks.growth import departure, resident_mb
from tests.benchmarks.importing import less
from tests.benchmarks.load import Kept, Mark, best_of, durable_at
from tests.benchmarks.measuring import Measure, Row, in_turns, measure, percentile, rates
from tests.benchmarks.memory import held, kilobytes_each
from tests.benchmarks.report import WIDTH, Circumstances, document, table
from tests.benchmarks.values import SAMPLE, SHORT_CHARACTERS, VALUE_BYTES, encoded, short, values_of

ABOUT = Circumstances(rounds=5, cores=2, load=(0.4, 1.9), seconds=61.2, servers={"redis": "valkey 9.1"})


def row(figures: list[float], *, bound: float | None, at_most: bool = True) -> Row:
    return Row(subject=Measure(name="a side", ops_s=1.0), figures=figures, bound=bound, at_most=at_most)


@pytest.mark.parametrize(
    ("figures", "bound", "at_most", "met"),
    [
        ([1.0, 1.6, 9.0], 1.6, True, True),
        ([1.0, 1.7, 1.8], 1.6, True, False),
        ([0.1, 0.7, 0.9], 0.65, False, True),
        ([0.1, 0.6, 0.9], 0.65, False, False),
        ([0.1, 0.6, 0.9], None, False, None),
    ],
)
def test_the_median_of_the_rounds_is_held_against_the_bound(
    figures: list[float], bound: float | None, at_most: bool, met: bool | None
) -> None:
    assert row(figures, bound=bound, at_most=at_most).met is met


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """A clock that goes on by half a second at every look."""
    clock = count(0.0, 0.5)
    monkeypatch.setattr("tests.benchmarks.measuring.perf_counter", lambda: next(clock))
    return clock


@pytest.mark.usefixtures("ticking")
def test_both_sides_take_turns_within_a_round_and_neither_is_always_first() -> None:
    order: list[str] = []
    measured = in_turns(
        ("ours", lambda: order.append("o")), ("theirs", lambda: order.append("t")), bound=1.0, rounds=2, calls=8
    )
    assert "".join(order) == "oott" + 2 * "toottoottoottoot"
    assert measured.figures == [1.0, 1.0]
    assert (measured.subject.ops_s, measured.subject.p50_us, measured.subject.longest_us) == (2.0, 5e5, 5e5)


def test_a_difference_is_counted_in_milliseconds(ticking: Iterator[float]) -> None:
    found = in_turns(("ours", lambda: next(ticking)), ("theirs", lambda: None), bound=3, rounds=3, calls=4, unit="ms")
    assert found.figures == [500.0] * 3
    assert found.unit == "ms"


@pytest.mark.parametrize(("values", "percent", "found"), [
    ([7.0], 99, 7.0),
    ([4.0, 1.0, 3.0, 2.0], 50, 2.0),
    ([float(value) for value in range(100, 0, -1)], 99, 99.0),
    ([float(value) for value in range(1, 102)], 99, 100.0),
])  # fmt: skip
def test_a_percentile_is_one_of_the_values(values: list[float], percent: int, found: float) -> None:
    assert percentile(values, percent) == found


def test_the_longest_wait_is_that_of_all_rounds_and_the_rest_is_of_the_median_round() -> None:
    found = measure("calls", [[0.001] * 4, [0.002] * 4, [0.002, 0.002, 0.002, 0.5]])
    assert found == Measure(name="calls", ops_s=500.0, p50_us=2000.0, p99_us=2000.0, longest_us=500000.0)
    assert measure("many at once", [[0.1]], ops_s=[9.0, 7.0, 8.0]).ops_s == 8.0


def test_a_schedule_goes_on_whatever_happens_and_clients_share_it_evenly() -> None:
    shared = orders(2, start=100.0, seconds=1.0, rate=8.0)
    assert [list(schedule(order)) for order in shared] == [[100.0, 100.25, 100.5, 100.75],
                                                           [100.125, 100.375, 100.625, 100.875]]  # fmt: skip
    assert orders(3, start=1.0, seconds=2.0) == [Order(1.0, 3.0)] * 3


def test_a_change_is_durable_when_a_watermark_of_its_shard_first_covers_it() -> None:
    marks = {1: [Mark(3, 0.5), Mark(5, 0.9)], 2: [Mark(9, 0.1)]}
    commits = [Commit(1, n, 0.0, 0.0, 0.0) for n in (2, 3, 4, 5)]
    assert durable_at(commits, marks) == [0.5, 0.5, 0.9, 0.9]
    with pytest.raises(ValueError, match="change 6 of shard 1"):
        durable_at([Commit(1, 6, 0.0, 0.0, 0.0)], marks)


def test_the_highest_rate_is_that_of_the_median_round() -> None:
    assert best_of({1: [5.0, 6.0, 7.0], 2: [1.0, 2.0, 99.0], 4: [6.5, 6.5, 1.0]}) == Kept(4, 6.5)


def test_memory_is_what_data_hold_shared_out_over_the_states() -> None:
    info = {"used_memory": 5_000, "mem_clients_normal": 1_500, "mem_aof_buffer": 300, "mem_allocator": "jemalloc"}
    assert held(info) == 3_200
    assert kilobytes_each(1_000, 1_000 + 20 * 1536, 20) == 1.5


def test_growth_is_counted_from_the_end_of_the_warm_up_on() -> None:
    assert resident_mb("Name:\tpython\nVmHWM:\t  999999 kB\nVmRSS:\t   62464 kB\n") == 61.0
    assert departure([10.0, 40.0, 60.0, 61.0, 58.0, 60.0, 63.0, 60.0, 55.5, 60.0]) == 4.5


def test_what_an_empty_interpreter_takes_is_taken_off_round_by_round() -> None:
    assert less([[5.0, 7.0], [9.0]], [[1.0, 2.0, 9.0], [4.0]]) == [[3.0, 5.0], [5.0]]


@pytest.mark.usefixtures("ticking")
def test_a_table_for_people_and_the_same_as_json() -> None:
    numbers = count(1)
    rows = [
        in_turns(("ours", lambda: next(numbers)), ("theirs", lambda: None), bound=1e9, rounds=5, calls=4),
        rates(("flush", [10.0, 30.0, 20.0]), ("by hand", [10.0, 20.0, 40.0]), bound=5),
        Row(subject=Measure(name="memory"), figures=[2.31], unit="KB", bound=2.4),
        Row(subject=Measure(name="clients", ops_s=1234.5), figures=[1.0, 12.34, 99.0]),
    ]
    lines = table(rows, ABOUT).splitlines()
    assert [line.split()[0] for line in lines[1:7]] == ["ours", "theirs", "flush", "by", "memory", "clients"]
    assert lines[1].endswith(" met")
    assert " ".join(lines[3].split()) == "flush 20 1.00 0.50 to 1.50 ≥ 5 NOT MET"
    assert " ".join(lines[5].split()) == "memory 2.31 KB ≤ 2.4 KB met"
    assert " ".join(lines[6].split()) == "clients 1,234 12.3 1.00 to 99.0"
    assert "on 2 cores; load average 0.4 before, 1.9 after" in lines[-3]
    assert lines[-1] == "NOT MET: 1 of 3 bounds."
    assert max(map(len, lines)) <= WIDTH

    found = msgspec.json.decode(document(rows, ABOUT))
    assert [one["met"] for one in found["rows"]] == [True, False, True, None]
    assert [one["figure"] for one in found["rows"][1:]] == [1.0, 2.31, 12.34]
    assert found["rows"][2] == {
        "subject": {"name": "memory", "ops_s": None, "p50_us": None, "p99_us": None, "longest_us": None},
        "against": None, "figures": [2.31], "unit": "KB", "bound": 2.4, "at_most": True, "left_out": "",
        "figure": 2.31, "met": True,
    }  # fmt: skip
    assert found["machine"]["redis"] == "valkey 9.1"
    assert (found["rounds"], found["load"], found["seconds"]) == (5, [0.4, 1.9], 61.2)


def test_values_have_one_kilobyte_whatever_was_said(tmp_path: Path) -> None:
    runs = tmp_path / "runs.jsonl"
    said = ["short", 'quotes " and \\ and é ' * 90, None, "\N{SNOWMAN}" * 700]
    runs.write_bytes(msgspec.json.encode({"id": "1", "messages": [{"content": text} for text in said]}) + b"\n")
    assert [len(encoded(value)) for value in values_of(runs)] == [VALUE_BYTES] * 3
    assert {len(encoded(value)) for value in values_of(SAMPLE)} == {VALUE_BYTES}
    assert [len(short(value)["messages"][0]["content"]) for value in values_of(runs)] == [SHORT_CHARACTERS] * 3


def test_what_is_asked_for_comes_as_arguments_or_from_the_environment() -> None:
    assert choices_of([], {}) == Choices()
    environment = {"JSON": "a.json", "RUNS": __file__, "ROUNDS": "", "ONLY": "lag, commit", "STRICT": "1"}
    found = choices_of([], environment)
    assert found == Choices(json=Path("a.json"), runs=Path(__file__), only=("lag", "commit"), strict=True)
    assert choices_of(["JSON=c.json", "ROUNDS=5"], environment).json == Path("c.json")
    assert choices_of(["--only", "get", "rss", "--rounds", "9", "CHANGES=20000"], environment) == Choices(
        json=Path("a.json"), runs=Path(__file__), only=("get", "rss"), strict=True, rounds=9, changes=20000
    )
    assert choices_of(["--strict"], {"STRICT": "0"}).strict
    assert not choices_of([], {"STRICT": "0"}).strict


def test_a_section_is_wanted_where_it_is_named_or_nothing_is() -> None:
    assert all(Choices().wants(section) for section in SECTIONS)
    assert Choices(only=("get",)).wants("commit", "get")
    assert not Choices(only=("get",)).wants("commit", "lag")


@pytest.mark.parametrize("wrong", [
    ["json=a"], ["rounds=7"], ["ROUNDS"], ["ROUNDS=4"], ["ROUNDS=many"], ["--rounds"], ["--runds", "7"],
    ["RUNS=/nowhere.jsonl"], ["JSON=/nowhere/a.json"], ["CHANGES=9"], ["--only", "everything"], ["ONLY="],
])  # fmt: skip
def test_what_cannot_be_done_is_said_before_anything_is_measured(wrong: list[str]) -> None:
    with pytest.raises(ValueError):
        choices_of(wrong, {})

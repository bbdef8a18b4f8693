"""The benchmark of the agents' side: what it counts, and that its checks can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from statecache import Settings
from tests.benchmarks.agents_side import AGENTS_SIDE
from tests.benchmarks.blocks import awaited, in_blocks, looped
from tests.benchmarks.choices import SECTIONS
from tests.benchmarks.contenders import Answer, together
from tests.benchmarks.contention import SIDES, Burst, Side, Tasks, attempts_of, contention, rate_of
from tests.benchmarks.measuring import Measure, Row, left_out, rates
from tests.benchmarks.near import ask_nobody, beyond, coherent, slower, taking
from tests.benchmarks.processes import Processes
from tests.benchmarks.report import Circumstances, document, table
from tests.benchmarks.steps import steps

ABOUT = Circumstances(rounds=5, cores=2, load=(0.4, 1.9), seconds=61.2)


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by half a second at every look."""
    clock = count(0.0, 0.5)
    monkeypatch.setattr("tests.benchmarks.blocks.perf_counter", lambda: next(clock))


def test_every_section_can_be_asked_for() -> None:
    assert set(AGENTS_SIDE) <= set(SECTIONS)


@pytest.mark.usefixtures("ticking")
def test_blocks_take_turns_and_none_is_always_first() -> None:
    order: list[str] = []
    sides = {name: looped(order.append, name) for name in "abc"}
    spent = in_blocks(sides, rounds=2, blocks=3, calls=2)
    assert "".join(order)[::2] == "abc" + "abcbcacab" * 2
    assert spent == {name: [[0.25] * 3] * 2 for name in "abc"}


@pytest.mark.usefixtures("ticking")
def test_a_loop_of_a_coroutine_catches_up_before_the_clock_starts() -> None:
    calls: list[str] = []

    async def first() -> None:
        calls.append("first")

    async def call(argument: str) -> None:
        calls.append(argument)

    with asyncio.Runner() as runner:
        assert awaited(runner, call, "call", first=first)(3) == 0.5
    assert calls == ["first", "call", "call", "call", "call"]


def test_times_of_a_call_are_held_against_a_bound_a_rival_and_a_part() -> None:
    ours, theirs = [[1e-6, 2e-6, 9e-6], [3e-6] * 3], [[8e-6] * 3, [9e-6] * 3]
    assert taking("ours", ours, 2.0).figures == pytest.approx([2.0, 3.0])
    assert slower("theirs", theirs, ours, 3.5).figures == pytest.approx([4.0, 3.0])
    assert [slower("theirs", theirs, ours, bound).met for bound in (3.5, 3.6)] == [True, False]
    row = beyond(("all", theirs), ("less: ours", ours), 6.0)
    assert row.figures == pytest.approx([6.0, 6.0])
    assert row.unit == "µs"


def test_a_cache_that_never_gives_what_another_client_wrote_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.benchmarks.near.COHERENT_S", 0.01)
    found = iter([None, "old", "new"])
    coherent("a cache", lambda: next(found), "new")
    with pytest.raises(RuntimeError, match="a cache is not coherent"):
        coherent("a cache", lambda: "old", "new")


class Server:
    """A server that says how many commands it has had."""

    def __init__(self) -> None:
        self.commands = 0

    def info(self, section: str) -> dict[str, int]:
        return {"total_commands_processed": self.commands}


def test_a_cache_whose_calls_reach_the_server_is_not_timed() -> None:
    server = Server()

    def asking(calls: int) -> float:
        server.commands += calls
        return 1.0

    ask_nobody({"a cache": lambda calls: 1.0}, server)
    with pytest.raises(RuntimeError, match="a cache asks the server"):
        ask_nobody({"a cache": asking}, server)


def test_a_burst_ends_with_its_last_one() -> None:
    answers = [Answer([0.1, 0.2], 3, 10.5), Answer([0.4, 0.5], 2, 11.0)]
    assert together(10.0, answers) == Burst([0.1, 0.2, 0.4, 0.5], 5, 1.0)


def test_rates_and_attempts_are_those_of_all_bursts_of_a_round() -> None:
    bursts = [Burst([0.1] * 16, 40, 0.5), Burst([0.1] * 16, 24, 1.5)]
    assert rate_of(bursts) == 16.0
    assert attempts_of(bursts) == 2.0


class Counting:
    """A crowd of ones that add, of which the rivals take two and four times as long, and may lose an increment."""

    def __init__(self, *, lost: int = 0) -> None:
        self._sums: dict[Side, int] = {"ours": 5, "theirs": 7}
        self._lost = lost

    def burst(self, side: Side, each: int) -> Burst:
        self._sums["theirs" if side == "theirs" else "ours"] += 16 * each - self._lost
        self._lost = 0
        attempts, seconds = {"ours": (1, 0.1), "plain": (4, 0.4), "theirs": (3, 0.2)}[side]
        return Burst([0.01] * 16 * each, 16 * each * attempts, seconds)

    def sums(self) -> dict[Side, int]:
        return dict(self._sums)


def test_contention_gives_rates_and_attempts_of_all_sides() -> None:
    rows = list(contention(Counting(), "tasks", rounds=5, bound=4.0))
    assert [row.figure for row in rows] == pytest.approx([4.0, 2.0, 1.0] * 2)
    assert [row.met for row in rows] == [None, False, True, None, None, None]
    assert rows[2].subject.name == "attempts a commit (plain: 4.00, WATCH: 3.00)"


def test_an_increment_that_is_missing_from_the_sum_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="the sums show"):
        list(contention(Counting(lost=1), "tasks", rounds=5, bound=4.0))


def test_tasks_increment_a_real_state_on_all_sides(settings: Settings) -> None:
    with Tasks(settings) as tasks:
        before = tasks.sums()
        bursts = {side: tasks.burst(side, 2) for side in SIDES}
        after = tasks.sums()
    assert {side: after[side] - before[side] for side in before} == {"ours": 64, "theirs": 32}
    assert all(len(burst.spent) == 32 <= burst.attempts for burst in bursts.values())


@contextmanager
def doubling(number: int, more: int) -> Iterator[Callable[[int], tuple[int, int]]]:
    """Yield a job that answers with its number and twice its order, plus `more`."""
    yield lambda order: (number, 2 * order + more)


def test_processes_answer_in_order_and_one_at_a_time() -> None:
    with Processes(doubling, 1, count=2) as processes:
        assert processes.all(4)[1] == [(0, 9), (1, 9)]
        assert processes.each([1, 2])[1] == [(0, 3), (1, 5)]
        processes.send(1, 5)
        assert processes.first({0, 1}) == 1
        assert processes.answer(1) == (1, 11)


def test_a_process_that_ends_is_not_waited_for() -> None:
    with Processes(doubling, 1, count=1) as processes, pytest.raises(RuntimeError, match="process 0 ended"):
        processes.all("no number")


def test_steps_are_left_out_where_dbos_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.benchmarks.steps.find_spec", lambda name: None)
    assert steps(Settings(), 5).left_out.startswith("DBOS is not installed")


def test_a_row_that_was_left_out_says_so_and_fails_no_bound() -> None:
    rows: list[Row] = [left_out("steps", "DBOS is not installed"), rates(("a", [1.0]), ("b", [2.0]), bound=0.1)]
    assert (rows[0].figure, rows[0].met) == (None, None)
    assert Row(subject=Measure(name="steps"), figures=[], bound=4.0).met is None
    text = table(rows, ABOUT)
    assert "LEFT OUT: DBOS is not installed" in text
    assert text.splitlines()[-1] == "LEFT OUT: 1 of 2 rows."
    assert b'"left_out": "DBOS is not installed"' in document(rows, ABOUT)

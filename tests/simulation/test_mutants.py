"""What the mutants take out is there to be taken out; `make mutants` sees that each is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import mutants
from tests.simulation.mutants import INSTRUMENTS, ROOT, Caught, Hunt, hunt, mutated
from tests.simulation.mutations import MUTANTS
from tests.simulation.profiles import PROFILES
from tests.simulation.scenarios import SCENARIOS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_differs_from_the_tree_in_its_pieces(name: str, tmp_path: Path) -> None:
    copy = mutated(tmp_path, MUTANTS[name])
    for piece in MUTANTS[name].pieces():
        text = (ROOT / piece.path).read_text()
        assert text.count(piece.old) == 1
        assert piece.old not in (changed := (copy / piece.path).read_text()) or piece.old in piece.new
        assert changed != text
    for module, *_ in INSTRUMENTS.values():
        assert (copy / f"{module.replace('.', '/')}.py").is_file()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_names_instruments_and_kinds_that_there_are(name: str) -> None:
    for instrument in MUTANTS[name].by.split(","):
        known, *kinds = instrument.split()
        assert known in INSTRUMENTS
        table = SCENARIOS if known == "scenarios" else PROFILES[known].table if kinds else ()
        assert {*kinds} <= {*table}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_a_test_of_the_suite(name: str) -> None:
    path, test = SCENARIOS[name]
    assert f"def {test}" in (ROOT / path).read_text()


def test_the_mean_number_of_runs_is_over_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def hunted(copy: Path, instrument: str, seconds: float, seed: int) -> Caught | None:
        asked.append((instrument, seed))
        return Caught(instrument, 1.0, "said") if (instrument, seed) in (("roles a", 2), ("chaos", 4)) else None

    monkeypatch.setattr(mutants, "hunted", hunted)
    one = hunt(MUTANTS["dedupe"], ["roles a", "chaos"], times=2, seconds=1.0)
    assert one == Hunt(4, Caught("roles a", 1.0, "said"), 2)
    assert one.mean == 2.0
    assert asked == [("roles a", 1), ("chaos", 1), ("roles a", 2), ("roles a", 3), ("chaos", 3), ("roles a", 4),
                     ("chaos", 4)]  # fmt: skip


def test_what_is_noticed_in_none_of_several_runs_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(mutants, "hunted", lambda *_, seed: seeds.append(seed))
    one = hunt(MUTANTS["dedupe"], ["model"], times=3, seconds=1.0)
    assert (one.noticed, one.mean, seeds) == (0, None, [1, 2, 3, 4])

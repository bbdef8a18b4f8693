"""What the mutants take out is there to be taken out; `make mutants` sees that each is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import mutants
from tests.simulation.mutants import INSTRUMENTS, ROOT, Caught, Hunt, copied, hunt, take_out
from tests.simulation.mutations import MUTANTS
from tests.simulation.profiles import PROFILES
from tests.simulation.scenarios import SCENARIOS


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, which every test leaves as it was."""
    return copied(tmp_path_factory.mktemp("tree"))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_differs_from_the_tree_in_its_pieces(name: str, tree: Path) -> None:
    mutant = MUTANTS[name]
    texts = {piece.path: (ROOT / piece.path).read_text() for piece in mutant.pieces()}
    assert all((tree / path).read_text() == text for path, text in texts.items())
    try:
        take_out(mutant, tree)
        for piece in mutant.pieces():
            assert texts[piece.path].count(piece.old) == 1
            assert piece.old not in (changed := (tree / piece.path).read_text()) or piece.old in piece.new
            assert changed != texts[piece.path]
    finally:
        for path, text in texts.items():
            (tree / path).write_text(text)


def test_a_copy_has_every_instrument(tree: Path) -> None:
    for module, *_ in INSTRUMENTS.values():
        assert (tree / f"{module.replace('.', '/')}.py").is_file()


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

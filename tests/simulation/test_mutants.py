"""What the mutants take out is there to be taken out; `make mutants` sees that each is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.mutants import INSTRUMENTS, MUTANTS, ROOT, mutated


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_differs_from_the_tree_in_one_piece(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    copy = mutated(tmp_path, mutant)
    text = (ROOT / mutant.path).read_text()
    assert (copy / mutant.path).read_text() == text.replace(mutant.old, mutant.new) != text
    for module, *_ in INSTRUMENTS.values():
        assert (copy / f"{module.replace('.', '/')}.py").is_file()

"""What merges begin from."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant

MERGING = {
    "crossed bases": Mutant(
        "of several versions that both sides were made from a merge begins with the first",
        "statecache/rules/ancestry.py",
        "    for at, place in enumerate(bases[1:], 1):\n",
        "    for at, place in enumerate(bases[1:1], 1):\n",
        by="scenarios crossed",
    ),
    "crossed order": Mutant(
        "an item that stands elsewhere because of merges is taken for a new one",
        "statecache/rules/three_way.py",
        "        moved = self._moved(base, items, pairs)\n",
        "        moved: dict[int, int] = {}\n",
        by="scenarios crossed",
    ),
}

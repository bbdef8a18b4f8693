"""What merges begin from, and what a repeated call is answered with."""

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
    "another point": Mutant(
        "a rollback to another point is answered with what its change_id has made",
        "statecache/core/history/repeats.py",
        "        return point.version != said.version\n",
        "        return False\n",
        by="scenarios another_point",
    ),
}

"""Keys that are merged into one another, and go back to what they were, again and again: what is merged is not doubled.

Every item is made once, and nobody removes one: so whatever is lacking was taken back.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from statecache.rules.ancestry import Ancestry, Link, Place, Restore, base_value
from statecache.rules.sameness import same
from statecache.rules.three_way import merged, merged_base

START = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = ("root", "a", "b")
MOVES = some.lists(
    some.tuples(
        some.sampled_from(("append", "append", "merge", "merge", "back", "branch")), some.integers(0, 5),
        some.integers(0, 5), some.integers(1, 6),
    ),
    max_size=25,
)  # fmt: skip


class Keys:
    """Keys that began as branches of one, with the values of all their versions."""

    def __init__(self) -> None:
        self.values: dict[str, list[list[str]]] = {"root": [["begun"]]}
        self.links = [Link(key, 1, "root", 1, True, START) for key in KEYS[1:]]
        self.restores: list[Restore] = []
        for key in KEYS[1:]:
            self.values[key] = [["begun"]]

    def tip(self, key: str) -> Place:
        return Place(key, len(self.values[key]))

    def branch(self, key: str, back: int) -> None:
        origin = Place(key, max(1, len(self.values[key]) - back))
        new = f"k{len(self.values)}"
        self.values[new] = [self.values[key][origin.version - 1]]
        self.links.append(Link(new, 1, *origin, True, START))

    def append(self, key: str) -> None:
        self.values[key].append([*self.values[key][-1], f"{key} {len(self.values[key])}"])

    def restore(self, key: str, back: int) -> None:
        to = max(1, len(self.values[key]) - back)
        self.values[key].append(self.values[key][to - 1])
        self.restores.append(Restore(key, len(self.values[key]), to))

    def merge(self, branch: str, into: str) -> list[str] | None:
        """Return what a merge comes to; None where it is refused, or nothing is written."""
        graph, ours, theirs = Ancestry(self.links, self.restores), self.tip(into), self.tip(branch)
        if graph.taken_back(ours, theirs):
            return None
        bases = graph.bases([ours], [theirs])
        sides = self.values[into][-1], self.values[branch][-1]
        result = merged(self.base(graph, ours, theirs), *sides, crossed=len(bases) > 1)
        if result.conflicts:
            return None
        self.values[into].append([*result.value])
        self.links.append(Link(into, len(self.values[into]), *theirs, False, START))
        return self.values[into][-1]

    def base(self, graph: Ancestry, ours: Place, theirs: Place) -> Any:
        search = base_value(graph, [ours], [theirs], same)
        asked = next(search)
        try:
            while True:
                if isinstance(asked, Place):
                    asked = search.send(self.values[asked.key][asked.version - 1])
                else:
                    asked = search.send(merged_base(*asked))
        except StopIteration as done:
            return done.value


@settings(max_examples=300)
@given(MOVES)
def test_what_a_branch_made_itself_is_there_once_after_each_merge(moves: list[tuple[str, int, int, int]]) -> None:
    keys = Keys()
    for move, first, second, back in moves:
        one, other = ([*keys.values][at % len(keys.values)] for at in (first, second))
        if move == "append":
            keys.append(one)
        elif move == "branch":
            keys.branch(one, back - 1)
        elif move == "back":
            keys.restore(one, back)
        elif one != other:
            theirs = [item for item in keys.values[other][-1] if item.startswith(f"{other} ")]
            result = keys.merge(other, one)
            if result is not None:
                assert len({*result}) == len(result), keys.values
                assert {*theirs} <= {*result}, keys.values


def test_what_was_taken_back_is_not_lost_by_way_of_a_third_key() -> None:
    """It is part of what both build on, and was removed by one of them: which is not to be known."""
    keys = Keys()
    for key in ("a", "root"):
        keys.append(key)
    assert keys.merge("a", "root")
    assert keys.merge("root", "a")
    keys.restore("root", 1)
    keys.append("a")
    assert keys.merge("a", "root") is None
    keys.branch("a", 0)
    keys.append("k3")
    assert keys.merge("k3", "root") is None

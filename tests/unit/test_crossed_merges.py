"""Keys that are merged into one another at once, again and again: nothing is doubled, and nothing comes back unasked.

Every item is made once. So what a merge has to hold is known: an item that both have, or that one has and of which the
other knows nothing; who knows of an item and does not have it has removed it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec import UNSET

from statecache.errors import LimitExceeded
from statecache.rules import ancestry
from statecache.rules.ancestry import Ancestry, Link, Place, base_value
from statecache.rules.sameness import same
from statecache.rules.three_way import Merged, merged, merged_base

START = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = ("a", "b", "c")
MOVES = some.lists(
    some.tuples(
        some.sampled_from(("insert", "append", "remove", "change", "merge", "cross", "cross")),
        some.sampled_from(KEYS), some.sampled_from(KEYS), some.integers(0, 9),
    ),
    max_size=25,
)  # fmt: skip


class Keys:
    """Keys that began as branches of one, with the values of all their versions, and of which items each knows."""

    def __init__(self, first: Any, *names: str) -> None:
        self.values: dict[Place, Any] = {Place("root", 1): first}
        self.tips = {"root": Place("root", 1)}
        self.links: list[Link] = []
        self.knows: dict[Place, set[int]] = {Place("root", 1): set()}
        for name in names:
            self.write(name, first, Place("root", 1), begins=True)

    def value(self, key: str) -> Any:
        return self.values[self.tips[key]]

    def write(self, key: str, value: Any, *origins: Place, begins: bool = False, new: int | None = None) -> None:
        before = self.tips.get(key)
        place = Place(key, 1 if before is None else before.version + 1)
        parents = [*origins] if before is None else [before, *origins]
        self.knows[place] = set[int]().union(*(self.knows[one] for one in parents)) | ({new} - {None})  # type: ignore[operator]
        self.values[place], self.tips[key] = value, place
        at = START + timedelta(seconds=len(self.values))
        self.links += [Link(key, place.version, *origin, begins, at) for origin in origins]

    def merged(self, theirs: Place, ours: Place) -> Merged:
        graph = Ancestry(self.links)
        bases = graph.bases([ours], [theirs])
        search = base_value(graph, [ours], [theirs], same)
        asked = next(search)
        try:
            while True:
                asked = search.send(self.values[asked] if isinstance(asked, Place) else merged_base(*asked))
        except StopIteration as done:
            base = done.value
        return merged(base, self.values[ours], self.values[theirs], crossed=len(bases) > 1)

    def merge(self, branch: str, into: str) -> Merged:
        result = self.merged(self.tips[branch], self.tips[into])
        if not result.conflicts:
            self.write(into, result.value, self.tips[branch])
        return result

    def cross(self, one: str, other: str) -> tuple[Merged, Merged]:
        """Merge two into one another at once: neither merge knows of the other."""
        was = self.tips[one], self.tips[other]
        results = self.merged(was[1], was[0]), self.merged(was[0], was[1])
        for key, result, theirs in zip((one, other), results, reversed(was), strict=True):
            if not result.conflicts:
                self.write(key, result.value, theirs)
        return results


def identities(items: list[Any]) -> list[int]:
    return [item["id"] if isinstance(item, dict) else item for item in items]


def expected(keys: Keys, one: Place, other: Place) -> set[int]:
    """Return what a merge of two places has to hold."""
    mine, others = {*identities(keys.values[one])}, {*identities(keys.values[other])}
    return mine & others | mine - keys.knows[other] | others - keys.knows[one]


def moved(keys: Keys, move: str, key: str, at: int, new: int, *, dicts: bool) -> None:
    """Change one key."""
    value = [*keys.value(key)]
    item: Any = {"id": new, "text": "new"} if dicts else new
    if move in ("insert", "append"):
        value.insert(min(at, len(value)) if move == "insert" else len(value), item)
        keys.write(key, value, new=new)
    elif value and move == "remove":
        value.pop(at % len(value))
        keys.write(key, value)
    elif value and dicts:
        value[at % len(value)] = value[at % len(value)] | {"text": f"changed {new}"}
        keys.write(key, value)


@settings(max_examples=300)
@given(MOVES, some.booleans())
def test_no_item_is_doubled_and_none_that_was_removed_comes_back(
    moves: list[tuple[str, str, str, int]], dicts: bool
) -> None:
    keys, new = Keys([], *KEYS), count()
    for move, one, other, at in moves:
        if move not in ("merge", "cross"):
            moved(keys, move, one, at, next(new), dicts=dicts)
        elif one != other:
            was = keys.tips[one], keys.tips[other]
            results = [keys.merge(other, one)] if move == "merge" else keys.cross(one, other)
            for result in results:
                if not result.conflicts:
                    got = identities(result.value)
                    assert len({*got}) == len(got), keys.values
                    assert {*got} == expected(keys, *was), keys.values


def test_two_that_append_and_merge_at_once_agree_at_last_and_never_conflict() -> None:
    keys = Keys(["0"], "a", "b")
    for at in range(8):
        for key in ("a", "b"):
            keys.write(key, [*keys.value(key), f"{key}{at}"])
        assert [one.conflicts for one in keys.cross("a", "b")] == [(), ()]
    assert keys.merge("b", "a").conflicts == keys.merge("a", "b").conflicts == ()
    assert keys.value("a") == keys.value("b")
    assert sorted(keys.value("a")) == sorted(["0", *(f"{key}{at}" for key in "ab" for at in range(8))])


@pytest.mark.parametrize("who", ["a", "b"])
def test_what_one_removes_or_changes_after_a_crossing_is_gone_or_changed(who: str) -> None:
    keys = Keys([{"id": 0}], "a", "b")
    for at, key in enumerate(("a", "b")):
        keys.write(key, [{"id": 0}, {"id": at + 1}])
    keys.cross("a", "b")
    keys.write(who, [{"id": 2, "done": True} if one["id"] == 2 else one for one in keys.value(who) if one["id"] != 1])
    assert keys.merge("b", "a").conflicts == keys.merge("a", "b").conflicts == ()
    assert keys.value("a") == keys.value("b") == [{"id": 0}, {"id": 2, "done": True}]


def test_a_conflict_that_both_decided_in_their_own_way_is_a_conflict_again() -> None:
    keys = Keys({"x": 1, "y": 1}, "a", "b")
    keys.write("a", {"x": 2, "y": 2})
    keys.write("b", {"x": 3, "y": 3})
    assert len(keys.merged(keys.tips["b"], keys.tips["a"]).conflicts) == 2
    was = keys.tips["a"], keys.tips["b"]
    keys.write("a", {"x": 2, "y": 9}, was[1])
    keys.write("b", {"x": 1, "y": 9}, was[0])
    (conflict,) = keys.merge("b", "a").conflicts
    assert (conflict.place, conflict.base, conflict.ours, conflict.theirs) == ("x", UNSET, 2, 1)


def test_crossings_one_below_the_other_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ancestry, "CROSSINGS_MAX", 3)
    keys = Keys([], "a", "b")
    with pytest.raises(LimitExceeded):  # noqa: PT012 - each one before that is merged
        for at in range(6):
            for key in ("a", "b"):
                keys.write(key, [*keys.value(key), f"{key}{at}"])
            keys.cross("a", "b")
    assert keys.tips["a"].version == 1 + 2 * 4 + 1

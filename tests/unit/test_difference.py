"""What differs between two values, told by paths: all of it, once, and enough to make the one of the other."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from time import process_time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import UNSET

from statecache.errors import UsageError
from statecache.rules import difference
from statecache.rules.difference import LEVELS_MAX, Difference, applied, differences
from statecache.rules.paths import part_at
from statecache.rules.sameness import same
from tests.unit.plain_values import LISTS, NAN, VALUES, edited, nested

PAIRS = VALUES.flatmap(lambda value: some.tuples(some.just(value), edited(value) | VALUES)) | some.tuples(LISTS, LISTS)


def told(before: Any, after: Any) -> list[tuple[str, str, Any, Any]]:
    found = differences(before, after)
    assert same(applied(before, found), after)
    return [(one.op, one.place, one.before, one.after) for one in found]


@given(PAIRS, some.randoms(use_true_random=False))
def test_differences_make_the_later_value_of_the_earlier_one(pair: tuple[Any, Any], chance: Random) -> None:
    before, after = pair
    copy = deepcopy(before)
    found = [*differences(before, after)]
    chance.shuffle(found)
    assert same(applied(before, found), after)
    assert same(before, copy)


@given(PAIRS)
def test_a_difference_says_what_stands_at_its_path(pair: tuple[Any, Any]) -> None:
    before, after = pair
    for one in differences(before, after):
        if one.op == "removed":
            assert same(part_at(before, one.path), one.before)
            assert one.after is UNSET
        else:
            assert same(part_at(after, one.path), one.after)
            assert (one.before is UNSET) == (one.op == "added")
            assert not same(one.before, one.after)


@given(VALUES)
def test_a_value_does_not_differ_from_itself(value: Any) -> None:
    assert differences(value, deepcopy(value)) == ()


@given(LISTS, LISTS)
def test_what_is_appended_is_added_at_its_index_and_nothing_else_is_told(base: list[Any], more: list[Any]) -> None:
    assert told(base, base + more) == [("added", f"[{at}]", UNSET, item) for at, item in enumerate(more, len(base))]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": True}, [("changed", "a", 1, True)]),
        ({"a": 1}, {"a": 1.0}, [("changed", "a", 1, 1.0)]),
        ({"a": 0.0}, {"a": -0.0}, [("changed", "a", 0.0, -0.0)]),
        ({"a": NAN}, {"a": NAN}, []),
        ({"a": None}, {}, [("removed", "a", None, UNSET)]),
        ({}, {"a": None}, [("added", "a", UNSET, None)]),
        ({"a": {}}, {"a": []}, [("changed", "a", {}, [])]),
        ({"a": "b"}, {"a": b"b"}, [("changed", "a", "b", b"b")]),
        ({"a": {"b": 1}}, {"a": {"c": 1}}, [("removed", "a.b", 1, UNSET), ("added", "a.c", UNSET, 1)]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({1: "x", "1": "y"}, {1: "x", "1": "z"}, [("changed", '["1"]', "y", "z")]),
        ({1.5: [1]}, {1.5: [2]}, [("changed", "$", {1.5: [1]}, {1.5: [2]})]),
        ({2**64: 1}, {2**64: 2}, [("changed", "$", {2**64: 1}, {2**64: 2})]),
        (UNSET, [], [("added", "$", UNSET, [])]),
        ([], UNSET, [("removed", "$", [], UNSET)]),
        (UNSET, UNSET, []),
        ([1, 2, 3, 4], [1, 3, 4], [("removed", "[1]", 2, UNSET)]),
        ([1, 2, 3], [1, 5, 6, 3], [("changed", "[1]", 2, 5), ("added", "[2]", UNSET, 6)]),
        ([{"a": 1}], [{"b": 1}], [("changed", "[0]", {"a": 1}, {"b": 1})]),
        ([[]], [[1]], [("added", "[0][0]", UNSET, 1)]),
        ([[{"a": 1}]], [[{"a": 2}]], [("changed", "[0][0].a", 1, 2)]),
        ((1, (2,)), [1, [3]], [("changed", "[1][0]", 2, 3)]),
    ],
)
def test_what_is_told(before: Any, after: Any, expected: list[Any]) -> None:
    assert repr(told(before, after)) == repr(expected)


def test_what_moves_in_a_list_is_followed() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"say {at}"} for at in range(6)]
    later = deepcopy(messages)
    later[2]["content"] = "no, say two"
    later[4]["meta"] = {"cost": 1}
    del messages[4]["role"]
    del later[0]
    later.append({"role": "assistant", "content": "six"})
    assert told({"messages": messages}, {"messages": later}) == [
        ("removed", "messages[0]", {"role": "user", "content": "say 0"}, UNSET),
        ("changed", "messages[1].content", "say 2", "no, say two"),
        ("added", "messages[3].role", UNSET, "user"),
        ("added", "messages[3].meta", UNSET, {"cost": 1}),
        ("added", "messages[5]", UNSET, {"role": "assistant", "content": "six"}),
    ]


def test_what_was_removed_is_found_in_the_value_before() -> None:
    assert told([0, {"id": 1, "x": 1}], [{"id": 1}]) == [
        ("removed", "[0]", 0, UNSET),
        ("removed", "[1].x", 1, UNSET),
    ]


def test_a_difference_can_be_stored() -> None:
    added = Difference(("a", 0), "added", after=None)
    assert msgspec.json.decode(msgspec.json.encode(added)) == {"path": ["a", 0], "op": "added", "after": None}


def test_what_is_too_deep_is_told_as_a_whole() -> None:
    before, after = nested(10_000, [1]), nested(10_000, [2])
    (one,) = differences(before, after)
    assert (len(one.path), one.op) == (LEVELS_MAX, "changed")
    assert same(applied(before, [one]), after)
    assert differences(before, nested(10_000, [1])) == ()
    assert [found.path for found in differences(nested(100, [1]), nested(100, [1, 2]))] == [(*[0] * 100, 1)]


def test_what_would_take_too_many_words_is_told_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difference, "STEPS_MAX", 20)
    many = [*range(30)]
    before = {"a": [1, 2], "b": many, "c": [1, 2, 3, 4, 5], "d": [1, 2], "e": [6, 7, 8], "f": [9]}
    after = {"a": [1, 3], "b": [at + 100 for at in many], "c": [5, 4, 3, 2, 1], "d": [1, 4], "e": [0, 0, 0], "f": [0]}
    places = [place for _, place, _, _ in told(before, after)]
    assert places == ["a[1]", "b", "c[0]", "c[1]", "c[3]", "c[4]", "d[1]", "e", "f[0]"]


HUNDRED_THOUSAND = [*range(100_000)]
TEN_THOUSAND = [*range(10_000)]


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        (HUNDRED_THOUSAND, [at + 100_000 for at in HUNDRED_THOUSAND], 100_000),
        (HUNDRED_THOUSAND, HUNDRED_THOUSAND[::2], 50_000),
        (TEN_THOUSAND[::2], TEN_THOUSAND, 5_000),
        ([[at] for at in TEN_THOUSAND], [[at, at] for at in TEN_THOUSAND], 10_000),
        ({str(at): at for at in TEN_THOUSAND}, {str(at): 0 for at in TEN_THOUSAND}, 9_999),
        (nested(150, HUNDRED_THOUSAND), nested(150, HUNDRED_THOUSAND[::-1]), 1),
    ],
)
def test_large_values_take_a_bounded_time(before: Any, after: Any, count: int) -> None:
    begun = process_time()
    found = differences(before, after)
    assert len(found) == count
    assert same(applied(before, found), after)
    assert process_time() - begun < 10


@pytest.mark.parametrize(
    "one",
    [
        Difference(("a", 9), "removed", 1),
        Difference(("a", "0"), "changed", 1, 2),
        Difference(("a", 5), "added", after=1),
        Difference(("a", 0, "b"), "added", after=1),
        Difference(("b",), "removed", 1),
        Difference(("b",), "changed", 1, 2),
        Difference(("a",), "added", after=1),
        Difference(("b", "c"), "added", after=1),
        Difference((), "added", after=1),
    ],
)
def test_a_difference_of_another_value_is_refused(one: Difference) -> None:
    with pytest.raises(UsageError, match="does not fit"):
        applied({"a": [1, 2, 3]}, [one])


def test_differences_that_contradict_one_another_are_refused() -> None:
    inner, outer = Difference(("a", 0), "changed", 1, 2), Difference(("a",), "changed", [1], [3])
    for found in ([inner, outer], [outer, inner], [outer, outer]):
        with pytest.raises(UsageError, match="does not fit"):
            applied({"a": [1]}, [*found, Difference(("a",), "changed", [1], 4)])

"""What two values become that were made of one: nothing lost in silence, and no conflict where there is none."""

from __future__ import annotations

from copy import deepcopy
from time import process_time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import UNSET

from statecache.rules import three_way
from statecache.rules.difference import LEVELS_MAX
from statecache.rules.paths import part_at
from statecache.rules.sameness import same
from statecache.rules.three_way import Conflict, Merged, merged, merged_base
from tests.unit.plain_values import LISTS, NAN, SCALARS, VALUES, edited, grown, nested

SIDES = VALUES.flatmap(lambda base: some.tuples(some.just(base), edited(base), edited(base)))
GROWN = VALUES.flatmap(lambda base: some.tuples(some.just(base), grown(base), grown(base)))
ANY = SIDES | some.tuples(VALUES, VALUES, VALUES) | some.tuples(LISTS, LISTS, LISTS)


def clean(base: Any, ours: Any, theirs: Any) -> Any:
    """Return the merged value where there must be no conflict."""
    result = merged(base, ours, theirs)
    assert result.conflicts == ()
    return result.value


def places(result: Merged) -> list[str]:
    return [conflict.place for conflict in result.conflicts]


@given(VALUES, VALUES)
def test_one_side_alone_is_taken_and_the_same_on_both_sides_once(base: Any, side: Any) -> None:
    assert same(clean(base, side, base), side)
    assert same(clean(base, base, side), side)
    assert same(clean(base, side, deepcopy(side)), side)


@given(ANY)
def test_conflicts_are_the_same_with_the_sides_swapped(sides: tuple[Any, Any, Any]) -> None:
    base, ours, theirs = sides
    copies = deepcopy(sides)
    one, other = merged(base, ours, theirs), merged(base, theirs, ours)
    assert places(one) == places(other)
    for conflict, swapped in zip(one.conflicts, other.conflicts, strict=True):
        assert same(conflict.base, swapped.base)
        assert same(conflict.ours, swapped.theirs)
        assert same(conflict.theirs, swapped.ours)
    assert all(map(same, sides, copies))


@given(ANY)
def test_a_conflict_says_what_each_side_has_and_what_was_there(sides: tuple[Any, Any, Any]) -> None:
    base = sides[0]
    for conflict in merged(*sides).conflicts:
        assert same(part_at(base, conflict.path), conflict.base)
        assert not same(conflict.ours, conflict.theirs)
        assert not same(conflict.ours, conflict.base)
        assert not same(conflict.theirs, conflict.base)


@given(GROWN)
def test_a_result_that_is_merged_again_stays_as_it_is(sides: tuple[Any, Any, Any]) -> None:
    base, ours, theirs = sides
    result = merged(base, ours, theirs).value
    assert same(clean(base, ours, result), result)
    assert same(merged(base, result, theirs).value, result)


@given(some.dictionaries(some.sampled_from("abcdef"), VALUES), some.data())
def test_edits_of_different_keys_never_conflict(base: dict[str, Any], data: some.DataObject) -> None:
    keys = data.draw(some.permutations("abcdef"))
    sides = []
    for half in (keys[:3], keys[3:]):
        changes = data.draw(some.dictionaries(some.sampled_from(half), VALUES))
        gone = data.draw(some.sets(some.sampled_from(half)))
        sides.append({key: part for key, part in {**base, **changes}.items() if key not in gone})
    expected = {key: part for key, part in sides[1].items() if key in keys[3:]}
    expected |= {key: part for key, part in sides[0].items() if key in keys[:3]}
    assert same(clean({"in": base}, {"in": sides[0]}, {"in": sides[1]}), {"in": expected})


@given(some.integers(1, 8), some.data())
def test_edits_of_different_items_never_conflict(count: int, data: some.DataObject) -> None:
    base = [{"id": at, "text": "as it was"} for at in range(count)]
    whose = data.draw(some.lists(some.sampled_from(["ours", "theirs", ""]), min_size=count, max_size=count))
    ours, theirs, expected = deepcopy(base), deepcopy(base), deepcopy(base)
    for at, side in enumerate(whose):
        for values in (expected, {"ours": ours, "theirs": theirs}.get(side, [{} for _ in base])):
            values[at] |= {"text": f"of {side}", side: 1} if side else {}
    more = data.draw(some.lists(SCALARS, max_size=3))
    assert same(clean(base, ours, [*theirs, *more]), [*expected, *more])
    assert same(clean(base, [*ours, *more], theirs), [*expected, *more])


@given(some.lists(some.integers(0, 9), unique=True, min_size=1), some.data())
def test_edits_of_different_scalars_in_a_list_never_conflict(base: list[int], data: some.DataObject) -> None:
    mask = data.draw(some.lists(some.booleans(), min_size=len(base), max_size=len(base)))
    ours = [item + 100 if one else item for item, one in zip(base, mask, strict=True)]
    theirs = [item if one else item + 200 for item, one in zip(base, mask, strict=True)]
    expected = [item + 100 if one else item + 200 for item, one in zip(base, mask, strict=True)]
    assert clean(base, ours, theirs) == expected


@given(LISTS, LISTS, LISTS)
def test_what_both_append_is_kept_and_never_a_conflict(base: list[Any], ours: list[Any], theirs: list[Any]) -> None:
    value = clean(base, base + ours, base + theirs)
    assert same(value[: len(base)], base)
    for side in (ours, theirs):
        rest = iter(value[len(base) :])
        assert all(any(same(item, other) for other in rest) for item in side)
    assert len(value) <= len(base) + len(ours) + len(theirs)


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "value"),
    [
        ([1], [1, 2], [1, 3], [1, 2, 3]),
        ([1], [1, 2, 9], [1, 3, 9], [1, 2, 3, 9]),
        ([], [1, 2], [1, 2, 3], [1, 2, 3]),
        ([1, 2], [0, 1, 2], [1, 2, 3], [0, 1, 2, 3]),
        ([1, 2, 3], [2, 3, 4], [2, 3, 5], [2, 3, 4, 5]),
        ([1, 2, 3], [1, 3], [1, 2, 3, 4], [1, 3, 4]),
        ([1, 2, 3], [1, 3], [1, 3], [1, 3]),
        ([1, 2, 3, 4], [2, 3, 1, 4], [2, 3, 4, 1], [2, 3, 1, 4]),
        ([1, 2, 3], [2, 3, 1], [1, 2, 3, 4], [2, 3, 1, 4]),
        ([1, 1, 2], [1, 2], [1, 2, 1], [1, 2, 1]),
        ({}, {"notes": {"a": 1}}, {"notes": {"b": 2}}, {"notes": {"a": 1, "b": 2}}),
        ({}, {"log": [1]}, {"log": [2]}, {"log": [1, 2]}),
        (UNSET, {"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        (UNSET, UNSET, {"b": 2}, {"b": 2}),
        ({"a": 1}, UNSET, {"a": 1}, UNSET),
        ({"a": 1}, UNSET, UNSET, UNSET),
        ({"a": NAN}, {"a": NAN, "b": 1}, {"a": NAN, "c": 1}, {"a": NAN, "b": 1, "c": 1}),
        ({"a": 1, "b": 1}, {"b": 1}, {"a": 1, "b": 2}, {"b": 2}),
        ((1, 2), (1, 2, 3), [1, 2, 4], [1, 2, 3, 4]),
    ],
)
def test_what_is_merged(base: Any, ours: Any, theirs: Any, value: Any) -> None:
    assert repr(clean(base, ours, theirs)) == repr(value)


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "value", "conflict"),
    [
        ({"a": 1}, {"a": 2}, {"a": 3}, {"a": 2}, Conflict(("a",), 1, 2, 3)),
        ({"a": 1}, {"a": 1.0}, {"a": True}, {"a": 1.0}, Conflict(("a",), 1, 1.0, True)),
        ({"a": 1}, {}, {"a": 3}, {}, Conflict(("a",), 1, UNSET, 3)),
        ({"a": 1}, {"a": 2}, {}, {"a": 2}, Conflict(("a",), 1, 2, UNSET)),
        ({}, {"a": 2}, {"a": 3}, {"a": 2}, Conflict(("a",), UNSET, 2, 3)),
        ({}, {"a": {"b": 2}}, {"a": {"b": 3}}, {"a": {"b": 2}}, Conflict(("a", "b"), UNSET, 2, 3)),
        ({}, {"a": {}}, {"a": []}, {"a": {}}, Conflict(("a",), UNSET, {}, [])),
        ({"a": None}, {"a": {}}, {"a": {"b": 1}}, {"a": {}}, Conflict(("a",), None, {}, {"b": 1})),
        ({"a": {"b": 1}}, {}, {"a": {"b": 2}}, {}, Conflict(("a",), {"b": 1}, UNSET, {"b": 2})),
        ({"a": 1}, UNSET, {"a": 2}, UNSET, Conflict((), {"a": 1}, UNSET, {"a": 2})),
        ({1.5: 1}, {1.5: 2}, {1.5: 3}, {1.5: 2}, Conflict((), {1.5: 1}, {1.5: 2}, {1.5: 3})),
        ([1, 2, 3], [1, 5, 3], [1, 6, 3, 4], [1, 5, 3, 4], Conflict((1,), 2, 5, 6)),
        ([1, 2, 3], [1, 3, 7], [1, 6, 3], [1, 3, 7], Conflict((1,), 2, UNSET, 6)),
        ([1], [2, 3], [4], [2, 3], Conflict((0,), 1, 2, 4)),
        ([1, 2, 3], [2, 3], [2, 3, 1], [2, 3], Conflict((), [1, 2, 3], [2, 3], [2, 3, 1])),
        (
            {"a": [1, 2, 3]},
            {"a": [2, 3, 1]},
            {"a": [2, 3]},
            {"a": [2, 3, 1]},
            Conflict(("a",), [1, 2, 3], [2, 3, 1], [2, 3]),
        ),
        ([1, 2, 3], [2, 3, 1], [5, 2, 3], [2, 3, 1], Conflict((0,), 1, UNSET, 5)),
        (
            [0, {"id": 1, "s": 0}],
            [{"id": 1, "s": 1}],
            [0, {"id": 1, "s": 2}, 9],
            [{"id": 1, "s": 1}, 9],
            Conflict((1, "s"), 0, 1, 2),
        ),
        ([{"a": 1}], [{"b": 1}], [{"a": 1, "c": 1}], [{"b": 1}], Conflict((0,), {"a": 1}, {"b": 1}, {"a": 1, "c": 1})),
    ],
)
def test_what_is_a_conflict(base: Any, ours: Any, theirs: Any, value: Any, conflict: Conflict) -> None:
    result = merged(base, ours, theirs)
    assert result == Merged(value, (conflict,))
    assert repr(result.value) == repr(value)


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "value"),
    [
        ([1, 2, 3], [2, 3], [2, 3, 1], [2, 3]),
        ([1, 2, 3], [2, 3, 1], [2, 3], [2, 3]),
        ([1, 2, 3], [2, 3, 1], [5, 2, 3], [2, 3, 5]),
        ([1, 1, 2], [1, 2], [1, 2, 1], [1, 2]),
        ([1, 2, 3], [3, 2, 1], [3, 1, 2], [3, 2, 1]),
    ],
)
def test_in_a_crossed_merge_what_stands_elsewhere_is_the_same(base: Any, ours: Any, theirs: Any, value: Any) -> None:
    assert merged(base, ours, theirs, crossed=True) == Merged(value)


def test_a_merged_base_leaves_open_what_was_a_conflict() -> None:
    base = merged_base({"a": 1, "b": [1]}, {"a": 2, "b": [1, 2]}, {"a": 3, "b": [1, 3]})
    assert base["b"] == [1, 2, 3]
    agreed = {"a": 4, "b": [1, 2, 3]}
    assert merged(base, agreed, deepcopy(agreed), crossed=True).value == agreed
    one, other = {"a": 2, "b": [1, 2, 3]}, {"a": 1, "b": [1, 2, 3]}
    assert merged(base, one, other, crossed=True) == Merged(one, (Conflict(("a",), UNSET, 2, 1),))


def test_conflicts_stand_in_the_order_of_their_paths() -> None:
    base = {"b": [1, 2, [3]], "a": 1, 7: 1}
    result = merged(base, {"b": [5, 2, [4]], "a": 2, 7: 2}, {7: 3, "a": 3, "b": [6, 2, [5]]})
    assert places(result) == ["[7]", "a", "b[0]", "b[2][0]"]


def test_an_agent_changes_a_step_while_another_one_appends() -> None:
    base = {"steps": [{"id": 1, "status": "done"}, {"id": 2, "status": "running"}], "cost": 1}
    ours, theirs = deepcopy(base), deepcopy(base)
    ours["steps"][1] |= {"status": "done", "result": "ok"}  # type: ignore[index]
    ours["steps"] += [{"id": 3, "status": "running"}]  # type: ignore[operator]
    theirs["steps"] += [{"id": 4, "status": "running"}]  # type: ignore[operator]
    assert clean(base, ours, theirs)["steps"] == [
        {"id": 1, "status": "done"},
        {"id": 2, "status": "done", "result": "ok"},
        {"id": 3, "status": "running"},
        {"id": 4, "status": "running"},
    ]


def test_a_conflict_can_be_stored() -> None:
    (conflict,) = merged({"a": 1}, {}, {"a": None}).conflicts
    assert msgspec.json.decode(msgspec.json.encode(conflict)) == {"path": ["a"], "base": 1, "theirs": None}


def test_what_is_too_deep_is_merged_as_a_whole() -> None:
    sides = [nested(10_000, [at]) for at in range(3)]
    result = merged(*sides)
    assert [len(conflict.path) for conflict in result.conflicts] == [LEVELS_MAX]
    assert same(result.value, sides[1])
    assert clean(*(nested(LEVELS_MAX - 1, values) for values in ([1], [1, 2], [1, 3]))) == nested(
        LEVELS_MAX - 1, [1, 2, 3]
    )


def test_more_conflicts_than_can_be_listed_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(three_way, "STEPS_MAX", 20)
    base, ours, theirs = ({"few": part, "many": [part] * 20} for part in range(3))
    assert merged(base, ours, theirs) == Merged(ours, (Conflict((), base, ours, theirs),))
    assert len(merged(base["many"], ours["many"], theirs["many"]).conflicts) == 20


LONG = [*range(30_000)]


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "conflicts"),
    [
        (LONG, [at + 10**6 for at in LONG], [at + 10**7 for at in LONG], 30_000),
        (LONG, LONG[::2], [*LONG, *LONG], 0),
        ([], [at % 2 for at in LONG], [at % 3 for at in LONG], 0),
        (nested(150, LONG), nested(150, [-at for at in LONG]), nested(150, [at + 10**6 for at in LONG]), 1),
    ],
)
def test_large_values_take_a_bounded_time(base: Any, ours: Any, theirs: Any, conflicts: int) -> None:
    begun = process_time()
    assert len(merged(base, ours, theirs).conflicts) == conflicts
    assert process_time() - begun < 10

"""Which items of two lists belong together: as many as can be, the most alike, and in time that is bounded."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from statecache.rules.alignment import Pairs, aligned, common
from statecache.rules.sameness import Labels, same
from tests.unit.plain_values import LISTS, NAN, VALUES

FEW = some.lists(some.integers(0, 2), max_size=10)


def _common(old: list[Any], new: list[Any]) -> Pairs:
    return common(old, new, Labels(old, new))


def _aligned(old: list[Any], new: list[Any]) -> Pairs:
    return aligned(old, new, Labels(old, new))


def _most(old: list[Any], new: list[Any]) -> int:
    """Return the length of a longest common subsequence, by the textbook."""
    above = [0] * (len(new) + 1)
    for item in old:
        row = [0]
        for at, other in enumerate(new):
            row.append(above[at] + 1 if item == other else max(row[-1], above[at + 1]))
        above = row
    return above[-1]


def _ascends(pairs: Pairs) -> bool:
    return all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(pairs))


@given(FEW, FEW)
def test_what_two_lists_have_in_common_is_a_longest_common_subsequence(old: list[int], new: list[int]) -> None:
    pairs = _common(old, new)
    assert len(pairs) == _most(old, new)
    assert all(old[at] == new[other] for at, other in pairs)
    assert _ascends(pairs)


@given(LISTS, LISTS)
def test_what_is_the_same_stays_together_and_nothing_crosses(old: list[Any], new: list[Any]) -> None:
    pairs = _aligned(old, new)
    assert {*_common(old, new)} <= {*pairs}
    assert _ascends(pairs)
    gone, came = len(old) - len(pairs), len(new) - len(pairs)
    assert min(gone, came) >= 0


@given(VALUES, VALUES)
def test_values_are_the_same_where_their_json_is(one: Any, other: Any) -> None:
    assert same(one, one)
    assert same(one, other) == same(other, one) == (_shown(one) == _shown(other))


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {(type(key), key): _shown(part) for key, part in value.items()}
    return [*map(_shown, value)] if isinstance(value, list) else (type(value), repr(value))


@pytest.mark.parametrize(
    ("one", "other"),
    [(True, 1), (1, 1.0), (0, False), (0.0, -0.0), (b"a", "a"), ("null", None), ("0x1", 1), ("#0", []), ([], {}),
     ({1: 2}, {"1": 2}), ({True: 2}, {1: 2}), ({(1,): 2}, {(True,): 2}), ([[]], [[[]]]), (11, b""), ("'a", "a")],
)  # fmt: skip
def test_what_only_python_takes_for_the_same_is_not(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert not same([{"a": one}], [{"a": other}])


@pytest.mark.parametrize(
    ("one", "other"), [(NAN, -NAN), ((1, [2]), [1, (2,)]), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (2**5000, 2**5000)]
)
def test_what_is_shown_alike_is_the_same(one: Any, other: Any) -> None:
    assert same(one, other)
    assert same([{"a": one}], [{"a": other}])


@pytest.mark.parametrize(
    ("old", "new", "pairs"),
    [
        ([1, 2], [1, 2, 2], [(0, 0), (1, 1)]),
        ([1, 2, 3], [1, 5, 3], [(0, 0), (1, 1), (2, 2)]),
        ([1, 2, 3], [1, 5, 6, 3], [(0, 0), (1, 1), (2, 3)]),
        ([1, 2, 3], [0, 1, 2, 3], [(0, 1), (1, 2), (2, 3)]),
        ([1, 2, 1, 3], [8, 9, 1, 7], [(0, 0), (1, 1), (2, 2), (3, 3)]),
        ([{"id": 1, "s": 0}], [{"id": 0, "s": 1}, {"id": 1, "s": 2}], [(0, 1)]),
        ([{"id": 1, "s": 0}, {"id": 2, "s": 0}], [{"id": 2, "s": 1}, {"id": 3, "s": 2}], [(1, 0)]),
        ([{"x": 1}], [{"x": 2}], [(0, 0)]),
        ([[1, 2], [3, 4]], [0, [9], [3, 5]], [(0, 1), (1, 2)]),
        ([[], {}], [7, {"a": 1}], [(0, 0), (1, 1)]),
    ],
)
def test_changed_items_belong_to_the_most_alike(old: list[Any], new: list[Any], pairs: Pairs) -> None:
    assert _aligned(old, new) == pairs


LONG = 40_000
"""More than a longest common subsequence is looked for of."""
RANDOM = Random(7)
BITS = [RANDOM.randrange(2) for _ in range(2 * LONG)]


@pytest.mark.parametrize(
    ("old", "new", "least"),
    [
        (range(LONG), range(LONG, 2 * LONG), 0),
        (range(LONG), range(LONG, 0, -1), 1),
        (BITS[:LONG], BITS[LONG:], LONG // 3),
        (BITS[:LONG], BITS[: LONG // 2] * 2, LONG // 2),
        (BITS[:LONG], [item for bit in BITS[:LONG] for item in (2, bit, 3)], LONG),
        (range(LONG), range(-1000, LONG - 1000), LONG - 1000),
        ([*range(9), *BITS[:5000], "x", *BITS[:6000]], [*BITS[:6000], "x", *BITS[:5000], 9], 5000),
        ([at * (2**61 - 1) for at in range(LONG)], [at * (2**61 - 1) for at in range(LONG, 2 * LONG)], 0),
    ],
)
def test_long_lists_take_a_bounded_time(old: Any, new: Any, least: int) -> None:
    begun = process_time()
    assert len(_common([*old], [*new])) >= least
    assert len(_aligned([*old], [*new])) <= LONG + 10_000
    assert process_time() - begun < 10

"""Which version last set what stands at a path, and that no more is read than it takes to know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import UNSET

from statecache.rules.blame import Blame, BlameSearch, blamed
from statecache.rules.paths import Path, part_at, path_of
from statecache.rules.sameness import same
from tests.unit.plain_values import SCALARS, VALUES, nested

Version = tuple[int, Any]


def numbered(*values: Any) -> list[Version]:
    """Return versions from the newest to the oldest; the oldest is number 1, and comes first."""
    return [*enumerate(values, 1)][::-1]


def blame(text: str, *values: Any) -> tuple[int, str, bool]:
    found = blamed(numbered(*values), path_of(text))
    assert found is not None
    return found.header, found.place, found.found


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("a", [{"a": 1}, {"a": 2}, {"a": 2, "b": 1}], (2, "a", True)),
        ("a", [{"a": 2}, {"a": 2}], (1, "a", False)),
        ("a", [{"a": 1}, {"a": 1.0}], (2, "a", True)),
        ("a", [{"a": 1}, {"a": 2}, {"a": 1}], (3, "a", True)),
        ("$", [[1], [1], {}], (3, "$", True)),
        ("a.b", [{"a": 1}, {"a": {"b": 1}}], (2, "a.b", True)),
        ("a", [{"a": 1}, UNSET, {"a": 1}], (3, "a", True)),
        ("a", [{"a": 1}, {}, {"b": 1}], (2, "a", True)),
        ("a", [{"a": 1}, UNSET, {}], (2, "a", True)),
        ("a[3]", [{"a": [1]}, {"a": []}], (1, "a[3]", False)),
        ("a.b.c", [{}, {"a": {}}, {"a": {"b": {}}}], (1, "a.b.c", False)),
        ("a[0].error", [{"a": []}, {"a": [{"id": 1}]}, {"a": [{"id": 1}]}], (2, "a[0].error", True)),
    ],
)
def test_what_set_it(text: str, values: list[Any], expected: tuple[int, str, bool]) -> None:
    assert blame(text, *values) == expected


def test_no_versions_tell_nothing() -> None:
    assert blamed([], ("a",)) is None


def test_an_item_is_followed_where_it_stood() -> None:
    says = [{"role": "user", "content": f"say {at}"} for at in range(6)]
    window = [says[:2], says[:3], says[:4], says[1:5], [{"role": "system", "content": "be short"}, *says[2:6]]]
    assert blame("[1]", *window) == (2, "[2]", True)
    assert blame("[1].content", *window) == (2, "[2].content", True)
    assert blame("[0]", *window) == (5, "[0]", True)
    assert blame("[4]", *window) == (5, "[4]", True)


def test_what_changed_beside_it_in_an_item_does_not_matter() -> None:
    first = {"id": 7, "content": "say", "seen": False}
    values = [[first], [0, first], [0, first | {"seen": True}], [0, 0, first | {"seen": True, "x": 1}]]
    assert blame("[2].content", *values) == (1, "[0].content", False)
    assert blame("[2].seen", *values) == (3, "[1].seen", True)
    assert blame("[2]", *values) == (4, "[2]", True)


def test_items_that_are_the_same_are_not_taken_for_one_another() -> None:
    assert blame("[1]", ["ok"], ["ok", "ok"], ["ok", "ok", "no"]) == (2, "[1]", True)
    assert blame("[0]", ["a", "ok"], ["ok"], ["ok"]) == (1, "[1]", False)


def test_lists_in_lists_are_followed() -> None:
    values = [[[1], [2, {"a": 1}]], [[1], [2, 3, {"a": 1}]], [[0], [1], [2, 3, {"a": 1}, 4]]]
    assert blame("[2][2].a", *values) == (1, "[1][1].a", False)


def _until(versions: list[Version], last: int) -> Iterator[Version]:
    for header, value in versions:
        assert header >= last, "nothing older is read"
        yield header, value


def test_nothing_is_read_that_is_not_needed() -> None:
    versions = numbered({"a": 0}, {"a": 1}, {"a": 2}, {"a": 2}, {"a": 2})
    assert blamed(_until(versions, 2), ("a",)) == Blame(3, ("a",), 2, found=True)


def test_a_search_says_when_it_is_over() -> None:
    search = BlameSearch[str](("a",))
    assert [search.look(name, {"a": at}) for name, at in [("d", 1), ("c", 1), ("b", 2)]] == [False, False, True]
    assert search.over
    assert search.look("a", {"a": 1})
    assert search.blame == Blame("c", ("a",), 1, found=True)


@given(some.lists(some.dictionaries(some.sampled_from("abc"), SCALARS) | VALUES, min_size=1), some.sampled_from("abcd"))
def test_below_keys_it_is_the_end_of_the_run(values: list[Any], key: str) -> None:
    path: Path = (key,)
    parts = [part_at(value, path) for value in values]
    run = 1
    while run < len(parts) and same(parts[-1 - run], parts[-1]):
        run += 1
    found = blamed(numbered(*values), path)
    assert found is not None
    assert (found.header, found.found) == (len(values) - run + 1, run < len(values))
    assert same(found.value, parts[-1])


@given(some.lists(SCALARS, min_size=1, max_size=6), some.integers(0, 5))
def test_in_lists_that_only_grow_it_is_the_version_that_appended(items: list[Any], index: int) -> None:
    values = [items[: at + 1] for at in range(len(items))]
    found = blamed(numbered(*values), (index,))
    assert found is not None
    assert found.header == (index + 1 if index < len(items) else 1)
    assert found.path == (index,)


def test_a_deep_value_is_no_harm() -> None:
    values = [nested(10_000, [at]) for at in (1, 1, 2, 2)]
    assert blame("$", *values) == (3, "$", True)
    assert blamed(numbered(*values), (0,) * 10_001) == Blame(3, (0,) * 10_001, 2, found=True)

"""Tuples beside None, scalars and other classes: what is right is stored, a namedtuple that would change is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest

from statecache.model import Encoding
from tests.support.sample_values import both, refused, returned


class Point(NamedTuple):
    x: int
    y: int


class Span(NamedTuple):
    ends: tuple[int, int]


class Step(msgspec.Struct, frozen=True):
    args: tuple[str, ...]
    after: tuple[int, ...] = ()


@dataclass
class Row:
    cells: tuple[str, ...]


class Search(msgspec.Struct, tag=True, frozen=True):
    terms: tuple[str, ...]


class Fetch(msgspec.Struct, tag=True, frozen=True):
    urls: tuple[str, ...]


class Left(msgspec.Struct, tag=True):
    at: tuple[int, ...]


class Right(msgspec.Struct, tag=True):
    at: tuple[int, ...]


class Named(msgspec.Struct, tag=True):
    at: Span


class Base(msgspec.Struct, tag=True):
    at: tuple[int, ...] | None = None


class Heir(Base, tag=True):
    at: Point | None = None


class Plan(msgspec.Struct):
    step: Search | Fetch | None = None
    steps: list[Search | Fetch] = []
    by_name: dict[str, Step | None] = {}


STEP, ROW = Step(("a",)), Row(("a",))
SEARCH, FETCH = Search(("a",)), Fetch(("u",))


@both
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([None, STEP], list[Step | None]),
        ([STEP, None], list[Step | None]),
        ([STEP, None, STEP, 1, "a"], list[Step | int | str | None]),
        ([STEP, 3, [1]], list[Step | int | list[int]]),
        ({"a": STEP, "b": None}, dict[str, Step | None]),
        ([ROW, None], list[Row | None]),
        ([ROW, 1], list[Row | int]),
        ((STEP, None), tuple[Step | None, ...]),
        ((STEP, None), tuple[Step | None, Step | None]),
        ({STEP, None}, set[Step | None]),
        (Plan(SEARCH), Plan),
        (Plan(FETCH, [SEARCH, FETCH], {"a": STEP, "b": None}), Plan),
        (SEARCH, Search | Fetch),
        (FETCH, Search | Fetch),
        ([SEARCH, FETCH, SEARCH], list[Search | Fetch]),
        ([Left((1,)), Named(Span((1, 2)))], list[Left | Named]),
        ([Named(Span((1, 2))), Left((1,))], list[Left | Named]),
        ([Base((1,)), Heir(Point(1, 2))], list[Base | Heir]),
        ([Heir(Point(1, 2)), Base((1,))], list[Base | Heir]),
    ],
)
def test_records_with_tuples_are_stored_whatever_stands_beside_them(encoding: Encoding, value: Any, kind: Any) -> None:
    assert returned(value, kind, encoding) == value


@both
def test_a_dictionary_is_stored_beside_a_record_that_it_is_read_as(encoding: Encoding) -> None:
    assert returned([STEP, {"args": ["b"]}], list[Step], encoding) == [STEP, Step(("b",))]


@both
@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        ([None, Step((), Point(1, 2))], list[Step | None], "$[1].after"),
        ([STEP, None, Step((), Point(1, 2))], list[Step | None], "$[2].after"),
        ([{"args": []}, Step((), Point(1, 2))], list[Step], "$[1].after"),
        (Left(Point(1, 2)), Left | Right, "$.at"),
        (Right(Point(1, 2)), Left | Right, "$.at"),
        ([Left((1,)), Right(Point(1, 2))], list[Left | Right], "$[1].at"),
        ([Right((1,)), Left(Point(1, 2))], list[Left | Right], "$[1].at"),
        ([Named(Span((1, 2))), Left(Point(1, 2))], list[Left | Named], "$[1].at"),
        ([Left((1,)), Named(Span(Point(1, 2)))], list[Left | Named], "$[1].at[0]"),
        ([Heir(Point(1, 2)), Base(Point(1, 2))], list[Base | Heir], "$[1].at"),
    ],
)
def test_a_namedtuple_is_refused_in_each_class_of_a_union(encoding: Encoding, value: Any, kind: Any, path: str) -> None:
    error = refused(value, kind, encoding)
    assert error.path == path
    assert "and readers would get a tuple" in error.reason


def test_a_namedtuple_is_refused_as_a_key_of_a_dictionary() -> None:
    assert returned({(1, 2): 3}, dict[tuple[int, int], int], "msgpack") == {(1, 2): 3}
    assert "readers would get a tuple" in refused({Point(1, 2): 3}, dict[tuple[int, int], int], "msgpack").reason

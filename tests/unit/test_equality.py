"""Losses and orders of sets are seen where a class's own equality does not look at all of its fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest

from statecache.equality import shows_all
from statecache.model import Encoding
from tests.support.sample_values import NAIVE, Message, Order, OrderBook, Run, Tree, both, refused, returned, stored


@dataclass
class Result:
    id: int
    score: Any = field(default=None, compare=False)


@dataclass
class Part(Result):
    pass


@dataclass(eq=False)
class Half(Result):
    """One that compares as its base does, without what it adds."""

    more: Any = None


@dataclass
class Entity:
    id: int
    score: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and self.id == other.id


@attrs.define
class Measured:
    id: int
    score: Any = attrs.field(default=None, eq=False)


@attrs.define
class Keyed:
    id: int
    score: Any = attrs.field(default=None, eq=lambda _: 0)


class Row(msgspec.Struct):
    id: int
    score: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self.id == other.id


class Cell(NamedTuple):
    id: int
    score: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)


class Model(pydantic.BaseModel):
    id: int
    score: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self.id == other.id


class Frozen(msgspec.Struct, frozen=True):
    id: int
    score: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frozen) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)


class FrozenHeir(Frozen, frozen=True):
    pass


class Holder(pydantic.BaseModel):
    results: dict[str, list[Result]] = {}


class Plain(msgspec.Struct):
    id: int = 1
    results: list[Result] = []


@dataclass
class Whole:
    id: int
    score: Any = None


@dataclass(frozen=True, slots=True)
class WholeFrozen:
    id: int
    score: Any = None


@attrs.define
class WholeAttrs:
    id: int
    score: Any = None


OWN: list[Any] = [Result, Part, Half, Entity, Measured, Keyed, Row, Frozen, Model]
INSIDE: list[tuple[Any, Any, str]] = [
    (lambda part: [Result(1), Result(2, part)], list[Result], "$[1].score"),
    (lambda part: {"a": Entity(1, part)}, dict[str, Entity], "$.a.score"),
    (lambda part: Plain(results=[Result(1, part)]), Plain, "$.results[0].score"),
    (lambda part: (1, Row(1, part)), tuple[int, Row], "$[1].score"),
    (lambda part: {Frozen(1), Frozen(2, part)}, set[Frozen], "$[...].score"),
    (lambda part: Holder(results={"a": [Result(1, part)]}), Holder, "$.results.a[0].score"),
    (lambda part: [None, Measured(1, part)], list[Measured | None], "$[1].score"),
    (lambda part: Cell(1, part), Cell, "$[1]"),
]


IDS = ["list", "dict", "field", "tuple", "set", "model", "optional", "namedtuple"]


@both
@pytest.mark.parametrize("kind", OWN)
def test_a_loss_in_a_field_that_equality_passes_over_is_refused(encoding: Encoding, kind: Any) -> None:
    assert kind(1, float("nan")) == kind(1) if kind not in (Half, Model) else True
    for lost, reason in ((float("nan"), "not a number that can be stored"), (NAIVE, "without a time zone")):
        error = refused(kind(id=1, score=lost), kind, encoding)
        assert error.path == "$.score"
        assert reason in error.reason


@pytest.mark.parametrize("kind", OWN)
def test_so_is_what_only_json_would_lose(kind: Any) -> None:
    for lost, reason in ((b"\1", "these bytes back as text"), ({1: "a", "1": "b"}, "become the same text")):
        assert reason in refused(kind(id=1, score=[lost]), kind, "json").reason
        if kind is not Model:
            assert returned(kind(id=1, score=[lost]), kind, "msgpack").score == [lost]


@both
@pytest.mark.parametrize(("make", "kind", "path"), INSIDE, ids=IDS)
def test_it_is_found_wherever_such_a_class_stands(encoding: Encoding, make: Any, kind: Any, path: str) -> None:
    assert refused(make([1, float("nan")]), kind, encoding).path == f"{path}[1]"
    assert returned(make([1, 2.5]), kind, encoding) == make([1, 2.5])


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_member_of_a_set_is_compared_with_itself(number: int) -> None:
    members = {Frozen(at, b"\1" if at == number else None) for at in (1, 2, 3)}
    assert refused(members, set[Frozen], "json").path == "$[...].score"


@both
def test_an_instance_of_a_subclass_that_is_equal_to_its_base_is_refused(encoding: Encoding) -> None:
    assert FrozenHeir(1, 2) == Frozen(1, 2)
    assert "it is a FrozenHeir and readers would get a Frozen" in refused(FrozenHeir(1, 2), Frozen, encoding).reason


@both
@pytest.mark.parametrize("kind", [one for one in OWN if one is not Model])
def test_a_set_in_such_a_field_is_stored_in_order(encoding: Encoding, kind: Any) -> None:
    for within in (kind, list[kind]):
        one, other = (kind(id=1, score={"any": numbers}) for numbers in ({0, 8}, {8, 0}))
        values = (one, other) if within is kind else ([one], [other])
        first, second = (stored(value, within, encoding=encoding) for value in values)
        assert first == second


@pytest.mark.parametrize("kind", [*OWN, *(kind for _, kind, _ in INSIDE)], ids=str)
def test_a_class_that_compares_in_a_way_of_its_own_is_known(kind: Any) -> None:
    assert not shows_all(kind)


@pytest.mark.parametrize(
    "kind", [Any, int, Whole, WholeFrozen, WholeAttrs, Run, list[Run], Message, Order, OrderBook, Tree, dict[str, Any]]
)
def test_of_other_types_equality_shows_all(kind: Any) -> None:
    assert shows_all(kind)

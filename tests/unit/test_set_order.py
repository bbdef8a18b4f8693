"""Equal values with sets are equal bytes, in whatever order their members were added."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import pydantic
import pytest

from statecache.codec import codec_for
from statecache.model import Encoding
from tests.support.sample_values import both, returned, stored

SAME = [{0, 8}, {8, 0}]
FROZEN = [frozenset([frozenset([0, 8]), frozenset([16])]), frozenset([frozenset([16]), frozenset([8, 0])])]


class Tagged(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    my_tags: set[int] = set()
    more: Any = None


@dataclass(frozen=True)
class Plain:
    tags: set[int] = field(default_factory=set)
    by_name: dict[str, frozenset[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Slotted:
    known: ClassVar[set[int]] = {0, 8}
    tags: set[int] = field(default_factory=set)


@dataclass
class Open:
    known: ClassVar[set[int]] = {0, 8}
    tags: set[int] = field(default_factory=set)


class Labels(set[int]):
    pass


class Model(pydantic.BaseModel):
    tags: set[int] = set()
    inner: list[dict[str, set[int]]] = []


CASES: list[tuple[Any, list[Any]]] = [
    (set[int], SAME),
    (frozenset[frozenset[int]], FROZEN),
    (dict[str, set[int]], [{"b": one, "a": set()} for one in SAME]),
    (Any, SAME),
    (Any, [{"b": [1, {"deep": one}], "a": 2} for one in SAME]),
    (Any, [Tagged(one, one) for one in SAME]),
    (Tagged, [Tagged(one) for one in SAME]),
    (Tagged, [Tagged(set(), {"any": one}) for one in SAME]),
    (Plain, [Plain(one, {"x": frozenset(one), "a": frozenset()}) for one in SAME]),
    (list[Plain], [[Plain(one)] for one in SAME]),
    (Model, [Model(tags=one, inner=[{"x": one}]) for one in SAME]),
    (list[Model], [[Model(tags=one)] for one in SAME]),
]


def _ids(case: object) -> str:
    return str(case)[:40]


@both
@pytest.mark.parametrize(("kind", "values"), CASES, ids=_ids)
def test_equal_values_are_equal_bytes(encoding: Encoding, kind: Any, values: list[Any]) -> None:
    first, second = values
    assert first == second
    assert stored(first, kind, encoding=encoding) == stored(second, kind, encoding=encoding)


@both
@pytest.mark.parametrize(("kind", "values"), [one for one in CASES if one[0] is not Any], ids=_ids)
def test_what_has_sets_comes_back_equal(encoding: Encoding, kind: Any, values: list[Any]) -> None:
    if kind is Tagged and values[0].more is not None:
        assert returned(values[0], kind, encoding).more == {"any": [0, 8]}
    else:
        assert returned(values[0], kind, encoding) == values[0]


def test_a_writer_is_given_what_readers_get() -> None:
    data, seen = codec_for(Any).encode({"b": {8, 0}, "a": 1}, key="a/1", bytes_max=1000)
    assert (data, seen) == (b'{"b":[0,8],"a":1}', {"b": [0, 8], "a": 1})


def test_dictionaries_keep_their_order_and_the_value_is_left_as_it_was() -> None:
    value = Plain({8, 0}, {"z": frozenset([8, 0]), "a": frozenset([1])})
    data, _ = codec_for(Plain).encode(value, key="a/1", bytes_max=1000)
    assert data == b'{"tags":[0,8],"by_name":{"z":[0,8],"a":[1]}}'
    assert value == Plain({8, 0}, {"z": frozenset([8, 0]), "a": frozenset([1])})


@pytest.mark.parametrize("kind", [Slotted, Open])
def test_what_is_the_class_s_own_is_no_part_of_a_value(kind: Any) -> None:
    assert codec_for(kind).encode(kind({8, 0}), key="a/1", bytes_max=1000)[0] == b'{"tags":[0,8]}'


def test_an_heir_of_a_set_is_stored_as_one() -> None:
    assert codec_for(Any).encode({"a": Labels([8, 0])}, key="a/1", bytes_max=1000)[0] == b'{"a":[0,8]}'


def test_what_is_left_out_as_a_default_stays_so() -> None:
    assert codec_for(Tagged).encode(Tagged(), key="a/1", bytes_max=1000)[0] == b"{}"
    assert codec_for(Tagged).encode(Tagged({8, 0}), key="a/1", bytes_max=1000)[0] == b'{"myTags":[0,8]}'


def test_a_dictionary_that_is_iterated_otherwise_than_it_is_encoded_is_looked_through() -> None:
    value = OrderedDict[str, Any](short=[1], long=[1, 2, {8, 0}])
    value.move_to_end("short")
    assert codec_for(Any).encode(value, key="a/1", bytes_max=1000)[0] == b'{"long":[1,2,[0,8]],"short":[1]}'

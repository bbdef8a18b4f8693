"""What a class's own `==` passes over is looked at all the same."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

import attrs
import msgspec
import pytest

from statecache.model import Encoding
from statecache.record_classes import is_equal_in_part
from tests.support.sample_values import Attributed, Run, Tree, both, refused, returned


@dataclasses.dataclass
class Scored:
    id: int
    score: Any = dataclasses.field(default=None, compare=False)


@attrs.define
class Rated:
    id: int
    score: Any = attrs.field(default=None, eq=False)


class Entity(msgspec.Struct, eq=False):
    """Is equal by its id."""

    id: int
    score: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and other.id == self.id


@dataclasses.dataclass
class Own:
    id: int
    score: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and other.id == self.id


PARTLY = (Scored, Rated, Entity, Own)


@pytest.mark.parametrize("kind", PARTLY)
@pytest.mark.parametrize("lost", [float("nan"), b"ab", {1: "a", "1": "b"}, datetime(2026, 1, 1), [{"a": float("inf")}]])  # noqa: DTZ001
def test_what_a_classs_own_comparison_passes_over_is_refused_where_it_is_lost(kind: Any, lost: Any) -> None:
    for value, of, path in (
        (kind(1, lost), kind, "$.score"),
        ([kind(0), kind(1, lost)], list[kind], "$[1].score"),
        ({"a": {"b": kind(1, lost)}}, dict[str, dict[str, kind]], "$.a.b.score"),
        (kind(1, lost), Any, "$.score"),
    ):
        assert refused(value, of, "json").path.startswith(path)


@both
@pytest.mark.parametrize("kind", PARTLY)
@pytest.mark.parametrize("kept", [None, 1, "a", [1, {"a": None}], (1, 2), 2.5])
def test_what_it_passes_over_is_stored_where_it_is_kept(encoding: Encoding, kind: Any, kept: Any) -> None:
    stored = [*kept] if isinstance(kept, tuple) else kept
    assert returned(kind(1, kept), kind, encoding).score == stored
    assert [one.score for one in returned([kind(1, kept)] * 3, list[kind], encoding)] == [stored] * 3


def test_whether_a_comparison_passes_over_fields_is_seen_of_its_class() -> None:
    made = [dataclasses.make_dataclass("D", [("a", int)], frozen=one, order=not one) for one in (False, True)]
    whole = (Run, Attributed, Tree, *made)
    assert [is_equal_in_part(kind) for kind in (*PARTLY, *whole)] == [True] * 4 + [False] * 5

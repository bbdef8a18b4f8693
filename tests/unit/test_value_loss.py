"""What would come back as something else is refused with its place, and finding it takes no long."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta, timezone
from typing import Any, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pytest

from statecache import AgentRun
from statecache.codec import codec_for
from statecache.model import Encoding
from statecache.tuple_slots import slot_of
from statecache.value_loss import NESTING_MAX
from tests.support.calls import calls_of
from tests.support.sample_values import (
    AWARE,
    KEY,
    LongRun,
    Loose,
    Message,
    OpenOrder,
    Order,
    Run,
    Step,
    both,
    refused,
    returned,
    stored,
)


class LongStep(Step, frozen=True):
    more: int = 0


class OwnEquality(msgspec.Struct, eq=False):
    steps: list[Step] = []


class Pair(NamedTuple):
    first: int
    second: int


class OtherPair(NamedTuple):
    first: int
    second: int


class Places(msgspec.Struct, kw_only=True):
    step: Step | None = None
    by_name: dict[str, Step] = {}
    all: tuple[Step, ...] = ()
    pair: tuple[int, int] = (0, 0)
    named: Pair | None = None
    below: list[Places] = []
    counts: dict[str, int] = {}
    numbered: dict[int, str] = {}
    weight: float = 0.0


class Compared(msgspec.Struct, eq=False):
    """One whose comparisons are calls."""

    at: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compared) and other.at == self.at


class Deep(msgspec.Struct):
    below: list[Deep] = []
    rows: list[Compared] = []
    pair: Any = None


class Kept(TypedDict, total=False):
    pair: tuple[int, int]


class Marked(msgspec.Struct, tag=True, rename="camel"):
    """What has other names where it is stored."""

    some_step: int = 0


class Noted(msgspec.Struct):
    """What has TypedDicts in it."""

    kept: Kept | None = None
    by_name: dict[str, list[Kept]] = {}


@dataclass
class Box:
    steps: list[Step] = field(default_factory=list)
    pairs: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


@both
@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        (Run(1, [Step("a"), LongStep("b", more=7)]), Run, "$.steps[1]"),
        (Run(1, [LongStep("b")]), Run, "$.steps[0]"),
        ([Run(1), LongRun(1)], list[Run], "$[1]"),
        (Places(step=LongStep("a")), Places, "$.step"),
        (Places(by_name={"a b": LongStep("a")}), Places, "$.by_name['a b']"),
        (Places(all=(Step("a"), LongStep("b"))), Places, "$.all[1]"),
        (Places(below=[Places(), Places(below=[Places(step=LongStep("a"))])]), Places, "$.below[1].below[0].step"),
        (OwnEquality([LongStep("a")]), OwnEquality, "$.steps[0]"),
        (Box([LongStep("a")]), Box, "$.steps[0]"),
        ({"a": Run(1, [LongStep("a")])}, dict[str, Run], "$.a.steps[0]"),
    ],
)
def test_an_instance_of_a_subclass_is_refused_wherever_it_stands(
    encoding: Encoding, value: Any, kind: Any, path: str
) -> None:
    error = refused(value, kind, encoding)
    assert error.path == path
    assert "and readers would get a" in error.reason
    assert "as the type" in error.reason


def test_in_a_set_too() -> None:
    error = refused({Step("a"), LongStep("b")}, set[Step])
    assert error.path == "$[...]"
    assert "it is a LongStep and readers would get a Step" in error.reason


@both
@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        (Pair(1, 2), tuple[int, int], "$"),
        (Places(pair=Pair(1, 2)), Places, "$.pair"),
        (Places(named=OtherPair(1, 2)), Places, "$.named"),  # type: ignore[arg-type]
        (Places(below=[Places(), Places(pair=Pair(1, 2))]), Places, "$.below[1].pair"),
        (AgentRun(goal="x", plan=Pair("a", "b")), AgentRun, "$.plan"),  # type: ignore[arg-type]
        ({"pair": Pair(1, 2)}, Kept, "$.pair"),
        (Box(pairs={"a": [(1, 2), Pair(1, 2)]}), Box, "$.pairs.a[1]"),
        ((((1, 2), Pair(1, 2)),), tuple[tuple[tuple[int, int], ...], ...], "$[0][1]"),
    ],
)
def test_a_namedtuple_is_refused_where_readers_get_another_tuple(
    encoding: Encoding, value: Any, kind: Any, path: str
) -> None:
    error = refused(value, kind, encoding)
    assert error.path == path
    assert "and readers would get a tuple" in error.reason


@both
@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        ({"z": 1}, Kept, "$.z"),
        ({"pair": (1, 2), "a b": 2}, Kept, "$['a b']"),
        ([{}, {"pair": (1, 2), "z": {"a": 1}}], list[Kept], "$[1].z"),
        (Noted({"z": 1}), Noted, "$.kept.z"),  # type: ignore[arg-type]
        (Noted(by_name={"a": [{}, {"z": 1}]}), Any, "$.by_name.a[1].z"),  # type: ignore[typeddict-unknown-key]
        ([{"name": "a"}, {"name": "b", "z": 1}], list[Step], "$[1].z"),
        (Places(step={"name": "a", "z": 1}), Places, "$.step.z"),  # type: ignore[arg-type]
        ([{"below": [{"step": {"name": "a", "z": 1}}]}], list[Places], "$[0].below[0].step.z"),
        ({"a": {"steps": [], "z": 1}}, dict[str, Box], "$.a.z"),
        ({"a": {"type": "Marked", "z": 1}}, dict[str, Marked], "$.a.z"),
    ],
)
def test_a_key_that_a_type_does_not_name_is_refused(encoding: Encoding, value: Any, kind: Any, path: str) -> None:
    error = refused(value, kind, encoding)
    assert error.path == path
    assert "readers would not get it" in error.reason


@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        (Places(counts={1: 2}), Places, "$.counts"),  # type: ignore[dict-item]
        (Loose({"counts": [{1: 2}]}), Loose, "$.anything.counts[0]"),
        ({1.5: "a"}, dict, "$"),
    ],
)
def test_keys_that_readers_of_a_type_would_get_as_text_are_refused(value: Any, kind: Any, path: str) -> None:
    error = refused(value, kind)
    assert error.path == path
    assert "its keys would come back as text" in error.reason


@both
def test_a_number_that_a_float_cannot_hold_is_refused(encoding: Encoding) -> None:
    error = refused(Places(weight=2**53 + 1), Places, encoding)
    assert error.path == "$.weight"
    assert "a float cannot hold" in error.reason
    assert returned(Places(weight=3), Places, encoding).weight == 3.0


@both
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Places(named=Pair(1, 2), pair=(1, 2), numbered={1: "a"}, below=[Places()]), Places),
        (Places(counts=defaultdict(int, a=1)), Places),
        (Message(role="user", content="x"), Message),
        (Box([Step("a")], {"a": [(1, 2)]}), Box),
        (AgentRun(goal="x", plan=("a", "b")), AgentRun),
        (Noted({"pair": (1, 2)}, {"a": [{}]}), Noted),
        ([{}, {"pair": (1, 2)}], list[Kept]),
    ],
)
def test_what_comes_back_equal_and_whole_is_stored(encoding: Encoding, value: Any, kind: Any) -> None:
    assert returned(value, kind, encoding) == value


@both
@pytest.mark.parametrize(
    ("value", "kind", "back"),
    [
        ([{"name": "a", "score": 1}], list[Step], [Step("a", 1.0)]),
        ({"a": {"type": "Marked", "someStep": 1}}, dict[str, Marked], {"a": Marked(1)}),
        ({"a": {"steps": [{"name": "a"}]}}, dict[str, Box], {"a": Box([Step("a")])}),
        ([{"id": 1, "w": 2.5}], list[Order], [Order(id=1, w=2.5)]),
        ([{"id": 1, "more": 2}], list[OpenOrder], [OpenOrder.model_validate({"id": 1, "more": 2})]),
    ],
)
def test_a_dict_that_a_record_reads_whole_is_stored(encoding: Encoding, value: Any, kind: Any, back: Any) -> None:
    assert returned(value, kind, encoding) == back


@both
def test_what_has_no_type_changes_its_form_and_keeps_its_content(encoding: Encoding) -> None:
    back = returned(Loose({"step": LongStep("a", more=7), "pair": Pair(1, 2)}), Loose, encoding)
    assert back.anything == {"step": {"name": "a", "score": None, "at": None, "more": 7}, "pair": [1, 2]}


def test_only_types_with_tuples_are_looked_at_for_namedtuples() -> None:
    assert [slot_of(kind) for kind in (Run, Message, Loose, list[dict[str, int]])] == [None] * 4
    assert None not in [slot_of(kind) for kind in (Places, Box, AgentRun, Kept, dict[str, Pair])]


def test_one_tuple_in_a_large_value_costs_little_beside_the_rest() -> None:
    rows = [{"id": at, "name": f"row {at}", "value": at * 0.5, "tags": ["x", "y"]} for at in range(2000)]
    lists, tuples = ({"rows": rows, "pair": pair} for pair in ([1, 2], (1, 2)))
    assert calls_of(lambda: stored(tuples)) < calls_of(lambda: stored(lists)) + 100


@both
def test_a_tuple_at_the_bottom_of_a_deep_value_is_found_in_one_walk(encoding: Encoding) -> None:
    value = Deep(rows=[Compared(at) for at in range(2000)], pair=(1, 2))
    for _ in range((NESTING_MAX - 3) // 2):
        value = Deep(below=[value])
    assert calls_of(lambda: stored(value, Deep, encoding=encoding)) < 100 * 2000
    assert codec_for(encoding=encoding).encode([1], key=KEY, bytes_max=100)


# A UTC offset with seconds.

OFFSET = timezone(timedelta(hours=1, seconds=1))
ODD = datetime(2026, 1, 1, tzinfo=OFFSET)
BERLIN = datetime(1890, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
TIME = time(1, 2, 3, tzinfo=OFFSET)


@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        (BERLIN, datetime, "$"),
        (ODD, datetime, "$"),
        (ODD.replace(tzinfo=timezone(-timedelta(hours=1, seconds=1))), datetime, "$"),
        (ODD.replace(tzinfo=timezone(timedelta(microseconds=1))), datetime, "$"),
        (ODD, Any, "$"),
        ({"at": [ODD]}, Any, "$.at[0]"),
        ({ODD}, Any, "$[...]"),
        ({ODD}, set[datetime], "$[...]"),
        ({"at": ODD}, dict[str, datetime], "$.at"),
        ({ODD: 1}, dict[datetime, int], "$[datetime.datetime(2026, 1, 1, 0, 0, tzin]"),
        ({TIME: 1}, dict[time, int], "$[datetime.time(1, 2, 3, tzinfo=datetime.t]"),
        (Step("a", 1.0, ODD), Step, "$.at"),
        (Run(1, [Step("a", at=AWARE), Step("b", at=BERLIN)]), Run, "$.steps[1].at"),
        (Run(1, notes={"at": ODD}), Run, "$.notes.at"),
        ([ODD, 43], list[datetime | int], "$[0]"),
        (Order(id=1, at=ODD), Order, "$.at"),
        (Order(id=1, at=ODD), Any, "$.at"),
        (TIME, time, "$"),
        ({"at": TIME}, Any, "$.at"),
    ],
)
def test_a_moment_that_json_would_shift_is_refused(value: Any, kind: Any, path: str) -> None:
    error = refused(value, kind, "json")
    assert error.path == path
    assert "UTC offset has seconds" in error.reason


@pytest.mark.parametrize("kind", [datetime, Any, Step, dict[datetime, int]])
def test_a_moment_that_msgpack_brings_back_is_stored(kind: Any) -> None:
    made: dict[Any, Any] = {Step: Step("a", 1.0, BERLIN), dict[datetime, int]: {BERLIN: 1}}
    value = made.get(kind, BERLIN)
    assert returned(value, kind, "msgpack") == value


def test_a_time_that_msgpack_would_shift_is_refused() -> None:
    assert "UTC offset has seconds" in refused(TIME, time, "msgpack").reason


@both
def test_a_moment_with_an_offset_of_minutes_is_stored(encoding: Encoding) -> None:
    for offset in (timedelta(hours=5, minutes=45), -timedelta(minutes=30), timedelta(0)):
        at = ODD.replace(tzinfo=timezone(offset))
        assert returned((at, at.timetz()), tuple[datetime, time], encoding) == (at, at.timetz())
    assert stored({"at": at, "day": time(1, 2)}, Any, encoding)

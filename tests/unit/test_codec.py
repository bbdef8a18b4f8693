"""What a writer stores is what every reader gets."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statecache import State
from statecache.codec import CODECS_MAX, Codec, codec_for
from statecache.errors import CodecError, UsageError
from statecache.model import Encoding
from tests.support.sample_values import (
    ACCOUNT,
    AWARE,
    ENCODINGS,
    KEY,
    Account,
    Basket,
    Box,
    Colour,
    Loose,
    Message,
    Order,
    OrderBook,
    Pair,
    Point,
    Renamed,
    Run,
    Shelf,
    Step,
    StrictOrder,
    both,
    refused,
    returned,
    stored,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
INTEGERS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | INTEGERS | FLOATS | TEXT
DATA = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=30)
ANYTHING = st.recursive(
    LEAVES
    | st.text()
    | st.binary()
    | st.floats()
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.integers()
    | st.decimals()
    | st.just(object()),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.floats() | st.none(), inner)
        | st.builds(Loose, inner)
    ),
    max_leaves=8,
)


@both
@given(value=DATA)
def test_plain_data_comes_back_as_it_was(encoding: Encoding, value: Any) -> None:
    data = stored(value, encoding=encoding)
    back = codec_for(Any, encoding).decode(data, key=KEY, encoding=encoding)
    assert repr(back) == repr(value)
    assert stored(back, encoding=encoding) == data


@both
@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [(1, float, "1.0"), (Step("a", 2), Step, "Step(name='a', score=2.0, at=None)"), ([True], list[bool], "[True]")],
)
def test_a_write_returns_what_readers_get_though_both_are_equal(
    encoding: Encoding, value: Any, kind: Any, shown: str
) -> None:
    data, seen = codec_for(kind, encoding).encode(value, key=KEY, bytes_max=1 << 20)
    assert repr(seen) == repr(codec_for(kind, encoding).decode(data, key=KEY)) == shown


def test_what_a_write_returns_is_nobody_else_s() -> None:
    value: dict[str, list[int]] = {"a": []}
    _, seen = codec_for().encode(value, key=KEY, bytes_max=1 << 20)
    value["a"].append(1)
    assert seen == {"a": []}


@both
@given(value=ANYTHING)
def test_any_value_is_either_stored_for_good_or_refused_with_its_place(encoding: Encoding, value: Any) -> None:
    codec, data, seen = codec_for(Any, encoding), None, None
    with suppress(CodecError):
        data, seen = codec.encode(value, key=KEY, bytes_max=1 << 20)
    if data is None:
        assert refused(value, encoding=encoding).path.startswith("$")
        return
    back = codec.decode(data, key=KEY, encoding=encoding)
    assert seen == back
    again, _ = codec.encode(back, key=KEY, bytes_max=1 << 20)
    assert codec.decode(again, key=KEY, encoding=encoding) == back


@given(data=st.binary(max_size=40))
def test_any_stored_bytes_are_either_decoded_or_refused(data: bytes) -> None:
    for kind in (Any, Run, Account, Order, Basket, list[Annotated[int, msgspec.Meta(ge=0)]]):
        for encoding in ENCODINGS:
            with suppress(CodecError):
                codec_for(kind).decode(data, key=KEY, encoding=encoding)


@both
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Box(1), Box[int]),
        (Pair("a", "b"), Pair[str]),
        (Shelf((Box(1), Box(2)), Pair(1, 2)), Shelf[int]),
        ([Shelf((), Pair(1, 2))], list[Shelf[int]]),
    ],
)
def test_values_of_generic_classes_come_back_as_they_were(encoding: Encoding, value: Any, kind: Any) -> None:
    back = returned(value, kind, encoding)
    assert (back, back.__class__) == (value, value.__class__)


@both
@given(
    value=st.builds(
        Run,
        INTEGERS,
        st.lists(st.builds(Step, TEXT, st.none() | FLOATS, st.none() | st.datetimes(timezones=st.just(UTC)))),
        st.dictionaries(TEXT, DATA),
        st.binary(),
    )
)
def test_structs_come_back_as_they_were(encoding: Encoding, value: Run) -> None:
    assert returned(value, Run, encoding) == value


@both
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Account, ACCOUNT),
        (datetime, AWARE),
        (datetime, datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-5)))),
        (UUID, UUID(int=1)),
        (Decimal, Decimal("1E+400000")),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "a")),
        (Point, Point(1, 2.5)),
        (Message, {"role": "user", "content": "hi"}),
        (list[Message], [{"role": "user", "content": "hi"}]),
        (Colour, Colour.RED),
        (bytes, b"\x00\xff"),
        (dict[int, str], {1: "a"}),
        (Run | None, None),
        (Run | int, Run(1)),
        (float, 3),
        (int | str, "x"),
        (Order, Order(id=1, at=AWARE, price=Decimal("1.10"), w=2.5, raw=b"abc")),
        (StrictOrder, StrictOrder(id=UUID(int=3), at=AWARE, tags={"x"})),
        (OrderBook, OrderBook(orders=[Order(id=1)])),
        (Basket, Basket(Order(id=1, at=AWARE))),
        (list[Order], [Order(id=1)]),
        (Renamed, Renamed(1.0, {7: "x"})),
        (Loose, Loose({"a": [1]})),
    ],
    ids=lambda part: getattr(part, "__name__", None) or type(part).__name__,
)
def test_typed_values_come_back_as_they_were(encoding: Encoding, kind: Any, value: Any) -> None:
    back = returned(value, kind, encoding)
    assert back == value
    assert type(back) is type(value) or kind is float


@both
@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**64 - 1])
def test_integers_beyond_2_to_the_53_are_exact(encoding: Encoding, number: int) -> None:
    assert returned({"n": number}, encoding=encoding) == {"n": number}
    assert returned(number, int, encoding) == number


def test_json_keeps_integers_of_any_length_that_python_reads_back() -> None:
    assert returned({"n": 2**64}) == {"n": 2**64}
    assert returned([-(10**400)]) == [-(10**400)]


@both
@pytest.mark.parametrize("text", ["a\0b", "\0", "\x1f\x7f", "2026-11-20T11:21:15", "é", "e\u0301", "🔑", "null", "NaN"])
def test_odd_text_is_just_text(encoding: Encoding, text: str) -> None:
    assert returned({text: [text]}, encoding=encoding) == {text: [text]}


def test_a_nul_in_text_is_stored_as_an_escape() -> None:
    assert stored("a\0b") == b'"a\\u0000b"'


def test_json_is_readable_in_place() -> None:
    assert stored(Run(1, [Step("buy", 0.5, AWARE)]), Run) == (
        b'{"step":1,"steps":[{"name":"buy","score":0.5,"at":"2026-11-20T11:21:15.123456Z"}],"notes":{},"blob":""}'
    )


def test_without_a_type_records_come_back_as_plain_data() -> None:
    value = {"step": Step("a"), "account": ACCOUNT, "pair": (1, 2), "at": AWARE, "id": UUID(int=7), "set": {1}}
    back = returned(value)
    assert back["step"] == {"name": "a", "score": None, "at": None}
    assert back["account"]["balance"] == "10.50"
    assert back["pair"] == [1, 2]
    assert back["at"] == "2026-11-20T11:21:15.123456Z"
    assert back["id"] == str(UUID(int=7))
    assert back["set"] == [1]


@both
def test_a_record_written_without_a_type_is_written_as_its_own_class(encoding: Encoding) -> None:
    untyped, run = codec_for(Any, encoding), Run(1, blob=b"\0\1")
    assert untyped.of(run) is codec_for(Run, encoding)
    assert untyped.of({"step": 1}) is untyped
    assert stored(run, Any, encoding) == stored(run, Run, encoding)
    assert codec_for(Run).decode(stored(run, Any, encoding), key=KEY, encoding=encoding) == run
    assert refused(Run("one"), Any, encoding).path == "$.step"  # type: ignore[arg-type]


def test_either_encoding_is_read_whatever_the_policy_says_now() -> None:
    for encoding in ENCODINGS:
        data = stored(Run(1), Run, encoding)
        assert codec_for(Run, "json").decode(data, key=KEY, encoding=encoding) == Run(1)
        assert codec_for(Run, "msgpack").decode(data, key=KEY, encoding=encoding) == Run(1)
        assert codec_for(Run, encoding).decode(data, key=KEY) == Run(1)


class Unknown:
    pass


class HoldsUnknown(msgspec.Struct):
    x: list[Unknown]


class Unresolved(msgspec.Struct):
    x: Nowhere  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "kind", [Unknown, HoldsUnknown, dict[str, Unknown], "Run", Unresolved, int | str | list[int] | set[int]]
)
def test_a_type_that_cannot_be_stored_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(UsageError, match="cannot be stored"):
        Codec(kind)


def test_codecs_are_kept_even_of_unhashable_types_and_not_without_end() -> None:
    unhashable = Annotated[int, ["a list"]]
    with pytest.raises(TypeError):
        hash(unhashable)
    assert codec_for(Run) is codec_for(Run)
    assert codec_for(Run) is not codec_for(Run, "msgpack")
    assert codec_for(unhashable) is codec_for(unhashable)
    first = codec_for(Run)
    for size in range(CODECS_MAX + 1):
        codec_for(Annotated[str, msgspec.Meta(max_length=size)])
    assert codec_for(Run) is not first


def test_a_state_in_place_of_its_value_is_refused() -> None:
    state = State(
        key=KEY, value=1, epoch=1, version=1, change_id="a", parent_change_id="", position=None, updated_at=AWARE,
        writer="w",
    )  # fmt: skip
    with pytest.raises(CodecError, match="it is a State; write its value"):
        stored(state)

"""What would be lost or break readers is refused with its place, before anything happens."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import deque
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest

from statecache.codec import Codec, codec_for
from statecache.errors import CodecError, LimitExceeded, UsageError
from statecache.model import Encoding
from statecache.value_loss import NESTING_MAX
from tests.support.sample_values import (
    ACCOUNT,
    AWARE,
    ENCODINGS,
    KEY,
    NAIVE,
    Account,
    Attributed,
    Basket,
    Colour,
    LongRun,
    Loose,
    Message,
    Odd,
    OpenOrder,
    Order,
    OrderBook,
    Point,
    Renamed,
    Run,
    Step,
    Tree,
    both,
    nested,
    refused,
    returned,
    stored,
)


@both
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize(
    ("make", "kind", "path"),
    [
        (lambda x: x, Any, "$"),
        (lambda x: x, float, "$"),
        (lambda x: {"a": None, "b": [1.5, {"c d": x}]}, Any, "$.b[1]['c d']"),
        (lambda x: Step("a", x), Step, "$.score"),
        (lambda x: Run(1, [Step("a"), Step("b", x)]), Run, "$.steps[1].score"),
        (lambda x: Run(1, notes={"x": x}), Run, "$.notes.x"),
        (lambda x: {"run": Run(1, [Step("b", x)])}, Any, "$.run.steps[0].score"),
        (lambda x: Account(UUID(int=1), Decimal(1), limit=x), Account, "$.limit"),
        (lambda x: Renamed(x), Renamed, "$.firstScore"),
        (lambda x: Odd(x), Odd, "$.x"),
        (lambda x: (1, {x}), Any, "$[1][...]"),
        (lambda x: Point(1, x), Point, "$[1]"),
        (lambda x: Order(id=1, w=x), Order, "$.weight"),
        (lambda x: Order(id=1, any=[x]), Order, "$.any[0]"),
        (lambda x: Basket(Order(id=1, w=x)), Basket, "$.order.weight"),
        (lambda x: [Attributed(x)], Any, "$[0].x"),
        (lambda x: OpenOrder.model_validate({"id": 1, "more": x}), OpenOrder, "$.more"),
    ],
)
def test_what_is_not_a_finite_number_is_refused(
    encoding: Encoding, number: float, make: Any, kind: Any, path: str
) -> None:
    error = refused(make(number), kind, encoding)
    assert error.path == path
    assert str(number) in error.reason


@both
@pytest.mark.parametrize("number", [math.nan, math.inf], ids=str)
def test_a_dict_key_that_is_no_finite_number_is_refused(encoding: Encoding, number: float) -> None:
    assert refused({"a": {number: 1}}, encoding=encoding).path == f"$.a[{number}]"


def test_null_and_65536_are_no_infinities() -> None:
    value = {"none": None, "text": "null", "power": [65536.0, 1.9375, -0.0]}
    for encoding in ENCODINGS:
        assert repr(returned(value, encoding=encoding)) == repr(value)
        assert returned(Step("null", None), Step, encoding) == Step("null", None)


@both
@pytest.mark.parametrize("value", [nested(100_000), Tree([Tree([])])], ids=["100000 levels", "tree"])
def test_nesting_without_end_is_refused(encoding: Encoding, value: Any) -> None:
    if isinstance(value, Tree):
        for _ in range(NESTING_MAX):
            value = Tree([value])
        error = refused(value, Tree, encoding)
    else:
        error = refused(value, encoding=encoding)
    assert "deeper than 200 levels" in error.reason
    assert len(error.path) <= 120


@both
def test_nesting_ends_at_the_same_level_everywhere(encoding: Encoding) -> None:
    assert returned(nested(NESTING_MAX, "x"), encoding=encoding) == nested(NESTING_MAX, "x")
    assert "deeper" in refused(nested(NESTING_MAX + 1, "x"), encoding=encoding).reason
    assert "deeper" in refused(Run(1, notes={"n": nested(NESTING_MAX)}), Run, encoding).reason
    assert "deeper" in refused(Order(id=1, any=nested(NESTING_MAX)), Order, encoding).reason


@both
def test_many_containers_side_by_side_are_not_deep(encoding: Encoding) -> None:
    value = [{"a": [1, {"b": "[{[{" * 100}]} for _ in range(NESTING_MAX * 3)]
    assert returned(value, encoding=encoding) == value
    assert returned("[{" * 500 + "\x80\u07df" * 500, encoding=encoding) == "[{" * 500 + "\x80\u07df" * 500


@both
def test_a_value_that_contains_itself_is_refused(encoding: Encoding) -> None:
    knot: dict[str, Any] = {"a": [1]}
    knot["a"].append(knot)
    error = refused(knot, encoding=encoding)
    assert error.path == "$.a[1]"
    assert error.reason == "it contains itself; store a key or an id in place of the reference"
    account = Account(UUID(int=1), Decimal(1))
    account.tags = {"self": account}  # type: ignore[assignment]
    assert refused(account, Account, encoding).path == "$.tags.self"


def test_one_object_at_two_places_is_no_cycle() -> None:
    shared = {"x": (1,)}
    assert returned([shared, shared]) == [{"x": [1]}, {"x": [1]}]


@pytest.mark.parametrize("make", ["deep", "knot"])
def test_the_c_stack_does_not_overflow_when_the_recursion_limit_was_raised(make: str) -> None:
    code = f"""
import sys
from statecache.codec import codec_for
from statecache.errors import CodecError
sys.setrecursionlimit(10**8)
knot, deep = [], []
knot.append(knot)
for _ in range(1_000_000): deep = [deep]
for encoding in ("json", "msgpack"):
    try: codec_for(encoding=encoding).encode({make}, key="runs/42", bytes_max=1 << 23)
    except CodecError as error: print(error.reason)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run
    assert len(run.stdout.splitlines()) == 2


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
def test_msgpack_refuses_integers_outside_64_bits(number: int) -> None:
    error = refused({"a": [0, number]}, encoding="msgpack")
    assert error.path == "$.a[1]"
    assert "2**64" in error.reason


@both
def test_an_integer_of_5000_digits_is_refused(encoding: Encoding) -> None:
    assert refused({"a": 10**5000}, encoding=encoding).path.startswith("$")


@both
@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "é\ud83d"])
def test_lone_surrogates_are_refused(encoding: Encoding, text: str) -> None:
    error = refused({"a": ["fine", text]}, encoding=encoding)
    assert error.path == "$.a[1]"
    assert "surrogates not allowed" in error.reason
    error = refused({"a": {text: 1}}, encoding=encoding)
    assert error.path == "$.a"
    assert "one of its keys" in error.reason
    assert refused(Step(text), Step, encoding).path == "$.name"
    assert refused(Order(id=1, any=text), Order, encoding).path.startswith("$")


@both
@pytest.mark.parametrize(
    "value",
    [object(), 1 + 2j, range(3), iter([1]), deque([1]), print, int, msgspec.UNSET, ValueError("x"), math],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_encoded_is_refused_with_its_place(encoding: Encoding, value: Any) -> None:
    error = refused({"a": [1, Step("x"), {"b": value}]}, encoding=encoding)
    assert error.path == "$.a[2].b"
    assert "cannot be stored" in error.reason
    assert refused(value, encoding=encoding).path == "$"
    assert refused(Run(1, notes={"v": value}), Run, encoding).path == "$.notes.v"


@both
@pytest.mark.parametrize("kind", [Step, Basket, Order])
def test_a_class_in_place_of_an_instance_is_refused_as_what_it_is(encoding: Encoding, kind: Any) -> None:
    for value, path in ((kind, "$"), ([kind], "$[0]"), ({"a": kind}, "$.a")):
        error = refused(value, encoding=encoding)
        assert (error.path, error.reason.partition(" cannot ")[2]) == (
            path, "be stored; make plain data or a Struct of it",
        )  # fmt: skip
    assert "it is a" in refused(kind, kind, encoding).reason


@pytest.mark.parametrize(
    "value", [b"x", bytearray(b"x"), memoryview(b"x"), b""], ids=["bytes", "array", "view", "nothing"]
)
def test_bytes_without_a_type_are_refused_in_json_and_kept_in_msgpack(value: Any) -> None:
    error = refused({"a": [1, value]})
    assert error.path == "$.a[1]"
    assert "msgpack" in error.reason
    assert refused(value).path == "$"
    assert refused(Run(1, notes={"v": value}, blob=b"fine"), Run).path == "$.notes.v"
    assert refused(Loose(value), Loose).path == "$.anything"
    assert refused({"a": {b"k": 1}}).path == "$.a[b'k']"
    assert refused(Run(1, notes={"v": {b"k": 1}}), Run).path == "$.notes.v[b'k']"
    assert returned({b"k": 1}, dict[bytes, int]) == {b"k": 1}
    assert returned({"a": [1, value]}, encoding="msgpack") == {"a": [1, bytes(value)]}
    assert returned(Run(1, blob=b"\0"), Run).blob == b"\0"


@both
@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        (NAIVE, Any, "$"),
        (NAIVE, datetime, "$"),
        ({"at": [NAIVE]}, Any, "$.at[0]"),
        ({NAIVE: 1}, dict[datetime, int], "$[datetime.datetime(2026, 11, 20, 11, 21, ]"),
        ({"at": NAIVE.replace(microsecond=500_000)}, dict[str, datetime], "$.at"),
        (Step("a", 1.0, NAIVE), Step, "$.at"),
        (Run(1, [Step("a", at=AWARE), Step("b", at=NAIVE)]), Run, "$.steps[1].at"),
        ([NAIVE, 43], list[datetime | int], "$[0]"),
        (Run(1, notes={"at": NAIVE}), Run, "$.notes.at"),
        (Order(id=1, at=NAIVE), Order, "$.at"),
        (Basket(Order(id=1, at=NAIVE)), Basket, "$.order.at"),
    ],
)
def test_datetimes_without_a_time_zone_are_refused(encoding: Encoding, value: Any, kind: Any, path: str) -> None:
    error = refused(value, kind, encoding)
    assert error.path == path
    assert "time zone" in error.reason


@pytest.mark.parametrize("text", ["2026-11-20T11:21:15", "2026-11-20 11:21:15.5", "2026-11-20t11:21:15.123456"])
@pytest.mark.parametrize(("encoding", "write"), [("json", msgspec.json.encode), ("msgpack", msgspec.msgpack.encode)])
def test_a_stored_datetime_without_a_time_zone_is_refused(text: str, encoding: str, write: Any) -> None:
    for kind, value, path in [(Step, {"name": "a", "at": text}, "$.at"), (Order, {"id": 1, "at": text}, "$.at")]:
        with pytest.raises(CodecError) as caught:
            codec_for(kind).decode(write(value), key=KEY, encoding=encoding)
        assert (caught.value.path, caught.value.verb) == (path, "decoded")
        assert "time zone" in caught.value.reason
    assert codec_for().decode(write({"at": text}), key=KEY, encoding=encoding) == {"at": text}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({(1, 2): 3}, "one of its keys cannot be stored"),
        ({None: 3}, "one of its keys cannot be stored"),
        ({True: 3}, "one of its keys cannot be stored"),
        ({1: "a", "1": "b"}, "two of its keys become the same text"),
    ],
)
def test_dict_keys_that_json_cannot_hold_are_refused(value: dict[Any, Any], reason: str) -> None:
    error = refused({"a": value})
    assert error.path == "$.a"
    assert reason in error.reason
    assert refused(Run(1, notes={"a": value}), Run).path == "$.notes.a"


def test_dict_keys_that_are_numbers_become_text_in_json_only() -> None:
    assert returned({1: "a", 2.5: "b"}) == {"1": "a", "2.5": "b"}
    assert returned({1: "a", 2.5: "b", (1, 2): "c"}, encoding="msgpack") == {1: "a", 2.5: "b", (1, 2): "c"}
    assert returned(Renamed(by_number={1: "a"}), Renamed) == Renamed(by_number={1: "a"})


@both
def test_a_value_of_the_limit_is_stored_and_one_more_byte_is_not(encoding: Encoding) -> None:
    limit = 8 * 1024 * 1024
    overhead = len(stored("x" * (limit - 100), encoding=encoding)) - (limit - 100)
    assert len(stored("x" * (limit - overhead), encoding=encoding, bytes_max=limit)) == limit
    with pytest.raises(LimitExceeded) as caught:
        stored("x" * (limit - overhead + 1), encoding=encoding, bytes_max=limit)
    error = caught.value
    assert (error.what, error.actual, error.limit, error.key) == ("the value", limit + 1, limit, KEY)
    assert "Split the value" in str(error)


# Typed writes are proven readable


@both
@pytest.mark.parametrize(
    ("value", "kind", "path", "reason"),
    [
        ({"step": 1}, Run, "$", "it is a dict, not a Run"),
        (None, Run, "$", "it is a NoneType, not a Run"),
        (Step("a"), Run, "$", "it is a Step, not a Run"),
        (ACCOUNT, Run, "$", "it is a Account, not a Run"),
        ([1], Order, "$", "it is a list, not a Order"),
        ("red", Colour, "$", "it is a str, not a Colour"),
        (UUID(int=1), str, "$", "it is a UUID, not a str"),
        ((1,), list[int], "$", "it is a tuple, not a list[int]"),
        (True, float, "$", "Expected `float`, got `bool`"),
        (Run("one"), Run, "$.step", "Expected `int`, got `str`"),  # type: ignore[arg-type]
        (Run(1, [Step("a"), Step(2)]), Run, "$.steps[1].name", "Expected `str`, got `int`"),  # type: ignore[arg-type]
        ({"a": 1}, Message, "$", "missing required field"),
        ({"a": [1]}, dict[str, int], "$[...]", "Expected `int`, got `array`"),
        (-1, Annotated[int, msgspec.Meta(ge=0)], "$", "Expected `int` >= 0"),
        (LongRun(1, more=2), Run, "$", "it is a LongRun and readers would get a Run; use LongRun as the type"),
        (1.5, int | str, "$", "Expected `int | str`"),
    ],
)
def test_a_wrong_object_is_refused_before_it_breaks_readers(
    encoding: Encoding, value: Any, kind: Any, path: str, reason: str
) -> None:
    error = refused(value, kind, encoding)
    assert error.path == path
    assert reason in error.reason


@both
def test_a_pydantic_model_that_was_bent_is_refused(encoding: Encoding) -> None:
    order = Order(id=1)
    order.id = "secret"  # type: ignore[assignment]
    for value, kind, path in [(order, Order, "$"), (Basket(order), Basket, "$.order"), ({"o": order}, Any, "$.o")]:
        error = refused(value, kind, encoding)
        assert error.path == path
        assert "Expected `int`" in error.reason
        assert "secret" not in str(error)
    assert refused(Order.model_construct(), Order, encoding).path == "$.id"


@both
def test_an_error_of_a_users_own_class_is_a_codec_error(encoding: Encoding) -> None:
    class Moody(msgspec.Struct):
        x: int

        def __post_init__(self) -> None:
            if self.x > 1:
                raise KeyError("no more than one")

    value = Moody(1)
    value.x = 2
    assert "no more than one" in refused(value, Moody, encoding).reason


# Stored bytes that cannot be read


@pytest.mark.parametrize(
    ("data", "kind", "path", "reason"),
    [
        (b"", Any, "$", "truncated"),
        (b"{bad", Any, "$", "malformed"),
        (b"\xff", Any, "$", "malformed"),
        (b'"\xff"', Any, "$", "utf-8"),
        (b'"\\ud800"', Any, "$", "truncated"),
        (b"NaN", Any, "$", "malformed"),
        (b"1e400000", Any, "$", "Number out of range"),
        (b"[" * 100_000, Any, "$", "nested too deeply"),
        (b'{"step":"x"}', Run, "$.step", "Expected `int`, got `str`"),
        (b'{"step":1,"steps":[{"name":1}]}', Run, "$.steps[0].name", "Expected `str`, got `int`"),
        (b"{}", Run, "$", "missing required field `step`"),
        (b'{"firstScore":1,"byNumber":{"x":"y"}}', Renamed, "$.byNumber", "Expected `int`, got `str`, in a key"),
        (b'{"id":"x"}', Order, "$.id", "valid integer"),
        (b'{"orders":[{"id":1},{"id":"x"}]}', OrderBook, "$.orders[1].id", "valid integer"),
        (b'{"order":{"id":"x"}}', Basket, "$.order", "valid integer"),
        (b"nope", Order, "$", "Invalid JSON"),
    ],
)
def test_bytes_that_cannot_be_read_name_key_path_and_reason(data: bytes, kind: Any, path: str, reason: str) -> None:
    with pytest.raises(CodecError) as caught:
        codec_for(kind).decode(data, key=KEY, encoding="json")
    error = caught.value
    assert (error.key, error.path, error.verb) == (KEY, path, "decoded")
    assert reason.lower() in error.reason.lower()


def test_an_unknown_encoding_is_refused() -> None:
    for encoding in ("yaml", ""):
        with pytest.raises(CodecError, match="encoding") as caught:
            codec_for().decode(b"1", key=KEY, encoding=encoding)
        assert caught.value.verb == "decoded"
    with pytest.raises(UsageError, match="yaml"):
        Codec(encoding="yaml")  # type: ignore[arg-type]

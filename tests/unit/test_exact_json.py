"""JSON by hand: what a value would not hold is refused, and all else comes as any decoder gives it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statecache.errors import UsageError
from statecache.rules.exact_json import decoded

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(
    st.characters(exclude_categories=["Cs"])
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
)


@given(value=VALUES)
def test_whatever_a_value_holds_is_taken(value: Any) -> None:
    text = msgspec.json.encode(value)
    assert repr(decoded(text, "it")) == repr(decoded(text.decode(), "it")) == repr(msgspec.json.decode(text))


@pytest.mark.parametrize(
    "text",
    [
        "1.10", "1e22", "1E+5", "-0.0", "0e-999", "2.50e-3", "12345678901234567890123", "1" * 400, "0.1",
        "0.1000000000000000055511151231257827021181583404541015625", "5e-324", '{"a":{"a":1},"b":[{"a":1},{"a":1}]}',
    ],
)  # fmt: skip
def test_a_number_that_is_only_spelt_in_another_way_is_taken(text: str) -> None:
    assert decoded(text, "it") == msgspec.json.decode(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a":1,"a":2}', "an object has the member 'a' twice"),
        ('[{"b":{"a":1,"b":2,"\\u0061":1}}]', "an object has the member 'a' twice"),
        ("1e400", "Number out of range"),
        ('{"a":[-1e400]}', "Number out of range"),
        ("1.10000000000000000000001", "it would not be kept as it is given: the number 1.1000"),
        ("1e-400", "would become 0.0; give it as text"),
        ("0." + "123456789" * 30, "0.12345678912345678912345678912345678912…"),
        ("123456789012345678901234567890.5", "would become 1.2345678901234568e+29"),
        ("NaN", "it is not JSON: JSON is malformed"),
        ("{bad", "malformed"),
        ("[" * 100_000, "recursion"),
        (b'"\xff"', "utf-8"),
    ],
)  # fmt: skip
def test_what_a_value_would_not_hold_is_refused(text: Any, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        decoded(text, "it")
    assert told.lower() in str(caught.value).lower()

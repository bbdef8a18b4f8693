"""What stands for values: plain data as it is, anything else serialized, what is large in pieces."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from ormsgpack import Ext, packb

from statecache import LimitExceeded
from statecache.adapters.langgraph.documents import in_order, merged
from statecache.adapters.langgraph.stored import AsStored, comparable, stored
from statecache.adapters.langgraph.values import (
    PIECE_BYTES_MAX,
    VALUE_BYTES_MAX,
    Packed,
    Serde,
    contains,
    is_plain,
    joined,
    packed_of,
    piece_of,
    split,
)
from statecache.adapters.langgraph.writing import _parts, gathered

SERDE = Serde(JsonPlusSerializer())
JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(),
    lambda parts: some.lists(parts, max_size=4) | some.dictionaries(some.text(), parts, max_size=4),
    max_leaves=20,
)


class Xor:
    """A cipher that hides nothing from anybody but a reader of bytes."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        """Return what is no plain text."""
        return "xor", bytes(byte ^ 85 for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """Return the plain text."""
        return bytes(byte ^ 85 for byte in ciphertext)


@given(JSON)
def test_plain_data_comes_back_from_json_as_exactly_the_same(value: Any) -> None:
    if is_plain(value):
        back = msgspec.json.decode(msgspec.json.encode(value))
        assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "value", [(1,), {1: 2}, {"a": b""}, math.nan, math.inf, 2**63, "a\0", "\ud800", {"\0": 1}, OrderedDict(), {1}, [()]]
)
def test_what_json_cannot_say_is_not_plain(value: object) -> None:
    assert not is_plain(value)


@pytest.mark.parametrize("value", [3, "ada", None, True, [1, {"a": None}], {1: 2}, b"\0", 2**63, {"a": {1}}])
def test_a_value_comes_back_from_its_form(value: object) -> None:
    form = SERDE.pack(value).form()
    stored = msgspec.json.decode(msgspec.json.encode(form))
    back = SERDE.load(packed_of(stored))
    assert (back, type(back)) == (value, type(value))
    assert ("value" in form) is is_plain(value)


@pytest.mark.parametrize(
    "value", [3, None, [1, {"a": None}], {1: 2}, b"\0", 2**63, {"a": {1}}, [UUID(int=1)], math.nan]
)
def test_what_another_saver_has_stored_is_given_as_plain_data_or_as_its_bytes(value: object) -> None:
    packed = Packed(*JsonPlusSerializer().dumps_typed(value))
    given_as = AsStored().loads_typed(packed)
    assert given_as == (value if is_plain(value) else packed)
    assert SERDE.pack(given_as) == SERDE.pack(value)


def test_json_of_early_releases_is_plain_unless_it_names_a_class() -> None:
    assert stored(Packed("json", b'{"a":[1]}')) == {"a": [1]}
    named = Packed("json", b'[{"lc":2,"type":"constructor","id":["shop","Order"],"kwargs":{}}]')
    assert stored(named) is named


def test_values_of_early_releases_are_one_list_whatever_they_are() -> None:
    values = [{"a": 1}, UUID(int=1), b"\0", None, *range(20), {1: {2}}, bytearray(b"1")]
    parts = [AsStored().loads_typed(JsonPlusSerializer().dumps_typed(one)) for one in values]
    assert JsonPlusSerializer().loads_typed(AsStored().dumps_typed(parts)) == [*values[:-1], b"1"]
    assert JsonPlusSerializer().loads_typed(AsStored().dumps_typed([])) == []


def test_sets_compare_in_any_order_and_objects_by_their_classes_and_parts() -> None:
    def packed(name: str, *parts: Any) -> Packed:
        return Packed("msgpack", packb({"a": Ext(0, packb(("builtins", name, parts)))}))

    assert comparable(packed("set", "b", "a")) == comparable(packed("set", "a", "b"))
    assert comparable(packed("list", "b", "a")) != comparable(packed("list", "a", "b"))
    assert comparable(packed("set", "a")) != comparable(packed("frozenset", "a"))


def test_nothing_is_plain_under_a_serializer_that_encrypts() -> None:
    serde = Serde(EncryptedSerializer(Xor(), JsonPlusSerializer()))
    form = serde.pack("a secret").form()
    assert set(form) == {"type", "data"}
    assert b"secret" not in packed_of(form).data
    assert serde.load(packed_of(form)) == "a secret"


def test_a_large_value_comes_back_from_its_pieces() -> None:
    packed = SERDE.pack(bytes(range(256)) * (PIECE_BYTES_MAX // 256 * 2) + b"!")
    pieces = packed.pieces()
    assert len(pieces) == packed.pieces_count == 3
    assert all(len(piece["data"]) <= 8 * 1024 * 1024 for piece in pieces)
    assert joined({"type": packed.type}, map(piece_of, pieces)) == packed
    assert [*map(piece_of, pieces)] == packed.pieces_of_bytes()


def test_a_value_that_no_commit_could_hold_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="Keep it elsewhere"):
        Packed("bytes", bytes(VALUE_BYTES_MAX + 1)).pieces()


def test_what_json_cannot_say_of_metadata_is_kept_apart() -> None:
    plain, rest = split({"step": 1, "counters": {"a": (1, 2)}, "raw": b"\1", "odd": {"b": {1}}}, SERDE)
    assert plain == {"step": 1, "counters": {"a": [1, 2]}}
    assert rest is not None
    assert SERDE.load(packed_of(rest)) == {"raw": b"\1", "odd": {"b": {1}}}


@pytest.mark.parametrize(
    ("value", "wanted", "held"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, True),
        ({"a": [1, 2]}, {"a": [2]}, True),
        ({"a": [1, 2]}, {"a": [3]}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({}, {"a": None}, False),
        ({"a": None}, {"a": None}, True),
    ],
)
def test_metadata_holds_what_jsonb_would_say_it_holds(value: Any, wanted: Any, held: bool) -> None:
    assert contains(value, wanted) is held


def write(task_id: str, idx: int, *, path: str = "", value: object = 1) -> dict[str, Any]:
    return {"task_id": task_id, "task_path": path, "idx": idx, "channel": "a", "value": value}


def test_a_write_that_is_there_stays_and_one_to_a_channel_of_langgraphs_own_replaces() -> None:
    known = [write("t", 0), write("t", -1)]
    assert merged(known, [write("t", 0, value=2)]) is None
    assert merged(known, [write("t", -1, value=2)]) == [write("t", 0), write("t", -1, value=2)]
    assert merged(known, [write("u", 0)]) == [*known, write("u", 0)]


@pytest.mark.parametrize(("one", "other"), [(0, False), (1, True), (1, 1.0), ([{"a": 0}], [{"a": False}])])
def test_a_write_that_replaces_one_is_another_where_python_finds_them_equal(one: Any, other: Any) -> None:
    for before, now in ((one, other), (other, one)):
        known = [write("t", 0, value=before), write("t", -1, value=before)]
        (_, replaced) = merged(known, [write("t", -1, value=now)]) or known
        assert repr(replaced["value"]) == repr(now)
        assert merged(known, [write("t", -1, value=before)]) is None
        assert merged(known, [write("t", 0, value=now)]) is None


def test_writes_are_in_the_order_in_which_a_run_applies_them() -> None:
    writes = [write("a", 1, path="~2"), write("b", 0, path="~1"), write("a", 0, path="~2"), write("c", 0)]
    assert [(one["task_id"], one["idx"]) for one in in_order(writes)] == [("c", 0), ("b", 0), ("a", 0), ("a", 1)]


def test_writes_that_are_parted_come_back_whole() -> None:
    large = {"type": "bytes", "data": "abcd" * (PIECE_BYTES_MAX // 2)}
    writes = [write("t", 0), write("t", 1) | large, write("t", 2)]
    parts = [{"writes": part} for part in _parts(writes)]
    assert len(parts) >= 2
    assert all(len(msgspec.json.encode(part)) < 8 * 1024 * 1024 for part in parts)
    assert gathered(parts) == writes

"""What merges make of a value: what Python would make of it, and nothing where it is not spelled as it is stored."""

from __future__ import annotations

import json
from typing import Any

import fakeredis
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from statecache.rules.merging import INTEGER_MAX, INTEGER_MIN, Unfit, elements, makes, merge_of, merged, reason_of
from tests.support.merges import befores, by_rules, by_script, integers, items, merges, nearly, stored, values

_redis = fakeredis.FakeRedis()


def _alike(one: object, other: object) -> bool:
    return stored(one) == stored(other)


@given(before=some.none() | integers, by=integers)
@example(before=INTEGER_MAX, by=1)
@example(before=INTEGER_MIN, by=-1)
@example(before=2**53, by=1)
def test_an_increment_is_exact_or_refused(before: int | None, by: int) -> None:
    total = (before or 0) + by
    if INTEGER_MIN <= total <= INTEGER_MAX:
        assert json.loads(merged("increment", stored(by), None if before is None else stored(before))) == total
    else:
        with pytest.raises(Unfit, match="overflow"):
            merged("increment", stored(by), stored(before))


@given(before=some.lists(values, max_size=5), more=items)
def test_appended_items_stand_behind_the_others(before: list[Any], more: list[Any]) -> None:
    after = merged("append", stored(more), stored(before))
    assert after == stored(before + more)
    assert merged("append", stored(more), None) == stored(more)


@given(before=some.lists(values, max_size=5), chosen=items, own=some.booleans())
def test_what_is_added_is_there_once_and_what_is_removed_is_not(
    before: list[Any], chosen: list[Any], own: bool
) -> None:
    if own and before:
        chosen = [*chosen, before[0]]
    added = json.loads(merged("add", stored(chosen), stored(before)))
    wanted = list(before)
    for item in chosen:
        if not any(_alike(item, one) for one in wanted):
            wanted.append(item)
    assert stored(added) == stored(wanted)
    removed = merged("remove", stored(chosen), stored(before))
    assert removed == stored([one for one in before if not any(_alike(one, item) for item in chosen)])
    assert merged("remove", stored(chosen), None) == b"[]"


@given(array=some.lists(values, max_size=5))
def test_an_array_is_taken_apart_at_its_own_commas(array: list[Any]) -> None:
    assert elements(stored(array)) == [stored(one) for one in array]


@given(inner=nearly)
@example(inner=b'","')
@example(inner=b'"a","b"')
@example(inner=b"[1,2],[3]")
def test_what_is_taken_apart_is_what_a_decoder_finds(inner: bytes) -> None:
    array = b"[" + inner + b"]"
    try:
        decoded = msgspec.json.decode(array)
    except msgspec.DecodeError:
        return
    found = elements(array)
    assert found is None or [msgspec.json.decode(one) for one in found] == decoded


@given(merge=merges, before=befores)
def test_whatever_stands_there_the_result_is_json_or_the_merge_is_refused(
    merge: tuple[str, bytes], before: bytes | None
) -> None:
    try:
        after = merged(*merge, before)
    except Unfit:
        assert not makes(*merge, before, b"[]")
        return
    assert makes(*merge, before, after)
    try:
        msgspec.json.decode(before or b"0")
    except msgspec.DecodeError:
        return  # what was no JSON before does not become any
    msgspec.json.decode(after)


@given(merge=merges, before=befores)
def test_a_redis_in_memory_makes_the_same(merge: tuple[str, bytes], before: bytes | None) -> None:
    assert by_script(_redis, *merge, before) == by_rules(*merge, before)


@pytest.mark.parametrize(
    ("before", "what"),
    [(b"-0", "integer"), (b"01", "integer"), (b"1e3", "integer"), (b"1.0", "integer"), (b" 1", "integer"),
     (b"1 ", "integer"), (b"", "integer"), (b'"1"', "integer"), (b"null", "integer"), (b"9" * 30, "overflow"),
     (b"1" * 21, "overflow")],
)  # fmt: skip
def test_a_number_that_is_not_spelled_as_it_is_stored_is_refused(before: bytes, what: str) -> None:
    with pytest.raises(Unfit) as refused:
        merged("increment", b"-1", before)
    assert refused.value.what == what


@pytest.mark.parametrize(
    "before",
    [b"", b"[", b"]", b"[ ]", b"[ 1]", b"[1 ]", b"[,]", b"[1,]", b"[,1]", b"[[]", b"{}", b"1", b'"[]"', b"n"],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["append", "add", "remove"])
def test_an_array_that_is_not_spelled_as_it_is_stored_is_refused(verb: str, before: bytes) -> None:
    with pytest.raises(Unfit, match="array"):
        merged(verb, b"[1]", before)


@pytest.mark.parametrize(
    "array",
    [b"[1 ,2]", b"[1, 2]", b'["a"b]', b'["a""b"]', b"[a]", b"[nul]", b"[1]2]", b"[[1}]", b"[1}", b'["a]', b'["\\"]',
     b"[[1]2]", b"[1[2]]", b"[1]\n", b"1", b"", b"[1", b"[]]"],
)  # fmt: skip
def test_what_cannot_be_taken_apart_is_not(array: bytes) -> None:
    assert elements(array) is None


def test_a_member_is_not_looked_for_within_others() -> None:
    array = stored([["a", ","], "a,b", {"a": "b"}, '"'])
    assert merged("add", stored(["a", "b", ","]), array) == array[:-1] + b',"a","b",","]'
    assert merged("remove", stored(["a", "b", ","]), array) == array
    assert merged("remove", stored([["a", ","], '"']), array) == stored(["a,b", {"a": "b"}])


def test_a_reason_names_what_is_there_and_never_the_value() -> None:
    assert reason_of("integer", b"{") == "it holds an object, and not a whole number"
    assert reason_of("integer", b"1") == "it holds a number that is not a whole one"
    assert reason_of("array", b'"') == "it holds text, and not an array"
    assert reason_of("array", b"[").startswith("it holds an array that is not spelled as statecache spells one")
    assert reason_of("overflow", b"9").startswith("the sum is beyond 64 bits")
    assert reason_of("encoding", b"msgpack") == "it is stored as msgpack, and only JSON can be merged"


def test_a_merge_is_told_from_others_by_its_verb_and_its_argument() -> None:
    told = {merge_of(verb, argument, bytes_max=8, keeps_end=True).spelled
            for verb in ("append", "add", "remove") for argument in (b"[1]", b"[2]")}  # fmt: skip
    assert len(told) == 6
    assert merge_of("add", b"[1]", bytes_max=8, keeps_end=False).spelled.startswith("add ")

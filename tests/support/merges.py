"""What merges are tested with: values as they are stored, bytes that are nearly that, and every merge of them."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as some

from statecache.lua import included
from statecache.rules.merging import INTEGER_MAX, INTEGER_MIN, Unfit, merged

EDGES = [0, 1, -1, 10**10 - 1, 10**10, -(10**10), 2**53, 2**53 + 1, -(2**53) - 1, INTEGER_MAX, INTEGER_MIN]
PIECES = [
    "[", "]", "{", "}", ",", ":", '"', "\\", '\\"', "\\\\", " ", "\n", "0", "-0", "1e3", "01", "1.5", "true", "nul",
    "é", "\u2028", "\x00", '"a"', '","', "[]", "{}",
]  # fmt: skip
"""What bytes are put together of that look like JSON."""

integers = some.integers(INTEGER_MIN, INTEGER_MAX) | some.sampled_from(EDGES)
_texts = some.text(some.sampled_from('ab",[]{}:\\ \n\té\u2028\U0001f600\x00'), max_size=4)
scalars = some.none() | some.booleans() | integers | _texts
values: Any = some.recursive(
    scalars | some.floats(allow_nan=False, allow_infinity=False),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
items = some.lists(values, min_size=1, max_size=4)


def stored(value: object) -> bytes:
    """Return the bytes that a value is stored as."""
    return msgspec.json.encode(value)


nearly = some.lists(some.sampled_from(PIECES), max_size=8).map(lambda pieces: "".join(pieces).encode())
"""Bytes that no codec writes, or just so."""
befores = (
    some.none() | integers.map(stored) | some.lists(values, max_size=5).map(stored) | values.map(stored) | nearly
    | nearly.map(lambda inner: b"[" + inner + b"]")
)  # fmt: skip
_collections = some.tuples(some.sampled_from(["append", "add", "remove"]), items.map(stored))
merges = some.tuples(some.just("increment"), integers.map(stored)) | _collections

SCRIPT = f"""
local find, format = string.find, string.format
{included("merging")}
local before = ARGV[3] == 'there' and ARGV[4]
local value, why, begins = merged(ARGV[1], ARGV[2], before)
return value and {{ 'made', value }} or {{ 'unfit', why, begins or '' }}
"""


def by_rules(verb: str, argument: bytes, before: bytes | None) -> list[bytes]:
    """Return what the rules say of a merge, spelled as the script says it."""
    try:
        return [b"made", merged(verb, argument, before)]
    except Unfit as error:
        return [b"unfit", error.what.encode(), error.begins]


def by_script(redis: Any, verb: str, argument: bytes, before: bytes | None) -> list[bytes]:
    """Return what the script's rules say of a merge."""
    there = ("absent",) if before is None else ("there", before)
    found: list[bytes] = redis.eval(SCRIPT, 0, verb, argument, *there)
    return found

"""What a merge makes of a value, from its bytes alone: the same as the commit script makes of them (`lua/merging.lua`).

The script is what merges. Here it is computed once more where a repeat has to be told from another merge under the same
change_id: what it would have made of the change before is compared with what is there.

Values are JSON as it is spelled when it is written: no blanks between the elements of an array. What is not spelled so
is refused, never guessed. Items are compared by their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from statecache.errors import CodecError
from statecache.model import Merge

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1
"""The least and the greatest number that an increment takes and makes."""
_VERBS = {"increment": "incremented", "append": "appended to", "add": "added to", "remove": "removed from"}
_BEGINNINGS = {b"{": "an object", b"[": "an array", b'"': "text", b"t": "true", b"f": "false", b"n": "null"}
_LENGTH_MAX = 21
_whole = re.compile(rb"0|-?[1-9][0-9]*").fullmatch
_opens = re.compile(rb"\[[^ \t\n\v\f\r,\]]").match
_closes = re.compile(rb"[^ \t\n\v\f\r,\[]\]").fullmatch
_text = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL).match
_scalar = re.compile(rb"(?:true|false|null|-?[0-9][0-9.eE+-]*)(?![0-9A-Za-z.+-])").match
_opening = re.compile(rb"[\[{]").match
_mark = re.compile(rb'["\[\]{}]').search
_CLOSING = {b"[": b"]", b"{": b"}"}


class Unfit(ValueError):
    """A value that cannot be merged: what hinders it, and the byte that it begins with."""

    def __init__(self, what: str, begins: bytes) -> None:
        super().__init__(what)
        self.what = what
        self.begins = begins


class Made(NamedTuple):
    """What a merge has made: the value's bytes, with the encoding and the schema under which it is stored."""

    value: bytes
    encoding: str
    schema: str


def merge_of(verb: str, argument: bytes, *, bytes_max: int, keeps_end: bool) -> Merge:
    """Return a merge with this argument."""
    return Merge(verb, sha256(verb.encode() + b" " + argument).hexdigest()[:16], bytes_max, keeps_end)


def merged(verb: str, argument: bytes, before: bytes | None) -> bytes:
    """Return what is written; `before` is None where there is nothing. Raises Unfit."""
    begins = b"" if before is None else before[:1]
    if verb == "increment":
        before = b"0" if before is None else before
        if not _whole(before):
            raise Unfit("integer", begins)
        if len(before) > _LENGTH_MAX or not INTEGER_MIN <= (total := int(before) + int(argument)) <= INTEGER_MAX:
            raise Unfit("overflow", begins)
        return b"%d" % total
    before = b"[]" if before is None else before
    if not is_array(before):
        raise Unfit("array", begins)
    if verb == "append":
        return _with(before, argument[1:-1])
    items = elements(argument) or []
    members: Sequence[bytes] | None = []
    if any(item in before for item in items):  # what is nowhere among the bytes is no member
        members = elements(before)
    if members is None:
        raise Unfit("array", begins)
    if verb == "remove":
        asked = frozenset(items)
        kept = [member for member in members if member not in asked]
        return before if len(kept) == len(members) else b"[" + b",".join(kept) + b"]"
    there = frozenset(members)
    more = [item for item in dict.fromkeys(items) if item not in there]
    return _with(before, b",".join(more)) if more else before


def makes(verb: str, argument: bytes, before: bytes | None, after: bytes) -> bool:
    """Return whether a merge makes the one value of the other."""
    try:
        return merged(verb, argument, before) == after
    except Unfit:
        return False


def _with(before: bytes, more: bytes) -> bytes:
    return b"[" + more + b"]" if before == b"[]" else before[:-1] + b"," + more + b"]"


def is_array(value: bytes) -> bool:
    """Return whether JSON is an array to which items can be appended, from its ends."""
    return value == b"[]" or bool(_opens(value) and _closes(value[-2:]))


def elements(array: bytes) -> list[bytes] | None:
    """Return the elements of an array; None for what is none, or is not spelled as one."""
    found: list[bytes] = []
    begin = 1
    if array == b"[]":
        return found
    if array[:1] != b"[":
        return None
    while (end := _end_of(array, begin)) is not None:
        found.append(array[begin:end])
        if array[end : end + 1] == b"]":
            return found if end + 1 == len(array) else None
        if array[end : end + 1] != b",":
            return None
        begin = end + 1
    return None


def _end_of(array: bytes, at: int) -> int | None:
    """Return where the element ends that begins there, or None."""
    hit = _text(array, at) or _scalar(array, at)
    if hit is not None:
        return hit.end()
    closing = b""
    while (hit := _mark(array, at) if closing else _opening(array, at)) is not None:
        mark, at = hit[0], hit.end()
        if mark == b'"':
            text = _text(array, at - 1)
            if text is None:
                return None
            at = text.end()
        elif mark in _CLOSING:
            closing += _CLOSING[mark]
        elif not closing.endswith(mark):
            return None
        elif closing := closing[:-1]:
            continue
        else:
            return at
    return None


def reason_of(what: str, begins: bytes) -> str:
    """Return in words why a value cannot be merged; `what` and `begins` as in Unfit, or `encoding` and its name."""
    if what == "encoding":
        return f"it is stored as {begins.decode('utf-8', 'replace')}, and only JSON can be merged"
    if what == "overflow":
        return "the sum is beyond 64 bits: below -2**63 or above 2**63 - 1"
    holds = _BEGINNINGS.get(begins)
    if what == "integer":
        return f"it holds {holds}, and not a whole number" if holds else "it holds a number that is not a whole one"
    if begins == b"[":
        return "it holds an array that is not spelled as statecache spells one; write it once with set()"
    return f"it holds {holds or 'a number'}, and not an array"


def unfit_error(key: str, verb: str, what: str, begins: bytes) -> CodecError:
    """Return the error for a state that cannot be merged; nothing was applied."""
    return CodecError(key=key, verb=_VERBS[verb], reason=reason_of(what, begins))

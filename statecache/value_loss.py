"""What storing a value would lose in silence: found by comparing it with what readers would get.

Most of it shows where the two are unequal, and only there is looked for it: NaN and infinities, which JSON makes null;
bytes that become text; keys of a dict that become text, or the same text; keys that a type does not name; an
instance of a subclass, which comes back as its base, without what the subclass adds; a number that a float cannot hold;
the seconds of a UTC offset; a pydantic secret, written as asterisks; a field that its model writes by another name.

What equality does not show, a type tells: a namedtuple is equal to a tuple (`tuple_slots`). What only changes its form
is let through: a defaultdict comes back as a dict, and where no type says what is there, a Struct comes back as a dict,
a tuple or a set as a list, a UUID or an aware datetime as text.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime, time
from typing import Any, NamedTuple

import msgspec

from statecache.errors import CodecError
from statecache.record_classes import (
    in_two_forms,
    is_masked,
    is_model,
    is_record,
    is_same,
    misread,
    name_of,
    shifted,
    unread_fields,
    written_fields,
)
from statecache.signal_errors import pass_on

NESTING_MAX = 200
"""How many levels of containers a value may have."""
_not_openers = bytes({*range(256)} - {*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF})
"""The bytes that do not begin a container in msgpack; a value has at most as many levels as the others occur in it."""
_ALIKE_LEVELS = 8
"""The levels down to which equal parts are skipped; further down, comparing costs more than looking at each part."""
_PATH_CHARACTERS_MAX = 120
_CYCLE = "it contains itself; store a key or an id in place of the reference"
_DEEP = f"it is nested deeper than {NESTING_MAX} levels; flatten it, or split it over several keys of its group"
NAIVE = "it is a datetime without a time zone; give it one, for instance datetime.now(UTC)"
_SHIFTED = "readers would get another moment, for its UTC offset has seconds; convert it to UTC"
_LOST_BYTES = "JSON would bring these bytes back as text; give a type that says bytes, or use the msgpack encoding"
_SAME_KEYS = "two of its keys become the same text; rename one"
_TEXT_KEYS = "its keys would come back as text; make text of them, or give a type that says numbers"
_UNNAMED = "readers would not get it, for its type does not name it; name it there, or leave it out"
_UNREAD = "readers would get its default: the model writes it by a name by which it does not read it; use one for both"
_MISREAD = "readers would get another: its model writes it in one form and reads it in another; use one for both"
_MASKED = "readers would get asterisks, as pydantic writes a secret; give it a serializer that writes what it holds"
_INEXACT = "a float cannot hold this number; round it, or give a type that says int"
_BYTES = (bytes, bytearray, memoryview)
_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_LEAVES = _SCALARS | {datetime, bytearray, memoryview}
_CONTAINERS = (dict, list, tuple, set, frozenset)
_PLAIN = _LEAVES | {*_CONTAINERS}
_END, _UNKNOWN, _LEFT_OUT = object(), object(), object()
"""Stand for the end of the parts, for what readers get where that cannot be known, and for what they do not get."""
_is_identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}").fullmatch
_input_in_message = re.compile(r"input_value=.*?, (?=input_type=)", re.DOTALL)

Write = Callable[[Any], bytes]
Part = tuple[str, Any]
Pair = tuple[str, Any, Any]


class _Model(NamedTuple):
    """What the nearest pydantic model around a part of a value writes otherwise than it reads it."""

    unread: frozenset[str]
    """The steps to what it writes by a name by which it does not read it."""
    two_forms: tuple[type, ...]
    """The classes of what it writes in one form and reads in another."""


_NO_MODEL = _Model(frozenset(), ())


def refuse_losses(value: Any, back: Any, key: str, *, typed: bool, compares: bool = True) -> None:
    """Raise CodecError for the first part of a value that would come back without what it holds.

    `back` is what readers would get; `typed` says that they share a type with whoever writes; and `compares` that `==`
    looks at all of both.
    """
    path: list[str] = []
    levels: list[Iterator[Pair]] = [iter([("", value, back)])]
    around = [_NO_MODEL]
    while levels:
        pair = next(levels[-1], None)
        if pair is None:
            levels.pop()
            around.pop()
            if path:
                path.pop()
            continue
        step, given, got = pair
        path.append(step)
        reason = _loss(given, got, typed=typed)
        model = around[-1]
        if not reason and step in model.unread and not is_same(given, got):
            reason = _UNREAD
        if not reason and model.two_forms and isinstance(given, model.two_forms) and misread(given, got):
            reason = _MISREAD
        if reason:
            raise CodecError(key=key, path=spelled(path), reason=reason)
        pairs = _pairs_of(given, got, alike=compares and len(levels) <= _ALIKE_LEVELS)
        if pairs is None:
            path.pop()
            continue
        if len(levels) > NESTING_MAX:
            raise CodecError(key=key, path=spelled(path), reason=_DEEP)
        levels.append(iter(pairs))
        if is_model(given.__class__) and given.__class__ is got.__class__:
            steps = frozenset(map(step_of, unread_fields(given.__class__)))
            around.append(_Model(steps, in_two_forms(given.__class__)))
        else:
            around.append(_Model(frozenset(), model.two_forms) if model.unread else model)


def _loss(given: Any, got: Any, *, typed: bool) -> str:
    """Return why a part would lose something, or an empty text; its own parts are not looked at."""
    kind, gets = given.__class__, got.__class__
    if got is _LEFT_OUT:
        return _UNNAMED
    if is_masked(given, got):
        return _MASKED
    if kind is float and not math.isfinite(given):
        return f"{given} is not a number that can be stored; use None or text"
    if kind is int and gets is float and given != got:
        return _INEXACT
    if gets is str and isinstance(given, _BYTES):
        return _LOST_BYTES
    if isinstance(given, (datetime, time)):
        naive = NAIVE if isinstance(given, datetime) and given.utcoffset() is None else ""
        return _SHIFTED if shifted(given, got) else naive
    if gets is dict and isinstance(given, dict) and any(name.__class__ is not str for name in given):
        if len(got) < len(given):
            return _SAME_KEYS
        if typed and any(isinstance(name, (int, float)) and name not in got for name in given):
            return _TEXT_KEYS
    if typed and kind is not gets and is_record(kind) and is_record(gets):
        return f"it is a {name_of(kind)} and readers would get a {name_of(gets)}; use {name_of(kind)} as the type"
    return ""


def _pairs_of(given: Any, got: Any, *, alike: bool) -> list[Pair] | None:
    """Return the inner parts that may have lost something, each with what readers would get; None without parts."""
    kind, same = given.__class__, given.__class__ is got.__class__
    if kind in _LEAVES:
        return None
    if alike and same and (kind in _CONTAINERS or isinstance(given, msgspec.Struct)) and given == got:
        return []
    if isinstance(given, dict):
        return _pairs_of_dict(given, got)
    if isinstance(given, (list, tuple)):
        known = isinstance(got, (list, tuple)) and len(got) == len(given)
        others = got if known else [_UNKNOWN] * len(given)
        pairs = enumerate(zip(given, others, strict=True))
        return [(f"[{at}]", one, other) for at, (one, other) in pairs if one.__class__ not in _SCALARS or one != other]
    if isinstance(given, (set, frozenset)):
        found = {part: part for part in got} if isinstance(got, (set, frozenset)) else {}
        like = next(iter(found), _UNKNOWN)
        return [("[...]", part, found.get(part, like)) for part in given if not alike or part not in found]
    fields = _fields_of(given)
    if fields is None:
        return None
    if isinstance(got, dict):
        return [(step_of(shown), part, got.get(shown, _UNKNOWN)) for shown, _, part in fields]
    own = [(step_of(shown), part, getattr(got, name, _UNKNOWN)) for shown, name, part in fields]
    if not hasattr(kind, "__attrs_attrs__"):
        return own
    # msgspec passes over private attributes of attrs classes
    hidden = {step for step, part, other in own if step.startswith("._") and not is_same(part, other)}
    return [(step, part, _LEFT_OUT if step in hidden else other) for step, part, other in own]


def _pairs_of_dict(given: dict[Any, Any], found: Any) -> list[Pair]:
    pairs, odd = [], []
    got, is_whole = (found, len(found) == len(given)) if isinstance(found, dict) else _read_by(found)
    without = _UNKNOWN if is_whole else _LEFT_OUT
    for name, part in given.items():
        other = got.get(name, without)
        if name.__class__ is not str:
            odd.append((step_of(name), name, name if name in got else ""))
            other = got.get(str(name), _UNKNOWN) if other is without else other
        if part.__class__ not in _SCALARS or part != other:
            pairs.append((step_of(name), part, other))
    return pairs + odd


def _read_by(record: Any) -> tuple[dict[str, Any], bool]:
    """Return what a record reads of a dict, by the names that are stored, and whether it may read more than that."""
    tag: dict[Any, Any] = {record.__struct_config__.tag_field: ""} if isinstance(record, msgspec.Struct) else {}
    fields = None if is_model(record.__class__) else _fields_of(record)
    return {shown: part for shown, _, part in fields or ()} | tag, fields is None


def _fields_of(node: Any) -> list[tuple[str, str, Any]] | None:
    """Return a record's fields: the name that is stored, the attribute, its value."""
    kind = node.__class__
    if isinstance(node, msgspec.Struct):
        names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        return [(shown, name, getattr(node, name, None)) for shown, name in names]
    if is_model(kind):
        return [(name, name, part) for name, part in written_fields(node).items()]
    if not is_record(kind):
        return None
    members = dataclasses.fields(node) if dataclasses.is_dataclass(node) else kind.__attrs_attrs__
    return [(one.name, one.name, getattr(node, one.name, None)) for one in members]


def refuse_bad_parts(value: Any, key: str, *, write: Write, encoding: str) -> None:
    """Raise CodecError for the first part of a value that cannot be stored at all."""
    model: int | None = None  # how far down the model is whose parts are looked at: it writes them itself
    for path, node in walk(value, key):
        model = None if model is not None and len(path) <= model else model
        if not isinstance(node, _BYTES) and (reason := _fault_of(node, write, encoding, by_model=model is not None)):
            raise CodecError(key=key, path=spelled(path), reason=reason)
        if model is None and is_model(node.__class__):
            model = len(path)


def walk(value: Any, key: str) -> Iterator[tuple[list[str], Any]]:
    """Yield every part of a value with the steps that lead to it: one list, which changes as the walk goes on."""
    path: list[str] = []
    above: dict[int, Any] = {}
    open_parts = [iter([("", value)])]
    while open_parts:
        step, part = next(open_parts[-1], ("", _END))
        if part is _END:
            open_parts.pop()
            if path:
                path.pop()
                above.popitem()
            continue
        path.append(step)
        yield path, part
        parts = _parts_of(part)
        if parts is None:
            path.pop()
            continue
        if id(part) in above or len(open_parts) > NESTING_MAX:
            raise CodecError(key=key, path=spelled(path), reason=_CYCLE if id(part) in above else _DEEP)
        above[id(part)] = part
        open_parts.append(parts)


def _parts_of(node: Any) -> Iterator[Part] | None:
    if node.__class__ in _LEAVES:
        return None
    if isinstance(node, dict):
        keys = [(step_of(name), name) for name in node if name.__class__ is not str]
        return iter([(step_of(name), part) for name, part in node.items()] + keys)
    if isinstance(node, (list, tuple)):
        return ((f"[{index}]", part) for index, part in enumerate(node))
    if isinstance(node, (set, frozenset)):
        return iter([("[...]", part) for part in node])
    fields = _fields_of(node)
    return None if fields is None else iter([(step_of(shown), part) for shown, _, part in fields])


def step_of(name: object) -> str:
    """Return the step of a path that leads to the member of that name."""
    return f".{name}" if isinstance(name, str) and _is_identifier(name) else f"[{repr(name)[:40]}]"


def spelled(path: list[str]) -> str:
    """Return a path as text, shortened if need be."""
    text = "$" + "".join(path)
    return text if len(text) <= _PATH_CHARACTERS_MAX else text[: _PATH_CHARACTERS_MAX - 1] + "…"


def _fault_of(node: Any, write: Write, encoding: str, *, by_model: bool) -> str:
    """Return why a part of a value cannot be stored, or an empty text; a dict answers for its keys."""
    kind = node.__class__
    if (kind is str and node.isascii()) or kind is bool or (kind is int and -(2**63) <= node < 2**63):
        return ""
    if kind is float:
        return "" if math.isfinite(node) else f"{node} is not a number that can be stored; use None or text"
    if isinstance(node, datetime) and node.utcoffset() is None:
        return NAIVE
    if isinstance(node, dict):
        return _fault_of_keys(node, write, encoding)
    if node is None or by_model or (_parts_of(node) is not None and not is_model(kind)):
        return ""
    try:
        write(node)
    except Exception as error:  # users' own classes take part
        pass_on(error)
        return message_of(error)
    return ""


def _fault_of_keys(node: dict[Any, Any], write: Write, encoding: str) -> str:
    try:
        data = write(dict.fromkeys(node))
    except Exception as error:  # users' own classes take part
        pass_on(error)
        return f"one of its keys cannot be stored: {message_of(error)}"
    odd = encoding == "json" and any(name.__class__ is not str for name in node)
    lost = odd and len(msgspec.json.decode(data)) < len(node)
    return _SAME_KEYS if lost else ""


def message_of(error: Exception) -> str:
    """Return an error's message without the values in it."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply for this thread's stack"
    text = _input_in_message.sub("", " ".join(str(error).split()))
    text += "; replace them" if isinstance(error, UnicodeEncodeError) else ""
    return text if isinstance(error, (TypeError, ValueError, OverflowError)) else f"{error.__class__.__name__}: {text}"


def openers_in(data: bytes, encoding: str) -> int:
    """Return an upper bound of a value's levels of nesting: the number of bytes that may begin a container."""
    if encoding == "json":
        return data.count(b"[") + data.count(b"{")
    return len(data.translate(None, _not_openers))


def is_deep(plain: Any) -> bool:
    level = [plain] if plain.__class__ is dict or plain.__class__ is list else []
    for _ in range(NESTING_MAX):
        level = [
            part
            for node in level
            for part in (node.values() if node.__class__ is dict else node)
            if part.__class__ is dict or part.__class__ is list
        ]
        if not level:
            return False
    return True

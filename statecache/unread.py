"""What a type did not read of stored data: found by comparing the data with the value that the type made of it.

Both are gone through side by side. A record, or a TypedDict, has read the names that it knows, a tuple as many parts as
it has, and below those it is the same again. What a value says of itself counts, not what its type may be: a union has
read what the class knows that was chosen.

The members of a set are in no order, so each part of the data is held against the members: what has been read whole
is a member that has all of its names and, below them, all of its values. Where a value has a form of its own in memory,
as a moment has, any is taken. Members are looked up by the plain values that they have in common with the data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from itertools import chain
from typing import Any

import msgspec

from statecache.record_classes import is_model, is_record, is_root, read_ways
from statecache.signal_errors import pass_on
from statecache.value_loss import step_of

_PLAIN = frozenset({str, int, float, bool, type(None), bytes})
_KEYS = _PLAIN | {datetime}
_OTHER = "\0"
"""Stands at the end of a path to where a member of a set is another than what is looked for."""
_KEYS_MAX = 8
"""The plain values of a part of the data by which members of a set are looked up."""

Pair = tuple[str, Any, Any]


class _Partly(dict[Any, Any]):
    """What was read of a dict or a list by the paths of fields: the parts that were, by name or place."""


def left_out(value: Any, plain: Any) -> str:
    """Return the path of the first part of stored data that a type did not read; empty where it read all of it.

    `plain` is the data without a type, `value` what the type made of it.
    """
    return _unread(value, plain, is_member=False)


def _unread(value: Any, plain: Any, *, is_member: bool) -> str:
    """Return the same; of a member of a set that is another than this, a path that ends in `_OTHER`."""
    levels: list[tuple[str, Iterator[Pair]]] = [("$", iter([("", value, plain)]))]
    while levels:
        path, pairs = levels[-1]
        pair = next(pairs, None)
        if pair is None:
            levels.pop()
            continue
        step, read, stored = pair
        while is_root(read.__class__):
            read = read.root
        if is_member and _is_other(read, stored):
            return path + step + _OTHER
        if stored.__class__ in _PLAIN or read is None:
            continue
        extra, inner = _compared(read, stored)
        if extra is not None:
            return f"{path}{step}{extra}"
        levels.append((path + step, iter(inner)))
    return ""


def _compared(read: Any, stored: Any) -> tuple[str | None, Iterable[Pair]]:
    """Return the step to what was not read, or None; and the parts of both to compare next."""
    if read.__class__ is stored.__class__ and read == stored:
        return None, ()
    if isinstance(stored, dict):
        known = read if read.__class__ is _Partly else _fields_of(read, stored)
        if known is not None:
            extra = next((name for name in stored if name not in known), None)
            pairs = [(step_of(name), known[name], part) for name, part in stored.items() if name in known]
            return (None if extra is None else step_of(extra)), pairs
        return _compared_dicts(read, stored) if isinstance(read, Mapping) else (None, ())
    if not isinstance(stored, (list, tuple)):
        return None, ()
    if read.__class__ is _Partly:
        known = {at % len(stored): part for at, part in read.items()}
        extra = next((f"[{at}]" for at in range(len(stored)) if at not in known), None)
        return extra, [(f"[{at}]", part, stored[at]) for at, part in known.items()]
    if isinstance(read, Set):
        return _unread_by_members(read, stored), ()
    parts = _parts_of(read)
    if parts is None:
        return None, ()
    extra = f"[{len(parts)}]" if len(stored) > len(parts) else None
    return extra, [(f"[{at}]", part, other) for at, (part, other) in enumerate(zip(parts, stored, strict=False))]


def _compared_dicts(read: Mapping[Any, Any], stored: dict[Any, Any]) -> tuple[str | None, Iterable[Pair]]:
    """Return the same of a dict: by name, or, where names have another form in memory, in the order of both."""
    if len(read) < len(stored):
        return step_of(next((name for name in stored if name not in read), "?")), ()
    pairs = [(step_of(name), read[name], part) for name, part in stored.items() if name in read]
    if len(pairs) < len(stored):
        formed = [(name, part) for name, part in read.items() if name not in stored]
        others = [(name, part) for name, part in stored.items() if name not in read]
        for (name, part), (other, below) in zip(formed, others, strict=False):
            pairs += [(step_of(other), name, other), (step_of(other), part, below)]
    return None, pairs


def _parts_of(read: Any) -> Sequence[Any] | None:
    """Return the parts of what was read of a list; None for what is no list in memory."""
    if isinstance(read, msgspec.Struct):
        if not read.__struct_config__.array_like:
            return None
        tag = read.__struct_config__.tag
        return ([] if tag is None else [tag]) + [getattr(read, name) for name in read.__struct_fields__]
    return read if isinstance(read, Sequence) and not isinstance(read, (str, bytes)) else None


def _fields_of(node: Any, stored: dict[Any, Any] | None = None) -> dict[Any, Any] | None:
    """Return the fields that a record has read, by the names under which they are stored; None for other values.

    A model has read each by the first of its names that is stored; without the data, by any of them.
    """
    kind = node.__class__
    if isinstance(node, msgspec.Struct):
        if kind.__struct_config__.array_like:
            return None
        names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        fields = {shown: getattr(node, name, None) for shown, name in names}
        config = kind.__struct_config__
        return fields if config.tag_field is None else fields | {config.tag_field: config.tag}
    if is_model(kind) or hasattr(kind, "__pydantic_fields__"):
        return _fields_of_model(node, stored)
    if not is_record(kind):
        return None
    members = dataclasses.fields(node) if dataclasses.is_dataclass(node) else kind.__attrs_attrs__
    return {one.name: getattr(node, one.name, None) for one in members}


def _fields_of_model(node: Any, stored: dict[Any, Any] | None) -> dict[Any, Any]:
    fields: dict[Any, Any] = {}
    for name, ways in read_ways(node.__class__):
        taken = ways if stored is None else [way for way in ways if _leads_into(stored, way)][:1]
        for way in taken:
            _put(fields, way, getattr(node, name, None))
    return fields | (getattr(node, "__pydantic_extra__", None) or {})


def _leads_into(stored: Any, way: tuple[Any, ...]) -> bool:
    for step in way:
        if not (step in stored if isinstance(stored, dict) else isinstance(stored, list) and _is_place(step, stored)):
            return False
        stored = stored[step]
    return True


def _is_place(step: Any, stored: list[Any]) -> bool:
    return isinstance(step, int) and -len(stored) <= step < len(stored)


def _put(fields: dict[Any, Any], way: tuple[Any, ...], part: Any) -> None:
    """Put what was read by a path in its place, beside what was read by others."""
    for step in way[:-1]:
        fields = fields.setdefault(step, _Partly())
        if fields.__class__ is not _Partly:  # another field has read all of it
            return
    if fields.get(way[-1]).__class__ is _Partly or way[-1] not in fields:
        fields[way[-1]] = part


def _unread_by_members(read: Set[Any], stored: Sequence[Any]) -> str | None:
    """Return the step to the first part of the data that no member of a set has read whole, or None."""
    members: _Members | None = None
    for part in stored:
        if isinstance(part, (dict, list, tuple)):
            members = _Members(read) if members is None else members
            if path := members.unread(part):
                return "[...]" + path[1:]
    return None


class _Members:
    """The members of a set, to be looked up by the plain values that they hold."""

    def __init__(self, read: Set[Any]) -> None:
        self._all = [*read]
        self._by_key: dict[Any, list[Any]] = {}
        for member in self._all:
            for key in _keys_of_member(member):
                self._by_key.setdefault(key, []).append(member)

    def unread(self, stored: Any) -> str:
        """Return the path of what no member has read of a part of the data; empty where one has read all of it."""
        likely = self._likely(stored)
        tried = {*map(id, likely)}
        found = ""
        for member in chain(likely, (one for one in self._all if id(one) not in tried)):
            if not (path := _unread(member, stored, is_member=True)):
                return ""
            found = path if not found or found.endswith(_OTHER) else found
        return found.removesuffix(_OTHER) or "$"

    def _likely(self, stored: Any) -> list[Any]:
        """Return the members that have the rarest of the plain values of a part of the data."""
        rarest: list[list[Any]] = [self._all]
        for name, part in [*_named(stored)][:_KEYS_MAX]:
            places = [(name, part)] if isinstance(stored, dict) else [(name, part), (_OTHER, part)]
            found = [members for place in places if (members := self._by_key.get(place))]
            if found and sum(map(len, found)) < sum(map(len, rarest)):
                rarest = found
        return [*chain.from_iterable(rarest)]


def _named(stored: Any) -> Iterator[tuple[Any, Any]]:
    pairs = stored.items() if isinstance(stored, dict) else enumerate(stored)
    return ((name, part) for name, part in pairs if part.__class__ in _KEYS)


def _keys_of_member(member: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the plain values of a member, each behind its name or place; in a set they have none."""
    while is_root(member.__class__):
        member = member.root
    fields = _fields_of(member)
    if isinstance(member, Set):
        pairs: Iterable[tuple[Any, Any]] = ((_OTHER, part) for part in member)
    else:
        pairs = enumerate(_parts_of(member) or ()) if fields is None else fields.items()
    for name, part in pairs:
        if part.__class__ in _KEYS:
            yield name, part
        if part.__class__ is not str and (plain := _plain(part)).__class__ is str:
            yield name, plain


def _plain(part: Any) -> Any:
    """Return a value as it is stored in JSON where that is a plain one; else itself, or another container."""
    try:
        return part if part.__class__ in _PLAIN - {bytes} else msgspec.to_builtins(part)
    except Exception as error:  # users' own classes take part
        pass_on(error)
        return part


def _is_other(read: Any, stored: Any) -> bool:
    """Return whether a value, seen without what is below it, was read of other data than these."""
    if not isinstance(stored, (dict, list, tuple)):
        if read.__class__ in _PLAIN and read.__class__ is not bytes:
            return not (read == stored or (read is not None and str(read) == str(stored)))
        return read.__class__ is _Partly or isinstance(read, (Set, Mapping)) or _has_parts(read)
    if read.__class__ is _Partly:
        return False
    if isinstance(stored, dict):
        if isinstance(read, Mapping):
            return len(read) > len(stored)
        return isinstance(read, Set) or (
            _fields_of(read) is None and (_has_parts(read) or _plain(read).__class__ in _PLAIN)
        )
    if isinstance(read, Set):
        return len(read) > len(stored) or bool(stored and not read) or not _holds(read, stored)
    if read.__class__ is tuple or read.__class__ is list:
        return len(read) != len(stored)
    return isinstance(read, Mapping) or _fields_of(read) is not None or _plain(read).__class__ in _PLAIN


def _has_parts(read: Any) -> bool:
    return _fields_of(read) is not None or _parts_of(read) is not None


def _holds(read: Set[Any], stored: Sequence[Any]) -> bool:
    """Return whether a set has the plain values of a list, where all of its own are plain."""
    if all(part.__class__ in _PLAIN and part.__class__ is not bytes for part in read):
        return all(part in read for part in stored if part.__class__ in _PLAIN)
    return True

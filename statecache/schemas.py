"""Schemas: what a state's value was written as, and whether another release may write over it.

A schema is `Run@2#1c9e55d0`: the name of the value's class, its `__schema_version__` (1 where it has none), and a
fingerprint of the names under which its fields, and those of all records inside, are stored. Where two releases run
side by side, the older one reads what the newer one wrote and leaves out what it does not know. Written back, that
would be gone. So whoever writes over what it has read, and what has another schema than its own, is asked first:

    same class, a lower version     goes on: this release is the newer one, and may do without fields
    same class, a higher version    is refused: somebody has said that it is newer
    anything else                   is refused where the value has something that the type leaves out, and only there

What is read without a type is read whole, and what is written without being read is meant as it is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import inspect

from statecache.record_classes import is_model, is_record
from statecache.value_loss import step_of

_FINGERPRINT_DIGITS = 8
_PLAIN = frozenset({str, int, float, bool, type(None), bytes})

Pair = tuple[str, Any, Any]


class Schema(NamedTuple):
    """A schema in its parts; `name` is empty for a type that is not a class of its own."""

    name: str
    version: int
    fingerprint: str

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Read a schema as it is stored."""
        stem, _, fingerprint = text.partition("#")
        name, _, version = stem.rpartition("@")
        return cls(name, int(version), fingerprint) if version.isdecimal() else cls(stem, 0, fingerprint)


def schema_of(kind: Any) -> str:
    """Return the schema of a type, as it is stored; empty for plain data."""
    names = sorted(_names_in(kind))
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:_FINGERPRINT_DIGITS]
    fingerprint = f"#{digest}" if names else ""
    owner = get_origin(kind) or kind
    if not isinstance(owner, type) or owner.__module__.partition(".")[0] in sys.stdlib_module_names:
        return fingerprint
    return f"{owner.__qualname__}@{getattr(owner, '__schema_version__', 1)}{fingerprint}"


def judged(stored: str, ours: str) -> Literal["free", "newer", "look"]:
    """Return whether data of the schema `stored` may be overwritten by what a type of the schema `ours` read of it.

    `free`: yes. `newer`: no, a newer release wrote it. `look`: the schemas do not say, so compare the data.
    """
    if stored == ours or not ours:
        return "free"
    there, here = Schema.parse(stored), Schema.parse(ours)
    if here.name and there.name == here.name and there.version != here.version:
        return "newer" if there.version > here.version else "free"
    return "look"


def same_class(stored: str, ours: str) -> bool:
    """Return whether two schemas are of one class, or both of none, whatever their versions and fields."""
    return Schema.parse(stored).name == Schema.parse(ours).name


def versions(stored: str, ours: str) -> str:
    """Return what schemas say of why data of the one cannot be read as a type of the other: the end of a reason."""
    there, here = Schema.parse(stored), Schema.parse(ours)
    if not here.name or there.version == here.version:
        return ""
    names = (
        f"; it was written as {there.name or 'plain data'}@{there.version}, and is read as {here.name}@{here.version}"
    )
    if there.version > here.version:
        return f"{names}, which is older: read it where the newer release runs"
    return f"{names}: give namespace() an upgrade= from version {there.version} on"


def left_out(value: Any, plain: Any) -> str:
    """Return the path of the first part of stored data that a type did not read; empty where it read all of it.

    `plain` is the data without a type, `value` what the type made of it.
    """
    levels: list[tuple[str, Iterator[Pair]]] = [("$", iter([("", value, plain)]))]
    while levels:
        path, pairs = levels[-1]
        pair = next(pairs, None)
        if pair is None:
            levels.pop()
            continue
        step, read, stored = pair
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
        known = _fields_of(read)
        if known is not None:
            extra = next((name for name in stored if name not in known), None)
            pairs = [(step_of(name), known[name], part) for name, part in stored.items() if name in known]
            return (None if extra is None else step_of(extra)), pairs
        if isinstance(read, dict):
            if len(read) < len(stored):
                return step_of(next((name for name in stored if name not in read), "?")), ()
            return None, [
                (step_of(name), part, other) for (name, other), part in zip(stored.items(), read.values(), strict=False)
            ]
        return None, ()
    if not isinstance(stored, (list, tuple)):
        return None, ()
    if isinstance(read, msgspec.Struct):  # stored as an array
        tag = read.__struct_config__.tag is not None
        read = ([None] if tag else []) + [getattr(read, name) for name in read.__struct_fields__]
    if isinstance(read, (set, frozenset)):
        like = next(iter(read), None)
        return None, [("[...]", like, part) for part in stored]
    if not isinstance(read, (list, tuple)):
        return None, ()
    extra = f"[{len(read)}]" if len(stored) > len(read) else None
    return extra, [(f"[{at}]", part, other) for at, (part, other) in enumerate(zip(read, stored, strict=False))]


def _fields_of(node: Any) -> dict[str, Any] | None:
    """Return the fields that a record has read, by the names under which they are stored; None for other values."""
    kind = node.__class__
    if isinstance(node, msgspec.Struct):
        names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        fields = {shown: getattr(node, name, None) for shown, name in names}
        tag = kind.__struct_config__.tag_field
        return fields if tag is None else fields | {tag: None}
    if is_model(kind):
        fields = {shown: getattr(node, name, None) for name, shown in _names_of_model(kind)}
        return fields | (getattr(node, "__pydantic_extra__", None) or {})
    if not is_record(kind):
        return None
    members = dataclasses.fields(node) if dataclasses.is_dataclass(node) else kind.__attrs_attrs__
    return {one.name: getattr(node, one.name, None) for one in members}


def _names_of_model(kind: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields of a model and the names under which they may be stored."""
    for name, field in kind.model_fields.items():
        yield name, name
        for alias in (field.alias, field.validation_alias, field.serialization_alias):
            if isinstance(alias, str):
                yield name, alias
    for name in kind.model_computed_fields:
        yield name, name


def _names_in(kind: Any) -> set[str]:
    """Return the names of the stored fields of all records within a type, each behind its class's name.

    A TypedDict is named itself: a schema without that is of a value that may hold more keys than its type names.
    """
    names: set[str] = set()
    seen: dict[object, Any] = {}
    todo: list[Any] = [] if kind is Any else [inspect.type_info(kind)]
    while todo:
        info = todo.pop()
        known = getattr(info, "cls", None) or id(info)
        if known not in seen:
            seen[known] = info
            owner = get_origin(known) or known
            if isinstance(info, inspect.TypedDictType) and isinstance(owner, type):
                names.add(f"{owner.__qualname__}, whole")
            for name, part in _parts_of(info):
                names |= {f"{owner.__qualname__}.{name}"} if name and isinstance(owner, type) else set()
                todo += [] if part is None else [part]
    return names


def _parts_of(info: Any) -> Iterator[tuple[str, Any]]:
    """Yield the types within a type, each with the name of its field or an empty text."""
    if isinstance(info, (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)):
        ordered = isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False)
        for at, field in enumerate(info.fields):
            yield f"{at} {field.encode_name}" if ordered else field.encode_name, field.type
    elif isinstance(info, inspect.CustomType):
        model: Any = info.cls
        for name, field in model.model_fields.items() if is_model(model) else ():
            yield name, None
            for part in _records_in(field.annotation):
                yield "", inspect.type_info(part)
    else:
        for name in info.__struct_fields__:
            parts = getattr(info, name)
            for part in parts if isinstance(parts, tuple) else (parts,):
                if isinstance(part, inspect.Type):
                    yield "", part


def _records_in(annotation: Any) -> Iterator[Any]:
    """Yield the record types that an annotation of a model names."""
    if is_record(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from _records_in(part)

"""Schemas: what a state's value was written as, and whether another release may write over it.

A schema is `Run@2#1c9e55d0`: the name of the value's class, its `__schema_version__` (1 where it has none), and a
fingerprint of the names under which its fields, and those of all records inside, are stored, and of which of these each
holds. Where two releases run side by side, the older one reads what the newer one wrote and leaves out what it does not
know. Written back, that would be gone. So whoever writes over what it has read, and what has another schema than its
own, is asked first:

    same class, a lower version     goes on: this release is the newer one, and may do without fields
    same class, a higher version    is refused: somebody has said that it is newer
    anything else                   is refused where the value has something that the type leaves out, and only there

What is read without a type is read whole, and what is written without being read is meant as it is.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import inspect

from statecache.record_classes import is_model, is_record, is_typed_dict
from statecache.signal_errors import pass_on

_FINGERPRINT_DIGITS = 8
_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)


_Info = tuple[Any, Any, list[tuple[str, Sequence[Any]]]]


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
    kind = _unwrapped(kind)
    names = sorted(_names_in(kind))
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:_FINGERPRINT_DIGITS]
    fingerprint = f"#{digest}" if names else ""
    owner = get_origin(kind) or kind
    if not isinstance(owner, type) or owner.__module__.partition(".")[0] in sys.stdlib_module_names:
        return fingerprint
    return f"{owner.__qualname__}@{getattr(owner, '__schema_version__', 1)}{fingerprint}"


def schemas_in(kind: Any) -> dict[type, str]:
    """Return the schemas of the classes that a union is of; none of what is no union."""
    members = _members_of(kind)
    classes = [(get_origin(part) or part, part) for part in members if len(members) > 1]
    return {owner: schema_of(part) for owner, part in classes if is_record(owner)}


def _members_of(kind: Any) -> list[Any]:
    """Return the types of a union, and of those within it; a type that is none alone."""
    kind = _unwrapped(kind)
    is_union = get_origin(kind) in (Union, UnionType)
    return [inner for part in get_args(kind) for inner in _members_of(part)] if is_union else [kind]


def _unwrapped(kind: Any) -> Any:
    """Return what a name of a type, or a type with annotations, stands for."""
    while get_origin(kind) is Annotated or hasattr(kind, "__supertype__") or hasattr(kind, "__value__"):
        kind = kind.__origin__ if get_origin(kind) is Annotated else _meant(kind)
    return kind


def _meant(kind: Any) -> Any:
    """Return what a NewType or an alias (`type Legs = list[Leg]`) stands for; None for what is neither."""
    return getattr(kind, "__supertype__", None) or getattr(kind, "__value__", None)


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


def with_name(stored: str, known: Iterable[str]) -> str:
    """Return which of several schemas is of the class of a stored one, in whatever version; empty for none."""
    name = Schema.parse(stored).name
    return next((one for one in known if name and Schema.parse(one).name == name), "")


def common(schemas: Collection[str]) -> str:
    """Return the schema of plain data that were made of those of several: of their class and version, if all agree.

    Without a fingerprint it is no type's own, so whoever writes over it compares the data.
    """
    first = Schema.parse(next(iter(schemas), ""))
    if len(schemas) < 2 or not first.name or any(Schema.parse(one)[:2] != first[:2] for one in schemas):
        return next(iter(schemas)) if len(schemas) == 1 else ""
    return f"{first.name}@{first.version}#"


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


def _names_in(kind: Any) -> set[str]:
    """Return the names of the stored fields of all records within a type, each with its class's and what it holds.

    A TypedDict is named itself: a schema without that is of a value that may hold more keys than its type names.
    """
    names: set[str] = set()
    for info, owner, inner in _infos_in(kind):
        if isinstance(info, inspect.TypedDictType):
            names.add(f"{owner.__qualname__}, whole")
        names |= {f"{owner.__qualname__}.{name}{_held(parts)}" for name, parts in inner if name}
    return names


def classes_in(kind: Any) -> set[type]:
    """Return the classes with fields within a type, those within pydantic models too."""
    return {owner for info, owner, _ in _infos_in(kind) if isinstance(info, (*_RECORDS, _InModel)) or is_model(owner)}


def _infos_in(kind: Any) -> list[_Info]:
    """Return what is said of each type within a type, with the class that it is about and the types within that."""
    try:
        return _known_infos(kind)
    except TypeError:  # it is unhashable
        return _looked_up(kind)


@lru_cache(maxsize=16)
def _known_infos(kind: Any) -> list[_Info]:
    return _looked_up(kind)


def _looked_up(kind: Any) -> list[_Info]:
    seen: dict[object, _Info] = {}
    todo: list[Any] = [] if kind is Any else [inspect.type_info(kind)]
    while todo:
        info = todo.pop()
        known = getattr(info, "cls", None) or id(info)
        if known not in seen:
            inner = [*_parts_of(info)]
            seen[known] = info, get_origin(known) or known, inner
            todo += [part for _, parts in inner for part in parts]
    return [*seen.values()]


def _held(parts: Sequence[Any]) -> str:
    """Return the names of the classes with fields that a field holds, without those within them, as a suffix."""
    found: set[str] = set()
    todo = [*parts]
    while todo:
        info = todo.pop()
        owner = get_origin(getattr(info, "cls", None)) or getattr(info, "cls", None)
        if isinstance(info, (*_RECORDS, _InModel)) or is_model(owner):
            found.add(getattr(owner, "__qualname__", str(owner)))
        else:
            todo += [part for _, inner in _parts_of(info) for part in inner]
    return f": {' | '.join(sorted(found))}" if found else ""


def _parts_of(info: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the types within a type, those of a field with its name."""
    if isinstance(info, _RECORDS):
        ordered = isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False)
        for at, field in enumerate(info.fields):
            yield f"{at} {field.encode_name}" if ordered else field.encode_name, (field.type,)
    elif isinstance(info, _InModel):
        yield from info.parts()
    elif isinstance(info, inspect.CustomType):
        model: Any = info.cls
        for name, field in model.model_fields.items() if is_model(model) else ():
            yield _stored(name, field), [*_within_model(field.annotation)]
        yield "", [*_within_model(_extras_of(model))]
    else:
        for name in info.__struct_fields__:
            parts = getattr(info, name)
            yield (
                "",
                [part for part in (parts if isinstance(parts, tuple) else (parts,)) if isinstance(part, inspect.Type)],
            )


class _InModel(NamedTuple):
    """A dataclass, a TypedDict or a named tuple within a pydantic model, whose types msgspec need not know."""

    cls: Any

    def parts(self) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the types within it, those of a field with its name."""
        try:
            hints = get_type_hints(self.cls)
        except Exception as error:  # type hints of users raise anything
            pass_on(error)
            hints = {}
        own = [one.name for one in fields(self.cls)] if is_dataclass(self.cls) else getattr(self.cls, "_fields", None)
        names = self.cls.__annotations__ if own is None else own
        known = getattr(self.cls, "__pydantic_fields__", {})
        for at, name in enumerate(names):
            shown = f"{at} {name}" if issubclass(self.cls, tuple) else _stored(name, known.get(name))
            yield shown, [*_within_model(hints.get(name))]


def _stored(name: str, field: Any) -> str:
    """Return the name of a field, with that by which pydantic writes it where this is another."""
    alias = getattr(field, "serialization_alias", None) or getattr(field, "alias", None) or name
    return name if alias == name else f"{name} {alias}"


def _extras_of(model: Any) -> Any:
    """Return the type of the extra fields that a model keeps, where it names one."""
    name = "__pydantic_extra__"
    named = [one for one in getattr(model, "__mro__", ()) if name in vars(one).get("__annotations__", {})]
    if not named or named[0].__module__.startswith("pydantic."):
        return None
    try:
        return get_type_hints(named[0]).get(name)
    except Exception as error:  # type hints of users raise anything
        pass_on(error)
        return None


def _within_model(annotation: Any) -> Iterator[Any]:
    """Yield what has fields within an annotation of a model."""
    seen: list[Any] = []
    todo = [annotation]
    while todo:
        part = todo.pop()
        owner = get_origin(part) or part
        if isinstance(owner, type) and (is_dataclass(owner) or is_typed_dict(owner) or hasattr(owner, "_fields")):
            yield _InModel(owner)
        elif is_record(part):
            yield inspect.type_info(part)
        for meant in (_meant(owner), *_bounds(owner)):
            if meant is not None and not any(one is meant for one in seen):
                seen.append(meant)
                todo.append(meant)
        todo += get_args(part)


def _bounds(kind: Any) -> tuple[Any, ...]:
    """Return the types that a type variable is read as where nobody says which."""
    if not isinstance(kind, TypeVar):
        return ()
    return (kind.__bound__, getattr(kind, "__default__", None), *kind.__constraints__)

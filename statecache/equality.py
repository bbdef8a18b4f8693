"""Equality: of which types two equal values hold the same, and of which a class leaves some of its fields out of it.

Where it shows all, comparing a value with what readers would get is enough to see that nothing is lost, and quick. It
does not where a class has an `__eq__` of its own, or a field that it does not compare (`field(compare=False)`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec
from msgspec import inspect

from statecache.record_classes import class_of, is_model, is_record
from statecache.signal_errors import pass_on

_CLASSES = (inspect.StructType, inspect.DataclassType, inspect.NamedTupleType)
_WHOLE = (object.__eq__, msgspec.Struct.__eq__, tuple.__eq__)
"""Of which the first is true of one and the same object alone."""


def shows_all(kind: Any) -> bool:
    """Return whether equal values of a type hold the same in all their fields; False where that is not known."""
    seen: dict[object, Any] = {}
    todo: list[Any] = [] if kind is Any else [inspect.type_info(kind)]
    try:
        while todo:
            info = todo.pop()
            known = getattr(info, "cls", None) or id(info)
            if known in seen:
                continue
            seen[known] = info
            if (isinstance(info, _CLASSES) or is_model(known)) and not _compares_all(class_of(info)):
                return False
            todo += _parts_of(info)
    except Exception as error:  # what type hints of users raise
        pass_on(error)
        return False
    return True


def _compares_all(kind: Any) -> bool:
    """Return whether the equality of a class looks at all of its fields."""
    compare = kind.__eq__
    if compare in _WHOLE:
        return True
    if is_model(kind):
        return str(compare.__module__).partition(".")[0] == "pydantic"
    if dataclasses.is_dataclass(kind):
        return _signs(compare) == _signs(_written_for(kind))
    members = getattr(kind, "__attrs_attrs__", ())
    written = members and compare.__code__.co_filename.startswith("<attrs generated")
    return (
        bool(written)
        and all(one.eq and one.eq_key is None for one in members)
        and ({one.name for one in members} <= {*compare.__code__.co_names})
    )


def _written_for(kind: Any) -> Any:
    """Return the comparison that Python writes for a dataclass with all the fields of another."""
    return dataclasses.make_dataclass("Twin", [one.name for one in dataclasses.fields(kind)]).__eq__


def _signs(function: Any) -> object:
    """Return what two functions that do the same have in common."""
    code = getattr(function, "__code__", None)
    return None if code is None else (code.co_code, code.co_names)


def _parts_of(info: Any) -> Iterator[Any]:
    """Yield the types within a type."""
    if isinstance(info, inspect.CustomType):
        model: Any = info.cls
        for field in model.model_fields.values() if is_model(model) else ():
            for part in _named_in(field.annotation):
                yield inspect.type_info(part)
        return
    for name in info.__struct_fields__:
        parts = getattr(info, name)
        for part in parts if isinstance(parts, tuple) else (parts,):
            if isinstance(part, inspect.Field):
                yield part.type
            elif isinstance(part, inspect.Type):
                yield part


def _named_in(annotation: Any) -> Iterator[Any]:
    """Yield the classes with fields that an annotation of a model names."""
    annotation = getattr(annotation, "__value__", annotation)
    owner = get_origin(annotation) or annotation
    if is_record(owner) or hasattr(owner, "_fields") or hasattr(owner, "__total__"):
        yield annotation
    for part in get_args(annotation):
        yield from _named_in(part)

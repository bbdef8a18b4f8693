"""The names under which a type's fields are stored, and those of all records inside: what its fingerprint is made of.

What msgspec reads is told by its own word on types. Of a pydantic model that names a field `Run.goal`, and where it is
stored by an alias, `Run.goal as aim` too. Within a model may stand what msgspec has no word on, as a TypedDict with
aliases or a `type` of its own: there pydantic's schema of the model is asked as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from msgspec import inspect

from statecache.record_classes import is_model, is_record
from statecache.signal_errors import pass_on

_NOT_TYPES = frozenset({"computed_fields", "config", "default", "expected", "members", "metadata", "serialization"})
"""What a part of pydantic's schema has beside the types within it."""


def names_in(kind: Any) -> set[str]:
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
            if isinstance(info, inspect.CustomType) and is_model(info.cls):
                names |= _names_in_model(info.cls)
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


def _names_in_model(model: Any) -> set[str]:
    """Return the names of the fields of all that pydantic reads within a model."""
    try:
        todo: list[tuple[Any, str]] = [(dict(model.__pydantic_core_schema__), "")]
    except Exception as error:  # of a model that names what is not defined yet
        pass_on(error)
        return set()
    names: set[str] = set()
    while todo:
        node, owner = todo.pop()
        if isinstance(node, (list, tuple)):
            todo += [(part, owner) for part in node]
        elif isinstance(node, dict):
            made = node.get("cls") or node.get("function")
            owner = made.__qualname__ if isinstance(made, type) else owner
            for name, field in _fields_of(node):
                alias = field.get("serialization_alias")
                names |= {f"{owner}.{name}"} | ({f"{owner}.{name} as {alias}"} if alias not in (None, name) else set())
                todo.append((field.get("schema"), owner))
            todo += [(part, owner) for what, part in node.items() if what not in _NOT_TYPES and what != "fields"]
    return names


def _fields_of(node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the fields of a record, or of a TypedDict or a namedtuple, as pydantic's schema has them."""
    kind, fields = node.get("type"), node.get("fields")
    if isinstance(fields, dict):
        yield from fields.items()
    elif kind == "dataclass-args" and fields:
        yield from ((one["name"], one) for one in fields if not one.get("init_only"))
    elif kind == "named-tuple" and fields:
        yield from ((f"{at} {one['name']}", one) for at, one in enumerate(fields))
    elif kind == "arguments":  # a namedtuple, before pydantic 2.14
        yield from ((f"{at} {one['name']}", one) for at, one in enumerate(node["arguments_schema"]))

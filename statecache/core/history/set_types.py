"""Sets in plain data: a type says which lists stand for sets, and those are merged by their members.

For a merge such a list becomes a dict with a key for each member: what one side added is in it, what one side removed
is not, and nothing is there twice, in whatever order sets are stored. A type that could be a set or another container
at one place, and a type of which only its own library knows the parts, are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import inspect, msgpack

_SETS = (inspect.SetType, inspect.FrozenSetType)
_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_ARRAYS = (*_SETS, inspect.ListType, inspect.VarTupleType, inspect.TupleType, inspect.NamedTupleType)
_CONTAINERS = (*_ARRAYS, *_RECORDS, inspect.DictType, inspect.CustomType, inspect.AnyType)


def with_members(value: Any, kind: Any) -> Any:
    """Return plain data of a type with dicts in place of its sets."""
    return _changed(value, inspect.type_info(kind), _members)


def with_lists(value: Any, kind: Any) -> Any:
    """Return plain data of a type with lists in place of such dicts."""
    return _changed(value, inspect.type_info(kind), _list)


def _members(value: Any) -> Any:
    return {msgpack.encode(item).hex(): item for item in value} if isinstance(value, (list, tuple)) else value


def _list(value: Any) -> Any:
    return [*value.values()] if isinstance(value, dict) else value


def _changed(value: Any, info: inspect.Type, change: Callable[[Any], Any]) -> Any:
    while isinstance(info, inspect.Metadata):
        info = info.type
    if isinstance(info, inspect.UnionType):
        containers = [one for one in info.types if isinstance(one, (*_CONTAINERS, inspect.Metadata))]
        return _changed(value, containers[0], change) if len(containers) == 1 else value
    if isinstance(info, _SETS):
        return change(value)
    if isinstance(value, dict):
        kinds = _kinds_of(value, info)
        return {key: _changed(part, kinds[key], change) if key in kinds else part for key, part in value.items()}
    if isinstance(value, (list, tuple)) and isinstance(info, (inspect.ListType, inspect.VarTupleType)):
        return [_changed(item, info.item_type, change) for item in value]
    if isinstance(value, (list, tuple)) and isinstance(info, inspect.TupleType):
        return [_changed(item, one, change) for item, one in zip(value, info.item_types, strict=False)]
    return value


def _kinds_of(value: dict[Any, Any], info: inspect.Type) -> dict[Any, inspect.Type]:
    """Return of which types the parts of a dict are, as far as that is known."""
    if isinstance(info, inspect.DictType):
        return dict.fromkeys(value, info.value_type)
    if isinstance(info, _RECORDS):
        return {field.encode_name: field.type for field in info.fields}
    return {}

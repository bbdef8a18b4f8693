"""Classes of values: which are records, their names, and which fields of a model have to come back as they were.

A pydantic model says itself how it is written and how it is read, and the two need not agree: a SecretStr is written as
asterisks, a field with a `serialization_alias` under a name by which nothing is read. What a model leaves out
(`exclude`), or writes by a serializer of its own, is its author's word, and is not looked at.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, get_origin


def is_model(kind: Any) -> bool:
    """Return whether a class is a pydantic model, going by its methods."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump")


def is_record(kind: Any) -> bool:
    """Return whether a class is a Struct, a dataclass, an attrs class or a pydantic model."""
    marks = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__")
    is_one = isinstance(kind, type) and (any(hasattr(kind, mark) for mark in marks) or is_model(kind))
    return is_one and not issubclass(kind, type)  # the class of Structs has the marks of its instances


def class_of(info: Any) -> Any:
    """Return the class that msgspec's word on a type is about: of `Box[int]` that is `Box`, by which its values go."""
    return get_origin(info.cls) or info.cls


def name_of(kind: Any) -> str:
    """Return the name of a type."""
    return kind.__qualname__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)


def kept_fields(model: Any) -> frozenset[str]:
    """Return the names of the fields of a pydantic model that have to come back as they were."""
    kind = model.__class__
    decorators = getattr(kind, "__pydantic_decorators__", None)
    if decorators is None or decorators.model_serializers or kind.model_config.get("json_encoders"):
        return frozenset()
    own = {name for one in decorators.field_serializers.values() for name in one.info.fields}
    fields = {} if "*" in own else kind.model_fields
    return frozenset(name for name, field in fields.items() if name not in own and not _has_its_own_way(field))


def _has_its_own_way(field: Any) -> bool:
    if field.exclude or getattr(field, "exclude_if", None) is not None:
        return True
    return any(type(one).__module__ == "pydantic.functional_serializers" for one in field.metadata)


def is_another(given: Any, got: Any) -> bool:
    """Return whether a part comes back as another one; the parts of that are not looked at.

    One of another class may only have changed its form, as where nothing says which class it is of.
    """
    kind = given.__class__
    if given is None or got is None:
        return given is not got
    if hasattr(given, "get_secret_value"):
        return (given == got) is not True and got != given.get_secret_value()
    if kind is not got.__class__ or isinstance(given, dict) or is_record(kind):
        return False
    if isinstance(given, (list, tuple, set, frozenset)):
        return len(given) != len(got)
    return (kind.__eq__ is not object.__eq__ or isinstance(given, Enum)) and (given == got) is not True

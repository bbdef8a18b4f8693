"""Classes of values: which are records, their names, and what is written otherwise than it is read.

A pydantic secret is written as asterisks, and a field with a `serialization_alias` of its own by a name by which
nothing is read: it comes back as its default. Bytes may be written as base64 and read as they are, and times be
written in one unit and read in another, as its configuration says: each write would change them. What a model leaves
out (`exclude`), writes by a serializer of its own, or makes another value of as it validates, is its author's word. Of
a UTC offset, the seconds are not written.
"""

from __future__ import annotations

import math
from base64 import b64encode, urlsafe_b64encode
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, get_origin
from uuid import UUID

import msgspec

from statecache.signal_errors import pass_on

_made = compile("", "<made>", "exec")
_MASKS = ("*" * 10, b"*" * 10)
_KEPT = (bytes, bytearray, memoryview, datetime, date, time, timedelta, Decimal, UUID)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


def is_root(kind: Any) -> bool:
    """Return whether a class is a pydantic model that stands for one value."""
    return bool(getattr(kind, "__pydantic_root_model__", False))


@lru_cache(maxsize=1000)
def read_by(kind: Any) -> tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...]:
    """Return the fields of a class of records, each with the paths by which it is read, the first one first."""
    if hasattr(kind, "__struct_fields__"):
        names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        return tuple((name, ((shown,),)) for name, shown in names)
    if not hasattr(kind, "__pydantic_fields__"):
        own = getattr(kind, "__dataclass_fields__", None) or [one.name for one in kind.__attrs_attrs__]
        return tuple((name, ((name,),)) for name in own)
    config = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    found = []
    for name, field in kind.__pydantic_fields__.items():
        alias = field.validation_alias or field.alias or name
        ways = alias.choices if hasattr(alias, "choices") else [alias]
        paths = [(way,) if isinstance(way, str) else tuple(way.path) for way in ways]
        found.append((name, (*paths, (name,)) if by_name else tuple(paths)))
    return tuple(found)


@lru_cache(maxsize=1000)
def unread_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a pydantic model that it writes by names by which it does not read them."""
    if kind.__pydantic_decorators__.model_serializers:
        return frozenset()
    config, found = kind.model_config, set()
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    for name, field in kind.model_fields.items():
        reads = {name} if by_name else set()
        if config.get("validate_by_alias", True):
            reads |= _read_by(field.validation_alias or field.alias or name)
        if not field.exclude and (field.serialization_alias or field.alias or name) not in reads:
            found.add(name)
    return frozenset(found)


def _read_by(alias: Any) -> set[Any]:
    """Return the names that stand for a field as a whole."""
    if isinstance(alias, str):
        return {alias}
    ways = alias.choices if hasattr(alias, "choices") else [alias]
    return {way if isinstance(way, str) else way.path[0] for way in ways if isinstance(way, str) or len(way.path) == 1}


def is_masked(given: Any, got: Any) -> bool:
    """Return whether a secret comes back as the asterisks that pydantic writes in its place."""
    if not hasattr(given, "get_secret_value"):
        return False
    hidden = got.get_secret_value() if hasattr(got, "get_secret_value") else got
    return hidden in _MASKS and given.get_secret_value() != hidden


@lru_cache(maxsize=1000)
def excluded_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a pydantic model that it never writes."""
    return frozenset(name for name, field in kind.model_fields.items() if field.exclude is True)


def written_fields(model: Any) -> dict[str, Any]:
    """Return the values of a pydantic model's fields that it may write, and what extra ones it keeps."""
    known, left_out = model.__class__.model_fields, excluded_fields(model.__class__)
    fields = {name: part for name, part in vars(model).items() if name in known and name not in left_out}
    return fields | (getattr(model, "__pydantic_extra__", None) or {})


def is_typed_dict(kind: Any) -> bool:
    """Return whether a class is a TypedDict, that of typing_extensions included."""
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__total__")


@lru_cache(maxsize=1000)
def in_two_forms(kind: Any) -> tuple[type, ...]:
    """Return the classes of values that a pydantic model writes in another form than it reads."""
    config = kind.model_config
    if kind.__pydantic_decorators__.model_serializers:
        return ()
    same_bytes = config.get("ser_json_bytes", "utf8") == config.get("val_json_bytes", "utf8")
    units = {config.get("ser_json_temporal"), config.get("ser_json_timedelta")} - {None, "iso8601"}
    return (() if same_bytes else (bytes,)) + ((timedelta, date, time) if units else ())


def misread(given: Any, got: Any) -> bool:
    """Return whether a part of such a model comes back as what its other form makes of what is written."""
    if isinstance(given, bytes) and isinstance(got, bytes):
        return got in (given.hex().encode(), b64encode(given), urlsafe_b64encode(given)) and given != got
    if isinstance(given, time) and isinstance(got, time):
        given, got = (datetime.combine(_EPOCH, one, UTC) for one in (given, got))
    given, got = (_since_epoch(given), _since_epoch(got))
    if not isinstance(given, timedelta) or not isinstance(got, timedelta) or given == got:
        return False
    low, high = sorted(abs(one.total_seconds()) for one in (given, got))
    return math.isclose(low * 1000, high, rel_tol=1e-3)


def _since_epoch(moment: Any) -> Any:
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime.combine(moment, time(), UTC)
    return moment - _EPOCH if isinstance(moment, datetime) and moment.utcoffset() is not None else moment


def shifted(given: datetime | time, got: Any) -> bool:
    """Return whether a moment comes back as another: its UTC offset has seconds, and text has only its minutes."""
    offset = given.utcoffset()
    return offset is not None and bool(offset.seconds % 60 or offset.microseconds) and given != got


def is_equal_in_part(kind: Any) -> bool:
    """Return whether `==` may pass over fields of a class of records, a named tuple or a pydantic model."""
    kind = get_origin(kind) or kind
    by = next(one for one in kind.__mro__ if "__eq__" in vars(one))
    if by is object or by.__module__.partition(".")[0] in ("builtins", "msgspec", "pydantic"):
        return False
    fields = [*getattr(kind, "__dataclass_fields__", {}).values()]
    own = [*(getattr(kind, "__attrs_attrs__", None) or ())]
    passed = any(not one.compare for one in fields)
    passed = passed or any(getattr(one, "eq", True) is False or getattr(one, "eq_key", None) for one in own)
    made = getattr(vars(by)["__eq__"], "__code__", _made).co_filename  # where it was made with the class
    is_made = made in ("<string>", "<made>") or made.startswith("<attrs")
    return passed or not is_made or (by is not kind and len(fields) + len(own) > _fields_count(by))


def _fields_count(kind: Any) -> int:
    return len(getattr(kind, "__dataclass_fields__", ())) + len(getattr(kind, "__attrs_attrs__", None) or ())


def is_same(given: Any, got: Any) -> bool:
    """Return whether two values are equal; those that cannot be compared are not."""
    try:
        return (given == got) is True
    except Exception as error:  # users' own classes take part
        pass_on(error)
        return False


def is_same_throughout(given: Any, got: Any) -> bool:
    """Return whether all fields of two values are equal, whatever their classes' `==` looks at.

    Those that neither msgspec nor pydantic take apart count as others.
    """
    try:
        plain, other = (msgspec.to_builtins(one, builtin_types=_KEPT, enc_hook=_parts) for one in (given, got))
        return (plain == other) is True
    except Exception as error:  # users' own classes take part
        pass_on(error)
        return False


def _parts(value: Any) -> dict[str, Any]:
    if not is_model(value.__class__):
        raise TypeError(f"a {name_of(value.__class__)} is compared by itself")
    return written_fields(value)

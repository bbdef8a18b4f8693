"""Sets in one order, so that equal values are equal bytes whichever process encodes them.

The order of a set is its process's own affair. Bytes are what a repeated change_id is compared by, and what parts one
version from the next in history: so the members of sets are stored in the order of what each is encoded to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import lru_cache
from itertools import count, repeat
from typing import Any

import msgspec

from statecache.record_classes import is_model, is_record, is_same
from statecache.signal_errors import pass_on

Write = Callable[[Any], bytes]
_UNKNOWN = object()
_LEAVES = frozenset({str, int, float, bool, type(None), bytes})
_SHAPES = frozenset({set, dict, tuple})
_LISTS = frozenset({list, tuple})


def in_order(value: Any, write: Write, got: Any = _UNKNOWN) -> Any:
    """Return what is encoded as the value is, with each set as a list in order; itself where it holds no set.

    `write` encodes one part. `got` is what the value comes back as, where that is not as it is: parts that are equal
    there hold no set and are not looked through. Pydantic's models are given back as they are: `dump_in_order` is for
    what they dump.
    """
    try:
        return _in_order(value, write, got)
    except RecursionError:  # nothing that is refused for its depth alone
        return value


def _in_order(value: Any, write: Write, got: Any) -> Any:
    shape = value.__class__ if value.__class__ in _SHAPES else _shape_of(value.__class__)
    if shape is set:
        return sorted([_in_order(member, write, _UNKNOWN) for member in value], key=write) if value else value
    if shape is dict:
        is_alike = got.__class__ is dict and [*value] == [*got]  # an heir may be iterated otherwise than it is encoded
        likes = got.values() if is_alike else repeat(_UNKNOWN)
        changed = _changed(zip(value, value.values(), likes, strict=False), write)
        return {**value, **changed} if changed else value
    if shape is tuple:
        likes = got if got.__class__ is list and value.__class__ in _LISTS else repeat(_UNKNOWN)
        changed = _changed(zip(count(), value, likes, strict=False), write)
        return [changed.get(at, part) for at, part in enumerate(value)] if changed else value
    changed = _changed(((name, getattr(value, name, None), _UNKNOWN) for name in _fields_of(value.__class__)), write)
    return _copied(value, changed) if changed else value


def _changed(parts: Iterable[tuple[Any, Any, Any]], write: Write) -> dict[Any, Any]:
    """Return the parts, by name, that hold sets, with these in order; each is given with what it comes back as."""
    changed = {}
    for name, part, got in parts:
        if part.__class__ in _LEAVES or (got is not _UNKNOWN and is_same(part, got)):
            continue
        if (new := _in_order(part, write, got)) is not part:
            changed[name] = new
    return changed


def _copied(record: Any, changed: dict[str, Any]) -> Any:
    """Return a copy of a record with other parts, whatever its class has to say to that: it is only encoded."""
    other = copy.copy(record)
    put = msgspec.structs.force_setattr if isinstance(record, msgspec.Struct) else object.__setattr__
    for name, part in changed.items():
        put(other, name, part)
    return other


@lru_cache(maxsize=1000)
def _shape_of(kind: type) -> type:
    """Return set, dict or tuple for a class that is encoded as they are, its heirs too; object for any other."""
    shapes = (((set, frozenset), set), ((dict,), dict), ((list, tuple), tuple))
    return next((shape for kinds, shape in shapes if issubclass(kind, kinds)), object)


@lru_cache(maxsize=1000)
def _fields_of(kind: Any) -> tuple[str, ...]:
    """Return the fields of a class of records; none of any other, or of a pydantic model."""
    if not is_record(kind) or is_model(kind):
        return ()
    if hasattr(kind, "__struct_fields__"):
        return tuple(kind.__struct_fields__)
    if hasattr(kind, "__dataclass_fields__"):
        return tuple(one.name for one in fields(kind))  # without what is the class's own
    return tuple(one.name for one in kind.__attrs_attrs__)


@lru_cache(maxsize=1000)
def has_sets(model: Any) -> bool:
    """Return whether a pydantic model may hold sets, by its JSON schema; of one that has none, False."""
    try:
        return "'uniqueItems': True" in str(model.model_json_schema())
    except Exception as error:  # what a user's own types raise
        pass_on(error)
        return False


def dump_in_order(plain: Any, model: Any) -> Any:
    """Return what a pydantic model dumps for JSON, with what is a set of it in order."""
    try:
        return _plain_in_order(plain, model.model_dump(by_alias=True, round_trip=True, warnings=False))
    except Exception as error:  # pydantic runs users' code, and some of it is for JSON alone
        pass_on(error)
        return plain


def _plain_in_order(plain: Any, given: Any) -> Any:
    if isinstance(given, (set, frozenset)) and isinstance(plain, list):
        return sorted(plain, key=msgspec.json.encode)
    if isinstance(given, dict) and isinstance(plain, dict) and len(given) == len(plain):
        both = zip(plain.items(), given.values(), strict=True)
        return {name: _plain_in_order(part, like) for (name, part), like in both}
    if isinstance(given, (list, tuple)) and isinstance(plain, list) and len(given) == len(plain):
        return [_plain_in_order(part, like) for part, like in zip(plain, given, strict=True)]
    return plain

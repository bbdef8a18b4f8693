"""Sets in one order, so that equal values are equal bytes whichever process encodes them.

The order of a set is its process's own affair. Bytes are what a repeated change_id is compared by, and what parts one
version from the next in history: so the members of sets are stored in the order of what each is encoded to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from itertools import repeat
from operator import is_not
from typing import Any

import msgspec

from statecache.record_classes import is_model, is_record, is_same

Write = Callable[[Any], bytes]
_UNKNOWN = object()
_LEAVES = frozenset({str, int, float, bool, type(None), bytes})


def in_order(value: Any, write: Write, got: Any = _UNKNOWN) -> Any:
    """Return what is encoded as the value is, with each set as a list in order; itself where it holds no set.

    `write` encodes one part. `got` is what the value comes back as without a type: what is equal there holds no set,
    and is not looked through. Pydantic's models are given back as they are: `dump_in_order` is for what they dump.
    """
    try:
        return _in_order(value, write, got)
    except RecursionError:  # nothing that is refused for its depth alone
        return value


def _in_order(value: Any, write: Write, got: Any) -> Any:
    if value.__class__ in _LEAVES or (got is not _UNKNOWN and is_same(value, got)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted((_in_order(member, write, _UNKNOWN) for member in value), key=write) if value else value
    if isinstance(value, dict):
        like = got if isinstance(got, dict) else {}
        named = {name: _in_order(part, write, like.get(name, _UNKNOWN)) for name, part in value.items()}
        return named if any(named[name] is not part for name, part in value.items()) else value
    if isinstance(value, (list, tuple)):
        likes = got if isinstance(got, list) and len(got) == len(value) else repeat(_UNKNOWN)
        parts = [_in_order(part, write, like) for part, like in zip(value, likes, strict=False)]
        return parts if any(map(is_not, parts, value)) else value
    return _record_in_order(value, write)


def _record_in_order(value: Any, write: Write) -> Any:
    changed = {}
    for name in _fields_of(value.__class__):
        part = getattr(value, name, None)
        if part.__class__ not in _LEAVES and (new := _in_order(part, write, _UNKNOWN)) is not part:
            changed[name] = new
    if not changed:
        return value
    other = copy.copy(value)
    put = msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name, new in changed.items():
        put(other, name, new)
    return other


@lru_cache(maxsize=1000)
def _fields_of(kind: Any) -> tuple[str, ...]:
    """Return the fields of a class of records; none of any other, or of a pydantic model."""
    if not is_record(kind) or is_model(kind):
        return ()
    if hasattr(kind, "__struct_fields__"):
        return tuple(kind.__struct_fields__)
    if hasattr(kind, "__dataclass_fields__"):
        return tuple(kind.__dataclass_fields__)
    return tuple(one.name for one in kind.__attrs_attrs__)


@lru_cache(maxsize=1000)
def has_sets(model: Any) -> bool:
    """Return whether a pydantic model may hold sets, by its JSON schema; of one that has none, False."""
    try:
        return "'uniqueItems': True" in str(model.model_json_schema())
    except Exception:  # what a user's own types raise
        return False


def dump_in_order(plain: Any, model: Any) -> Any:
    """Return what a pydantic model dumps for JSON, with what is a set of it in order."""
    try:
        return _plain_in_order(plain, model.model_dump(by_alias=True, round_trip=True, warnings=False))
    except Exception:  # pydantic runs users' code, and some of it is for JSON alone
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

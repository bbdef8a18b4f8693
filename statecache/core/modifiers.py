"""The writes of modifiers: what values a view must have for them, and their arguments as bytes.

A modifier takes values that are stored as JSON: `increment` whole numbers, `append` lists, `add` and `remove` sets and
lists. A view whose type is something else refuses it before anything is sent, and so does one whose type limits a
number's range or a list's length, for Redis does not know these. Of a view without a type, only the stored bytes say
whether it can be done.

Items are encoded as those of a list of this view, so they are stored as if the whole list had been written. `add` and
`remove` compare them by their bytes: what Python's equality does not tell apart and bytes do, or what has no order of
its own, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin

from msgspec import inspect

from statecache.codec import codec_for
from statecache.errors import CodecError, UsageError
from statecache.expiry import lasting
from statecache.model import BLIND, Ttl, Write
from statecache.record_classes import name_of
from statecache.rules.modifiers import INTEGER_MAX, INTEGER_MIN, elements, is_array, modifier_of
from statecache.value_loss import spelled, walk

if TYPE_CHECKING:
    from statecache.core.view import View

_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length")
_TAKES = {"increment": "whole numbers", "append": "lists", "add": "sets or lists", "remove": "sets or lists"}
_INSTEAD = "Use update(), which knows the type, or a namespace of another one."


class _Fit(NamedTuple):
    """Why values of a type cannot be modified, or an empty text; and the type of the items of those that can."""

    reason: str
    items: Any = Any


def increment_write(view: View[Any], key: str, by: int, *, ttl: Ttl | None) -> Write:
    """Return the write of an increment; raise UsageError."""
    _checked_fit(view, "increment")
    if not isinstance(by, int) or isinstance(by, bool) or not INTEGER_MIN <= by <= INTEGER_MAX:
        raise UsageError(f"by={by!r} is not a whole number of at most 64 bits", hint="Use update() for other numbers.")
    return _write(view, key, "increment", b"%d" % by, ttl)


def checked_items(items: Any) -> Sequence[Any]:
    """Return the items of a mutation, or raise UsageError for what is one item itself."""
    if not isinstance(items, (list, tuple)):
        raise UsageError(f"items are a list, not a {name_of(type(items))}", hint="Put a single one into a list too.")
    return items


def items_write(view: View[Any], key: str, verb: str, items: Sequence[Any], *, ttl: Ttl | None) -> Write:
    """Return the write of a modifier of items; raise UsageError, or CodecError and LimitExceeded as for any value."""
    of = _checked_fit(view, verb)
    if not items:
        raise UsageError(f"{verb} was given no items")
    codec = codec_for(Any if of is Any else list[of])  # type: ignore[valid-type]
    argument, _ = codec.encode([*items], key=key, bytes_max=view.value_bytes_max)
    if verb != "append":  # an item has the bytes of what readers get of it, in whatever form it is given
        read = codec.decode(argument, key=key)
        _refuse_unlike(items if of is Any else read, key)
        argument, _ = codec.encode(read, key=key, bytes_max=view.value_bytes_max)
    if not is_array(argument) or (verb != "append" and len(elements(argument) or ()) != len(items)):
        raise CodecError(key=key, reason="its JSON is not spelled as statecache spells it; decode it first")
    return _write(view, key, verb, argument, ttl)


def _write(view: View[Any], key: str, verb: str, argument: bytes, ttl: Ttl | None) -> Write:
    lasts = ttl is not None or view.lasts_ms is not None
    modifier = modifier_of(verb, argument, bytes_max=view.value_bytes_max, keeps_end=not lasts)
    return Write(
        key=key,
        op="set",
        expected=BLIND,
        value=argument,
        encoding=lasting("json", view.lasting_ms(ttl)) if lasts else "json",
        schema=view.codec.schema,
        ttl_ms=view.ttl_ms,
        modifier=modifier,
    )


def _checked_fit(view: View[Any], verb: str) -> Any:
    """Return the type of a view's items; raise UsageError where its values cannot be modified."""
    encoding, kind = view.policy.encoding, view.policy.type
    if encoding != "json":
        raise UsageError(f"{verb} needs values that are stored as JSON, and these are stored as {encoding}")
    if kind is None:
        return Any
    try:
        fit = _fit(kind, verb)
    except TypeError:  # a type that has no hash
        fit = _fit.__wrapped__(kind, verb)
    if fit.reason:
        raise UsageError(f"{verb} is for {_TAKES[verb]}, and {fit.reason}", hint=_INSTEAD)
    return fit.items


@lru_cache(maxsize=256)
def _fit(kind: Any, verb: str) -> _Fit:
    plain = _plain(kind)
    choices = get_args(plain) if get_origin(plain) in (Union, UnionType) else (kind,)
    reason = f"values here are of type {name_of(kind)}"
    for choice in choices:
        if choice in (Any, object):
            return _Fit("")
        info = inspect.type_info(choice)
        if not _takes(verb, info):
            continue
        if any(getattr(info, limit, None) is not None for limit in _LIMITS):
            reason = f"{name_of(kind)} has limits that Redis does not know"
            continue
        inner = get_args(_plain(choice))
        return _Fit("", inner[0] if inner else Any)
    return _Fit(reason)


def _takes(verb: str, info: inspect.Type) -> bool:
    """Return whether a modifier takes values of a type, whatever its limits."""
    if verb == "increment":
        return isinstance(info, inspect.IntType)
    if isinstance(info, (inspect.ListType, inspect.VarTupleType)):
        return True
    return verb != "append" and isinstance(info, (inspect.SetType, inspect.FrozenSetType))


def _plain(kind: Any) -> Any:
    """Return a type without what is annotated and what it is called."""
    while True:
        if get_origin(kind) is Annotated:
            kind = kind.__origin__
        elif hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        elif hasattr(kind, "__value__"):
            kind = kind.__value__
        else:
            return kind


def _refuse_unlike(items: Sequence[Any], key: str) -> None:
    """Raise CodecError for an item whose bytes may differ though it is the same, or be the same though it differs."""
    for path, part in walk([*items], key):
        if isinstance(part, (Mapping, set, frozenset)) and len(part) > 1:
            reason = "its members have no order of their own, so its bytes do not tell whether it is there"
        elif isinstance(part, float):
            reason = "a float may be written in several ways, so its bytes do not tell whether it is there"
        else:
            continue
        raise CodecError(key=key, path=spelled(path), reason=reason)

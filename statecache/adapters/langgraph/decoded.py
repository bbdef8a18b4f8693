"""Messages that were decoded before: whoever loads one again is given a copy, which is sooner made than the message.

A message of LangChain is a model of pydantic, which looks at each of its fields whenever one is made. Its copy is made
of what that has found. They are kept one by one: of a conversation that has grown, the new messages alone are decoded.
How a message is copied is found out when it comes the second time, and how much of memory it takes: most of a thread
that this process meets but once never do. Only what is known to be copied whole is kept: plain data, and messages
within them. What is kept is never given away, so nobody changes it. It is bounded by the memory that it takes, and what
was used least recently goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from itertools import chain
from sys import getsizeof
from typing import Any, TypeVar

from ormsgpack import OPT_NON_STR_KEYS, Ext, packb, unpackb

from statecache._process import begins_anew_after_fork, mutex

MESSAGES_BYTES_MAX = 32 * 1024 * 1024
"""How many bytes the messages take that are kept, about."""
_MESSAGE_BYTES_MAX = MESSAGES_BYTES_MAX // 128
"""Larger ones are decoded each time, in serialized bytes."""
_COPIED_BYTES_MAX = MESSAGES_BYTES_MAX // 16
"""As are those that take more than this of memory, in bytes."""
_NAME_BYTES = 512
"""What is kept of a message beside its serialized bytes, as long as it came but once."""
_PART_BYTES = 200
"""What is kept to copy a list, a dictionary or a message within a message, in bytes."""
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_MESSAGES = "langchain_core.messages."
_DEPTH_MAX = 50
_set = object.__setattr__
_Copy = Callable[[], Any]
"""Makes one more copy of a value."""
_Container = TypeVar("_Container", list[Any], dict[Any, Any])


class _Unknown(Exception):
    """Something that may hold more than is copied here."""


class Decoded:
    """The messages; threads and event loops share it."""

    def __init__(self) -> None:
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Keep nothing in a forked child, whose parent may have been about to keep more."""
        self._mutex = mutex
        self._copies: OrderedDict[tuple[int, int, bytes], tuple[Any, _Copy | None, int]] = OrderedDict()
        self._bytes = 0

    def load(self, serializer: Any, data: bytes) -> Any:
        """Return what LangGraph's serializer makes of these bytes in msgpack."""
        return unpackb(data, ext_hook=partial(self._load_part, serializer), option=OPT_NON_STR_KEYS)

    def _load_part(self, serializer: Any, code: int, data: bytes) -> Any:
        """Return what the serializer makes of a part that msgpack has no form for, as a message."""
        name = id(serializer), code, data
        with self._mutex:
            kept = self._copies.get(name)
            if kept is not None:
                self._copies.move_to_end(name)
        if kept is not None and kept[1] is not None:
            return kept[1]()
        value = serializer.loads_typed(("msgpack", packb(Ext(code, data))))
        kind: Any = type(value)
        if _is_message(kind) and len(data) <= _MESSAGE_BYTES_MAX:
            copy, size = (None, 0) if kept is None else _copy_or_none(value)
            self._keep(name, serializer, copy, len(data) + _NAME_BYTES + size)
        return value

    def _keep(self, name: tuple[int, int, bytes], serializer: Any, copy: _Copy | None, size: int) -> None:
        with self._mutex:
            *_, before = self._copies.get(name, (0,))
            self._bytes += size - before
            self._copies[name] = serializer, copy, size  # as long as it is kept here, no other one has its id
            while self._bytes > MESSAGES_BYTES_MAX:
                self._bytes -= self._copies.popitem(last=False)[1][2]


def _copy_or_none(value: Any) -> tuple[_Copy | None, int]:
    """Return what makes copies of a message, and how many bytes it takes; None where that is too much, or not known."""
    try:
        copy, size = _copy_of(value), _bytes_of(value)
    except _Unknown:
        return None, 0
    return (copy, size) if size <= _COPIED_BYTES_MAX else (None, 0)


def _bytes_of(value: Any) -> int:
    """Return how many bytes a value takes with all that it holds, about, and what copies it."""
    kind: Any = type(value)
    if kind in _ATOMS:
        return getsizeof(value)
    if kind is list or kind is tuple:
        parts = iter(value)
    elif kind is dict:
        parts = chain(value, value.values())
    else:
        parts = iter((value.__dict__, value.__pydantic_extra__, value.__pydantic_private__))
    return getsizeof(value) + _PART_BYTES + sum(map(_bytes_of, parts))


@lru_cache(maxsize=64)
def _is_message(kind: Any) -> bool:
    return bool(kind.__module__.startswith(_MESSAGES) and hasattr(kind, "__pydantic_fields__"))


def _copy_of(value: Any, depth: int = 0) -> _Copy:
    """Return what makes copies that share nothing that could be changed; raise _Unknown where that is not known."""
    kind: Any = type(value)
    if depth == _DEPTH_MAX:
        raise _Unknown
    if kind is list:
        return _filled([*value], _parts(enumerate(value), depth))
    if kind is dict:
        if not _ATOMS.issuperset(map(type, value)):
            raise _Unknown
        return _filled({**value}, _parts(value.items(), depth))
    if kind is tuple:
        copy = _copy_of([*value], depth + 1)
        return lambda: tuple(copy())
    if not _is_message(kind):
        raise _Unknown
    fields = _copy_of(value.__dict__, depth + 1)
    more = [(name, getattr(value, name)) for name in ("__pydantic_extra__", "__pydantic_private__")]
    rest = [(name, (lambda: None) if part is None else _copy_of(part, depth + 1)) for name, part in more]
    return partial(_message, kind, fields, [*rest, ("__pydantic_fields_set__", {*value.__pydantic_fields_set__}.copy)])


def _parts(items: Any, depth: int) -> list[tuple[Any, _Copy]]:
    """Return the places of a container whose values could be changed, each with what copies its value."""
    parts = list[tuple[Any, _Copy]]()
    for at, part in items:
        kind = type(part)
        if kind not in _ATOMS:
            is_empty = not part and (kind is list or kind is dict)
            parts.append((at, kind if is_empty else _copy_of(part, depth + 1)))
    return parts


def _filled(plain: _Container, parts: list[tuple[Any, _Copy]]) -> _Copy:
    """Return what copies a list or dictionary whose values at these places are to be copied too."""
    for at, _ in parts:
        plain[at] = None  # the part itself is kept by nobody
    return partial(_copied, plain, parts) if parts else plain.copy


def _copied(plain: _Container, parts: list[tuple[Any, _Copy]]) -> _Container:
    copy = plain.copy()
    for at, part in parts:
        copy[at] = part()
    return copy


def _message(kind: Any, fields: _Copy, rest: list[tuple[str, _Copy]]) -> Any:
    """Return a message with these fields, none of which is looked at again."""
    copy = object.__new__(kind)
    _set(copy, "__dict__", fields())
    for name, part in rest:
        _set(copy, name, part())
    return copy

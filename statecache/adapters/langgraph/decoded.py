"""Values that were decoded before: whoever loads one again is given a copy, which is sooner made than the value.

A message of LangChain is a model of pydantic, which looks at each of its fields whenever one is made. Its copy is made
of what that has found. Only what is known to be copied whole is kept: plain data, and those messages. What is kept is
never given away, so nobody changes it. It is bounded, and what was used least recently goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import Any

VALUES_BYTES_MAX = 8 * 1024 * 1024
"""Of how many serialized bytes values are kept."""
_VALUE_BYTES_MAX = VALUES_BYTES_MAX // 32
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_MESSAGES = "langchain_core.messages."
_DEPTH_MAX = 50
_set = object.__setattr__


class _Unknown(Exception):
    """Something that may hold more than is copied here."""


class Decoded:
    """The values; threads and event loops share it."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._values: OrderedDict[tuple[int, bytes], tuple[Any, Any]] = OrderedDict()
        self._bytes = 0

    def load(self, serializer: Any, data: bytes, load: Callable[[], Any]) -> Any:
        """Return what the serializer makes of these bytes, by `load` unless it is kept."""
        if len(data) > _VALUE_BYTES_MAX:
            return load()
        name = id(serializer), data
        with self._mutex:
            kept = self._values.get(name)
            if kept is not None:
                self._values.move_to_end(name)
        if kept is not None:
            return _copied(kept[1])
        value = load()
        try:
            copy = _copied(value)
        except _Unknown:
            return value
        with self._mutex:
            if name not in self._values:
                self._values[name] = serializer, copy  # as long as it is kept here, no other one has its id
                self._bytes += len(data)
            while self._bytes > VALUES_BYTES_MAX:
                self._bytes -= len(self._values.popitem(last=False)[0][1])
        return value


@lru_cache(maxsize=64)
def _is_message(kind: Any) -> bool:
    return bool(kind.__module__.startswith(_MESSAGES) and hasattr(kind, "__pydantic_fields__"))


def _copied(value: Any, depth: int = 0) -> Any:
    """Return a copy that shares nothing that could be changed; raise _Unknown where that is not known."""
    kind: Any = type(value)
    if kind in _ATOMS:
        return value
    if depth == _DEPTH_MAX:
        raise _Unknown
    if kind is list:
        return [part if type(part) in _ATOMS else _copied(part, depth + 1) for part in value]
    if kind is dict:
        if not _ATOMS.issuperset(map(type, value)):
            raise _Unknown
        return {name: part if type(part) in _ATOMS else _copied(part, depth + 1) for name, part in value.items()}
    if kind is tuple:
        return tuple([_copied(part, depth + 1) for part in value])
    if not _is_message(kind):
        raise _Unknown
    copy = object.__new__(kind)
    _set(copy, "__dict__", _copied(value.__dict__, depth + 1))
    for name in ("__pydantic_extra__", "__pydantic_private__"):
        part = getattr(value, name)
        _set(copy, name, None if part is None else _copied(part, depth + 1))
    _set(copy, "__pydantic_fields_set__", value.__pydantic_fields_set__.copy())
    return copy

"""Which parts of plain values are the same, as they are shown: labels, given in one pass over all of them.

Plain values are what JSON and msgpack decode to: dicts, lists, text, numbers, booleans, None, bytes. Two of them are
the same where their JSON is, but for the order of keys: 1, 1.0 and true are three things, -0.0 is not 0.0, NaN is NaN.
A tuple is the same as a list. Anything else is one thing, by its class and by ==, and must be hashable.

Each part is visited once, whatever its depth, and without recursion; then the labels of any two parts are compared in
no time. A label is text, for nobody outside this process can foresee its hash: no value can be made to slow lookups
down. A part is known by its identity, so labels last as long as the values that they were given for.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from msgspec import UNSET

Label = Hashable

_CONTAINERS = frozenset({dict, list, tuple})
_CONSTANTS = {None: "null", False: "false", True: "true", UNSET: "unset"}
_MEMBER_WEIGHT = 1 << 20
"""How much more an equal member of two dicts counts than a key that both have."""


class Labels:
    """Labels of some values and of all their parts: equal where the parts are the same."""

    def __init__(self, *values: Any) -> None:
        self._of: dict[int, str] = {}
        self._labels: dict[Hashable, str] = {}
        self._contents: dict[str, Any] = {}
        for value in values:
            self._add(value)

    def of(self, part: Any) -> Label:
        """Return the label of a value, or of a part of one."""
        return self._of[id(part)] if part.__class__ in _CONTAINERS else _label_of_scalar(part)

    def same(self, one: Any, other: Any) -> bool:
        """Return whether two parts are the same."""
        return self.of(one) == self.of(other)

    def likeness(self, one: Any, other: Any) -> int:
        """Return how much two containers have in common; 0 where they are nothing alike, and for anything else.

        That is: the members of two dicts that are equal, and then the keys that both have; the items that two lists
        have in common. Two lists are a little alike in any case, and so are two dicts of which one is empty.
        """
        if one.__class__ is dict and other.__class__ is dict:
            if not one or not other:
                return 1
            equal = self._contents[self._of[id(one)]] & self._contents[self._of[id(other)]]
            return len(equal) * _MEMBER_WEIGHT + len(one.keys() & other.keys())
        if is_list(one) and is_list(other):
            equal = {*self._contents[self._of[id(one)]]}.intersection(self._contents[self._of[id(other)]])
            return len(equal) * _MEMBER_WEIGHT + 1
        return 0

    def _add(self, value: Any) -> None:
        found: list[Any] = [value] if value.__class__ in _CONTAINERS else []
        for part in found:
            parts = part.values() if part.__class__ is dict else part
            found += [inner for inner in parts if inner.__class__ in _CONTAINERS]
        for part in reversed(found):  # what is inside comes first
            if part.__class__ is dict:
                self._give(part, frozenset(zip(map(_label_of_key, part), map(self.of, part.values()), strict=True)))
            else:
                self._give(part, tuple(map(self.of, part)))

    def _give(self, part: Any, contents: Hashable) -> None:
        label = self._labels.get(contents)
        if label is None:
            label = self._labels[contents] = f"#{len(self._labels):x}"
            self._contents[label] = contents
        self._of[id(part)] = label


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same."""
    return Labels(one, other).same(one, other)


def is_list(part: Any) -> bool:
    """Return whether a part is compared item by item."""
    return part.__class__ is list or part.__class__ is tuple


def is_dict(part: Any) -> bool:
    """Return whether a part is compared key by key: a dict with keys that paths can name, text and 64-bit integers."""
    if part.__class__ is not dict:
        return False
    odd = [key for key in part if key.__class__ is not str]
    return not odd or all(key.__class__ is int and -(1 << 63) <= key < 1 << 64 for key in odd)


def _label_of_scalar(part: Any) -> Label:
    kind = part.__class__
    if kind is str:
        return f"'{part}"
    if kind is int:
        return f"{part:#x}"
    if kind is float:
        return f".{part.hex()}"
    if part is None or kind is bool or part is UNSET:
        return _CONSTANTS[part]
    return f"b{part.hex()}" if kind is bytes else (kind, part)


def _label_of_key(key: Any) -> Label:
    if key.__class__ is str:
        return key
    return (dict, repr(key) if key.__class__ is tuple else _label_of_scalar(key))

"""What a search's filter means, and what of it Postgres compares.

A filter names members of the value, and what stands there: a value, operators such as `$gt`, or members in turn. As in
LangGraph's store on Postgres, true is not 1, a member that is missing meets no condition, not even `$ne`, and null
equals null. As in its store in memory, numbers are compared by what they are worth, numbers in texts too, and other
texts as texts. Equality with text, a number, true, false or null is told to Postgres, at up to 16 places.
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

from statecache import UsageError
from statecache.adapters.langgraph.values import is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_WHERE_MAX = 16
_SCALARS = (str, bool, int, float, type(None))
_ABSENT = object()
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": lambda one, other: one > other,
    "$gte": lambda one, other: one >= other,
    "$lt": lambda one, other: one < other,
    "$lte": lambda one, other: one <= other,
}
OPERATORS = ("$eq", "$ne", *_ORDERS)


class Wanted:
    """A filter in two parts: `where`, of which Postgres is told, and what is left to be compared here."""

    def __init__(self, wanted: Mapping[str, Any] | None) -> None:
        self.where: dict[str, Any] = {}
        self._rest: list[tuple[tuple[str, ...], Any]] = []
        for path, one in _conditions((), wanted or {}):
            _refuse_unknown(one)
            told = one["$eq"] if isinstance(one, dict) and [*one] == ["$eq"] else one
            if type(told) in _SCALARS and is_plain(told) and _is_path(path) and len(self.where) < _WHERE_MAX:
                self.where[".".join(("value", *path))] = told
            else:
                self._rest.append((path, one))

    @property
    def is_told(self) -> bool:
        """Whether Postgres compares all of it."""
        return not self._rest

    def meets(self, value: Any) -> bool:
        """Return whether a value is as wanted, as far as Postgres was not told."""
        return all(_meets(_at(value, path), one) for path, one in self._rest)


def _conditions(path: tuple[str, ...], wanted: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each place that is named, and what has to stand there: a value, or operators."""
    for name, one in wanted.items():
        here = (*path, name)
        if isinstance(one, dict) and one and not _has_operators(one):
            yield from _conditions(here, one)
        else:
            yield here, one


def _has_operators(one: dict[str, Any]) -> bool:
    return any(str(name).startswith("$") for name in one)


def _refuse_unknown(one: Any) -> None:
    for operator in one if isinstance(one, dict) and _has_operators(one) else ():
        if operator not in OPERATORS:
            raise ValueError(f"Unsupported operator: {operator}; there are {', '.join(OPERATORS)}")


def _is_path(path: tuple[str, ...]) -> bool:
    """Return whether `where=` can name the place."""
    return all(type(name) is str and name and "." not in name and is_plain(name) for name in path)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return _ABSENT
        value = value[name]
    return value


def _meets(value: Any, wanted: Any) -> bool:
    if value is _ABSENT:
        return False
    if isinstance(wanted, dict):  # of no operators where it is empty: any dictionary will do
        return all(_applies(value, operator, one) for operator, one in wanted.items()) and bool(
            wanted or isinstance(value, dict)
        )
    return _equal(value, wanted)


def _applies(value: Any, operator: str, wanted: Any) -> bool:
    if operator == "$eq":
        return _equal(value, wanted)
    if operator == "$ne":
        return not _equal(value, wanted)
    numbers = _number(value), _number(wanted)
    if None not in numbers:
        return _ORDERS[operator](*numbers)
    return isinstance(value, str) and isinstance(wanted, str) and _ORDERS[operator](value, wanted)


def _number(value: Any) -> float | None:
    """Return the number that a value is, or that stands in a text, else None."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    try:
        number = float(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if number is None or isnan(number) else number


def _equal(value: Any, wanted: Any) -> bool:
    """Return whether both are the same JSON: numbers by what they are worth, and true is not 1."""
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(_equal(one, other) for one, other in zip(value, wanted, strict=True))
        )
    if isinstance(wanted, dict):
        return (
            isinstance(value, dict)
            and value.keys() == wanted.keys()
            and all(_equal(value[name], one) for name, one in wanted.items())
        )
    return bool(isinstance(value, bool) is isinstance(wanted, bool) and value == wanted)


def refuse_negative(limit: int, offset: int) -> None:
    """Raise UsageError for a page that is none."""
    for what, number in (("limit", limit), ("offset", offset)):
        if not isinstance(number, int) or number < 0:
            raise UsageError(f"{what}={number!r} is not a whole number from 0 on")

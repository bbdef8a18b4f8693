"""Which states a listing is about, decided from keys and values alone: bounds on keys, and what values must hold.

A filter names places in a value by the names of its members, dots between them, and what stands there: text, a number,
true, false or nothing. Postgres compares as `jsonb` does, what is not there yet is compared here, and both come to the
same: numbers by what they are worth (1 is 1.0, and is not true), a member that is missing is not null, no member of an
array is meant. Only values that are stored as JSON, and that `jsonb` can hold (no NUL in a text), match anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from statecache.errors import UsageError
from statecache.expiry import form_of
from statecache.keys import KEY_BYTES_MAX, beyond_prefix
from statecache.model import Record

_FILTERS_MAX = 16
"""How many places of a value may be compared."""
_decode = msgspec.json.Decoder(float_hook=Decimal).decode


class Filter(msgspec.Struct, frozen=True):
    """What values must hold, by the names of members that lead there, and the schemas of those that are left out."""

    wanted: tuple[tuple[tuple[str, ...], Any], ...] = ()
    without: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.wanted)

    def patterns(self) -> list[str]:
        """Return each as JSON that `jsonb` contains where it holds: an object with that one member, however deep."""
        return [msgspec.json.encode(_nested(path, value)).decode() for path, value in self.wanted]

    @classmethod
    def of_patterns(cls, patterns: Iterable[str], *, without: Iterable[str] = ()) -> Filter:
        """Return the filter that these patterns are of."""
        return cls(tuple(map(_place_of, patterns)), tuple(without))

    def holds(self, record: Record) -> bool:
        """Return whether the stored value holds all that is wanted."""
        if record.schema in self.without:
            return False
        if not self.wanted:
            return True
        if form_of(record.encoding) != "json":
            return False
        try:
            value = _decode(record.value)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ArithmeticError):
            return False
        if b"\\u0000" in record.value and holds_nul(value):
            return False
        return all(_stands(value, path, wanted) for path, wanted in self.wanted)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which keys are meant: beyond `after`, before `before`, from `least` to `most` in byte order; '' is no bound."""

    prefix: str
    after: str = ""
    before: str = ""
    least: str = ""
    most: str = ""
    filter: Filter = Filter()

    def means(self, key: str) -> bool:
        """Return whether the key is one of them."""
        return (
            key.startswith(self.prefix)
            and key > self.after
            and key >= self.least
            and (not self.before or key < self.before)
            and (not self.most or key <= self.most)
        )

    def bounds(self) -> dict[str, Any]:
        """Return the bounds and the filter as statements take them."""
        beyond = beyond_prefix(self.prefix)
        return {
            "after": self.after,
            "least": max(self.prefix, self.least),
            "before": self.before or beyond,
            "most": self.most or beyond,
            "where": self.filter.patterns(),
            "without": [*self.filter.without],
        }

    def up_to(self, key: str, *, down: bool) -> Selection:
        """Return what of it comes before or at a key, in descending order if `down`."""
        return msgspec.structs.replace(self, **{"least" if down else "most": key})

    def beyond(self, key: str, *, down: bool) -> Selection:
        """Return what of it comes behind a key."""
        return msgspec.structs.replace(self, **{"before" if down else "after": key})


def filter_of(where: Mapping[str, Any] | None) -> Filter:
    """Return the filter that a caller has spelled, or raise UsageError."""
    if not where:
        return Filter()
    if not isinstance(where, Mapping) or len(where) > _FILTERS_MAX:
        raise UsageError(f"where= is a dictionary of at most {_FILTERS_MAX} places and what stands there")
    return Filter(tuple(_one(path, value) for path, value in where.items()))


def checked_bound(name: Any, what: str) -> str:
    """Return a bound of a listing unchanged, or raise UsageError."""
    try:
        if isinstance(name, str) and "\0" not in name and 0 < len(name.encode()) <= KEY_BYTES_MAX:
            return name
    except UnicodeEncodeError:
        pass
    raise UsageError(f"{what}={name!r} is not the name of a state")


def _one(path: object, value: Any) -> tuple[tuple[str, ...], Any]:
    names = tuple(path.split(".")) if isinstance(path, str) else ()
    if not all(names) or not names or "\0" in str(path):
        raise UsageError(f"where= names {path!r}, which is no name of a member", hint='Say {"meta.source": "input"}.')
    if isinstance(value, str) and "\0" in value:
        raise UsageError("where= compares with a text that holds a NUL, and no value that does can match")
    if not (value is None or isinstance(value, (str, bool, int, float))):
        kind = type(value).__name__
        raise UsageError(f"where= compares with text, numbers, true, false and None, not with this {kind}")
    try:
        spelled = msgspec.json.encode(value)
        msgspec.json.encode(names)
        if isinstance(value, float) and spelled == b"null":
            raise ValueError("it is not finite")
        return names, _decode(spelled)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"where= cannot compare with {value!r}: {error}") from None


def _nested(path: tuple[str, ...], value: Any) -> Any:
    found: Any = msgspec.Raw(str(value).encode()) if isinstance(value, Decimal) else value
    for name in reversed(path):
        found = {name: found}
    return found


def _place_of(pattern: str) -> tuple[tuple[str, ...], Any]:
    """Return the names that lead to the one place of a pattern, and what has to stand there."""
    names: list[str] = []
    value = _decode(pattern)
    while isinstance(value, dict):
        ((name, value),) = value.items()
        names.append(name)
    return tuple(names), value


def _stands(value: Any, path: tuple[str, ...], wanted: Any) -> bool:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return _kind(value) is _kind(wanted) and bool(value == wanted)


def _kind(value: Any) -> type:
    """Return what JSON takes a value for: numbers are of one kind."""
    return int if isinstance(value, Decimal) else type(value)


def holds_nul(value: Any) -> bool:
    """Return whether a text in a value holds a NUL, which `jsonb` cannot."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(map(holds_nul, [*value.keys(), *value.values()]))
    return isinstance(value, list) and any(map(holds_nul, value))

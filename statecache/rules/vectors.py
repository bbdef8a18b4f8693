"""Vectors in values: what counts as one, and how near two are, decided here as Postgres decides it for its index.

A member of a value, at its top, holds a vector: numbers in a list, or 32-bit floats in base64, the least byte first. Or
it holds an object of up to 100 such, by whatever names. How near a value is to a vector is the greatest cosine of those
that it holds. What is no vector, has other dimensions, or no direction, counts as none; so do all values that are not
stored as JSON, or that `jsonb` cannot hold.
"""

from __future__ import annotations

import math
from array import array
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Callable, Iterable, Sequence
from operator import mul
from sys import byteorder
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from statecache.errors import UsageError
from statecache.expiry import form_of
from statecache.rules.filters import holds_nul

if TYPE_CHECKING:
    from statecache.model import Record, State

T = TypeVar("T")
DIMS_MAX = 4000
"""How many dimensions a vector has at most: of so many pgvector makes an index."""
VECTORS_MAX = 100
"""How many vectors a value may have: one with more counts as having none."""
MEMBER = "vectors"
"""The member that holds vectors where no other one is named."""
_LEAST = 1e-30
_FLOAT = "f"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _added(one: Sequence[float], other: Sequence[float]) -> float:
    return float(sum(map(mul, one, other)))


_product: Callable[[Sequence[float], Sequence[float]], float] = getattr(math, "sumprod", _added)


class Scored(NamedTuple, Generic[T]):
    """A state, and how near its vectors are to the one that was searched for: the greatest cosine, from -1 to 1."""

    state: State[T]
    score: float


class Vector:
    """A vector that values are compared with."""

    __slots__ = ("_length", "numbers")

    def __init__(self, numbers: Sequence[float]) -> None:
        self.numbers = numbers
        self._length = math.sqrt(_product(numbers, numbers))

    def spelled(self) -> str:
        """Return the vector's direction as Postgres reads an array of 32-bit floats, which refuses smaller numbers."""
        parts = (one / self._length for one in self.numbers)
        return f"{{{','.join(repr(one) if abs(one) >= _LEAST else '0' for one in parts)}}}"

    def nearness(self, record: Record, member: str) -> float | None:
        """Return the greatest cosine of the vectors that a record's value holds, or None where it holds none."""
        cosines = (_product(self.numbers, one) / (self._length * length) for one, length in self._held(record, member))
        return max(cosines, default=None)

    def _held(self, record: Record, member: str) -> Iterable[tuple[Sequence[float], float]]:
        for held in _held(record, member):
            numbers = _numbers(held)
            if numbers is not None and len(numbers) == len(self.numbers):
                length = math.sqrt(_product(numbers, numbers))
                if math.isfinite(length) and length:
                    yield numbers, length


def checked_vector(numbers: Any) -> Vector:
    """Return what a caller has given as a vector, or raise UsageError."""
    given: Any = [*numbers] if isinstance(numbers, Iterable) and not isinstance(numbers, (str, bytes)) else None
    try:
        found = array(_FLOAT, given)
    except (TypeError, OverflowError):
        raise UsageError("the vector is not a list of numbers") from None
    if not 0 < len(found) <= DIMS_MAX:
        raise UsageError(f"the vector has {len(found):,} dimensions, and 1 to {DIMS_MAX:,} can be compared")
    if not all(map(math.isfinite, found)) or not any(found):
        raise UsageError("the vector holds no direction: it has a number that is not finite, or nothing but zeros")
    return Vector(found)


def checked_member(name: Any) -> str:
    """Return the name of a member at the top of values unchanged, or raise UsageError."""
    if isinstance(name, str) and name and "." not in name and name.isprintable():
        return name
    raise UsageError(f"member={name!r} is not the name of a member at the top of a value")


def _held(record: Record, member: str) -> Iterable[Any]:
    if not record.exists or form_of(record.encoding) != "json":
        return ()
    try:
        raw = _members.decode(record.value).get(member)
        held = None if raw is None else msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ()
    if b"\\u0000" in record.value and holds_nul(msgspec.json.decode(record.value)):
        return ()  # Postgres cannot look into it
    if not isinstance(held, dict):
        return (held,)
    return held.values() if len(held) <= VECTORS_MAX else ()


def _numbers(held: Any) -> Sequence[float] | None:
    try:
        if isinstance(held, list):
            return array(_FLOAT, held) if all(type(one) in (int, float) for one in held) else None
        if isinstance(held, str):
            found = array(_FLOAT, b64decode(held, validate=True))
            if byteorder == "big":
                found.byteswap()
            return found
    except (NoBase64, ValueError, OverflowError):
        pass
    return None

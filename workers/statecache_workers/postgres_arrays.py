"""Postgres arrays in their binary form, made from whole columns at once.

psycopg's own dumper walks a list item by item; for a batch of a thousand changes in sixteen columns that costs more
than Postgres needs to insert them. Here a column becomes its wire form by one `struct.pack` or one `join`.

    int32 dimensions = 1 · int32 has nulls = 0 · int32 element type · int32 length · int32 lower bound = 1
    then per element: int32 size · bytes
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from typing import Any

import psycopg
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

_HEADER = struct.Struct("!5i")
_INTEGER = struct.Struct("!iq")
_NULL = struct.pack("!i", -1)
_SIZES = [struct.pack("!i", size) for size in range(4096)]
_POSTGRES_START = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Array:
    """An array in its wire form."""

    __slots__ = ("wire",)

    def __init__(self, wire: bytes) -> None:
        self.wire = wire


class Texts(Array):
    """A text[]."""


class Blobs(Array):
    """A bytea[]."""


class Integers(Array):
    """A bigint[]."""


class Truths(Array):
    """A boolean[]."""


class Times(Array):
    """A timestamptz[]."""


def texts(items: Sequence[str]) -> Texts:
    """Make a text[]; a column that says the same all over costs next to nothing."""
    if len(items) > 1 and items.count(items[0]) == len(items):
        wire = items[0].encode()
        return Texts(_HEADER.pack(1, 0, 25, len(items), 1) + (struct.pack("!i", len(wire)) + wire) * len(items))
    return Texts(_sized(25, [item.encode() for item in items]))


def blobs(items: Sequence[bytes]) -> Blobs:
    """Make a bytea[]."""
    return Blobs(_sized(17, items))


def optional_blobs(items: Sequence[bytes | None]) -> Blobs:
    """Make a bytea[] of which any may be null."""
    parts = [_NULL if item is None else struct.pack("!i", len(item)) + item for item in items]
    return Blobs(b"".join((_HEADER.pack(1, 1, 17, len(items), 1), *parts)))


def integers(items: Sequence[int]) -> Integers:
    """Make a bigint[]."""
    return Integers(_packed(20, "iq", 8, items))


def optional_integers(items: Sequence[int | None]) -> Integers:
    """Make a bigint[] of which any may be null."""
    parts = [_NULL if item is None else _INTEGER.pack(8, item) for item in items]
    return Integers(b"".join((_HEADER.pack(1, 1, 20, len(items), 1), *parts)))


def truths(items: Sequence[bool]) -> Truths:
    """Make a boolean[]."""
    return Truths(_packed(16, "i?", 1, items))


def times(items: Sequence[datetime]) -> Times:
    """Make a timestamptz[] of aware times."""
    return Times(_packed(1184, "iq", 8, [(item - _POSTGRES_START) // _MICROSECOND for item in items]))


def _sized(element: int, items: Sequence[bytes]) -> bytes:
    count = len(items)
    parts: list[bytes] = [b""] * (2 * count + 1)
    parts[0] = _HEADER.pack(1, 0, element, count, 1)
    parts[1::2] = [_SIZES[size] if (size := len(item)) < 4096 else struct.pack("!i", size) for item in items]
    parts[2::2] = items
    return b"".join(parts)


def _packed(element: int, form: str, size: int, items: Sequence[Any]) -> bytes:
    count = len(items)
    pairs = chain.from_iterable(zip(repeat(size, count), items, strict=True))
    return _HEADER.pack(1, 0, element, count, 1) + struct.pack("!" + form * count, *pairs)


def _dumper(array: int) -> type[Dumper]:
    class Ready(Dumper):
        """A dumper that hands over what is in its wire form already."""

        format = Format.BINARY
        oid = array

        def dump(self, obj: Array) -> Buffer | None:
            return obj.wire

    return Ready


def register(connection: psycopg.AsyncConnection[Any]) -> None:
    """Let the connection take the arrays above as parameters."""
    for kind, array in ((Texts, 1009), (Blobs, 1001), (Integers, 1016), (Truths, 1000), (Times, 1185)):
        connection.adapters.register_dumper(kind, _dumper(array))

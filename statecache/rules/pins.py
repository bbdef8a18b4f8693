"""What checkpoints pin: versions whose values are kept for as long as a live checkpoint names them.

A checkpoint is a state at `<key or group>/checkpoints/<label>`, marked by its schema. One of a key names a version of
it, one of a group the version that each key of the group had at a position: its own, or the `point` that it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from statecache.keys import group_of
from statecache.model import Position

CHECKPOINT_SCHEMA = "statecache/checkpoint@1"
"""What marks checkpoints among other states."""
_SCHEMA_STEM = "statecache/checkpoint@"
_SEGMENT = "/checkpoints/"


class _Record(msgspec.Struct, frozen=True):
    scope: Literal["key", "group"]
    key: str
    version: int | None = None
    point: str | None = None


_record = msgspec.json.Decoder(_Record).decode


class Pin(NamedTuple):
    """What one checkpoint pins: a version of a key, or, of all keys of a group, the versions at n.

    With neither, all of them: it was written by a release that this one does not understand.
    """

    key: str
    whole: bool
    version: int | None = None
    n: int | None = None


def checkpoints_of(key: str) -> tuple[str, ...]:
    """Return the prefixes under which the checkpoints stand that can pin versions of a key."""
    return tuple(dict.fromkeys((key + _SEGMENT, group_of(key) + _SEGMENT)))


def prefix_of(checkpoint: str) -> str:
    """Return the prefix under which the checkpoints stand that are of the same key or group as this one."""
    return checkpoint.rpartition(_SEGMENT)[0] + _SEGMENT


def pin_of(key: str, op: str, schema: str, value: bytes, n: int) -> Pin | None:
    """Return what the state of a key pins, which was written at n; None where it is no checkpoint."""
    named, segment, _ = key.rpartition(_SEGMENT)
    if op != "set" or not segment or not schema.startswith(_SCHEMA_STEM):
        return None
    try:
        record = _record(value)
        point = Position.parse(record.point or "")
    except (msgspec.DecodeError, ValueError):
        return Pin(named, whole=True)
    if record.scope == "key" and record.version is not None:
        return Pin(record.key, whole=False, version=record.version)
    return Pin(record.key, whole=True, n=n if point is None else point.n)


def is_pinned(pins: Iterable[Pin], key: str, version: int, n: int, next_n: int | None) -> bool:
    """Whether any of these pins a key's version, which was the newest from n up to the next one's n."""
    for pin in pins:
        if pin.version is not None:
            if (pin.key, pin.version) == (key, version):
                return True
        elif pin.n is not None and (n > pin.n or (next_n is not None and pin.n >= next_n)):
            continue
        elif key == pin.key or (pin.whole and key.startswith(pin.key + "/")):
            return True
    return False

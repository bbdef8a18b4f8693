"""How a point of a key's history is spelt on the command line. Pure: what is relative is reckoned from `now`.

    runs/42                 the newest version; so is runs/42@
    runs/42@7               version 7
    runs/42@-1              one version before the newest
    runs/42@5-1144          a position of its shard
    runs/42@2026-11-20T12:00Z, runs/42@2026-11-20     a moment; without a zone, one of this system's
    runs/42@90s, @20min, @2h, @3d, @1w                so long ago
    runs/42@before payment  a checkpoint, by its label; =LABEL is one that reads like any of the above

The last `@` begins the point. A key that holds one itself is given with another behind it: `users/a@example.com@`.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import msgspec

from statecache.cli.options import UNITS
from statecache.errors import UsageError
from statecache.keys import checked_key
from statecache.model import Position

FORMS = "a version, -1 for one before the newest, a position, a time, 2h for two hours ago, or a checkpoint's label"
_DIGITS_MAX = 18
_is_number = re.compile(r"-?\d+", re.ASCII).fullmatch
_position = re.compile(rf"(\d{{1,{_DIGITS_MAX}}})-(\d{{1,{_DIGITS_MAX}}})", re.ASCII).fullmatch
_like_a_time = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII).match
_ago = re.compile(rf"(\d{{1,9}}) ?({'|'.join(UNITS)})( ago)?", re.ASCII).fullmatch


class PointName(msgspec.Struct, frozen=True, kw_only=True):
    """A point as it was named: at most one of these; with none of them it is the newest version."""

    version: int | None = None
    back: int | None = None
    position: Position | None = None
    time: datetime | None = None
    label: str | None = None


NEWEST = PointName()


def point_of(text: str, *, now: datetime) -> PointName:
    """Read a point, or raise UsageError."""
    if not text:
        return NEWEST
    if text.startswith("="):
        return PointName(label=text[1:])
    if _is_number(text):
        return _numbered(text)
    if (found := _position(text)) is not None:
        return PointName(position=Position(int(found[1]), int(found[2])))
    if _like_a_time(text):
        return PointName(time=_moment(text))
    if (found := _ago(text)) is not None:
        return PointName(time=_before(now, int(found[1]) * UNITS[found[2]], text))
    return PointName(label=text)


def key_and_point(text: str, *, now: datetime) -> tuple[str, PointName]:
    """Read a key and, behind its last `@`, a point; raise InvalidKey or UsageError."""
    key, at, point = text.rpartition("@")
    return (checked_key(key), point_of(point, now=now)) if at else (checked_key(text), NEWEST)


def bound_of(text: str, *, now: datetime, what: str) -> int | datetime | None:
    """Read a version or a moment at which a listing begins or ends, or raise UsageError."""
    point = point_of(text, now=now)
    bound = point.version if point.version is not None else point.time
    if bound is None and text:
        raise UsageError(f"{what} {text!r} is neither a version nor a time", hint="Say 7, 2h, or 2026-11-20T12:00Z.")
    return bound


def _numbered(text: str) -> PointName:
    if len(text.lstrip("-0")) > _DIGITS_MAX:
        raise UsageError(f"{text} is no version: there are never so many", hint=f"Say {FORMS}.")
    number = int(text)
    if text.startswith("-"):
        return PointName(back=-number) if number else NEWEST
    if not number:
        raise UsageError("there is no version 0: they count from 1", hint=f"Say {FORMS}.")
    return PointName(version=number)


def _moment(text: str) -> datetime:
    try:
        return _aware(datetime.fromisoformat(text))
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{text!r} is no time: {error}", hint="Say 2026-11-20T12:00Z, or 2h for two hours ago."
        ) from None


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.astimezone()


def _before(now: datetime, seconds: int, text: str) -> datetime:
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        raise UsageError(
            f"{text!r} is before any time", hint="Say 2026-11-20T12:00Z, or 2h for two hours ago."
        ) from None

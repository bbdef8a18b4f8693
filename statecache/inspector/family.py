"""Branches as a drawing: a lane a key, a dot an event, a curve from where a branch began. Pure.

Events stand in the order of their times, evenly apart, so a drawing of a year and one of a minute read alike. A key's
lane goes from where it began to its newest version; lanes stand in the order in which their keys began.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from statecache.inspector.source import Member

STEP, LANE, MARGIN = 46, 44, 16
LABEL = 20
"""Room above a lane's line for its name."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
What = Literal["origin", "begin", "merge", "tip"]
_ORDER = {"origin": 0, "begin": 1, "merge": 2, "tip": 3}


class Lane(NamedTuple):
    """A key's line."""

    key: str
    x1: int
    x2: int
    y: int
    newest: int
    deleted: bool
    current: bool


class Dot(NamedTuple):
    """A version that something happened with."""

    key: str
    version: int
    x: int
    y: int
    what: What


class Curve(NamedTuple):
    """From the version that a branch began with, or that was merged, to the change that says so."""

    path: str
    merged: bool


class Drawing(msgspec.Struct, frozen=True):
    """What is drawn; sizes are in units of the drawing."""

    lanes: list[Lane]
    dots: list[Dot]
    curves: list[Curve]
    width: int
    height: int


def drawing(members: Sequence[Member], current: str) -> Drawing | None:
    """Return the drawing of a family, None where the key has no branches and is none."""
    linked = [one for one in members if one.version is not None]
    if not linked:
        return None
    events: list[tuple[datetime, int, str, int, What]] = []
    for one in linked:
        at = one.at or _LONG_AGO
        what: What = "merge" if one.merged else "begin"
        events.append((at, _ORDER[what], one.key, one.version or 1, what))
        events.append((one.origin_at or at, 0, one.origin or "", one.origin_version or 1, "origin"))
    tips = {one.key: one for one in members}
    events += [(one.updated_at or _LONG_AGO, 3, one.key, one.newest, "tip") for one in tips.values() if one.newest]
    begun: dict[tuple[str, int | None], What] = {
        (one.key, one.version): "merge" if one.merged else "begin" for one in linked
    }
    places: dict[tuple[str, int], tuple[int, What]] = {}
    for _, _, key, version, what in sorted(events):
        if (key, version) not in places:
            places[key, version] = (MARGIN + len(places) * STEP, begun.get((key, version), what))
    keys = list(dict.fromkeys([*_roots(linked), *(one.key for one in members)]))
    rows = {key: LABEL + MARGIN + number * LANE for number, key in enumerate(keys)}
    return Drawing(
        lanes=[_lane(tips.get(key), key, places, rows[key], current) for key in keys],
        dots=[Dot(key, version, x, rows[key], what) for (key, version), (x, what) in places.items()],
        curves=[_curve(one, places, rows) for one in linked],
        width=MARGIN * 2 + max(len(places) - 1, 0) * STEP + 120,
        height=MARGIN * 2 + LABEL + (len(keys) - 1) * LANE,
    )


def _roots(linked: Sequence[Member]) -> list[str]:
    """Return the keys that began as no branch, in the order of what began from them."""
    begun = {one.key for one in linked if not one.merged}
    return [one.origin for one in linked if one.origin and one.origin not in begun]


def _lane(tip: Member | None, key: str, places: dict[tuple[str, int], tuple[int, What]], y: int, current: str) -> Lane:
    own = [(x, what) for (name, _), (x, what) in places.items() if name == key]
    begun = [x for x, what in own if what == "begin"]
    return Lane(
        key=key,
        x1=min(begun) if begun else MARGIN // 2,
        x2=max((x for x, _ in own), default=MARGIN),
        y=y,
        newest=tip.newest if tip is not None else 0,
        deleted=tip is not None and tip.op == "delete",
        current=key == current,
    )


def _curve(one: Member, places: dict[tuple[str, int], tuple[int, What]], rows: dict[str, int]) -> Curve:
    x1, y1 = places[one.origin or "", one.origin_version or 1][0], rows[one.origin or ""]
    x2, y2 = places[one.key, one.version or 1][0], rows[one.key]
    bend = max((x2 - x1) // 2, STEP // 2)
    return Curve(f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}", one.merged)

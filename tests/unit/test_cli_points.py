"""Points of a key's history as they are spelt on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from statecache.cli.history.diff_command import places_of
from statecache.cli.history.points import NEWEST, PointName, bound_of, key_and_point, point_of
from statecache.errors import InvalidKey, UsageError
from statecache.model import Position

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("", {}),
        ("7", {"version": 7}),
        ("007", {"version": 7}),
        ("-1", {"back": 1}),
        ("-0", {}),
        ("5-1144", {"position": Position(5, 1144)}),
        ("2026-11-20T12:00Z", {"time": NOW}),
        ("2026-11-20T13:30:15.25+01:30", {"time": datetime(2026, 11, 20, 12, 0, 15, 250_000, tzinfo=UTC)}),
        ("90s", {"time": NOW - timedelta(seconds=90)}),
        ("20min", {"time": NOW - timedelta(minutes=20)}),
        ("20m", {"time": NOW - timedelta(minutes=20)}),
        ("2h", {"time": NOW - timedelta(hours=2)}),
        ("3 d ago", {"time": NOW - timedelta(days=3)}),
        ("1w", {"time": NOW - timedelta(weeks=1)}),
        ("before payment", {"label": "before payment"}),
        ("7th", {"label": "7th"}),
        ("\u0667", {"label": "\u0667"}),
        ("=7", {"label": "7"}),
        ("=", {"label": ""}),
    ],
)
def test_what_a_point_says(text: str, facts: dict[str, Any]) -> None:
    assert point_of(text, now=NOW) == PointName(**facts)


def test_a_time_without_a_zone_is_one_of_this_system() -> None:
    local = datetime(2026, 11, 20, 12).astimezone()
    assert point_of("2026-11-20T12:00", now=NOW).time == local
    assert point_of("2026-11-20", now=NOW).time == local.replace(hour=0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "there is no version 0: they count from 1"),
        ("9" * 19, "is no version"),
        ("-" + "9" * 30, "is no version"),
        ("2026-13-01", "'2026-13-01' is no time"),
        ("2026-11-20T25:00Z", "is no time"),
        ("2026-11-20 noon", "is no time"),
        ("999999999w", "is before any time"),
    ],
)
def test_what_is_no_point_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        point_of(text, now=NOW)


def test_the_last_at_begins_the_point() -> None:
    assert key_and_point("runs/42", now=NOW) == ("runs/42", NEWEST)
    assert key_and_point("runs/42@", now=NOW) == ("runs/42", NEWEST)
    assert key_and_point("runs/42@7", now=NOW) == ("runs/42", PointName(version=7))
    assert key_and_point("users/a@example.com@", now=NOW) == ("users/a@example.com", NEWEST)
    assert key_and_point("users/a@example.com@=b", now=NOW) == ("users/a@example.com", PointName(label="b"))
    with pytest.raises(InvalidKey):
        key_and_point("runs@7", now=NOW)


def test_a_listing_is_bounded_by_a_version_or_a_time() -> None:
    assert bound_of("", now=NOW, what="--since") is None
    assert bound_of("7", now=NOW, what="--since") == 7
    assert bound_of("2026-11-20T13:00+01:00", now=NOW, what="--since") == NOW.astimezone(timezone(timedelta(hours=1)))
    for text in ("yesterday", "-1", "5-7"):
        with pytest.raises(UsageError, match=r"--since '.*' is neither a version nor a time"):
            bound_of(text, now=NOW, what="--since")


A, B = "runs/42", "runs/43"


@pytest.mark.parametrize(
    ("words", "a", "b"),
    [
        ([A], (A, PointName(back=1)), (A, NEWEST)),
        ([f"{A}@3"], (A, PointName(version=3)), (A, NEWEST)),
        ([A, "3"], (A, PointName(version=3)), (A, NEWEST)),
        ([A, "@-2"], (A, PointName(back=2)), (A, NEWEST)),
        ([A, "-2", "-1"], (A, PointName(back=2)), (A, PointName(back=1))),
        ([f"{A}@3", "5"], (A, PointName(version=3)), (A, PointName(version=5))),
        ([f"{A}@3", f"{A}@5"], (A, PointName(version=3)), (A, PointName(version=5))),
        ([A, B], (A, NEWEST), (B, NEWEST)),
        ([f"{A}@x", f"{B}@y"], (A, PointName(label="x")), (B, PointName(label="y"))),
        ([A, "x@y", "z"], (A, PointName(label="x@y")), (A, PointName(label="z"))),
    ],
)
def test_which_two_are_compared(words: list[str], a: object, b: object) -> None:
    assert places_of(words, now=NOW) == (a, b)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"{A}@1", "2", "3"], "too many points"),
        ([A, "0"], "no version 0"),
    ],
)
def test_what_cannot_be_compared(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        places_of(words, now=NOW)

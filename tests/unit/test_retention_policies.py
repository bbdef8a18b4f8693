"""What a namespace's policy may say of its history, and how it reads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from statecache.errors import UsageError
from statecache.retention import Retention, span_text
from statecache.rules.retention import checked_retention, retention_of


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("full", None, None), "all values"),
        (("latest", None, None), "the latest values alone"),
        ((None, timedelta(days=90), None), "values that were replaced in the last 90 d"),
        ((None, timedelta(days=425, seconds=1.5), None), "values that were replaced in the last 36720001.5 s"),
        ((None, None, 100), "the newest 100 of each key"),
        (("full", timedelta(hours=36), 1), "values that were replaced in the last 36 h and the newest 1 of each key"),
    ],
)
def test_a_policy_reads_as_what_it_keeps(given: tuple[Any, ...], says: str) -> None:
    found = checked_retention(*given)
    assert found is not None
    assert str(found) == says
    assert found.bounded == (says != "all values")


def test_an_age_beyond_all_that_is_given_here_is_the_longest_that_is() -> None:
    """SQL takes 178,000,000 years, for which no timedelta has room."""
    assert retention_of("full", 5.6e15, None) == Retention(max_age=timedelta(days=36_500))
    assert retention_of("full", 90.5, 3) == Retention(max_age=timedelta(seconds=90.5), max_count=3)


def test_nothing_said_is_no_policy() -> None:
    assert checked_retention(None, None, None) is None
    assert not Retention().bounded


@pytest.mark.parametrize(
    "given",
    [
        ("some", None, None), (None, 90, None), (None, timedelta(0), None), (None, timedelta(-1), None),
        (None, timedelta.max, None), (None, None, 0), (None, None, -1), (None, None, 1.5), (None, None, True),
        (None, None, 10**10), ("latest", timedelta(1), None), ("latest", None, 3),
    ],
)  # fmt: skip
def test_what_is_no_policy_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError):
        checked_retention(*given)


def test_spans_are_told_in_their_largest_whole_unit() -> None:
    spans = (timedelta(days=2), timedelta(hours=25), timedelta(minutes=90), timedelta(seconds=1.5))
    assert [span_text(span) for span in spans] == ["2 d", "25 h", "90 min", "1.5 s"]

"""Cursors of the feed, and whether one can be gone on from: decided from values alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from statecache.errors import CursorEnded, UsageError
from statecache.model import Position
from statecache.rules.feed import Cursor, FeedHead, FeedPlace, after, anew, beginning, behind, broken, cursor_of, newest

PLACES = some.builds(
    FeedPlace, epoch=some.integers(0, 10**12), n=some.integers(1, 10**15), part=some.integers(0, 255),
    late=some.integers(0, 10**14),
)  # fmt: skip


def head(**more: int | None) -> FeedHead:
    given: dict[str, int | None] = {
        "epoch": 3, "flushed": 100, "kept_after": 0, "start_n": None, "cut_at": None, "newest_late": 0,
        "looked_late": None,
    }  # fmt: skip
    return FeedHead(**(given | more))  # type: ignore[arg-type]


@given(some.dictionaries(some.integers(0, 4095), PLACES, max_size=8), some.text(max_size=20))
def test_a_cursor_is_its_text(places: dict[int, FeedPlace], prefix: str) -> None:
    cursor = Cursor("0123abcd", prefix, places)
    again = cursor_of(str(cursor))
    assert again == cursor
    assert again.on("0123abcd-and-so-on", f"{prefix}more", [0, 1]) == {
        shard: places.get(shard, FeedPlace()) for shard in (0, 1)
    }


@pytest.mark.parametrize("text", ["", "now", "0123abcd/1:2-3", "0123/1:2-3/", "0123abcd/1:2-0/", "0123abcd/1:2/", None])
def test_another_text_is_no_cursor(text: object) -> None:
    with pytest.raises(UsageError):
        cursor_of(text)


def test_a_cursor_is_of_its_deployment_and_prefix() -> None:
    cursor = Cursor("0123abcd", "runs/", {})
    with pytest.raises(UsageError, match="another deployment"):
        cursor.on("99999999-", "runs/", [0])
    with pytest.raises(UsageError, match="not of all under 'run'"):
        cursor.on("0123abcd-", "run", [0])


def test_a_place_moves_with_what_is_given_and_behind_what_was_left_out() -> None:
    place = FeedPlace(2, 7, 0, 4)
    assert after(place, (0, 9, 2, 0), 3) == FeedPlace(3, 9, 2, 4)
    assert after(place, (0, 5, 0, 6), 3) == FeedPlace(3, 7, 0, 6)
    assert behind(place, head()) == FeedPlace(3, 101, 0, 4)
    assert behind(place, head(cut_at=50)) == FeedPlace(3, 50, 0, 4)
    assert behind(place, head(newest_late=9)) == FeedPlace(3, 101, 0, 9)
    assert behind(place, head(newest_late=9, looked_late=6)) == FeedPlace(3, 101, 0, 6)
    assert behind(FeedPlace(2, 100, 3, 4), head(flushed=99)) == FeedPlace(3, 100, 3, 4)
    assert behind(FeedPlace(4, 100, 3, 4), head()) == FeedPlace(
        4, 100, 3, 4
    )  # Postgres went back, and tells nothing yet
    assert newest(head(newest_late=5)) == FeedPlace(3, 101, 0, 5)
    assert [one.more for one in (head(), head(cut_at=5), head(newest_late=3, looked_late=3))] == [False, True, False]
    assert head(newest_late=4, looked_late=3).more


def test_what_was_given_beyond_the_beginning_of_a_later_epoch_is_gone() -> None:
    for place, start_n, ended in (
        (FeedPlace(2, 8), 7, False), (FeedPlace(2, 8), 6, True), (FeedPlace(2, 7, 1), 7, False),
        (FeedPlace(2, 7, 1), 6, True), (FeedPlace(), 0, False),
    ):  # fmt: skip
        assert bool(broken(place, head(start_n=start_n))) is ended
    assert anew(FeedPlace(2, 8, 0, 5), head(start_n=3)) == FeedPlace(3, 4, 0, 5)


def test_what_was_deleted_before_it_was_given_is_told_and_a_new_reader_begins_behind_it() -> None:
    assert "changes up to 10 may have been deleted" in broken(FeedPlace(3, 10), head(kept_after=10))
    assert not broken(FeedPlace(3, 11), head(kept_after=10))
    assert not broken(FeedPlace(), head(kept_after=10))
    assert beginning(FeedPlace(), head(kept_after=10, newest_late=4)) == FeedPlace(3, 11, 0, 4)
    assert beginning(FeedPlace(), head()) == FeedPlace()
    assert anew(FeedPlace(3, 5), head(kept_after=10)) == FeedPlace(3, 11)


def test_the_error_says_where_and_how_to_go_on() -> None:
    error = CursorEnded(7, Position(2, 150), reason="a later epoch began at 100", cursor="0123abcd/7:3-101/runs/")
    assert str(error).startswith("Changes of shard 7 cannot be read on from this cursor: a later epoch began at 100.")
    assert (error.position.n, error.cursor) == (150, "0123abcd/7:3-101/runs/")

"""How long flushed entries stay: by time, by bytes, and in a bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from statecache_workers.stream_places import StreamPlace
from statecache_workers.stream_retention import MARKS_MAX, STEPS, StreamRetention

flushes = some.lists(some.tuples(some.floats(0, 30), some.integers(1, 50), some.integers(0, 100_000)), max_size=200)


def _place(n: int, size: int) -> StreamPlace:
    return StreamPlace(b"1-%d" % n, n, n, size)


def test_what_was_reached_so_long_ago_may_leave() -> None:
    kept = StreamRetention(60.0, 10**9)
    kept.reached(0.0, _place(5, 500))
    kept.reached(30.0, _place(9, 900))
    assert kept.leaving(59.9) is None
    assert kept.leaving(60.0) == _place(5, 500)
    assert kept.leaving(89.9) == _place(5, 500)
    assert kept.leaving(90.0) == _place(9, 900)


def test_what_has_too_much_behind_it_may_leave_at_once() -> None:
    kept = StreamRetention(60.0, 1000)
    for n in range(1, 6):
        kept.reached(0.0, _place(n, n * 400))
    assert kept.leaving(0.0) == _place(2, 800)


def test_nothing_is_kept_where_nothing_is_to_be_kept() -> None:
    kept = StreamRetention(0.0, 0)
    kept.reached(7.0, _place(3, 3))
    assert kept.leaving(7.0) == _place(3, 3)


def test_what_postgres_forgot_begins_anew() -> None:
    kept = StreamRetention(60.0, 10**9)
    kept.reached(0.0, _place(5, 500))
    kept.reached(10.0, _place(9, 900))
    kept.went_back(7)
    kept.reached(50.0, _place(9, 900))
    assert kept.leaving(70.0) == _place(5, 500)
    assert kept.leaving(110.0) == _place(9, 900)


@given(flushes)
def test_nothing_leaves_too_early_and_little_is_kept_too_long(steps: list[tuple[float, int, int]]) -> None:
    kept, now, n, size = StreamRetention(60.0, 200_000), 0.0, 0, 0
    reached: list[tuple[float, int, int]] = []
    largest = 0
    for pause, more, larger in steps:
        now, n, size = now + pause, n + more, size + larger
        largest = max(largest, larger)
        kept.reached(now, _place(n, size))
        reached.append((now, n, size))
        place = kept.leaving(now)
        left = place.n if place is not None else 0
        early = [one for one in reached if one[1] <= left]
        assert all(now - at >= 60.0 or size - then >= 200_000 for at, _, then in early[-1:])
        stays = [at for at, one, _ in reached if one > left]
        assert not stays or now - stays[0] <= 60.0 + 2 * (60.0 / STEPS) + 30.0
        kept_bytes = [then for _, one, then in reached if one > left]
        assert not kept_bytes or size - kept_bytes[0] <= 200_000 + 2 * (200_000 // STEPS) + 2 * largest
        assert len(kept._marks) <= MARKS_MAX

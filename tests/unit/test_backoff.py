"""Pauses between attempts."""

from __future__ import annotations

from statecache import backoff
from statecache.backoff import Backoff, pause_s
from statecache.clock import monotonic


def test_the_range_of_a_pause_doubles_up_to_a_limit() -> None:
    for attempts, most_s in {1: 0.01, 2: 0.02, 3: 0.04, 6: 0.25, 1000: 0.25, 10**6: 0.25}.items():
        drawn = [pause_s(attempts, 0.01, 0.25) for _ in range(200)]
        assert min(drawn) >= 0.005
        assert most_s * 0.8 < max(drawn) <= most_s


def test_no_two_wait_alike() -> None:
    assert len({pause_s(3, 0.01, 0.25) for _ in range(50)}) > 40


def test_what_is_compared_with_the_end_is_the_pause_that_is_taken_next() -> None:
    pauses = Backoff(1.0, 60.0)
    for attempts in range(1, 9):
        next_s = pauses.next_s
        assert 0.5 <= next_s <= min(2.0 ** (attempts - 1), 60.0)
        assert pauses.outlasts(monotonic() + next_s - 0.1)
        assert not pauses.outlasts(monotonic() + next_s + 0.1)
        assert pauses.take() == next_s


def test_a_pause_of_nothing_is_one() -> None:
    assert backoff.pause_s(1, 0.0, 30.0) == 0.0
    assert backoff.pause_s(5, 0.0, 30.0) == 0.0

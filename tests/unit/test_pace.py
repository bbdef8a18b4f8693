"""The pace of a flusher: who was answered together is waited for a little, nobody else is."""

from __future__ import annotations

import pytest

from statecache_workers.pace import BACK_S, MANY, PART, PAUSE_S_MAX, Pace


def paced(entries: int, seconds: float = 0.005) -> Pace:
    pace = Pace()
    pace.flushed(entries, begun=100.0 - seconds, ended=100.0)
    return pace


def test_few_who_come_back_first_wait_for_the_others_of_a_large_batch() -> None:
    assert paced(64).pause(31, 100.0) == pytest.approx(0.005 * PART)
    assert paced(64).pause(32, 100.0) == 0, "half of them are enough"
    assert paced(64).pause(1, 100.0 + BACK_S / 2) > 0


def test_a_pause_is_short_however_long_the_batch_took() -> None:
    assert paced(64, seconds=3.0).pause(1, 100.0) == PAUSE_S_MAX


def test_nobody_waits_who_is_alone_or_late_or_where_nothing_has_come() -> None:
    assert paced(MANY - 1).pause(1, 100.0) == 0
    assert paced(64).pause(0, 100.0) == 0
    assert paced(64).pause(1, 100.0 + BACK_S * 1.01) == 0
    assert Pace().pause(1, 100.0) == 0
    assert [paced(MANY).many(100.0), paced(MANY - 1).many(100.0), paced(MANY).many(100.2)] == [True, False, False]

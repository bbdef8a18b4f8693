"""The clock of the Redis server as a process knows it: never ahead of it, and followed when it is set."""

from __future__ import annotations

from statecache.clock import boottime, wall
from statecache.core.redis.server_clock import ServerClock


def test_the_servers_clock_is_never_believed_to_be_ahead_of_what_it_is() -> None:
    clock, ahead_ms = ServerClock(), 3_600_000.0
    for late_s in (0.5, 0.0, 2.0, 0.001):  # how long the answers took
        now = boottime()
        clock.heard(f"{now * 1000 + ahead_ms - late_s * 1000:.0f}", now - late_s)
        believed = clock.now_ms() - boottime() * 1000
        assert believed <= ahead_ms + 1
    assert believed >= ahead_ms - 50  # as told by the quickest one


def test_a_clock_that_was_set_back_is_followed() -> None:
    clock = ServerClock()
    for ahead_ms in (3_600_000.0, -3_600_000.0, 5.0):
        sent = boottime()
        clock.heard(f"{sent * 1000 + ahead_ms:.0f}", sent)
        assert abs(clock.now_ms() - boottime() * 1000 - ahead_ms) < 50


def test_a_clock_that_was_set_back_is_not_believed_to_be_ahead_either() -> None:
    clock, now = ServerClock(), boottime()
    for ahead_ms, took_s in ((3_600_000.0, 0.0), (0.0, 30.0)):  # whose answer took so long
        clock.heard(f"{now * 1000 + ahead_ms:.0f}", now - took_s)
    assert clock.now_ms() - boottime() * 1000 <= 1


def test_a_clock_of_which_nothing_is_told_stays_as_it_is() -> None:
    clock = ServerClock()
    clock.heard("", boottime())
    assert abs(clock.now_ms() - wall().timestamp() * 1000) < 1000

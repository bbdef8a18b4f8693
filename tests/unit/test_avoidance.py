"""Which shards a worker gives up, and for how long it leaves them alone."""

from __future__ import annotations

from statecache_workers.avoided_shards import AVOID_S, AVOID_S_MAX, GIVE_UP_LEASES, Avoidance

LEASE_S = 5.0
PATIENCE_S = GIVE_UP_LEASES * LEASE_S


def test_a_shard_that_is_not_served_for_some_leases_is_hopeless() -> None:
    kept = Avoidance(LEASE_S)
    for now in range(0, 40, 5):
        kept.hold([1, 2], now)
        if now <= 10:
            kept.serve([2], now)
        expected = [1] * (now > PATIENCE_S) + [2] * (now > PATIENCE_S + 10)
        assert kept.hopeless(now) == expected
    kept.hold([2], 40.0)
    assert kept.hopeless(40.0) == [2], "what somebody else has is nobody's trouble here"


def test_the_time_of_an_outage_of_postgres_does_not_count() -> None:
    kept = Avoidance(LEASE_S)
    kept.hold([1], 0.0)
    kept.hold([1], 3600.0)
    assert kept.hopeless(3600.0) == []
    kept.hold([1], 3604.0)
    assert kept.hopeless(3604.0) == []


def test_it_is_avoided_each_time_for_longer_until_it_was_served() -> None:
    kept, now = Avoidance(LEASE_S), 0.0
    for times in range(8):
        kept.give_up([1], now)
        assert kept.shards == [1]
        pause = min(AVOID_S * 2.0**times, AVOID_S_MAX)
        assert kept.ripe(now + pause - 0.1) == []
        assert kept.ripe(now + pause) == [1]
        kept.end([1])
        assert kept.shards == []
        now += pause
    kept.serve([1], now)
    kept.give_up([1], now)
    assert kept.ripe(now + AVOID_S) == [1]


def test_what_is_held_again_is_not_avoided() -> None:
    kept = Avoidance(LEASE_S)
    kept.give_up([1, 2], 0.0)
    kept.hold([2], 1.0)
    assert kept.shards == [1]
    kept.go_on([1], 100.0)
    assert kept.ripe(100.0 + AVOID_S - 0.1) == []


def test_what_only_a_newer_release_can_serve_is_avoided_strictly() -> None:
    kept = Avoidance(LEASE_S)
    kept.give_up([1, 2], 0.0)
    kept.give_up([2], 0.0, too_new=True)
    assert (kept.shards, kept.strictly) == ([1, 2], [2])
    kept.give_up([2], 1.0)
    assert kept.strictly == []

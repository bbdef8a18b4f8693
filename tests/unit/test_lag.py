"""What a worker counts, and how its lag is put together from what it knows."""

from __future__ import annotations

from typing import Any

import pytest

from statecache_workers.counters import Buckets
from statecache_workers.lag import lag_of
from statecache_workers.owned_shards import Head, Heads, Holding, OwnedRow
from statecache_workers.streams import Stock

SEEN = 100.0


def _holding(shard: int, flushed: int, **more: Any) -> Holding:
    holding = Holding(shard, OwnedRow(1, "server", flushed, flushed, flushed * 10, 0))
    holding.phase = "open"
    for name, value in more.items():
        setattr(holding, name, value)
    return holding


def _heads(*found: tuple[int, int]) -> Heads:
    """Return heads at n, of which Redis was told that `flushed` are flushed."""
    of: dict[int, Head | str] = {
        shard: Head(1, "server", n, n, n * 10, flushed, 0) for shard, (n, flushed) in enumerate(found)
    }
    return Heads(server="server", now_ms=0, seen=SEEN, of=of)


def test_nothing_is_behind_where_nothing_was_seen() -> None:
    lag = lag_of([_holding(0, 5)], None, {}, now=SEEN)
    assert (lag.entries, lag.bytes, lag.age_s, lag.of) == (0, 0, 0.0, {})


def test_lag_is_what_redis_holds_beyond_the_rows_by_shard_and_in_all() -> None:
    lag = lag_of([_holding(0, 5), _holding(1, 7)], _heads((8, 5), (7, 7)), {}, now=SEEN)
    assert (lag.entries, lag.bytes, lag.of, lag.bytes_of) == (3, 30, {0: 3, 1: 0}, {0: 30, 1: 0})


def test_a_row_that_is_ahead_of_an_older_look_is_not_behind() -> None:
    lag = lag_of([_holding(0, 9)], _heads((8, 5)), {}, now=SEEN + 1)
    assert (lag.entries, lag.bytes, lag.age_s, lag.of) == (0, 0, 0.0, {0: 0})


def test_the_age_goes_on_from_when_the_oldest_change_was_committed() -> None:
    stocks = {0: Stock(SEEN, 5, 8, 80, SEEN - 40), 1: Stock(SEEN, 7, 8, 80, SEEN - 3)}
    lag = lag_of([_holding(0, 5), _holding(1, 7)], _heads((8, 5), (8, 7)), stocks, now=SEEN + 2)
    assert lag.age_s == 42.0


def test_where_some_were_flushed_since_the_age_is_as_it_was_measured() -> None:
    stocks = {0: Stock(SEEN, 5, 8, 80, SEEN - 40)}
    assert lag_of([_holding(0, 6)], _heads((8, 6)), stocks, now=SEEN + 2).age_s == 40.0
    assert lag_of([_holding(0, 8)], _heads((8, 8)), stocks, now=SEEN + 2).age_s == 0.0


def test_unmeasured_the_age_is_at_least_that_of_the_look() -> None:
    assert lag_of([_holding(0, 5)], _heads((8, 5)), {}, now=SEEN + 9).age_s == 9.0


def test_a_shard_that_another_worker_has_carried_on_is_not_ours_to_report() -> None:
    """An outage of this worker alone: its row is old, and Redis knows a later watermark."""
    old = _holding(0, 5, phase="new", sure=False)
    assert lag_of([old], _heads((9, 8)), {}, now=SEEN).of == {}
    assert lag_of([old], _heads((9, 5)), {}, now=SEEN).of == {0: 4}


def test_a_shard_that_postgres_forgot_is_behind_once_it_is_flushed_again() -> None:
    assert lag_of([_holding(0, 5)], _heads((9, 8)), {}, now=SEEN).of == {0: 4}


def test_a_shard_that_cannot_be_read_has_no_lag_to_report() -> None:
    heads = Heads(server="server", now_ms=0, seen=SEEN, of={0: "WRONGTYPE"})
    assert lag_of([_holding(0, 5), _holding(1, 5)], heads, {}, now=SEEN).of == {}


@pytest.mark.parametrize(
    ("value", "counts"),
    [(-1.0, [1, 1, 1]), (0.0, [1, 1, 1]), (1.0, [1, 1, 1]), (1.1, [0, 1, 1]), (2.0, [0, 1, 1]), (2.1, [0, 0, 1])],
)
def test_a_value_counts_for_every_bound_that_is_at_least_as_large(value: float, counts: list[int]) -> None:
    buckets = Buckets((1.0, 2.0))
    buckets.note(value)
    cumulated, total = buckets.cumulated()
    assert cumulated == list(zip(("1", "2", "+Inf"), counts, strict=True))
    assert total == max(value, 0.0)

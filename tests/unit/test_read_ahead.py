"""What was read ahead is used only if it is all that comes next, and is no more than a part of a batch."""

from __future__ import annotations

from typing import Any

import pytest

from statecache.settings import Settings
from statecache_workers.owned_shards import Head, Heads, Holding, OwnedRow
from statecache_workers.read_ahead import ENTRIES_MAX, ReadAhead, entries_of_each, pending, still_next, whole
from statecache_workers.streams import Slice

SERVER = "f" * 40


def holding(shard: int, *, flushed: int = 5, size: int = 500, phase: Any = "open") -> Holding:
    held = Holding(shard, OwnedRow(1, SERVER, flushed, flushed, size, 0))
    held.after, held.phase = f"1-{flushed}".encode(), phase
    return held


def head(n: int, *, epoch: int = 1) -> Head:
    return Head(epoch, SERVER, n, n, 100 * n, 0, 0)


def heads(**of: Any) -> Heads:
    return Heads(server=SERVER, now_ms=0, seen=0.0, of={int(shard[1:]): one for shard, one in of.items()})


def up_to(held: Holding, n: int) -> Slice:
    return Slice(holding=held, head=head(n), start=held.place, end=held.place._replace(n=n))


def test_a_survey_counts_where_it_read_all_that_the_heads_tell_of() -> None:
    held = {0: holding(0), 1: holding(1)}
    slices = [up_to(held[0], 7)]
    assert whole(heads(s0=head(7), s1=head(5)), slices, held).slices == slices
    assert whole(heads(s0=head(6), s1=head(5)), slices, held).slices == slices, "what came behind the heads too"


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"s0": head(8), "s1": head(5)}, id="more than was read"),
        pytest.param({"s0": head(7), "s1": head(6)}, id="another shard has what was not read"),
        pytest.param({"s0": head(7), "s1": head(5, epoch=2)}, id="a shard of another epoch"),
        pytest.param({"s0": head(7), "s1": "its meta holds something else"}, id="a head that cannot be read"),
    ],
)
def test_a_survey_leaves_it_to_the_heads_where_anything_is_special(told: dict[str, Any]) -> None:
    held = {0: holding(0), 1: holding(1)}
    found = whole(heads(**told), [up_to(held[0], 7)], held)
    assert (found.slices, set(found.heads.of)) == ([], {0, 1})


def test_a_shard_that_is_not_open_hinders_no_survey() -> None:
    held = {0: holding(0), 1: holding(1, phase="apart")}
    slices = [up_to(held[0], 7)]
    assert whole(heads(s0=head(7), s1=head(9, epoch=2)), slices, held).slices == slices


def test_what_was_read_ahead_is_dropped_when_the_shard_has_moved() -> None:
    held = {0: holding(0)}
    ahead = ReadAhead(heads(s0=head(7)), [up_to(held[0], 7)])
    assert still_next(ahead, held) == ahead.slices
    assert still_next(ahead, {0: holding(0)}) == [], "it was lost and taken again"
    held[0].doubt()
    assert still_next(ahead, held) == []
    held[0].phase = "open"
    held[0].move(held[0].place._replace(n=6), excepted=0)
    assert still_next(ahead, held) == []


def test_a_survey_reads_no_more_of_many_shards_than_a_part_of_a_batch() -> None:
    settings = Settings(redis_url="redis://x", postgres_url="postgresql://x")
    small = [holding(shard) for shard in range(64)]
    assert entries_of_each(small, settings) == ENTRIES_MAX
    large = settings.flush_bytes_max // 64
    assert entries_of_each([*small[1:], holding(0, flushed=1, size=large)], settings) == 0
    assert entries_of_each(small, settings.model_copy(update={"flush_batch_max": 63})) == 0


def test_what_is_pending_is_what_the_heads_tell_beyond_the_rows() -> None:
    held = {0: holding(0), 1: holding(1), 2: holding(2)}
    assert pending(heads(s0=head(9), s1=head(4), s2="no"), held) == 4

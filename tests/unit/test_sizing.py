"""How much is written at once, where Postgres refuses some of it or cannot write all in time."""

from __future__ import annotations

import sys

from statecache_workers.sizing import BatchSize, PieceSize


def test_a_piece_is_half_of_what_was_refused_and_twice_what_was_taken() -> None:
    size = PieceSize()
    assert size.entries == sys.maxsize
    sizes = []
    for refused in (1000, 500, 250, 125, 62, 31, 15, 7, 3, 1, 1):
        size.refused(refused)
        sizes.append(size.entries)
    assert sizes == [500, 250, 125, 62, 31, 15, 7, 3, 1, 1, 1]
    for taken in (1, 2, 4):
        size.taken(taken)
    assert size.entries == 8
    size.taken(3)  # there were no more
    assert size.entries == 8


def test_a_batch_is_half_of_what_took_too_long_down_to_one_entry() -> None:
    size = BatchSize(1000, 1_000_000, timeout_s=8.0)
    for entries in (1000, 500, 250, 1, 1):
        size.too_large(entries, 10)
    assert (size.entries, size.whole) == (1, False)
    size.written(3.0)
    assert size.entries == 1
    for _ in range(10):
        size.written(1.0)
    assert (size.entries, size.whole) == (1000, True)

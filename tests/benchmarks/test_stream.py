from __future__ import annotations

from itertools import pairwise

from statecache.zstd import compressed, compressed_behind
from tests.benchmarks.stream import lost_with

VALUES = [b"[" + b",".join(b'"message %d of many"' % i for i in range(20 + step)) + b"]" for step in range(5)]


def test_a_lost_entry_that_is_whole_or_stands_by_itself_takes_one_version() -> None:
    for entries in (VALUES, [compressed(value) for value in VALUES]):
        assert [lost_with(entries, VALUES, at) for at in range(5)] == [1, 1, 1, 1, 0]


def test_a_lost_entry_of_a_chain_takes_all_behind_it_but_the_newest() -> None:
    chain = [compressed(VALUES[0])]
    chain += [compressed_behind(before, value) for before, value in pairwise(VALUES)]
    assert [lost_with(chain, VALUES, at) for at in range(5)] == [4, 3, 2, 1, 0]


def test_a_chain_goes_on_with_an_entry_that_stands_by_itself() -> None:
    chain = [compressed(VALUES[0]), compressed_behind(VALUES[0], VALUES[1]), compressed_behind(VALUES[1], VALUES[2])]
    chain += [compressed(VALUES[3]), compressed_behind(VALUES[3], VALUES[4])]
    assert [lost_with(chain, VALUES, at) for at in range(5)] == [3, 2, 1, 1, 0]

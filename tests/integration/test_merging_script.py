"""The script's rules of merging are those of `rules.merging`, byte for byte, on every server: also for nasty bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from statecache.rules.merging import INTEGER_MAX, INTEGER_MIN
from tests.fixtures.servers import every_redis
from tests.support.merges import befores, by_rules, by_script, merges


@every_redis
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(merge=merges, before=befores)
@example(merge=("increment", b"1"), before=b"%d" % INTEGER_MAX)
@example(merge=("increment", b"-1"), before=b"%d" % INTEGER_MIN)
@example(merge=("increment", b"1"), before=b"9007199254740993")
@example(merge=("increment", b"-9223372036854775808"), before=b"18446744073709551615")
@example(merge=("increment", b"9223372036854775807"), before=b"-10000000000000000000")
@example(merge=("increment", b"5"), before=b"-10000000000")
@example(merge=("add", b'["a"]'), before=b'["a" ]')
@example(merge=("remove", b'[","]'), before=b'["a","b",","]')
def test_the_script_and_the_rules_agree(redis_raw: Any, merge: tuple[str, bytes], before: bytes | None) -> None:
    assert by_script(redis_raw, *merge, before) == by_rules(*merge, before)


@every_redis
@pytest.mark.parametrize("by", [0, 1, -1, 10**10 - 1, -(10**10), 2**53 + 1, INTEGER_MAX, INTEGER_MIN])
def test_sums_are_exact_at_every_edge(redis_raw: Any, by: int) -> None:
    edges = [0, 10**9, 10**10, 2**31, 2**53, 10**15, 10**18, INTEGER_MAX, 10**19]
    for edge in edges:
        for near in (-1, 0, 1):
            for before in (edge + near, -edge + near):
                spelled = b"%d" % before
                found = by_script(redis_raw, "increment", b"%d" % by, spelled)
                assert found == by_rules("increment", b"%d" % by, spelled), before


def test_a_large_collection_is_searched_in_the_time_of_a_command(redis_raw: Any) -> None:
    members = b"[" + b",".join(b'"member-%06d"' % one for one in range(20_000)) + b"]"
    found = by_script(redis_raw, "remove", b'["member-000500","member-019999"]', members)
    assert found == by_rules("remove", b'["member-000500","member-019999"]', members)
    took = redis_raw.slowlog_get(1)
    assert not took or took[0]["duration"] < 1_000_000

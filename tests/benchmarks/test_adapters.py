"""The benchmark of the adapters: what is played into savers, and that its comparison can fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from tests.benchmarks.adapters import compare
from tests.benchmarks.graph_calls import KB, PROFILES, TOOL_CALLS, TURNS, Call, Words, config_of
from tests.benchmarks.measuring import times_faster

WORDS = Words(["what was said by somebody, and what somebody else has said to that"])


def last_put(calls: Sequence[Call]) -> Any:
    """Return the checkpoint that was put last; what tasks wrote at the same moment may come behind it."""
    return next(call.arguments[0] for call in reversed(calls) if call.verb == "put")


def test_graphs_ask_what_their_profiles_say() -> None:
    counts = {name: Counter(call.verb for call in profile(WORDS)) for name, profile in PROFILES.items()}
    assert counts["chat"] == {"put": 3 * TURNS, "put_writes": 2 * TURNS}
    assert counts["react"] == {"put": 2 * TOOL_CALLS + 3, "put_writes": 2 * TOOL_CALLS + 2}
    last = last_put(PROFILES["research"](WORDS))["channel_values"]
    assert [len(one["text"]) for one in last["sources"]] == [10 * KB] * 6
    assert len(last["report"]) == 100 * KB


@pytest.mark.parametrize("name", PROFILES)
def test_savers_are_compared_by_all_that_was_played_into_them(name: str) -> None:
    calls, one, other = PROFILES[name](WORDS), InMemorySaver(), InMemorySaver()
    for saver in (one, other):
        for call in calls:
            call.on(saver, "42")
    compare(one, other, "42", calls)
    other.put_writes(config_of("42", last_put(calls)["id"]), [("more", 1)], "task")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="different checkpoints"):
        compare(one, other, "42", calls)


def test_a_side_that_takes_twice_as_long_makes_the_other_twice_as_fast() -> None:
    row = times_faster("ours", "theirs", ([[1e-3, 2e-3, 9e-3], [1e-3]], [[4e-3] * 3, [2e-3]]), bound=2.1)
    assert row.figures == pytest.approx([2.0, 2.0])
    assert row.met is False

"""Client processes do what they are ordered to do, on a real Redis."""

from __future__ import annotations

from collections import defaultdict

import pytest

from statecache import Settings
from tests.benchmarks.agents import Agents
from tests.benchmarks.values import SAMPLE, values_of


def test_a_schedule_is_carried_out_whole_and_then_as_much_as_goes(settings: Settings) -> None:
    places = defaultdict(set)
    with Agents(settings, values_of(SAMPLE), most=2) as agents:
        order = agents.send(2, seconds=0.24, rate=80.0)
        offered = agents.answers(2)
        agents.send(1, seconds=0.1)
        more = agents.answers(1)
    dues = sorted(commit.due - order.start for commit in offered)
    assert dues == pytest.approx([number / 80.0 for number in range(20)], abs=1e-6)
    assert more
    for commit in offered + more:
        assert commit.due <= commit.sent <= commit.answered
        places[commit.shard].add(commit.n)
    assert sum(map(len, places.values())) == len(offered) + len(more)

"""The checker against a search through all orders, on many small histories."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.simulation.brute_force import linearizable
from tests.simulation.checker import check
from tests.simulation.evidence import Evidence
from tests.simulation.small_histories import KEY, falsified, true_history

HISTORIES_EACH = 30_000
SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_checker_agrees_with_the_search_on_small_histories(seed: int) -> None:
    rng = Random(seed)
    met: Counter[tuple[bool, bool]] = Counter()
    for number in range(HISTORIES_EACH):
        falsify = number % 2 == 1
        operations, chain = history = true_history(rng)
        if falsify:
            operations, chain = history = falsified(rng, history)
        found = check(operations, Evidence(chains={KEY: chain})).violations
        assert (not found) == linearizable(operations, chain), (seed, number, found, history)
        met[falsify, not found] += 1
    assert met[False, True] == HISTORIES_EACH / 2  # what a register did is never found fault with
    assert met[True, False] > HISTORIES_EACH / 4
    assert met[True, True] > HISTORIES_EACH / 10


def test_small_histories_hold_every_sort_of_operation() -> None:
    rng = Random(0)
    drawn = [true_history(rng) for _ in range(300)]
    operations = [one for history, _ in drawn for one in history]
    sorts = {(one.verb, one.outcome) for one in operations}
    writes = ("blind", "compare", "create", "delete")
    assert {(verb, outcome) for verb in writes for outcome in ("ok", "unknown")} <= sorts
    assert {("compare", "fail"), ("create", "fail"), ("delete", "fail"), ("read", "ok")} <= sorts
    assert {row.op for _, chain in drawn for row in chain} == {"set", "delete"}
    assert max(len(chain) for _, chain in drawn) >= 5
    overlapping = [
        one for history, _ in drawn for one in history for other in history
        if one.session != other.session and one.invoked < other.invoked < one.returned
    ]  # fmt: skip
    assert len(overlapping) > len(drawn)

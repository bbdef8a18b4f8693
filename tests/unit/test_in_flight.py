"""What a client was acknowledged: the highest position of each shard and epoch, whoever comes in between."""

from __future__ import annotations

import pytest

from statecache.commit_protocol.in_flight import COMPARED_AT_ONCE, RECENT_MAX, UNCOMPARED_MAX, InFlight
from statecache.errors import UsageError
from statecache.model import Position


class Overtaken:
    """A mutex before whose acquisition another thread notes a later position, once."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._met = False

    def __enter__(self) -> None:
        if not self._met:
            self._met = True
            self._in_flight.acknowledge(7, Position(2, 9))

    def __exit__(self, *exc_info: object) -> None:
        return None


def test_of_two_who_are_acknowledged_at_once_the_later_position_is_kept() -> None:
    in_flight = InFlight()
    in_flight.begin_anew(Overtaken(in_flight))
    in_flight.acknowledge(7, Position(2, 5))
    assert in_flight.tails() == [(7, 2, 9)]
    in_flight.acknowledge(7, Position(2, 4))
    in_flight.acknowledge(7, Position(3, 1))
    assert in_flight.tails() == [(7, 2, 9), (7, 3, 1)]


def test_a_shard_that_is_met_in_another_epoch_has_moved() -> None:
    in_flight = InFlight()
    in_flight.acknowledge(7, Position(2, 5), "a", ("runs/1",))
    in_flight.acknowledge(8, Position(3, 1), "b", ("runs/2",))
    assert not in_flight.moved
    in_flight.acknowledge(7, Position(3, 6), "c", ("runs/1",))
    assert in_flight.moved
    in_flight.acknowledge(9, Position(1, 1), "d", ("runs/3",))
    in_flight.moved = False
    in_flight.acknowledge(9, Position(1, 2), "e", ("runs/3",))
    assert not in_flight.moved
    assert in_flight.position_of("b", "runs/2") == (3, 1)
    assert in_flight.position_of("b", "runs/1") is None, "the same change_id at another key is another change"
    assert in_flight.position_of("z", "runs/1") is None


def test_without_a_fence_commits_are_kept_until_they_are_compared() -> None:
    fenced, unfenced = InFlight(), InFlight(fenced=False)
    for n in range(1, UNCOMPARED_MAX + 5):
        for one in (fenced, unfenced):
            one.acknowledge(n % 2, Position(2, n), f"{n}", ("runs/1",))
        assert unfenced.due == (n >= COMPARED_AT_ONCE)
    assert (fenced.doubted, unfenced.moved, unfenced.doubted) == (False, False, True)
    assert (fenced.take_uncompared(), fenced.uncompared_shards(), unfenced.uncompared_shards()) == ([], set(), {0, 1})
    assert [one.n for one in unfenced.take_uncompared()] == [*range(5, COMPARED_AT_ONCE + 5)], "the latest are kept"
    while unfenced.take_uncompared():
        pass
    assert unfenced.uncompared_shards() == set()


def test_the_last_commits_are_kept_one_by_one() -> None:
    in_flight = InFlight()
    for n in range(RECENT_MAX + 5):
        in_flight.acknowledge(7, Position(2, n + 1), f"{n}", ("runs/1",))
    assert [one.n for one in in_flight.recent()] == [*range(6, RECENT_MAX + 6)]


def test_what_was_applied_anew_is_awaited_there_alone() -> None:
    """What went with it, and was not, still is; so is what came before it where not all is known any more."""
    in_flight = InFlight()
    in_flight.acknowledge(7, Position(2, 5), "a", ("runs/1",))
    in_flight.acknowledge(8, Position(2, 3), "b", ("runs/2",))
    in_flight.acknowledge(8, Position(2, 4), "c", ("runs/2",))
    assert in_flight.awaited_tails() == in_flight.tails() == [(7, 2, 5), (8, 2, 4)]
    in_flight.acknowledge(7, Position(3, 5), "a", ("runs/1",))
    in_flight.acknowledge(8, Position(3, 4), "c", ("runs/2",))
    assert in_flight.awaited_tails() == [(7, 3, 5), (8, 2, 3), (8, 3, 4)]
    assert in_flight.tails() == [(7, 2, 5), (7, 3, 5), (8, 2, 4), (8, 3, 4)]
    in_flight.acknowledge(7, Position(3, 6), "a", ("runs/3",))
    assert in_flight.awaited_tails() == [(7, 3, 6), (8, 2, 3), (8, 3, 4)], "at another key it is another change"
    for n in range(RECENT_MAX - len(in_flight.recent())):
        in_flight.acknowledge(9, Position(1, n + 1), f"{n}", ("runs/4",))
    assert in_flight.awaited_tails()[:4] == [(7, 2, 4), (7, 3, 6), (8, 2, 3), (8, 3, 4)]


@pytest.mark.parametrize("more", [0, RECENT_MAX + 400])
def test_a_position_that_is_nowhere_and_was_told_to_nobody_is_awaited_no_more(more: int) -> None:
    """However many commits come behind it."""
    in_flight = InFlight()
    for n, name in enumerate(("first", "second", "third"), start=1):
        in_flight.acknowledge(7, Position(2, n), name, ("runs/1",))
    in_flight.withdraw(7, Position(2, 2))
    in_flight.withdraw(7, Position(2, 3))
    for n in range(more):
        in_flight.acknowledge(7, Position(3, 4 + n), f"later-{n}", ("runs/1",))
    assert in_flight.awaited_tails() == [(7, 2, 1), (7, 3, 3 + more)][: 2 if more else 1]
    assert in_flight.position_of("second", "runs/1") is None
    assert [one.change_id for one in in_flight.recent()][: 0 if more else 9] == ([] if more else ["first"])
    in_flight.withdraw(7, Position(2, 1))
    assert in_flight.awaited_tails() == ([(7, 3, 3 + more)] if more else [])


def test_of_a_position_that_is_nowhere_the_ones_before_it_are_awaited_though_they_are_known_no_more() -> None:
    in_flight = InFlight()
    for n in range(RECENT_MAX + 5):
        in_flight.acknowledge(n % 2, Position(2, n + 1), f"{n}", ("runs/1",))
    in_flight.acknowledge(8, Position(2, 9), "a", ("runs/2",))
    for n in range(RECENT_MAX):
        in_flight.acknowledge(1, Position(3, n + 1), f"more-{n}", ("runs/1",))
    in_flight.withdraw(8, Position(2, 9))
    assert (8, 2, 8) in in_flight.tails()


def test_a_call_that_was_interrupted_before_its_end_is_over_once_nobody_has_it() -> None:
    in_flight = InFlight()
    call = in_flight.call()
    call.__enter__()
    in_flight.closing = True
    in_flight.refuse_if_closing()
    assert len(in_flight.under_way) == 1
    del call
    assert len(in_flight.under_way) == 0
    with pytest.raises(UsageError, match="it is closing"):
        in_flight.refuse_if_closing()


def test_commits_of_many_states_are_compared_a_few_at_once() -> None:
    """A comparison takes its time by the states."""
    unfenced, keys = InFlight(fenced=False), tuple(f"a/{number}" for number in range(200))
    for n in range(1, 6):
        unfenced.acknowledge(0, Position(1, n), f"{n}", keys)
        assert unfenced.due == (n >= 3)
    assert [one.n for one in unfenced.take_uncompared()] == [1, 2, 3]
    assert [one.n for one in unfenced.take_uncompared()] == [4, 5]

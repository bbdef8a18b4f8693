"""What a client was acknowledged: the highest position of each shard and epoch, whoever comes in between."""

from __future__ import annotations

import pytest

from statecache._async.commit.in_flight import RECENT_MAX
from statecache._async.commit.in_flight import InFlight as AsyncAccounts
from statecache._sync.commit.in_flight import InFlight
from statecache.model import Position


class Overtaken:
    """A mutex before whose acquisition another thread notes a later position, once."""

    def __init__(self, accounts: AsyncAccounts | InFlight) -> None:
        self._in_flight = accounts
        self._met = False

    def __enter__(self) -> None:
        if not self._met:
            self._met = True
            self._in_flight.acknowledge(7, Position(2, 9))

    def __exit__(self, *exc_info: object) -> None:
        return None


@pytest.mark.parametrize("kind", [AsyncAccounts, InFlight])
def test_of_two_who_are_acknowledged_at_once_the_later_position_is_kept(kind: type[AsyncAccounts | InFlight]) -> None:
    accounts = kind()
    accounts.begin_anew(Overtaken(accounts))
    accounts.acknowledge(7, Position(2, 5))
    assert accounts.tails() == [(7, 2, 9)]
    accounts.acknowledge(7, Position(2, 4))
    accounts.acknowledge(7, Position(3, 1))
    assert accounts.tails() == [(7, 2, 9), (7, 3, 1)]


@pytest.mark.parametrize("kind", [AsyncAccounts, InFlight])
def test_a_shard_that_is_met_in_another_epoch_has_moved(kind: type[AsyncAccounts | InFlight]) -> None:
    accounts = kind()
    accounts.acknowledge(7, Position(2, 5), "a", "runs/1")
    accounts.acknowledge(8, Position(3, 1), "b", "runs/2")
    assert not accounts.moved
    accounts.acknowledge(7, Position(3, 6), "c", "runs/1")
    assert accounts.moved
    accounts.acknowledge(9, Position(1, 1), "d", "runs/3")
    accounts.moved = False
    accounts.acknowledge(9, Position(1, 2), "e", "runs/3")
    assert not accounts.moved
    assert accounts.position_of("b") == (3, 1)
    assert accounts.position_of("z") is None


@pytest.mark.parametrize("kind", [AsyncAccounts, InFlight])
def test_the_last_commits_are_kept_one_by_one(kind: type[AsyncAccounts | InFlight]) -> None:
    accounts = kind()
    for n in range(RECENT_MAX + 5):
        accounts.acknowledge(7, Position(2, n + 1), f"{n}", "runs/1")
    assert [one.n for one in accounts.recent()] == [*range(6, RECENT_MAX + 6)]

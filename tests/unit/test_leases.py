"""What a holder believes of its lease, what a waiter waits for, and how both read in Redis: decided from values."""

from __future__ import annotations

import math

import pytest

from statecache import LimitExceeded, Token, UsageError
from statecache.rules.leases import (
    ASK_S,
    COMING_S,
    WAITERS_MAX,
    Holding,
    Locks,
    Waiting,
    call_of,
    checked_patience,
    checked_ttl,
    guards_of,
    lease_of,
    queue_of,
    shown_holder,
)
from tests.fixtures.time import ManualClock


def _holding(**more: object) -> Holding:
    return Holding(**({"key": "runs/42", "shard": 1, "request": "r", "ttl": 30.0, "owner": None} | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("ttl", [0, -1, -0.5, math.nan, math.inf, -math.inf, 0.049, 86_401, 10**400, "30", None, True])
def test_a_ttl_that_no_lease_can_have_is_refused(ttl: object) -> None:
    with pytest.raises(UsageError, match="ttl="):
        checked_ttl(ttl)


def test_a_ttl_is_a_number_of_seconds() -> None:
    assert [checked_ttl(ttl) for ttl in (0.05, 30, 86_400)] == [0.05, 30.0, 86_400.0]


@pytest.mark.parametrize("timeout", [-1, math.nan, math.inf, "5", False])
def test_a_time_to_wait_that_is_none_is_refused(timeout: object) -> None:
    with pytest.raises(UsageError, match="timeout="):
        checked_patience(timeout)


def test_nothing_is_not_at_all_and_none_is_for_ever() -> None:
    assert [checked_patience(timeout) for timeout in (None, 0, 2)] == [None, 0.0, 2.0]


def test_tokens_are_in_the_order_of_epochs_and_then_of_counts() -> None:
    assert sorted([Token(2, 1), Token(1, 10), Token(1, 9)]) == [Token(1, 9), Token(1, 10), Token(2, 1)]
    assert Token.parse(str(Token(7, 12))) == Token(7, 12)
    assert [Token.parse(text) for text in ("", "7", "7-", "-7", "7-12-1", "a-1", "7-\uff11")] == [None] * 7


def test_a_holder_stops_believing_before_the_server_can_give_the_lease_away() -> None:
    clock, holding = ManualClock(), _holding()
    clock.advance(100)
    holding.granted(clock.boottime())
    clock.advance(28.9)
    assert not holding.lost(clock.boottime())
    clock.advance(0.1)
    assert holding.lost(clock.boottime())
    short = _holding(ttl=0.5)
    short.granted(0.0)
    assert short.believed_until == pytest.approx(0.45)


def test_time_in_which_the_machine_was_suspended_counts() -> None:
    clock, holding = ManualClock(), _holding()
    holding.granted(clock.boottime())
    clock.suspend(30)
    assert holding.lost(clock.boottime())


def test_a_lease_is_renewed_at_a_third_and_two_lost_renewals_do_not_lose_it() -> None:
    holding = _holding()
    holding.granted(0.0)
    attempts = 0
    while not holding.lost(holding.renew_at):
        attempts += 1
        holding.unanswered(holding.renew_at + holding.ttl / 6)
    assert attempts >= 3
    holding.granted(9.0)
    assert holding.renew_at == 19.0


@pytest.mark.parametrize(
    ("before", "repeated", "after"), [(False, False, False), (False, True, True), (True, False, True)]
)
def test_an_answer_grants_the_lock_or_not_and_an_attempt_without_one_may_be_executed_yet(
    before: bool, repeated: bool, after: bool
) -> None:
    holding = _holding(may_arrive=before)
    assert not holding.answered("WAIT", ["900", "somebody"], 5.0, repeated=repeated)
    assert (holding.token, holding.lost(5.0), holding.may_arrive) == (Token(0, 0), True, after)
    assert holding.answered("OK", ["3-7"], 5.0, repeated=repeated)
    assert (holding.token, holding.lost(5.0), holding.renew_at, holding.may_arrive) == (Token(3, 7), False, 15.0, after)


def test_too_many_who_wait_are_counted() -> None:
    with pytest.raises(LimitExceeded) as caught:
        _holding().answered("FULL", ["1000"], 5.0, repeated=False)
    assert (caught.value.actual, caught.value.limit, caught.value.key) == (1001, WAITERS_MAX, "runs/42")


def test_a_lease_that_the_server_knows_no_more_is_lost_at_once() -> None:
    holding = _holding(token=Token(1, 7))
    holding.granted(0.0)
    locks = Locks((_holding(key="runs/42/other"), holding), ("runs/42",))
    assert locks.spelled() == ("runs/42/other\x000-0\x00runs/42\x001-7\x00", "runs/42\x00")
    locks.refused("runs/42")
    assert holding.lost(1.0)
    assert not locks.held[0].gone


def test_a_waiter_asks_when_it_is_called_when_the_lease_in_the_way_ends_and_now_and_then() -> None:
    waiting = Waiting(key="runs/42", request="mine", asks_at=0.0)
    waiting.asking()
    waiting.answered(30.0, "other", 10.0)
    assert (waiting.ask_at, waiting.holder) == (10.0 + ASK_S, "other")
    waiting.answered(0.5, "other", 10.0)
    assert waiting.ask_at == 10.5
    assert not waiting.called("another", 1.0, 10.1)
    assert waiting.ask_at == 10.5
    assert not waiting.called("another", 0.2, 10.1)
    assert waiting.ask_at == pytest.approx(10.3)
    assert waiting.called("mine", 1.0, 10.2)
    assert waiting.ask_at == 10.2


@pytest.mark.parametrize("called", [True, False])
def test_a_call_that_is_quicker_than_the_answer_before_it_is_not_forgotten(called: bool) -> None:
    waiting = Waiting(key="runs/42", request="mine", asks_at=0.0)
    waiting.asking()
    if called:
        waiting.called("mine", 1.0, 10.0)
    else:
        waiting.unheard(10.0)
    waiting.answered(30.0, "other", 10.1)
    assert waiting.ask_at == 10.0


def test_a_waiter_that_cannot_hear_asks_within_the_time_that_it_would_have_for_coming() -> None:
    waiting = Waiting(key="runs/42", request="mine", asks_at=0.0)
    waiting.asking()
    waiting.answered(30.0, "other", 10.0, deaf=True)
    assert 10.0 < waiting.ask_at < 10.0 + COMING_S / 2


def test_a_call_is_told_from_everything_else_that_is_announced() -> None:
    assert call_of(b"lock abc 1000 runs/4 2") == ("runs/4 2", "abc", 1.0)
    assert [call_of(message) for message in (b"1 5 0", b"", b"lock", b"lock abc x runs/42", b"\xff")] == [None] * 5


def test_the_locks_of_a_key_and_of_what_is_above_it_guard_it() -> None:
    assert guards_of(["runs/42"]) == ("runs/42",)
    assert guards_of(["runs/42/steps/a", "runs/42", "runs/42/plan"]) == (
        "runs/42", "runs/42/steps", "runs/42/steps/a", "runs/42/plan",
    )  # fmt: skip


def test_a_lease_and_a_queue_are_read_as_they_stand_and_what_stands_otherwise_is_none() -> None:
    lease = lease_of("runs/42", b"token=7-12 until=1030 ttl=30 since=1000 request=abc holder=a host:1 until=5")
    assert lease is not None
    assert (lease.token, lease.until_ms, lease.ttl_ms, lease.since_ms) == (Token(7, 12), 1030, 30, 1000)
    assert (lease.request, lease.holder) == ("abc", "a host:1 until=5")
    for value in (b"", b"somebody's", b"token=x until=1 ttl=1 since=1 request=a holder=b", b"token=7-12", b"\xff"):
        assert lease_of("runs/42", value) is None
    first, second = queue_of(
        b"abc until=5 ttl=30 since=1 holder=a b\nnonsense\ndef until=6 ttl=9 since=2 holder=\xff\n"
    )
    assert (first.request, first.until_ms, first.ttl_ms, first.since_ms, first.holder) == ("abc", 5, 30, 1, "a b")
    assert second.request == "def"


def test_a_holders_name_is_one_line() -> None:
    assert [shown_holder(writer) for writer in ("host:1", "a\nb\tc", "\n")] == ["host:1", "a b c", "?"]

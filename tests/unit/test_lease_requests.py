"""The requests to the lease script: what is raised where their time is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ResponseError

from statecache import RedisUnavailable
from statecache.backoff import LATE_S
from statecache.clock import monotonic
from statecache.concurrency import TASKS
from statecache.core.lock.requests import WITHDRAW_S, LeaseRequests
from statecache.keys import KeySpace
from statecache.rules.leases import PLACE_S

TOO_FEW = "NOREPLICAS Not enough good replicas to write."


class Answers:
    """An exchange that is refused, and from then on cut off."""

    def __init__(self, *refused: Exception) -> None:
        self._refused = [*refused]

    async def send(self, *_: object) -> list[str]:
        """Raise the next of them."""
        raise self._refused.pop(0) if self._refused else RedisUnavailable("timeout", detail="no answer within 0.002 s")


@pytest.mark.parametrize(
    ("refused", "told"), [((ResponseError(TOO_FEW),), "NOREPLICAS"), ((), "no answer within 0.002 s")]
)
async def test_an_attempt_that_the_end_cut_off_raises_what_the_one_before_met(
    refused: tuple[Exception, ...], told: str
) -> None:
    redis: Any = SimpleNamespace(io=TASKS)
    answers, opener = Answers(*refused), SimpleNamespace()
    holding: Any = SimpleNamespace(shard=0)
    requests = LeaseRequests(KeySpace("sc", 4), redis, opener, answers, answers)  # type: ignore[arg-type]
    with pytest.raises(RedisUnavailable, match=told):
        await requests.ask("acquire", holding, end=monotonic() + LATE_S)


async def test_a_withdrawal_goes_with_others_and_has_more_time_than_its_caller_waits() -> None:
    given = list[float]()

    class Batches:
        """An exchange for many."""

        async def send(self, verb: str, _: object, seconds: float) -> list[str]:
            """Answer that nothing was held."""
            assert verb == "withdraw"
            given.append(seconds)
            return ["GONE"]

    redis: Any = SimpleNamespace(io=TASKS)
    requests = LeaseRequests(KeySpace("sc", 4), redis, SimpleNamespace(), Answers(), Batches())  # type: ignore[arg-type]
    holding: Any = SimpleNamespace(shard=0)
    assert not await requests.withdraw(holding)
    assert WITHDRAW_S < min(given) <= PLACE_S

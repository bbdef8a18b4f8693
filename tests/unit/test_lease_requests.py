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
from statecache.core.lock.requests import LeaseRequests
from statecache.keys import KeySpace

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
    requests = LeaseRequests(KeySpace("sc", 4), redis, SimpleNamespace(), Answers(*refused))  # type: ignore[arg-type]
    holding: Any = SimpleNamespace(shard=0)
    with pytest.raises(RedisUnavailable, match=told):
        await requests.ask("acquire", holding, end=monotonic() + LATE_S)

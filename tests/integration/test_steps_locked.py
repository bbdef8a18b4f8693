"""Steps and locks: a step's own claim never stands in its way, and a lock that somebody else holds does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from statecache import AgentRun, AsyncStateCache, LockHeld, Settings, Step, StepUnknown
from statecache.clock import wall
from statecache.rules.steps import fingerprint_of, intent
from tests.fixtures.servers import MakeSettings
from tests.fixtures.steps import Bank, Receipt, charged
from tests.support.polling import pause
from tests.support.workers import at_work

KEY = "runs/42"
RECORD = f"{KEY}/steps/charge"
CLAIM_S = 0.5


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """The settings of a deployment whose dead agents are soon known to be dead."""
    return make_settings(step_claim_s=CLAIM_S)


@pytest.fixture(autouse=True)
async def working(settings: Settings) -> AsyncIterator[None]:
    """A worker at work."""
    async with at_work(settings):
        yield


async def _leased(cache: AsyncStateCache) -> None:
    """Wait until the running step has its claim."""
    async with asyncio.timeout(60):
        while not cache._runtime.claims.held:
            await pause()


async def test_a_lasting_step_ends_well_where_locks_are_enforced(cache: AsyncStateCache, bank: Bank) -> None:
    runs = cache.namespace("runs", type=AgentRun, locking="enforced")
    await runs.create("42", AgentRun(goal="refund"))

    async def slow(step: Step) -> Receipt:
        await _leased(cache)
        return bank.charge(step, "order 7")

    receipt = await runs.step("42", "charge", slow, type=Receipt, apply=charged)
    assert await runs.step("42", "charge", slow, type=Receipt) == receipt
    assert len(bank.charged) == 1


async def test_a_step_left_by_the_dead_is_resolved_where_locks_are_enforced(cache: AsyncStateCache, bank: Bank) -> None:
    runs = cache.namespace("runs", locking="enforced")
    left = intent(None, "charge", fingerprint_of((), key=RECORD), new_key="k" * 24, at=wall())
    await cache.set(RECORD, left)
    with pytest.raises(StepUnknown, match="never ended"):
        await runs.step("42", "charge", lambda step: bank.charged.append(step.idempotency_key))
    await runs.resolve_step("42", "charge", not_done=True)
    await runs.step("42", "charge", lambda step: bank.charged.append(step.idempotency_key))
    assert bank.charged == [left.idempotency_key]


async def test_a_step_is_refused_while_somebody_else_holds_the_lock(
    cache: AsyncStateCache, settings: Settings, bank: Bank
) -> None:
    runs = cache.namespace("runs", locking="enforced")
    async with AsyncStateCache(settings=settings) as other, other.lock(KEY) as lease:
        with pytest.raises(LockHeld):
            await runs.step("42", "charge", bank.charge, "order 7")
        assert bank.charged == []
        await lease.step(KEY, "charge", bank.charge, "order 7")
    assert len(bank.charged) == 1

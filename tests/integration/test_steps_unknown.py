"""Steps of which nobody knows whether they had their effect: that is said, and resolved in three ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from statecache import (
    AgentRun,
    AsyncStateCache,
    CodecError,
    Done,
    LimitExceeded,
    NotDone,
    NotFound,
    OutcomeUnknown,
    Retry,
    Settings,
    StateCache,
    Step,
    StepUnknown,
    UsageError,
)
from statecache.model import VALUE_BYTES_MAX
from tests.fixtures.faults import through
from tests.fixtures.servers import MakeClient
from tests.fixtures.steps import Bank, Receipt, charged
from tests.support.fault_proxy import FaultProxy
from tests.support.workers import at_work

KEY = "runs/42"
RECORD = f"{KEY}/steps/charge"

Psql = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
async def working(settings: Settings) -> AsyncIterator[None]:
    """A worker at work."""
    async with at_work(settings):
        yield


async def _record(client: AsyncStateCache, key: str = RECORD) -> dict[str, Any]:
    state = await client.get(key)
    assert state is not None
    return dict(state.value)


async def test_a_raising_function_leaves_the_step_unknown(client: AsyncStateCache, bank: Bank) -> None:
    bank.fails = [ConnectionError("no answer")]
    with pytest.raises(ConnectionError, match="no answer") as raised:
        await client.step(KEY, "charge", bank.charge, "order 7")
    assert any("resolve_step" in note for note in raised.value.__notes__)
    with pytest.raises(StepUnknown, match="its function raised ConnectionError: no answer") as caught:
        await client.step(KEY, "charge", bank.charge, "order 7")
    assert caught.value.idempotency_key == bank.charged[0]
    assert len(bank.charged) == 1
    assert (await _record(client))["status"] == "unknown"


async def test_an_idempotent_step_that_raised_runs_again_with_the_same_key(client: AsyncStateCache, bank: Bank) -> None:
    bank.fails = [TimeoutError("no answer")]
    with pytest.raises(TimeoutError):
        await client.step(KEY, "charge", bank.charge, "order 7", idempotent=True)
    receipt = await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, idempotent=True)
    assert receipt.attempt == 2
    assert bank.charged == [receipt.key, receipt.key]


async def test_retry_runs_again_at_once_and_only_for_its_exceptions(client: AsyncStateCache, bank: Bank) -> None:
    retry = Retry(times=2, on=(ConnectionRefusedError,), pause_s=0)
    bank.fails = [ConnectionRefusedError(), ConnectionRefusedError()]
    await client.step(KEY, "charge", bank.charge, "order 7", retry=retry)
    assert len(set(bank.charged)) == 1
    assert len(bank.charged) == 3
    bank.fails = [ConnectionRefusedError(), OSError("half sent")]
    with pytest.raises(OSError, match="half sent"):
        await client.step(KEY, "mail", bank.charge, "order 7", retry=retry)
    with pytest.raises(StepUnknown):
        await client.step(KEY, "mail", bank.charge, "order 7", retry=retry)


async def test_what_is_retried_in_vain_is_failed_and_may_run_again(client: AsyncStateCache, bank: Bank) -> None:
    bank.fails = [ConnectionRefusedError("closed")]
    with pytest.raises(ConnectionRefusedError):
        await client.step(KEY, "charge", bank.charge, "order 7", retry=Retry(times=0))
    assert (await _record(client))["status"] == "failed"
    receipt = await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt)
    assert receipt.attempt == 2
    assert len(set(bank.charged)) == 1


async def test_check_brings_the_result_of_an_effect_that_happened(client: AsyncStateCache, bank: Bank) -> None:
    await client.create(KEY, AgentRun(goal="refund"))
    bank.fails = [TimeoutError()]
    with pytest.raises(TimeoutError):
        await client.step(KEY, "charge", bank.charge, "order 7")

    def check(step: Step) -> Done[Receipt] | NotDone:
        return Done(Receipt("found", step.idempotency_key, step.attempt))

    receipt = await client.step(
        KEY, "charge", bank.charge, "order 7", type=Receipt, check=check, apply=charged, state_type=AgentRun
    )
    assert receipt == Receipt("found", bank.charged[0], 1)
    assert await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt) == receipt
    state = await client.get(KEY, type=AgentRun)
    assert state is not None
    assert state.value.results == {"charge": "found"}
    assert len(bank.charged) == 1


async def test_check_that_finds_nothing_done_has_it_run_again(client: AsyncStateCache, bank: Bank) -> None:
    bank.fails = [TimeoutError()]
    with pytest.raises(TimeoutError):
        await client.step(KEY, "charge", bank.charge, "order 7")
    with pytest.raises(StepUnknown):
        await client.step(KEY, "charge", bank.charge, "order 7", check=lambda step: None)
    with pytest.raises(UsageError, match="check="):
        await client.step(KEY, "charge", bank.charge, "order 7", check=lambda step: True)
    assert len(bank.charged) == 1
    receipt = await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, check=lambda step: NotDone())
    assert receipt.attempt == 2
    assert bank.charged == [receipt.key] * 2


async def test_a_person_says_what_the_result_was_and_it_is_applied(client: AsyncStateCache, bank: Bank) -> None:
    await client.create(KEY, AgentRun(goal="refund"))
    bank.fails = [TimeoutError()]
    with pytest.raises(TimeoutError):
        await client.step(KEY, "charge", bank.charge, "order 7")
    said = Receipt("by hand", bank.charged[0], 1)
    await client.resolve_step(KEY, "charge", result=said, type=Receipt, actor="ada")
    with pytest.raises(UsageError, match="nothing about it is unknown"):
        await client.resolve_step(KEY, "charge", not_done=True)
    kept = await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, apply=charged, state_type=AgentRun)
    assert kept == said
    state = await client.get(KEY, type=AgentRun)
    assert state is not None
    assert state.value.results == {"charge": "by hand"}
    assert (await _record(client))["status"] == "done"
    assert len(bank.charged) == 1


async def test_a_person_says_that_it_was_not_done(client: AsyncStateCache, bank: Bank) -> None:
    bank.fails = [TimeoutError()]
    with pytest.raises(TimeoutError):
        await client.step(KEY, "charge", bank.charge, "order 7")
    await client.resolve_step(KEY, "charge", not_done=True)
    receipt = await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt)
    assert (receipt.attempt, receipt.key) == (2, bank.charged[0])


async def test_there_is_nothing_to_resolve_where_nothing_is_unknown(client: AsyncStateCache, bank: Bank) -> None:
    with pytest.raises(NotFound, match=r"steps/charge' does not exist\. The step never began"):
        await client.resolve_step(KEY, "charge", not_done=True)
    with pytest.raises(UsageError, match="either"):
        await client.resolve_step(KEY, "charge")
    with pytest.raises(UsageError, match="either"):
        await client.resolve_step(KEY, "charge", result=1, not_done=True)
    await client.step(KEY, "charge", bank.charge, "order 7")
    with pytest.raises(UsageError, match="is done"):
        await client.resolve_step(KEY, "charge", result=1)


@pytest.mark.parametrize("result", [object(), float("nan"), "\ud800"])
async def test_a_result_that_cannot_be_stored_is_not_lost_in_silence(
    client: AsyncStateCache, bank: Bank, result: Any
) -> None:
    def charge(step: Step) -> Any:
        bank.charged.append(step.idempotency_key)
        return result

    with pytest.raises(CodecError):
        await client.step(KEY, "charge", charge)
    with pytest.raises(StepUnknown, match="returned what cannot be stored"):
        await client.step(KEY, "charge", charge)
    assert len(bank.charged) == 1


async def test_a_result_that_is_too_large_is_not_lost_in_silence(client: AsyncStateCache, bank: Bank) -> None:
    runs = client.namespace("runs", value_bytes_max=20_000)

    def charge(step: Step) -> Any:
        bank.charged.append(step.idempotency_key)
        return "x" * 19_000

    with pytest.raises(LimitExceeded, match=r"raise value_bytes_max \(at most 8 MiB\)"):
        await runs.step("42", "charge", charge)
    with pytest.raises(StepUnknown, match="returned what cannot be stored"):
        await runs.step("42", "charge", charge)
    assert len(bank.charged) == 1


async def test_nobody_is_told_to_raise_a_limit_that_is_the_greatest(client: AsyncStateCache) -> None:
    """A result has less room than a value has: its record says more than that."""
    runs = client.namespace("runs", value_bytes_max=VALUE_BYTES_MAX)
    with pytest.raises(LimitExceeded, match="Split the value over several keys of its group") as refused:
        await runs.step("42", "charge", lambda _: "x" * (VALUE_BYTES_MAX - 100))
    assert "value_bytes_max" not in str(refused.value)
    assert refused.value.limit < VALUE_BYTES_MAX - 100


async def test_a_result_of_another_type_is_refused(client: AsyncStateCache) -> None:
    with pytest.raises(CodecError, match="not a Receipt"):
        await client.step(KEY, "charge", lambda step: {"order": "x"}, type=Receipt)
    assert (await _record(client))["status"] == "unknown"


async def test_a_raising_apply_keeps_the_result_for_the_next_call(client: AsyncStateCache, bank: Bank) -> None:
    await client.create(KEY, AgentRun(goal="refund"))
    with pytest.raises(ZeroDivisionError):
        await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, apply=lambda run, receipt: 1 / 0)
    assert (await _record(client))["status"] == "ran"
    with pytest.raises(UsageError, match="apply= returned None"):
        await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, apply=lambda run, receipt: None)
    receipt = await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, apply=charged, state_type=AgentRun)
    assert bank.charged == [receipt.key]
    state = await client.get(KEY, type=AgentRun)
    assert state is not None
    assert state.value.completed == ("charge",)


async def test_a_cancelled_step_is_unknown_at_once(cache: AsyncStateCache) -> None:
    begun = asyncio.Event()

    async def never(step: Step) -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(cache.step(KEY, "charge", never))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(StepUnknown, match="cut off by CancelledError"):
        await cache.step(KEY, "charge", never)


async def test_a_step_that_is_cancelled_while_its_claim_is_given_back_leaves_its_commit(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result is applied by then, and its caller learns nothing of it."""
    gives = asyncio.Event()

    async def never(_: object) -> None:
        gives.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(cache._runtime.claims, "give_back", never)
    running = asyncio.create_task(cache.step(KEY, "charge", lambda step: 1, default=0, apply=lambda _, result: result))
    await gives.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (left,) = cache.unknown_outcomes()
    assert KEY in left.keys
    assert (await cache.outcome(left.change_id, KEY)).verdict == "applied"
    assert not cache.unknown_outcomes()


async def test_a_step_that_is_interrupted_while_its_claim_is_given_back_leaves_its_commit(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    def work() -> None:
        with StateCache(settings=settings) as cache:
            monkeypatch.setattr(cache._runtime.claims, "give_back", interrupted)
            with pytest.raises(KeyboardInterrupt):
                cache.step(KEY, "charge", lambda step: 1, default=0, apply=lambda _, result: result)
            (left,) = cache.unknown_outcomes()
            assert KEY in left.keys
            assert cache.outcome(left.change_id, KEY).verdict == "applied"

    await asyncio.to_thread(work)


async def test_a_redis_that_goes_silent_during_the_function_has_the_next_call_find_out(
    make_client: MakeClient, settings: Settings, bank: Bank, proxy: FaultProxy
) -> None:
    far = make_client(through(settings, redis=proxy).model_copy(update={"step_claim_s": 0.5}))

    def charge(step: Step) -> Receipt:
        proxy.freeze()
        return bank.charge(step, "order 7")

    with pytest.raises(OutcomeUnknown) as caught:
        await far.step(KEY, "charge", charge, timeout=1.0)
    assert any("Call the step again" in note for note in caught.value.__notes__)
    proxy.thaw()
    with suppress(StepUnknown):
        receipt = await far.step(KEY, "charge", charge, type=Receipt)
        assert receipt.key == bank.charged[0]
    assert len(bank.charged) == 1

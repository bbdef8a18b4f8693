"""Steps on real servers: they run once, and their results are kept."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from statecache import (
    AgentRun,
    AsyncStateCache,
    CodecError,
    InvalidKey,
    NotFound,
    Settings,
    Step,
    StepMismatch,
    UsageError,
)
from statecache.clock import monotonic
from statecache.core.postgres.tier import PostgresTier
from statecache.errors import Unavailable
from statecache.keys import KeySpace
from tests.fixtures.flusher import rows
from tests.fixtures.servers import MakeClient, MakeSettings
from tests.fixtures.steps import Bank, Receipt, charged
from tests.support.workers import at_work

KEY = "runs/42"
RECORD = f"{KEY}/steps/charge"
CLAIM_S = 0.5

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


async def test_a_step_runs_once_and_its_result_is_given_ever_after(
    client: AsyncStateCache, bank: Bank, make_client: MakeClient, settings: Settings
) -> None:
    receipt = await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt)
    assert receipt == Receipt("order 7", bank.charged[0], 1)
    assert await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt) == receipt
    other = make_client(settings)
    assert await other.step(KEY, "charge", bank.charge, "order 7", type=Receipt) == receipt
    assert len(bank.charged) == 1


async def test_the_intent_is_in_postgres_before_the_function_is_called(
    client: AsyncStateCache, settings: Settings
) -> None:
    seen: list[Any] = []

    def look(step: Step) -> str:
        path = f"-c search_path={settings.postgres_schema}"
        with psycopg.connect(settings.postgres_url, options=path) as psql:
            seen.extend(rows(psql, "SELECT value_json->>'status', value_json->>'idempotency_key' FROM state_view"))
        assert seen == [("intent", step.idempotency_key)]
        return "seen"

    assert await client.step(KEY, "look", look) == "seen"


async def test_result_and_state_are_one_commit(client: AsyncStateCache, bank: Bank, psql: Psql) -> None:
    before = await client.create(KEY, AgentRun(goal="refund"), durability="postgres")
    await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, apply=charged, state_type=AgentRun)
    after = await client.get(KEY, type=AgentRun)
    assert after is not None
    assert after.value == AgentRun(goal="refund").with_step("charge", "order 7")
    assert after.version == before.version + 1
    found = rows(psql, "SELECT key FROM change WHERE change_id = %s ORDER BY key", after.change_id)
    assert found == [(KEY,), (RECORD,)]
    assert (await _record(client))["status"] == "done"


async def test_a_namespace_knows_the_type_and_names_are_relative(client: AsyncStateCache, bank: Bank) -> None:
    runs = client.namespace("runs", type=AgentRun)
    await runs.create("42", AgentRun(goal="refund"))
    receipt = await runs.step("42", "charge", bank.charge, "order 7", type=Receipt, apply=charged)
    again = await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt)
    assert again == receipt
    state = await runs.get("42")
    assert state is not None
    assert state.value.completed == ("charge",)


async def test_the_record_reads_in_redis_cli_and_psql(
    client: AsyncStateCache, bank: Bank, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt)
    shown = json.loads(redis_raw.hget(keys.state(RECORD), "value"))
    assert shown["status"] == "done"
    assert shown["result"] == {"order": "order 7", "key": bank.charged[0], "attempt": 1}
    assert shown["idempotency_key"] == bank.charged[0]
    found = rows(psql, "SELECT value_json->'result'->>'order' FROM state_view WHERE key = %s", RECORD)
    assert found == [("order 7",)]


async def test_msgpack_by_policy_keeps_bytes(client: AsyncStateCache) -> None:
    runs = client.namespace("runs", encoding="msgpack")
    assert await runs.step("42", "hash", lambda step: b"\x00\xff") == b"\x00\xff"
    assert await runs.step("42", "hash", lambda step: b"other") == b"\x00\xff"
    plain = client.namespace("runs", encoding="json")
    assert await plain.step("42", "hash", lambda step: b"other") == b"\x00\xff"


async def test_a_step_of_another_name_or_key_is_another_step(client: AsyncStateCache, bank: Bank) -> None:
    await client.step(KEY, "charge", bank.charge, "order 7")
    await client.step(KEY, "charge again", bank.charge, "order 7")
    await client.step("runs/43", "charge", bank.charge, "order 7")
    assert len(set(bank.charged)) == 3


async def test_none_is_a_result_like_any_other(client: AsyncStateCache) -> None:
    calls: list[int] = []
    for _ in range(2):
        assert await client.step(KEY, "note", lambda step: calls.append(1)) is None
    assert calls == [1]


async def test_other_arguments_are_refused(client: AsyncStateCache, bank: Bank) -> None:
    await client.step(KEY, "charge", bank.charge, "order 7")
    with pytest.raises(StepMismatch) as caught:
        await client.step(KEY, "charge", bank.charge, "order 8")
    assert (caught.value.key, caught.value.name) == (KEY, "charge")
    assert len(bank.charged) == 1


async def test_a_key_that_does_not_exist_is_found_out_before_the_effect(client: AsyncStateCache, bank: Bank) -> None:
    with pytest.raises(NotFound):
        await client.step(KEY, "charge", bank.charge, "order 7", apply=charged)
    assert bank.charged == []
    assert await client.get(RECORD) is None
    default = AgentRun(goal="refund")
    await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, apply=charged, default=default)
    state = await client.get(KEY, type=AgentRun)
    assert state is not None
    assert state.value == default.with_step("charge", "order 7")


async def test_a_conflict_over_the_value_is_applied_again_without_the_function(
    client: AsyncStateCache, bank: Bank, make_client: MakeClient, settings: Settings
) -> None:
    await client.create(KEY, AgentRun(goal="refund"))
    async with AsyncStateCache(settings=settings) as other:
        loop = asyncio.get_running_loop()

        def charge(step: Step) -> Receipt:
            changed = other.update(KEY, lambda run: run.with_discovery("meanwhile"), type=AgentRun)
            if isinstance(client, AsyncStateCache):
                meanwhile.append(loop.create_task(changed))
            else:
                asyncio.run_coroutine_threadsafe(changed, loop).result(10)
            return bank.charge(step, "order 7")

        async def after(run: AgentRun, receipt: Receipt) -> AgentRun:
            await asyncio.gather(*meanwhile)
            return charged(run, receipt)

        meanwhile: list[asyncio.Task[Any]] = []
        apply = after if isinstance(client, AsyncStateCache) else charged
        await client.step(KEY, "charge", charge, type=Receipt, apply=apply, state_type=AgentRun)
    state = await client.get(KEY, type=AgentRun)
    assert state is not None
    assert (state.value.discoveries, state.value.completed) == (("meanwhile",), ("charge",))
    assert len(bank.charged) == 1


async def test_what_apply_makes_is_of_the_state_type_or_is_not_written(client: AsyncStateCache, bank: Bank) -> None:
    before: Any = await client.create(KEY, AgentRun(goal="refund"))
    how: dict[str, Any] = {"type": Receipt, "state_type": AgentRun}
    with pytest.raises(CodecError, match="it is a str, not a AgentRun"):
        await client.step(KEY, "charge", bank.charge, "order 7", apply=lambda run, receipt: "paid", **how)
    assert await client.get(KEY) == before
    view = client.namespace("runs", type=dict[str, int])
    await view.step("42", "charge", bank.charge, "order 7", apply=charged, **how)
    state = await client.get(KEY, type=AgentRun)
    assert state is not None
    assert (state.value.completed, state.schema) == (("charge",), before.schema)
    assert len(bank.charged) == 1


async def test_two_agents_never_run_one_step_at_once(make_client: MakeClient, settings: Settings, bank: Bank) -> None:
    agents = [make_client(settings) for _ in range(4)]
    for number in range(10):
        results = await asyncio.gather(
            *(agent.step(f"runs/{number}", "charge", bank.charge, "order 7", type=Receipt) for agent in agents * 2)
        )
        assert len(set(results)) == 1
        assert len(bank.charged) == number + 1


async def test_whoever_wants_a_running_step_waits_for_its_result(client: AsyncStateCache, settings: Settings) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()  # of a step that is young enough to be believed in throughout

    async def slow(step: Step) -> str:
        begun.set()
        await go_on.wait()
        return "the first"

    async with AsyncStateCache(settings=settings) as first:
        running = asyncio.create_task(first.step(KEY, "slow", slow))
        await begun.wait()
        with pytest.raises(Unavailable, match="another agent runs step 'slow'"):
            await client.step(KEY, "slow", lambda step: "the second", timeout=1)
        with pytest.raises(UsageError, match="may still run"):
            await client.resolve_step(KEY, "slow", not_done=True)
        waiting = asyncio.create_task(client.step(KEY, "slow", lambda step: "the second"))
        go_on.set()
        assert [await running, await waiting] == ["the first", "the first"]


async def test_the_synchronous_client_refuses_an_async_function(sync_cache: Any) -> None:
    async def charge(step: Step) -> None: ...

    with pytest.raises(UsageError, match="AsyncStateCache"):
        await asyncio.to_thread(sync_cache.step, KEY, "charge", charge)
    assert await asyncio.to_thread(sync_cache.step, KEY, "charge", lambda step: "it never began") == "it never began"


async def test_a_step_whose_record_left_redis_is_not_run_again(
    make_client: MakeClient, settings: Settings, bank: Bank, redis_raw: Any, keys: KeySpace
) -> None:
    one, other = make_client(settings), make_client(settings)
    receipt = await one.step(KEY, "charge", bank.charge, "order 7", type=Receipt)
    redis_raw.delete(keys.state(RECORD))
    assert await one.step(KEY, "charge", bank.charge, "order 7", type=Receipt) == receipt
    redis_raw.delete(keys.state(RECORD))
    assert await other.step(KEY, "charge", bank.charge, "order 7", type=Receipt) == receipt
    assert len(bank.charged) == 1


async def test_a_step_taken_for_new_in_error_is_found_out_before_its_function(
    make_client: MakeClient, settings: Settings, bank: Bank, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    one, other = make_client(settings), make_client(settings)
    await other.step(KEY, "look", lambda step: 1)  # now it knows this key's records, and charge is none of them
    receipt = await one.step(KEY, "charge", bank.charge, "order 7", type=Receipt)
    redis_raw.delete(keys.state(RECORD))
    assert await other.step(KEY, "charge", bank.charge, "order 7", type=Receipt) == receipt
    assert len(bank.charged) == 1
    assert rows(psql, "SELECT count(*) FROM conflict") == [(1,)]


async def test_a_deleted_record_makes_the_step_new(client: AsyncStateCache, bank: Bank) -> None:
    await client.step(KEY, "charge", bank.charge, "order 7")
    await client.delete(RECORD)
    receipt = await client.step(KEY, "charge", bank.charge, "order 8", type=Receipt)
    assert (receipt.order, receipt.attempt) == ("order 8", 1)
    assert len(set(bank.charged)) == 2


async def test_a_typed_list_leaves_out_the_records_of_steps(client: AsyncStateCache, psql: Psql) -> None:
    jobs = client.namespace("jobs", type=Receipt)
    for name in ("1", "2", "3"):
        await jobs.set(name, Receipt("order", "key", 1))
        await jobs.step(name, "count", lambda step: 1)
    record = await client.get("jobs/3/steps/count")
    for flushed in (False, True):
        if flushed:
            assert record is not None
            await client.wait_durable(record)
        for order in ("key", "-key", "newest", "oldest"):
            found = [state.key async for state in jobs.list(order=order, limit=3)]
            assert sorted(found) == ["jobs/1", "jobs/2", "jobs/3"]
        assert len([state async for state in client.list("jobs/")]) == 6
        assert [state.key async for state in client.list("jobs/1/", type=Receipt)] == []


@pytest.mark.parametrize("name", ["", "a/b", 3, "a\0b", "x" * 600])
async def test_a_bad_name_is_refused_before_any_effect(client: AsyncStateCache, bank: Bank, name: Any) -> None:
    with pytest.raises(InvalidKey):
        await client.step(KEY, name, bank.charge, "order 7")
    assert bank.charged == []


async def test_other_bad_calls_are_refused_before_any_effect(client: AsyncStateCache, bank: Bank) -> None:
    with pytest.raises(InvalidKey):
        await client.step("runs", "charge", bank.charge, "order 7")
    with pytest.raises(UsageError, match="cannot be called"):
        await client.step(KEY, "charge", "charge")  # type: ignore[call-overload]
    for unfit in (
        {"function": lambda: 1}, {"function": bank.charge, "args": ()}, {"apply": lambda value: value},
        {"check": lambda: None}, {"check": "charge"},
    ):  # fmt: skip
        fit: dict[str, Any] = {"function": bank.charge, "args": ("order 7",)} | unfit
        with pytest.raises(UsageError, match="of a step cannot be called"):
            await client.step(KEY, "charge", fit.pop("function"), *fit.pop("args"), **fit)
    with pytest.raises(CodecError, match="partial"):
        await client.step(KEY, "charge", bank.charge, object())
    with pytest.raises(UsageError, match="retry"):
        await client.step(KEY, "charge", bank.charge, "order 7", retry=-1)
    with pytest.raises(UsageError, match="durability"):
        await client.step(KEY, "charge", bank.charge, "order 7", durability="paper")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="timeout"):
        await client.step(KEY, "charge", bank.charge, "order 7", timeout=0)
    assert bank.charged == []


def _handing_in(function: Any) -> Any:
    """Return the function with one more argument, as a decorator that hands in a connection does."""

    @functools.wraps(function)
    def handed(*args: Any) -> Any:
        return function("a connection", *args)

    return handed


async def test_a_decorated_function_is_judged_by_its_decorator(client: AsyncStateCache) -> None:
    @_handing_in
    def charge(connection: str, step: Step, order: str) -> str:
        return f"{connection}: {order}"

    @_handing_in
    def added(connection: str, value: Any, result: Any) -> Any:
        return [connection, result]

    assert await client.step(KEY, "charge", charge, "order 7", apply=added, default=0) == "a connection: order 7"


async def test_somebody_elses_value_at_a_records_key_is_named(client: AsyncStateCache, bank: Bank) -> None:
    await client.set(RECORD, {"not": "a record"})
    with pytest.raises(CodecError, match="steps/charge"):
        await client.step(KEY, "charge", bank.charge, "order 7")
    assert bank.charged == []


async def test_a_step_that_lasts_is_its_agents_for_as_long_as_it_lives(
    make_settings: MakeSettings, make_client: MakeClient
) -> None:
    settings = make_settings(step_claim_s=CLAIM_S)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(step: Step) -> str:
        begun.set()
        await go_on.wait()
        return "the first"

    client = make_client(settings)
    async with at_work(settings), AsyncStateCache(settings=settings) as first:
        running = asyncio.create_task(first.step(KEY, "slow", slow))
        await begun.wait()
        with pytest.raises(Unavailable, match="another agent runs step 'slow'"):
            await client.step(KEY, "slow", lambda step: "the second", timeout=CLAIM_S * 3, idempotent=True)
        with pytest.raises(UsageError, match="may still run"):
            await client.resolve_step(KEY, "slow", not_done=True)
        waiting = asyncio.create_task(client.step(KEY, "slow", lambda step: "the second", idempotent=True))
        go_on.set()
        assert [await running, await waiting] == ["the first", "the first"]
        assert first._runtime.claims.held == ()


async def test_steps_that_begin_at_one_moment_ask_postgres_once_and_each_key_has_its_own_answer(
    cache: AsyncStateCache, settings: Settings, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"runs/{number}" for number in range(10)]
    for key in keys[::3]:
        await cache.step(key, "charge", bank.charge, key, type=Receipt)
    asked: list[int] = []
    fetch = PostgresTier.fetch

    async def noted(tier: PostgresTier, name: str, parameters: Any, *, seconds: float) -> Any:
        asked.extend([len(parameters["prefixes"])] if name == "keys_under" else [])
        return await fetch(tier, name, parameters, seconds=seconds)

    async with AsyncStateCache(settings=settings) as other:
        with monkeypatch.context() as patched:
            patched.setattr(PostgresTier, "fetch", noted)
            end = monotonic() + 10
            new = await asyncio.gather(
                *(other._runtime.step_index.new_in(key, f"{key}/steps/charge", end=end) for key in keys),
                other._runtime.step_index.new_in("runs/1", "runs/1/steps/other", end=end),
            )
            assert await other._runtime.step_index.new_in(keys[1], f"{keys[1]}/steps/charge", end=end) == 1
        assert new == [1 if at % 3 else None for at in range(10)] + [1]
        assert asked == [11]
        assert await other.step(keys[0], "charge", bank.charge, keys[0], type=Receipt)
        assert len(bank.charged) == 4

"""Whose step it is: an agent that lives keeps its claim, whatever happens meanwhile, and a dead one's is taken over."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, LeaseLost, Settings, StaleToken, StateCache, Step, StepUnknown, UsageError
from statecache.clock import monotonic, wall
from statecache.core.redis.connection import Link
from statecache.errors import Unavailable
from statecache.keys import KeySpace
from statecache.rules.steps import claim_of, fingerprint_of, intent
from tests.fixtures.faults import through
from tests.fixtures.flusher import rows
from tests.fixtures.servers import MakeClient, MakeSettings
from tests.fixtures.steps import Bank, Receipt
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause
from tests.support.workers import at_work

KEY = "runs/42"
RECORD = f"{KEY}/steps/charge"
CLAIM_S = 1.0
Psql = psycopg.Connection[Any]


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """The settings of a deployment whose dead agents are soon known to be dead."""
    return make_settings(step_claim_s=CLAIM_S)


@pytest.fixture(autouse=True)
async def working(settings: Settings) -> AsyncIterator[None]:
    """A worker at work."""
    async with at_work(settings):
        yield


@pytest.fixture
def leases(keys: KeySpace) -> str:
    """The Redis key of the leases of the run's shard."""
    return keys.leases(keys.shard(KEY))


async def _until(true: Any) -> None:
    """Wait until it is true."""
    async with asyncio.timeout(60):
        while not true():
            await pause()


class Slow:
    """A step's function that ends when it is told to."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.calls = 0

    async def run(self, step: Step) -> str:
        self.calls += 1
        self.begun.set()
        await self.go_on.wait()
        return "the first"


async def test_the_claim_is_taken_before_the_function_and_given_back_behind_it(
    client: AsyncStateCache, redis_raw: Any, leases: str
) -> None:
    seen: list[bytes] = []
    await client.step(KEY, "charge", lambda step: seen.append(redis_raw.hget(leases, claim_of(RECORD))))
    assert b"token=" in seen[0]
    assert redis_raw.hget(leases, claim_of(RECORD)) is None


async def test_a_claim_that_was_lost_is_taken_again(
    cache: AsyncStateCache, make_client: MakeClient, settings: Settings, redis_raw: Any, leases: str
) -> None:
    slow = Slow()
    running = asyncio.create_task(cache.step(KEY, "charge", slow.run))
    await slow.begun.wait()
    for _ in range(2):  # as a failover forgets it, or a clock that is set forward
        redis_raw.hdel(leases, claim_of(RECORD))
        await _until(lambda: redis_raw.hexists(leases, claim_of(RECORD)))
    waiting = asyncio.create_task(make_client(settings).step(KEY, "charge", lambda step: "twice", idempotent=True))
    redis_raw.hdel(leases, claim_of(RECORD))
    await _until(lambda: redis_raw.hexists(leases, claim_of(RECORD)))
    slow.go_on.set()
    assert [await running, await waiting] == ["the first", "the first"]
    assert slow.calls == 1


async def test_a_claim_that_nobody_has_is_not_renewed(
    cache: AsyncStateCache, make_client: MakeClient, settings: Settings
) -> None:
    """Whoever took it was interrupted before he had it; a step that runs meanwhile keeps its own."""
    slow = Slow()
    running = asyncio.create_task(cache.step(KEY, "another", slow.run))
    await slow.begun.wait()
    assert await cache._runtime.claims.take(RECORD, end=monotonic() + 60) is not None
    gc.collect()
    assert await make_client(settings).step(KEY, "charge", lambda step: "done", timeout=60) == "done"
    with pytest.raises(Unavailable, match="another agent runs step 'another'"):
        await make_client(settings).step(KEY, "another", lambda step: "the second", timeout=CLAIM_S * 2)
    slow.go_on.set()
    assert await running == "the first"


async def test_an_outage_longer_than_the_claim_ends_no_step(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy
) -> None:
    far, slow = through(settings, redis=proxy), Slow()
    async with AsyncStateCache(settings=far) as one, AsyncStateCache(settings=settings) as near:
        running = asyncio.create_task(one.step(KEY, "charge", slow.run))
        await slow.begun.wait()
        waiting = asyncio.create_task(make_client(far).step(KEY, "charge", lambda step: "twice", idempotent=True))
        proxy.freeze()
        over = await near._runtime.leases.take(claim_of(RECORD), ttl=CLAIM_S, patience=60)  # the claim is over
        await near._runtime.leases.give_back(over)
        proxy.thaw()
        with pytest.raises(Unavailable, match="another agent runs step 'charge'"):
            await near.step(KEY, "charge", lambda step: "the second", idempotent=True, timeout=CLAIM_S * 3)
        slow.go_on.set()
        assert [await running, await waiting] == ["the first", "the first"]
    assert slow.calls == 1


async def test_a_function_that_blocks_its_event_loop_keeps_its_claim(
    make_client: MakeClient, settings: Settings
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def blocks(step: Step) -> str:
        begun.set()
        assert go_on.wait(60)
        return "the first"

    async def agent() -> str:
        async with AsyncStateCache(settings=settings) as cache:
            return str(await cache.step(KEY, "charge", blocks))

    running = asyncio.create_task(asyncio.to_thread(asyncio.run, agent()))
    await asyncio.to_thread(begun.wait, 60)
    other = make_client(settings)
    with pytest.raises(Unavailable, match="another agent runs step 'charge'"):
        await other.step(KEY, "charge", lambda step: "the second", timeout=CLAIM_S * 3, idempotent=True)
    with pytest.raises(UsageError, match="may still run"):
        await other.resolve_step(KEY, "charge", not_done=True)
    go_on.set()
    assert await running == "the first"


async def test_the_step_of_a_dead_agent_is_taken_over_once_and_by_one(
    cache: AsyncStateCache, make_client: MakeClient, settings: Settings, bank: Bank, redis_raw: Any, leases: str
) -> None:
    left = intent(None, "charge", fingerprint_of(("order 7",), key=RECORD), new_key="k" * 24, at=wall())
    await cache.set(RECORD, left)
    with pytest.raises(Unavailable, match=r"whether its agent lives is not known yet.*longer timeout="):
        await cache.step(KEY, "charge", bank.charge, "order 7", timeout=CLAIM_S / 4)
    assert redis_raw.hget(leases, claim_of(RECORD)) is None
    agents = [make_client(settings) for _ in range(3)]
    results = await asyncio.gather(
        *(one.step(KEY, "charge", bank.charge, "order 7", type=Receipt, idempotent=True) for one in agents)
    )
    assert set(results) == {Receipt("order 7", left.idempotency_key, 2)}
    assert len(bank.charged) == 1


async def test_many_short_calls_find_out_too_that_an_agent_is_dead(client: AsyncStateCache, bank: Bank) -> None:
    left = intent(None, "charge", fingerprint_of((), key=RECORD), new_key="k" * 24, at=wall())
    await client.set(RECORD, left)
    told: list[str] = []
    async with asyncio.timeout(60):
        while told[-1:] != ["StepUnknown"]:
            with pytest.raises((Unavailable, StepUnknown)) as caught:
                await client.step(
                    KEY, "charge", lambda step: bank.charged.append(step.idempotency_key), timeout=CLAIM_S / 2.5
                )
            told.append(type(caught.value).__name__)
    assert told[0] == "Unavailable"
    assert bank.charged == []


async def test_a_dead_agents_step_is_unknown_and_resolved_by_a_person(client: AsyncStateCache, bank: Bank) -> None:
    left = intent(None, "charge", fingerprint_of((), key=RECORD), new_key="k" * 24, at=wall())
    await client.set(RECORD, left)
    with pytest.raises(StepUnknown, match="never ended"):
        await client.step(KEY, "charge", lambda step: bank.charged.append(step.idempotency_key))
    await client.resolve_step(KEY, "charge", not_done=True)
    await client.step(KEY, "charge", lambda step: bank.charged.append(step.idempotency_key))
    assert bank.charged == [left.idempotency_key]


async def test_a_step_that_its_own_function_calls_is_refused_at_once(
    cache: AsyncStateCache, sync_cache: StateCache
) -> None:
    match = "is run by this very task or thread. It would wait for itself"

    async def awaits(step: Step) -> Any:
        return await cache.step(KEY, "charge", awaits, timeout=600)

    with pytest.raises(UsageError, match=match):
        await cache.step(KEY, "charge", awaits)

    def calls(step: Step) -> Any:
        return sync_cache.step(KEY, "refund", calls, timeout=600)

    with pytest.raises(UsageError, match=match):
        await asyncio.to_thread(sync_cache.step, KEY, "refund", calls)
    assert cache._runtime.claims.held == sync_cache._runtime.claims.held == ()


async def test_a_step_that_another_task_of_the_client_runs_is_waited_for_within_a_step(cache: AsyncStateCache) -> None:
    slow = Slow()

    async def first(step: Step) -> Any:
        return await cache.step(KEY, "charge", slow.run)

    async def second(step: Step) -> Any:
        await slow.begun.wait()
        waiting = asyncio.ensure_future(cache.step(KEY, "charge", slow.run))
        await cache.get(KEY)
        slow.go_on.set()
        return await waiting

    found = await asyncio.gather(cache.step(KEY, "one", first), cache.step(KEY, "two", second))
    assert ([*found], slow.calls) == (["the first", "the first"], 1)


async def test_closing_gives_back_no_claim_of_a_step_that_still_runs(
    settings: Settings, make_client: MakeClient, redis_raw: Any, leases: str
) -> None:
    slow, first = Slow(), AsyncStateCache(settings=settings)
    running = asyncio.create_task(first.step(KEY, "charge", slow.run))
    await slow.begun.wait()
    left = await first.close(drain=CLAIM_S)
    assert left.under_way == 1
    other = make_client(settings)
    with pytest.raises(Unavailable, match="another agent runs step 'charge'"):
        await other.step(KEY, "charge", lambda step: "the second", idempotent=True, timeout=CLAIM_S * 3)
    slow.go_on.set()
    with pytest.raises((UsageError, Unavailable)):
        await running
    assert slow.calls == 1


async def test_a_step_under_a_lock_that_is_lost_keeps_its_result(
    cache: AsyncStateCache, settings: Settings, bank: Bank
) -> None:
    async with cache.lock(KEY, ttl=5) as lease:

        async def charge(step: Step) -> Receipt:
            await cache._runtime.leases.release()  # as if somebody had broken it
            return bank.charge(step, "order 7")

        with pytest.raises((LeaseLost, StaleToken)):
            await lease.step(KEY, "charge", charge)
    async with AsyncStateCache(settings=settings) as other:
        kept = await other.step(KEY, "charge", charge, type=Receipt)
    assert kept == Receipt("order 7", bank.charged[0], 1)
    assert len(bank.charged) == 1


async def test_short_steps_need_no_connection_for_their_claims_and_closing_ends_their_thread(
    settings: Settings,
) -> None:
    async with AsyncStateCache(settings=settings) as cache:
        for number in range(3):
            assert await cache.step(KEY, f"step-{number}", lambda step: step.attempt) == 1
        assert not cache._runtime.claims._links
        keeper = cache._runtime.claims._keeper
        assert keeper is not None
    assert not keeper.alive


async def test_a_step_that_is_replayed_after_redis_lost_its_record_leaves_no_conflict(
    make_client: MakeClient, settings: Settings, bank: Bank, redis_raw: Any, psql: Psql
) -> None:
    one, other = make_client(settings), make_client(settings)
    await other.step(KEY, "look", lambda step: 1)  # now it knows this key's records, and charge is none of them
    receipt = await one.step(KEY, "charge", bank.charge, "order 7", type=Receipt)
    redis_raw.unlink(*redis_raw.keys(f"{settings.prefix}:*"))
    assert await other.step(KEY, "charge", bank.charge, "order 7", type=Receipt) == receipt
    assert len(bank.charged) == 1
    assert rows(psql, "SELECT key, cause FROM conflict") == []


async def test_a_claim_has_twice_as_long_over_a_new_connection(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine takes its time over a handshake, and who lives is not to be taken for dead meanwhile."""
    slow = Slow()
    redis, bounds = cache._runtime.redis, list[tuple[str, float]]()
    link, scripts = redis.link, Link.scripts

    async def linked(seconds: float | None = None) -> Link:
        if threading.current_thread().name == "statecache-claims":
            bounds.append(("new", seconds or 0.0))
        return await link(seconds)

    async def sent(self: Link, *given: Any, seconds: float) -> Any:
        if threading.current_thread().name == "statecache-claims":
            bounds.append(("renewal", seconds))
        return await scripts(self, *given, seconds=seconds)

    def pairs() -> list[tuple[tuple[str, float], tuple[str, float]]]:
        return [*pairwise(bounds)]

    monkeypatch.setattr(redis, "link", linked)
    monkeypatch.setattr(Link, "scripts", sent)
    task = asyncio.create_task(cache.step(KEY, "charge", slow.run))
    await _until(lambda: any(before[0] == after[0] == "renewal" for before, after in pairs()))
    slow.go_on.set()
    await task
    for (before, _), (what, seconds) in [(("", 0.0), bounds[0]), *pairs()]:
        twice = what == "new" or before == "new"
        assert seconds == pytest.approx(CLAIM_S / (6 if twice else 12)), bounds

"""What an observer is told of both clients' verbs, and that a client without one does nothing for it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import statecache._async.observer as async_observing
import statecache._sync.observer as sync_observing
import statecache.call_notes as async_noting
from statecache import (
    AsyncStateCache,
    ConfigurationError,
    NotFound,
    Operation,
    RedisUnavailable,
    StateCache,
    UsageError,
    VersionConflict,
)
from statecache._async.verbs import AsyncVerbs
from statecache.adapters.prometheus import PrometheusObserver
from statecache.core.commit.attempts import Attempts
from tests.fixtures.redis import FakeDeployment
from tests.support.awaited import awaited
from tests.support.probing import samples

NOT_VERBS = {
    "full", "end_of", "moment_of", "durability_of", "write_of", "state_of", "committed_state", "locks_of",
    "refuse_to_drop", "unguarded",
}  # fmt: skip
"""What the class shows beside its verbs, for transactions."""


class Told:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def ended(self, operation: Operation) -> None:
        self.operations.append(operation)

    def last(self) -> tuple[str, str, int, int, int]:
        """Return the last operation without its time, which is checked here."""
        one = self.operations[-1]
        assert 0 < one.seconds < 60
        return one.verb, one.outcome, one.attempts, one.conflicts, one.hydrations


@pytest.fixture
def told() -> Told:
    """An observer."""
    return Told()


@pytest.fixture(params=["async", "sync"])
async def observed(request: pytest.FixtureRequest, fake: FakeDeployment, told: Told) -> AsyncIterator[AsyncStateCache]:
    """A client with that observer on fakeredis: the asynchronous one, and again the synchronous one."""
    if request.param == "sync":
        client = awaited(StateCache(settings=fake.settings, dial=fake.dial_sync, observer=told))
    else:
        client = AsyncStateCache(settings=fake.settings, dial=fake.dial, observer=told)
    yield client
    await client.close()


def test_every_verb_is_observed() -> None:
    public = {name for name, _ in inspect.getmembers(AsyncVerbs, callable) if not name.startswith("_")}
    assert public - NOT_VERBS == {*async_observing.CALLED, "list", "lock", "transaction", "changes", "watch", "history"}
    assert async_observing.CALLED == sync_observing.CALLED
    assert async_observing.OF_CLIENTS == sync_observing.OF_CLIENTS


async def test_what_a_client_alone_is_asked_is_told_too(told: Told) -> None:
    client = AsyncStateCache(redis_url="redis://127.0.0.1:1", postgres_url="postgresql://127.0.0.1:1/x", observer=told)
    with pytest.raises(RedisUnavailable):
        await client.namespaces(timeout=0.2)
    assert told.last()[:2] == ("namespaces", "RedisUnavailable")
    assert await client.lost() == ()
    assert told.last()[:2] == ("lost", "ok")
    await client.close()


async def test_each_call_is_told_once_with_its_outcome(observed: AsyncStateCache, told: Told) -> None:
    state = await observed.set("runs/42", 1)
    assert told.last() == ("set", "ok", 1, 0, 1)
    await observed.get("runs/42")
    assert told.last() == ("get", "ok", 1, 0, 0)
    await observed.set("runs/42", 2, expected=state)
    assert told.last() == ("set", "ok", 1, 0, 0)
    with pytest.raises(VersionConflict):
        await observed.set("runs/42", 3, expected=state)
    assert told.last() == ("set", "VersionConflict", 1, 1, 0)
    await observed.delete("runs/42")
    assert told.last() == ("delete", "ok", 1, 0, 0)
    with pytest.raises(UsageError):
        await observed.get("runs/42", timeout=-1)
    assert told.last() == ("get", "UsageError", 1, 0, 0)
    assert len(told.operations) == 6


async def test_a_hydration_of_many_writes_is_no_repetition(observed: AsyncStateCache, told: Told) -> None:
    await observed.set_many({f"runs/{number}": number for number in range(10)})
    assert told.last() == ("set_many", "ok", 1, 0, 10)
    await observed.set_many({f"runs/{number}": number for number in range(10)})
    assert told.last() == ("set_many", "ok", 1, 0, 0)


async def test_a_view_of_a_namespace_is_observed_too(observed: AsyncStateCache, told: Told) -> None:
    await observed.namespace("runs").create("42", 1)
    assert told.last() == ("create", "ok", 1, 0, 1)


async def test_what_somebody_else_was_quicker_with_is_counted_in_update(
    observed: AsyncStateCache, told: Told, fake: FakeDeployment
) -> None:
    await observed.set("runs/42", 1)
    other = StateCache(settings=fake.settings, dial=fake.dial_sync)
    left = [10, 20]

    def add(value: int) -> int:
        if left:
            other.set("runs/42", left.pop())
        return value + 1

    assert (await observed.update("runs/42", add)).value == 11
    assert told.last() == ("update", "ok", 3, 2, 0)
    with pytest.raises(NotFound):
        await observed.update("runs/43", add)
    assert told.last() == ("update", "NotFound", 1, 0, 1)
    other.close()


async def test_what_the_callers_function_raises_is_told_as_raised(observed: AsyncStateCache, told: Told) -> None:
    def fail(value: int) -> int:
        raise KeyError(value)

    with pytest.raises(KeyError):
        await observed.update("runs/42", fail, default=1)
    assert told.last() == ("update", "raised", 1, 0, 1)


async def test_a_transaction_is_told_when_it_is_over(observed: AsyncStateCache, told: Told) -> None:
    async with observed.transaction("runs/42") as tx:
        tx.set("runs/42", 1)
        assert told.operations == []
    assert tx.states["runs/42"].value == 1
    assert told.last() == ("transaction", "ok", 1, 0, 1)
    with pytest.raises(KeyError):
        async with observed.transaction("runs/42"):
            raise KeyError
    assert told.last() == ("transaction", "raised", 1, 0, 0)
    with pytest.raises(VersionConflict):  # noqa: PT012
        async with observed.transaction("runs/42") as tx:
            tx.set("runs/42", 2)
            await observed.set("runs/42", 3)
    assert [(one.verb, one.outcome) for one in told.operations[-2:]] == [
        ("set", "ok"),
        ("transaction", "VersionConflict"),
    ]
    assert told.last()[3] == 1


async def test_a_verb_within_a_verb_counts_for_itself(observed: AsyncStateCache, told: Told) -> None:
    """The inner one hydrates; the outer one does not."""
    await observed.set("runs/42", 1)
    async with observed.transaction("runs/42"):
        await observed.get("runs/43")
        assert told.last() == ("get", "ok", 1, 0, 1)
    assert told.last() == ("transaction", "ok", 1, 0, 0)


async def test_what_is_noted_after_a_verb_within_a_verb_is_the_outer_ones(fake: FakeDeployment, told: Told) -> None:
    other = StateCache(settings=fake.settings, dial=fake.dial_sync)
    left = [10, 20]
    async with AsyncStateCache(settings=fake.settings, dial=fake.dial, observer=told) as client:

        async def add(value: int) -> int:
            await client.get("runs/43")
            if left:
                other.set("runs/42", left.pop())
            return value + 1

        await client.update("runs/42", add, default=0)
        assert told.last() == ("update", "ok", 3, 2, 1)
        assert {(one.verb, one.conflicts) for one in told.operations[:-1]} == {("get", 0)}
    other.close()


async def test_transact_is_one_call_however_often_its_function_ran(
    observed: AsyncStateCache, told: Told, fake: FakeDeployment
) -> None:
    await observed.set("runs/42", 1)
    other = StateCache(settings=fake.settings, dial=fake.dial_sync)
    left = [10]

    def put(tx: Any) -> None:
        if left:
            other.set("runs/42", left.pop())
        tx.set("runs/42", 2)

    await observed.transact(["runs/42"], put)
    assert told.last()[:2] == ("transact", "ok")
    assert told.last()[3] == 1
    assert told.last()[2] >= 2
    assert [one.verb for one in told.operations] == ["set", "transact"]
    other.close()


async def test_a_listing_is_told_at_its_end_without_the_time_between_its_states(
    observed: AsyncStateCache, told: Told
) -> None:
    for name in ("runs/1", "runs/2"):
        await observed.set(name, 1)
    assert len([state async for state in observed.list("runs/")]) == 2
    assert told.last() == ("list", "ok", 1, 0, 0)
    with pytest.raises(UsageError):
        [state async for state in observed.list("runs/", limit=0)]
    assert told.last() == ("list", "UsageError", 1, 0, 0)


async def test_a_listing_that_is_left_early_is_told(fake: FakeDeployment, told: Told) -> None:
    async with AsyncStateCache(settings=fake.settings, dial=fake.dial, observer=told) as client:
        for name in ("runs/1", "runs/2"):
            await client.set(name, 1)
        listing: Any = client.list("runs/")
        assert (await anext(listing)).key == "runs/1"
        assert told.last()[0] == "set"
        await listing.aclose()
        assert told.last() == ("list", "ok", 1, 0, 0)


async def test_a_cancelled_call_is_told(fake: FakeDeployment, told: Told) -> None:
    async with AsyncStateCache(settings=fake.settings, dial=fake.dial, observer=told) as client:
        inside = asyncio.Event()

        async def wait(value: int) -> int:
            inside.set()
            await asyncio.Event().wait()
            return value

        task = asyncio.create_task(client.update("runs/42", wait, default=1))
        await inside.wait()
        task.cancel()
        await asyncio.wait([task])
        assert told.last()[:2] == ("update", "cancelled")


async def test_an_error_of_a_kind_is_told_by_its_own_name(told: Told) -> None:
    client = AsyncStateCache(redis_url="redis://127.0.0.1:1", postgres_url="postgresql://127.0.0.1:1/x", observer=told)
    with pytest.raises(RedisUnavailable):
        await client.get("runs/42", timeout=0.2)
    await client.close()
    assert told.last()[:2] == ("get", "RedisUnavailable")


async def test_what_was_tried_again_inside_of_a_commit_is_counted(
    fake: FakeDeployment, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two exchanges break; the change is applied once."""
    exchange, broken = Attempts.send, 2

    async def fail(attempts: Attempts, *args: Any) -> Any:
        nonlocal broken
        if broken:
            broken -= 1
            raise RedisUnavailable("connection", detail="it broke")
        return await exchange(attempts, *args)

    monkeypatch.setattr(Attempts, "send", fail)
    async with AsyncStateCache(settings=fake.settings, dial=fake.dial, observer=told) as client:
        assert (await client.set("runs/42", 1)).version == 1
    assert told.last() == ("set", "ok", 3, 0, 1)


async def test_an_observer_that_fails_is_logged_and_the_verb_has_done_its_work(
    fake: FakeDeployment, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def ended(self, operation: Operation) -> None:
            raise ZeroDivisionError

    async with AsyncStateCache(settings=fake.settings, dial=fake.dial, observer=Failing()) as client:
        with caplog.at_level(logging.WARNING, logger="statecache"):
            assert (await client.set("runs/42", 1)).version == 1
        assert [record.message for record in caplog.records] == ["an observer failed"]


async def test_a_client_without_an_observer_reads_no_clock_and_has_the_bare_verbs(
    fake: FakeDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden() -> float:
        raise AssertionError("a clock was read")

    for module in (async_noting, async_observing):
        monkeypatch.setattr(module, "monotonic", forbidden)
    async with AsyncStateCache(settings=fake.settings, dial=fake.dial) as client:
        view = client.namespace("runs")
        for one in (client, view):
            assert not {*async_observing.CALLED, "list", "lock", "transaction"} & vars(one).keys()
        await client.set("runs/42", 1)
        await client.update("runs/42", lambda value: value + 1)
        async with client.transaction("runs/42") as tx:
            tx.set("runs/42", 3)
        assert [state.value async for state in view.list()] == [3]


async def test_the_observer_for_prometheus_counts_by_verb_and_outcome(fake: FakeDeployment) -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    async with AsyncStateCache(settings=fake.settings, dial=fake.dial, observer=observer) as client:
        state = await client.set("runs/42", 1)
        await client.set("runs/42", 2)
        with pytest.raises(VersionConflict):
            await client.set("runs/42", 3, expected=state)
    found = samples(generate_latest(registry).decode())
    assert found["statecache_client_operations_total{ok,set}"] == 2
    assert found["statecache_client_operations_total{VersionConflict,set}"] == 1
    assert found["statecache_client_operation_seconds_count{set}"] == 3
    assert found["statecache_client_operation_seconds_bucket{+Inf,set}"] == 3
    assert found["statecache_client_retries_total{set}"] == 0
    assert found["statecache_client_conflicts_total{set}"] == 1
    assert found["statecache_client_hydrations_total{set}"] == 1


async def test_the_near_caches_of_watched_clients_are_summed_up(fake: FakeDeployment) -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    clients = [AsyncStateCache(settings=fake.settings, dial=fake.dial) for _ in range(2)]
    for client in clients:
        observer.watches(client)
        await client.get("runs/42")
    found = samples(generate_latest(registry).decode())
    assert found["statecache_client_near_misses_total"] == 2
    assert found["statecache_client_near_untrusted"] == 0
    assert found["statecache_client_near_entries"] == found["statecache_client_near_bytes"] == 0
    for client in clients:
        client._runtime.tracked.wanted = True
    assert samples(generate_latest(registry).decode())["statecache_client_near_untrusted"] == 2
    for client in clients:
        await client.close()
    assert samples(generate_latest(registry).decode())["statecache_client_near_untrusted"] == 0


async def test_what_a_near_cache_counted_stays_counted_when_its_client_is_gone(fake: FakeDeployment) -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)

    def found(name: str) -> float:
        return samples(generate_latest(registry).decode())[f"statecache_client_near_{name}"]

    kept = AsyncStateCache(settings=fake.settings, dial=fake.dial)
    for _ in range(2):
        client = AsyncStateCache(settings=fake.settings, dial=fake.dial)
        for one in (client, client, kept):
            observer.watches(one)
        view = client.namespace("runs")
        await view.get("42")
        gone = weakref.ref(client._runtime)
        await client.close()
        client._runtime.near._evictions += 1
        del client
        gc.collect()
        assert gone() is not None
        del view
        gc.collect()
        assert gone() is None
    await kept.get("runs/42")
    await kept.close()
    assert (found("misses_total"), found("evictions_total")) == (3, 2)
    assert (found("misses_total"), found("evictions_total")) == (3, 2)
    assert found("entries") == 0


async def test_only_a_client_is_watched(fake: FakeDeployment) -> None:
    """A namespace has no near cache of its own."""
    observer = PrometheusObserver(CollectorRegistry())
    async with AsyncStateCache(settings=fake.settings, dial=fake.dial) as client:
        for other in (client.namespace("runs"), client.settings, None):
            with pytest.raises(UsageError, match="watches takes a StateCache or an AsyncStateCache"):
                observer.watches(other)  # type: ignore[arg-type]


def test_a_second_observer_for_one_registry_is_refused_with_what_to_do() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry)
    with pytest.raises(ConfigurationError, match="Make one observer and give it to every client"):
        PrometheusObserver(registry)

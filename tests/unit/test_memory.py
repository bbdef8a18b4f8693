"""Clients in memory: the same verbs and errors as on servers, and a clear word where that cannot be."""

from __future__ import annotations

import ast
import asyncio
import builtins
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from statecache import (
    AlreadyExists,
    AsyncStateCache,
    ChangeIdReused,
    ConfigurationError,
    Create,
    Delete,
    DurabilityRefused,
    LockHeld,
    LockTimeout,
    NotFound,
    Set,
    StaleToken,
    StepUnknown,
    UsageError,
    VersionConflict,
    VersionNotFound,
)
from statecache.clock import monotonic
from statecache.testing import memory
from statecache.testing.in_memory import Memory
from statecache.testing.memory_postgres import Tables
from tests.support.awaited import awaited

ROOT = Path(__file__).parents[2]
OF_OWNERS = "migrate.py", "vector_indexes.py"
"""Modules whose statements are those of the schema's owner."""
OF_CONNECTIONS = {"cluster", "local_limits", "look_limits", "owner_limits", "read_committed", "read_limits"}
"""Statements about a connection, of which there is none."""


@pytest.fixture
def deployment() -> Memory:
    return memory()


@pytest.fixture(params=["async", "sync"])
async def cache(request: pytest.FixtureRequest, deployment: Memory) -> AsyncIterator[AsyncStateCache]:
    """A client in memory: the asynchronous one, and again the synchronous one."""
    client: Any = deployment.async_client() if request.param == "async" else awaited(deployment.client())
    yield client
    await client.close()


async def test_where_compares_numbers_by_what_they_are_worth(cache: AsyncStateCache) -> None:
    values = [0.5, 1, 1.0, 1e22, True, "0.5", 0.1]
    await cache.set_many({f"runs/{at}": {"n": value} for at, value in enumerate(values)})
    wanted = [(0.5, [0]), (1.0, [1, 2]), (1, [1, 2]), (1e22, [3]), (10**22, [3]), (0.1, [6]), (True, [4])]
    for value, found in wanted:
        assert await _keys(cache, where={"n": value}) == [f"runs/{at}" for at in found], value


async def _keys(cache: AsyncStateCache, **how: Any) -> list[str]:
    return [state.key async for state in cache.list("runs/", **how)]


async def test_a_write_is_durable_and_read_back(cache: AsyncStateCache) -> None:
    first = await cache.set("runs/42", {"step": 1}, durability="postgres", actor="planner")
    assert await cache.wait_durable(first) == first
    assert await cache.get("runs/42") == first
    assert (await cache.outcome(first.change_id, "runs/42")).verdict == "applied"
    assert (await cache.get_many(["runs/42", "runs/43"]))["runs/43"] is None
    assert await cache.lost() == ()
    assert (await cache.close(drain=1)).nothing


async def test_conflicts_are_told_as_on_servers(cache: AsyncStateCache) -> None:
    first = await cache.create("runs/42", 1)
    await cache.set("runs/42", 2, expected=first)
    with pytest.raises(VersionConflict):
        await cache.set("runs/42", 3, expected=first)
    with pytest.raises(AlreadyExists):
        await cache.create("runs/42", 3)
    with pytest.raises(NotFound):
        await cache.update("runs/43", lambda value: value)
    with pytest.raises(ChangeIdReused):
        await cache.set("runs/42", 4, change_id=(await cache.set("runs/42", 3)).change_id)


async def test_a_state_stays_however_short_its_time_in_redis(cache: AsyncStateCache, deployment: Memory) -> None:
    await cache.namespace("runs", redis_ttl=timedelta(milliseconds=1)).set("42", {"step": 1})
    assert deployment._redis.pttl(deployment._keys.state("runs/42")) == -1
    assert (await cache.update("runs/42", lambda value: value | {"step": 2})).version == 2
    assert await _keys(cache) == ["runs/42"]


async def test_lists_have_their_orders_bounds_and_filters(cache: AsyncStateCache) -> None:
    for n, name in enumerate("badc"):
        await cache.set(f"runs/{name}", {"n": n, "meta": {"source": "input" if n % 2 else "tool"}})
    await cache.delete("runs/d")
    assert await _keys(cache) == ["runs/a", "runs/b", "runs/c"]
    assert await _keys(cache, order="-key", limit=2) == ["runs/c", "runs/b"]
    assert await _keys(cache, order="newest") == ["runs/c", "runs/a", "runs/b"]
    assert await _keys(cache, order="oldest", limit=1) == ["runs/b"]
    assert await _keys(cache, after="runs/a", before="runs/c") == ["runs/b"]
    assert await _keys(cache, where={"meta.source": "input", "n": 1}) == ["runs/a"]
    assert [state.value async for state in cache.list("runs/", values=False)] == [None] * 3
    assert await cache.namespaces() == ["runs"]
    assert await cache.warm("runs/") == 0


async def test_a_step_runs_once(cache: AsyncStateCache) -> None:
    ran: list[str] = []

    def pay(step: Any, amount: int) -> int:
        ran.append(step.idempotency_key)
        return amount

    def fail(step: Any) -> None:
        raise OSError("the line is dead")

    assert [await cache.step("runs/42", "pay", pay, 7) for _ in range(2)] == [7, 7]
    assert len(ran) == 1
    with pytest.raises(OSError, match="dead"):
        await cache.step("runs/42", "call", fail)
    with pytest.raises(StepUnknown):
        await cache.step("runs/42", "call", fail)
    await cache.resolve_step("runs/42", "call", result="said by hand")
    assert await cache.step("runs/42", "call", fail) == "said by hand"


async def test_locks_fence_whoever_lost_them(cache: AsyncStateCache, deployment: Memory) -> None:
    async with cache.lock("runs/42") as lease:
        first = lease.token
        await lease.set("runs/42", 1)
        other = deployment.async_client()
        with pytest.raises(LockTimeout):
            await other.lock("runs/42", timeout=0).take()
    async with other.lock("runs/42") as lease:
        assert lease.token > first
        await other._runtime.leases.give_back(lease._holding)
        lease._holding.gone = False
        other._runtime.leases._held[lease._holding.request] = lease._holding
        async with cache.lock("runs/42") as newer:
            await newer.set("runs/42", 2)
            with pytest.raises(StaleToken):
                await lease.set("runs/42", 3)
    await other.close()


async def test_a_recorded_policy_binds_every_client(cache: AsyncStateCache, deployment: Memory) -> None:
    other = deployment.async_client()
    async with cache.namespace("runs", locking="enforced").lock("42") as lease:
        await lease.set("42", 1)
        with pytest.raises(LockHeld):
            await other.set("runs/42", 2)
    await other.close()


async def test_commits_of_many_keys_are_whole(cache: AsyncStateCache) -> None:
    await cache.set("runs/42/draft", 1)
    states = await cache.commit([Set("runs/42/plan", 1), Create("runs/42/log", 2), Delete("runs/42/draft")])
    assert len({state.position for state in states if state}) == 1
    with pytest.raises(AlreadyExists):
        await cache.commit([Set("runs/42/plan", 3), Create("runs/42/log", 4)])
    async with cache.transaction("runs/42/plan", "runs/42/log") as tx:
        plan = await tx.get("runs/42/plan")
        assert plan is not None
        tx.set("runs/42/plan", plan.value + 1)
    assert tx.states["runs/42/plan"].version == 2
    await cache.rename("runs/42/plan", "runs/42/done")
    written = await cache.set_many({f"runs/{n}": n for n in range(20)})
    assert len(written) == 20
    assert await cache.delete_many(prefix="runs/") == 22
    assert await _keys(cache) == []


@pytest.mark.parametrize("sync", [False, True])
async def test_changes_are_followed_from_a_cursor_and_by_name(deployment: Memory, sync: bool) -> None:
    cache = deployment.async_client()
    await cache.set("runs/42", 1)
    if sync:
        with deployment.client() as other, other.changes("runs/", follow=False, consumer="mailer") as read:
            assert [change.value for change in read] == [1]
    async with cache.changes("runs/", follow=False, consumer="mailer") as feed:
        assert [change.value async for change in feed] == ([] if sync else [1])
        cursor = feed.cursor
    await cache.set("runs/42", 2)
    await cache.delete("runs/42")
    since = [(change.op, change.version) async for change in cache.changes("runs/", since=cursor, follow=False)]
    assert since == [("set", 2), ("delete", 3)]
    async with cache.changes("runs/", follow=False, consumer="mailer") as feed:
        assert [change.op async for change in feed] == ["set", "delete"]
    with pytest.raises(UsageError, match="reads 'runs/'"):
        await anext(cache.changes("jobs/", follow=False, consumer="mailer"))
    await cache.close()


async def test_who_waits_and_who_watches_is_woken(deployment: Memory) -> None:
    async with deployment as cache, cache.watch("runs/") as watched:
        waiting = asyncio.create_task(cache.wait_for("runs/42", timeout=20))
        await asyncio.sleep(0)
        begun = monotonic()
        with deployment as other:
            other.set("runs/42", {"from": "a thread's client"})
        assert (await anext(watched)).value == {"from": "a thread's client"}
        state = await waiting
        assert state is not None
        assert state.version == 1
        assert monotonic() - begun < 10


async def test_what_it_cannot_do_is_said(cache: AsyncStateCache) -> None:
    with pytest.raises(ConfigurationError, match="fence"):
        await cache.get("runs/42", read="fenced")
    for level in ("replica", "disk"):
        with pytest.raises(DurabilityRefused, match="this process's memory"):
            await cache.set("runs/42", 1, durability=level)
    assert not cache.near.trusted


async def test_whoever_deletes_its_data_is_told(cache: AsyncStateCache, deployment: Memory) -> None:
    deployment._redis.flushall()
    with pytest.raises(ConfigurationError, match="everything is in memory"):
        await cache.set("runs/42", 1)


async def test_two_deployments_have_nothing_in_common() -> None:
    with memory() as one, memory() as other:
        one.set("runs/42", 1)
        assert other.get("runs/42") is None


def test_the_clients_of_one_share_its_states_among_threads(deployment: Memory) -> None:
    def count() -> None:
        with deployment.client() as client:
            for _ in range(10):
                client.update("runs/n", lambda n: n + 1, default=0)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    with deployment as cache:
        state = cache.get("runs/n")
        assert state is not None
        assert (state.value, state.version) == (40, 40)
        assert [change.version for change in cache.changes("runs/n", follow=False)] == list(range(1, 41))


def test_settings_are_the_clients_but_for_those_that_make_it_one_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECACHE_REDIS_URL", "redis://elsewhere:1")
    monkeypatch.setenv("STATECACHE_FENCE", "on")
    with memory(shards=2, writer="a-test", redis_url="redis://elsewhere:2") as cache:
        assert cache.set("runs/42", 1).writer == "a-test"
        assert (cache.settings.shards, cache.settings.fence) == (2, "off")


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name == "statecache.testing.in_memory":
            raise ModuleNotFoundError("No module named 'fakeredis'", name="fakeredis")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"needs fakeredis.*statecache\[memory\]"):
        memory()


def test_every_statement_of_a_client_is_answered() -> None:
    asked: set[str] = set()
    for path in (ROOT / "statecache/core").rglob("*.py"):
        names = {path.stem for path in (ROOT / "statecache/sql").rglob("*.sql")}
        text = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        if not path.is_relative_to(ROOT / "statecache/core/epoch") and path.name not in OF_OWNERS:
            asked |= names & {value for value in text if isinstance(value, str)}
    assert len(asked) > 12
    assert {name for name in asked - OF_CONNECTIONS if not hasattr(Tables, f"_{name}")} == set()


async def test_history_is_read_as_on_servers(cache: AsyncStateCache) -> None:
    for step in range(3):
        await cache.set("runs/42", {"step": step})
    await cache.set("runs/42/plan", "go")
    assert [change.version async for change in cache.history("runs/42")] == [1, 2, 3]
    assert [change.value async for change in cache.history("runs/42", values=True, reverse=True)] == [
        {"step": 2}, {"step": 1}, {"step": 0},
    ]  # fmt: skip
    state = await cache.get_at("runs/42", version=2)
    assert state is not None
    assert state.value == {"step": 1}
    assert [one.place for one in await cache.diff("runs/42", 1, 3)] == ["step"]
    group = await cache.get_group_at("runs/42", position=state.position)
    assert {key: one.value for key, one in group.items()} == {"runs/42": {"step": 1}}
    with pytest.raises(VersionNotFound) as caught:
        await cache.get_at("runs/42", version=9)
    assert caught.value.nearest == 3

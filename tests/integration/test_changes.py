"""The feed of changes: each once, in order within a shard, from a cursor on, whatever lies between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import AsyncStateCache, Change, CodecError, Settings, StateCache, UsageError
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, flush, flushing
from tests.fixtures.servers import MakeClient, MakeSettings
from tests.support.fault_proxy import FaultProxy

Psql = psycopg.Connection[Any]


class Run(msgspec.Struct, frozen=True):
    """What an agent has come to."""

    step: int


async def _all(feed: AsyncIterable[Change[Any]]) -> list[Change[Any]]:
    return [change async for change in feed]


def _places(changes: list[Change[Any]]) -> list[tuple[int, int, str]]:
    return [(change.shard, change.position.n, change.key) for change in changes]


@pytest.fixture(params=[40, 1 << 20], ids=["few bytes", "few rows"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that end where they have few bytes, or few rows."""
    for name, value in (("ROWS", 260), ("ROWS_MIN", 260), ("BYTES", request.param)):
        monkeypatch.setattr(f"statecache.core.feed.feed.{name}", value)


async def test_every_change_is_given_once_in_the_order_of_its_shard(cache: AsyncStateCache, worker: Worker) -> None:
    for number in range(5):
        for run in range(8):
            await cache.set(f"runs/{run}", {"n": number}, actor="ada", reason=f"step {number}")
        await cache.set("other/1", number)
    await cache.delete("runs/3")
    assert await _all(cache.changes("runs/", follow=False)) == []  # nothing is durable yet
    await flush(worker)
    changes = await _all(cache.changes("runs/", follow=False))
    assert len(changes) == len({change.change_id for change in changes}) == 41
    for run in range(8):
        of_run = [change for change in changes if change.key == f"runs/{run}"]
        assert [change.version for change in of_run] == [*range(1, len(of_run) + 1)]
        assert [one.parent_change_id for one in of_run[1:]] == [one.change_id for one in of_run[:-1]]
        assert [change.value for change in of_run[:5]] == [{"n": number} for number in range(5)]
    for shard in {change.shard for change in changes}:
        ns = [change.position.n for change in changes if change.shard == shard]
        assert ns == sorted(ns)
    (deleted,) = (change for change in changes if change.deleted)
    assert (deleted.key, deleted.op, deleted.value) == ("runs/3", "delete", None)
    state = await cache.get("runs/2")
    (newest,) = (change for change in changes if change.key == "runs/2" and change.version == 5)
    assert state is not None
    assert (newest.change_id, newest.position, newest.at, newest.writer) == (
        state.change_id, state.position, state.updated_at, state.writer,
    )  # fmt: skip
    assert (newest.actor, newest.reason, newest.late) == ("ada", "step 4", False)
    assert len(await _all(cache.changes("runs/2/", follow=False))) == 0
    assert {change.key for change in await _all(cache.changes(follow=False))} == {
        "other/1", *(f"runs/{run}" for run in range(8)),
    }  # fmt: skip


@pytest.mark.usefixtures("small")
async def test_a_reader_may_stop_behind_every_change_and_go_on_elsewhere(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker, agents: Agents
) -> None:
    """Commits of many states are read in parts too, and what others wrote between them is passed by once."""
    for number in range(40):
        group = f"runs/{number % 3}"
        agents.commit(*((f"{group}/{part}", b'"%d"' % number) for part in range(number % 7 + 1)))
        agents.commit(*(f"other/{number}/{part}" for part in range(100)))
    await flush(worker)
    whole = await _all(cache.changes("runs/", follow=False))
    assert len(whole) == sum(number % 7 + 1 for number in range(40))
    assert len(await _all(cache.changes(follow=False))) == len(whole) + 40 * 100, "some batch ended within a commit"
    cursor, given = None, list[Change[Any]]()
    while True:
        if len(given) % 2:
            with sync_cache.changes("runs/", since=cursor, follow=False) as feed:
                one = next(iter(feed), None)
                cursor = feed.cursor
        else:
            async with cache.changes("runs/", since=cursor, follow=False) as other:
                one = await anext(other, None)
                cursor = other.cursor
        if one is None:
            break
        given.append(one)
    assert sorted(_places(given)) == sorted(_places(whole))
    for shard in {change.shard for change in whole}:
        assert [one for one in _places(given) if one[0] == shard] == [one for one in _places(whole) if one[0] == shard]
    asked = list[Any]()
    fetch = cache._runtime.postgres.fetch

    async def fetched(name: str, parameters: Any, *, seconds: float) -> Any:
        rows = await fetch(name, parameters, seconds=seconds)
        asked.append(len(rows))
        return rows

    cache._runtime.postgres.fetch = fetched  # type: ignore[method-assign]
    assert await _all(cache.changes("runs/", since=cursor, follow=False)) == []
    assert len(asked) == 1


async def test_a_cursor_serves_its_prefix_and_longer_ones(
    cache: AsyncStateCache, worker: Worker, make_settings: MakeSettings
) -> None:
    await cache.set("runs/1/a", 1)
    await flush(worker)
    feed = cache.changes("runs/", follow=False)
    with pytest.raises(UsageError, match="nothing was read yet"):
        _ = feed.cursor
    assert len(await _all(feed)) == 1
    await cache.set("runs/1/b", 2)
    await cache.set("runs/2", 3)
    await flush(worker)
    of_one = await _all(cache.changes("runs/1/", since=feed.cursor, follow=False))
    assert [change.key for change in of_one] == ["runs/1/b"]
    runs = cache.namespace("runs")
    assert {change.key for change in await _all(runs.changes(since=feed.cursor, follow=False))} == {
        "runs/1/b", "runs/2",
    }  # fmt: skip
    with pytest.raises(UsageError, match="tells of changes under 'runs/', not of all under ''"):
        await _all(cache.changes("", since=feed.cursor, follow=False))
    for wrong in ("", "soon", "0123abcd/0:1", "0123abcd/0:1-0/runs/", "0123abcd/zero:1-1/runs/", 7):
        with pytest.raises(UsageError, match=r"cursor|place in a shard"):
            cache.changes("runs/", since=wrong)  # type: ignore[arg-type]
    async with AsyncStateCache(settings=make_settings()) as elsewhere:
        with pytest.raises(UsageError, match="of another deployment"):
            await _all(elsewhere.changes("runs/", since=feed.cursor, follow=False))


async def test_a_follower_gets_what_becomes_durable_as_it_does(
    client: AsyncStateCache, settings: Settings, worker: Worker
) -> None:
    await client.set("runs/1", 0)
    await flush(worker)
    async with (
        flushing(worker),
        AsyncStateCache(settings=settings) as reader,
        reader.changes("runs/", since="now") as feed,
    ):
        waiting = asyncio.ensure_future(anext(feed))
        for number in range(1, 6):
            await client.set("runs/1", number)
            change = await asyncio.wait_for(waiting, 20)
            assert (change.value, change.version) == (number, number + 1)
            waiting = asyncio.ensure_future(anext(feed))
        feed.stop()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(waiting, 20)


async def test_a_follower_ends_with_its_client_and_by_cancellation(settings: Settings) -> None:
    reader = AsyncStateCache(settings=settings)
    waiting = asyncio.ensure_future(anext(reader.changes("runs/")))
    cancelled = asyncio.ensure_future(anext(reader.changes("runs/")))
    await asyncio.wait([cancelled], timeout=0.3)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await reader.close()
    with pytest.raises(UsageError, match="closed"):
        await asyncio.wait_for(waiting, 20)


async def test_a_follower_needs_no_events_where_the_servers_are_far(
    settings: Settings, cache: AsyncStateCache, worker: Worker, postgres_proxy: FaultProxy
) -> None:
    """The connection for events asks Postgres, too, and a follower has little time for that."""
    await cache.set("runs/1", 1)
    async with flushing(worker):
        await cache.set("runs/2", 2, durability="postgres")
    postgres_proxy.delay_s = 0.1
    far = through(settings, postgres=postgres_proxy)
    async with AsyncStateCache(settings=far) as reader, reader.changes("runs/") as feed:
        assert [(await anext(feed)).value for _ in range(2)] == [1, 2]


async def test_a_value_of_another_type_is_told_once_and_passed(cache: AsyncStateCache, worker: Worker) -> None:
    runs = cache.namespace("runs", type=Run)
    await runs.set("1", Run(1))
    await cache.set("runs/1", "no run")
    await runs.set("1", Run(3))
    async with flushing(worker):
        await runs.step("1", "done", lambda step: step.attempt)
    await flush(worker)
    feed = runs.changes(follow=False)
    assert (await anext(feed)).value == Run(1)
    with pytest.raises(CodecError):
        await anext(feed)
    assert [change.value for change in await _all(feed)] == [Run(3)]
    kept = [change.key for change in await _all(cache.changes("runs/", follow=False))]
    assert "runs/1/steps/done" in kept


async def test_without_redis_it_looks_every_second(settings: Settings, cache: AsyncStateCache, worker: Worker) -> None:
    await cache.set("runs/1", 1)
    elsewhere = settings.model_copy(update={"redis_url": "redis://127.0.0.1:1"})
    async with AsyncStateCache(settings=elsewhere) as reader:
        waiting = asyncio.ensure_future(anext(reader.changes("runs/")))
        await asyncio.wait([waiting], timeout=0.2)
        await flush(worker)
        assert (await asyncio.wait_for(waiting, 20)).key == "runs/1"


async def test_large_values_come_one_at_a_time(
    client: AsyncStateCache, keys: KeySpace, worker: Worker, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statecache.core.feed.feed.BYTES", 1000)
    names = [f"runs/{number}" for number in range(10)]
    for name in names:
        await client.set(name, "x" * 5000)
    await flush(worker)
    assert {keys.shard(name) for name in names} == {*range(keys.shards)}
    async with AsyncStateCache(settings=client.settings) as reader:
        assert sorted(change.key for change in await _all(reader.changes("runs/", follow=False))) == names

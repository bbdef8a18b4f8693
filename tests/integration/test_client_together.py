"""Commits that wait for Postgres travel together: one exchange for many, and none of them the less sure for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, OutcomeUnknown, RedisUnavailable, Settings, VersionConflict
from statecache.core.redis.connection import Link
from tests.fixtures.faults import through
from tests.fixtures.flusher import rows
from tests.support.fault_proxy import FaultProxy
from tests.support.unread_replies import leave_unread
from tests.support.workers import at_work

MANY = 12
KEYS = [f"runs/{number}" for number in range(MANY)]
WAIT_S = 20.0

Psql = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
async def working(settings: Settings) -> AsyncIterator[None]:
    """A worker at work."""
    async with at_work(settings):
        yield


@pytest.fixture
async def behind(settings: Settings, proxy: FaultProxy) -> AsyncIterator[AsyncStateCache]:
    """A client behind the proxy that has committed once to each key, and is prepared for more."""
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as client:
        await _all(client, 1)
        yield client


async def _all(client: AsyncStateCache, value: int, **more: Any) -> list[Any]:
    async with asyncio.timeout(WAIT_S):
        return [*await asyncio.gather(*(client.set(key, value, durability="postgres", **more) for key in KEYS))]


def _exchanges(patch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the commands of every exchange that commits something, in the list returned."""
    seen: list[list[str]] = []
    run = Link.run

    async def noted(link: Link, commands: Any, *, seconds: float) -> list[Any]:
        if any(len(command) > 4 and str(command[3]).endswith(":meta") and len(command) > 18 for command in commands):
            seen.append([command[0] for command in commands])
        return await run(link, commands, seconds=seconds)

    patch.setattr(Link, "run", noted)
    return seen


async def test_commits_of_one_moment_are_one_exchange_and_each_has_its_own_answer(
    behind: AsyncStateCache, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        seen = _exchanges(patched)
        states = await _all(behind, 2)
        alone = await behind.set(KEYS[0], 3, durability="memory")
    assert [(state.key, state.value, state.version) for state in states] == [(key, 2, 2) for key in KEYS]
    assert alone.version == 3
    assert [len(commands) for commands in seen] == [MANY, 1]
    assert {*seen[0][1:]} == {"EVALSHA"}
    assert rows(psql, "SELECT count(*) FROM change WHERE version = 2") == [(MANY,)]


async def test_a_connection_that_does_not_know_the_script_is_sent_its_text_once(
    behind: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    await behind._runtime.redis.pool.drop_idle(all_of_them=True)
    with monkeypatch.context() as patched:
        seen = _exchanges(patched)
        await _all(behind, 2)
    assert seen == [["EVAL", *["EVALSHA"] * (MANY - 1)]]


@pytest.mark.own_servers("it makes the server forget its scripts")
async def test_a_server_that_forgot_the_script_is_sent_it_again(behind: AsyncStateCache, redis_raw: Any) -> None:
    redis_raw.script_flush()
    assert [state.version for state in await _all(behind, 2)] == [2] * MANY


async def test_what_one_commit_comes_to_is_nothing_to_the_others(behind: AsyncStateCache) -> None:
    stale = (await behind.get(KEYS[0])).change_id  # type: ignore[union-attr]
    await behind.set(KEYS[0], 2)
    async with asyncio.timeout(WAIT_S):
        conflict, *states = await asyncio.gather(
            behind.set(KEYS[0], 3, expected=stale, durability="postgres"),
            *(behind.set(key, 3, durability="postgres") for key in KEYS[1:]),
            return_exceptions=True,
        )
    assert isinstance(conflict, VersionConflict)
    assert [state.version for state in states] == [2] * (MANY - 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["drop_request", "cut", "drop_reply"])
async def test_an_exchange_that_breaks_is_made_again_and_each_commit_is_applied_once(
    behind: AsyncStateCache, proxy: FaultProxy, psql: Psql, kind: Any
) -> None:
    """Whether the server has run none, some or all of them."""
    fault = proxy.arm(kind, at=KEYS[MANY // 2].encode())
    states = await _all(behind, 2)
    assert fault.struck
    assert [state.version for state in states] == [2] * MANY
    assert rows(psql, "SELECT count(*), max(version) FROM change") == [(2 * MANY, 2)]
    assert not behind.unknown_outcomes()


async def test_of_an_exchange_that_broke_for_good_every_outcome_is_unknown(
    behind: AsyncStateCache, proxy: FaultProxy, psql: Psql
) -> None:
    """The server has run them all, and cannot be reached again in time: none of them may read as failed."""
    fault = proxy.arm("drop_reply", at=KEYS[MANY // 2].encode())

    def unreachable() -> None:
        proxy.refusing = True

    fault.then(unreachable)
    writes = [behind.set(key, 2, durability="postgres", timeout=1.0) for key in KEYS]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    proxy.refusing = False
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * MANY
    assert {one.keys for one in behind.unknown_outcomes()} == {(key,) for key in KEYS}
    assert [state.version for state in await _all(behind, 3)] == [3] * MANY


async def test_whoever_is_cancelled_on_the_way_is_in_doubt_and_the_others_hear_nothing_of_it(
    behind: AsyncStateCache, proxy: FaultProxy
) -> None:
    fault = proxy.arm("hold_reply", at=b"the-cancelled")
    cancelled = asyncio.create_task(behind.set("runs/more", 2, actor="the-cancelled", durability="postgres"))
    others = asyncio.create_task(_all(behind, 2))
    await fault.wait()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    fault.release()
    assert [state.value for state in await others] == [2] * MANY
    assert cancelled.cancelled()
    assert [one.keys for one in behind.unknown_outcomes()] == [("runs/more",)]


async def test_whoever_is_cancelled_before_it_leaves_is_not_sent(
    behind: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    await behind.set("runs/more", 1, durability="postgres")
    pool, waits, goes_on = behind._runtime.redis.pool, asyncio.Event(), asyncio.Event()
    take = pool.take

    async def later(seconds: float) -> Link:
        waits.set()
        await goes_on.wait()
        return await take(seconds)

    with monkeypatch.context() as patched:
        patched.setattr(pool, "take", later)
        cancelled = asyncio.create_task(behind.set("runs/more", 2, durability="postgres"))
        others = asyncio.create_task(_all(behind, 2))
        await waits.wait()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        goes_on.set()
        await others
    assert (await behind.get("runs/more", read="primary")).version == 1  # type: ignore[union-attr]
    assert not behind.unknown_outcomes()


async def test_replies_that_slipped_are_believed_by_nobody(behind: AsyncStateCache, psql: Psql) -> None:
    await leave_unread(behind)
    states = await _all(behind, 2)
    assert [(state.key, state.value) for state in states] == [(key, 2) for key in KEYS]
    newest = rows(psql, "SELECT change_id, key FROM change WHERE value = '2' ORDER BY key")
    assert newest == sorted(((state.change_id, state.key) for state in states), key=lambda row: row[1])


async def test_a_commit_that_waits_for_a_connection_ends_in_time_and_was_not_sent(settings: Settings) -> None:
    single = settings.model_copy(update={"redis_connections_max": 1})
    async with AsyncStateCache(settings=single) as client:
        await client.set("runs/0", 1, durability="postgres")
        link = await client._runtime.redis.pool.take(1)
        with pytest.raises(RedisUnavailable, match="for a connection of 1"):
            await client.set("runs/0", 2, durability="postgres", timeout=0.1)
        client._runtime.redis.pool.give(link)
        assert not client.unknown_outcomes()
        assert (await client.set("runs/0", 3, durability="postgres")).version == 2

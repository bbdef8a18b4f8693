"""What `expected=` asks for: a state, its change_id, that there is none, or nothing in particular."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statecache import AsyncStateCache, LeaseLost, Settings, VersionConflict
from tests.fixtures.faults import through
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.fault_proxy import FaultProxy

KEY = "runs/42"


@every_redis
async def test_who_read_that_there_is_nothing_overwrites_nothing(
    client: AsyncStateCache, cache: AsyncStateCache
) -> None:
    found = await client.get(KEY)
    assert found is None
    theirs = await cache.set(KEY, "theirs")
    with pytest.raises(VersionConflict, match=f"'{KEY}' was changed by someone else: expected no state") as caught:
        await client.set(KEY, "mine", expected=found)
    assert (caught.value.expected, caught.value.actual) == (None, theirs.change_id)
    with pytest.raises(VersionConflict) as caught:
        await client.delete(KEY, expected=found)
    assert (caught.value.key, caught.value.expected, caught.value.actual) == (KEY, None, theirs.change_id)
    assert await cache.get(KEY) == theirs


@every_redis
async def test_nothing_is_where_nothing_was_yet_and_where_it_was_deleted(client: AsyncStateCache) -> None:
    assert await client.delete(KEY, expected=None) is None
    assert (await client.set(KEY, 1, expected=None)).version == 1
    assert await client.delete(KEY) is not None
    assert await client.delete(KEY, expected=None) is None
    assert (await client.set(KEY, 2, expected=None)).version == 3


async def test_without_expected_a_write_takes_whatever_is_there(client: AsyncStateCache) -> None:
    first = await client.set(KEY, 1)
    assert (await client.set(KEY, 2, expected=...)).version == 2
    with pytest.raises(VersionConflict):
        await client.set(KEY, 3, expected=first)
    assert (await client.delete(KEY, expected=...)).version == 3  # type: ignore[union-attr]


async def test_a_namespace_and_a_lease_ask_for_absence_too(client: AsyncStateCache, cache: AsyncStateCache) -> None:
    runs = client.namespace("runs")
    assert (await runs.set("42", 1, expected=None)).version == 1
    with pytest.raises(VersionConflict):
        await runs.set("42", 2, expected=None)
    async with client.lock(KEY, ttl=30) as lease:
        for verb in (lease.set(KEY, 2, expected=None), lease.delete(KEY, expected=None)):
            with pytest.raises(VersionConflict):
                await verb
        await cache.delete(KEY)
        assert await lease.delete(KEY, expected=None) is None
        assert (await lease.set(KEY, 3, expected=None)).version == 3
    with pytest.raises(LeaseLost):
        await lease.delete(KEY, expected=None)


async def _as_coroutine(call: Any) -> Any:
    return await call


async def test_a_lost_reply_is_no_conflict_with_itself(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy
) -> None:
    behind = make_client(through(settings, redis=proxy))
    assert await behind.get(KEY) is None
    fault = proxy.arm("hold_reply", at=b"the-unlucky")
    writing = asyncio.create_task(_as_coroutine(behind.set(KEY, "mine", expected=None, actor="the-unlucky")))
    await fault.wait()
    later = await cache.set(KEY, "later")
    proxy.cut_all()
    assert (await writing).version == 1
    assert await cache.get(KEY) == later

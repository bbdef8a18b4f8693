"""Updates begin with what is kept here, take turns in this process, and decide on the current state; and a clock."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import pytest

from statecache import (
    AsyncStateCache,
    CodecError,
    NotFound,
    RedisUnavailable,
    Settings,
    State,
    StateCache,
    VersionConflict,
)
from statecache.clock import boottime, monotonic
from tests.fixtures.servers import MakeSettings
from tests.support.local_reads import KEY, kept, until
from tests.support.polling import pause_thread


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of clients that read locally."""
    return make_settings(read="local")


async def outdated(one: AsyncStateCache, other: AsyncStateCache, value: int) -> State[Any]:
    """Write over what is kept here, and keep it all the same, as if the push were still on its way."""
    entry = one._runtime.near._entries[KEY]
    written = await other.set(KEY, value)
    await until(lambda: one.near.invalidations)
    one._runtime.near._entries[KEY] = entry
    return written


async def test_an_update_begins_with_what_is_kept_here_and_decides_on_the_current_state(
    one: AsyncStateCache, other: AsyncStateCache
) -> None:
    await other.set(KEY, 1)
    await kept(one)
    seen: list[int] = []

    def add(value: int) -> int:
        seen.append(value)
        return value + 1

    await outdated(one, other, 10)
    assert (await one.update(KEY, add)).value == 11
    assert seen == [1, 10]


async def test_what_is_kept_here_aborts_no_update_by_itself(one: AsyncStateCache, other: AsyncStateCache) -> None:
    await other.set(KEY, 0)
    await kept(one)
    await outdated(one, other, 5)

    def spend(budget: int) -> int:
        if budget < 5:
            raise ValueError(f"only {budget} left")
        return budget - 5

    assert (await one.update(KEY, spend)).value == 0
    with pytest.raises(ValueError, match="only 0 left"):
        await one.update(KEY, spend)


async def test_what_cannot_be_stored_of_what_is_kept_here_ends_no_update_by_itself(
    one: AsyncStateCache, other: AsyncStateCache
) -> None:
    def spend(budget: int) -> object:
        return budget - 5 if budget >= 5 else object()

    await other.set(KEY, 0)
    await kept(one)
    await outdated(one, other, 5)
    assert (await one.update(KEY, spend)).value == 0
    with pytest.raises(CodecError):
        await one.update(KEY, spend)


@pytest.mark.parametrize("before", ["nothing", "a tombstone", "another type"])
async def test_a_touch_refuses_nothing_by_what_is_kept_here(
    one: AsyncStateCache, other: AsyncStateCache, before: str
) -> None:
    if before != "nothing":
        await other.set(KEY, "text")
    if before == "a tombstone":
        await other.delete(KEY)
    await kept(one)
    written = await outdated(one, other, 5)
    touched = await one.namespace("runs", type=int).touch("1", ttl=60)
    assert (touched.value, touched.version) == (5, written.version + 1)
    assert touched.expires_at is not None
    await other.delete(KEY)
    with pytest.raises(NotFound):
        await one.touch(KEY, ttl=60)


async def test_updates_of_one_client_take_turns_and_read_nothing_in_between(
    one: AsyncStateCache, redis_raw: Any
) -> None:
    await one.set(KEY, 0)
    calls = 0

    def add(value: int) -> int:
        nonlocal calls
        calls += 1
        return value + 1

    asked = redis_raw.info("commandstats")["cmdstat_hmget"]["calls"]
    await asyncio.gather(*(one.update(KEY, add) for _ in range(16)))
    asked = redis_raw.info("commandstats")["cmdstat_hmget"]["calls"] - asked
    assert asked < 16 * 3  # two of each commit's own, and next to none for reading
    state = await one.get(KEY, read="primary")
    assert state is not None
    assert (state.value, state.version, calls) == (16, 17, 16)


async def test_an_update_within_an_update_of_the_same_state_is_not_held_up_for_long(settings: Settings) -> None:
    """The inner one goes on without a turn; the outer one is called again with what it left."""
    async with AsyncStateCache(settings=settings) as cache:
        await cache.set(KEY, 0)
        inner: list[int] = []

        async def outer(value: int) -> int:
            if not inner:
                inner.append((await cache.update(KEY, lambda found: found + 10)).value)
            return value + 1

        assert (await cache.update(KEY, outer)).value == 11
        assert inner == [10]


# Time in which the machine was suspended.


async def test_what_is_kept_over_a_suspended_machine_is_not_believed(
    one: AsyncStateCache, other: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of trust goes on while nothing runs; the one for waiting stands still."""
    await other.set(KEY, 1)
    await kept(one)
    slept_s = 0.0
    for name in ("_async.reads", "_sync.reads", "core.redis.tracking"):
        assert import_module(f"statecache.{name}").boottime is boottime
        monkeypatch.setattr(f"statecache.{name}.boottime", lambda: boottime() + slept_s)
    before = one.near
    await one.get(KEY)
    assert one.near.hits == before.hits + 1
    slept_s = 3600.0
    await one.get(KEY)
    assert (one.near.hits, one.near.misses) == (before.hits + 1, before.misses + 1)


# Others are quicker until the time is up.


async def test_an_update_that_others_always_beat_ends_with_their_conflict(
    one: AsyncStateCache, settings: Settings
) -> None:
    """Redis has answered all the time: it is not what is in the way."""
    await one.set(KEY, 0)
    calls = 0
    with StateCache(settings=settings) as rival:

        def beaten(value: int) -> int:
            nonlocal calls
            calls += 1
            rival.set(KEY, calls)
            return value

        with pytest.raises(VersionConflict, match=KEY):
            await one.update(KEY, beaten, timeout=0.5)
    assert calls > 1


async def test_a_function_that_takes_all_the_time_is_said_to(one: AsyncStateCache) -> None:
    def slow(value: int) -> int:
        until_at = monotonic() + 0.1
        while monotonic() < until_at:
            pause_thread()
        return value + 1

    state = await one.set(KEY, 1)
    with pytest.raises(RedisUnavailable, match="the function given to update took until the time was up"):
        await one.update(KEY, slow, timeout=0.05)
    assert await one.get(KEY, read="primary") == state


async def test_what_a_function_raises_is_raised_whatever_it_is(one: AsyncStateCache) -> None:
    """Also where it is what statecache itself raises, and a time that is nearly up."""
    await one.set(KEY, 1)
    for error in (VersionConflict("a/b", "1", "2"), RedisUnavailable("timeout", detail="of another call")):

        def failing(_: int, error: Exception = error) -> int:
            raise error

        with pytest.raises(type(error)) as raised:
            await one.update(KEY, failing, timeout=0.05)
        assert raised.value is error

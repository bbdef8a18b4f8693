"""States that end: what is said of an end, and what every verb makes of one, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from statecache import (
    AlreadyExists,
    AsyncStateCache,
    Create,
    Delete,
    NotFound,
    Set,
    UsageError,
    VersionConflict,
)
from statecache.codec import codec_for
from statecache.core.redis.server_clock import ServerClock
from statecache.expiry import checked_ttl_ms, ending, expires_at, form_of, lasting, stored, until_of
from statecache.testing import memory
from tests.support.awaited import awaited
from tests.support.near_entries import record
from tests.support.polling import pause

AT = datetime(2026, 11, 24, 1, 2, 3, 456_789, tzinfo=UTC)
SOON = 0.001
"""A time to live that is over before anybody has looked."""
HOUR = timedelta(hours=1)


@pytest.fixture(params=["async", "sync"])
async def cache(request: pytest.FixtureRequest) -> AsyncIterator[AsyncStateCache]:
    """A client in memory: the asynchronous one, and again the synchronous one."""
    deployment = memory()
    client: Any = deployment.async_client() if request.param == "async" else awaited(deployment.client())
    yield client
    await client.close()


async def ended(client: Any, key: str, value: Any = "old") -> Any:
    """Write a state that ends at once, and return it when it has."""
    state = await client.set(key, value, ttl=SOON)
    while await client.get(key, read="primary") is not None:
        await pause()
    return state


# How an end is said and stored.


@pytest.mark.parametrize(
    ("ttl", "ms"),
    [
        (None, None),
        (1, 1000),
        (0.0004, 1),
        (2.5, 2500),
        (timedelta(days=2), 172_800_000),
        (inf, inf),
        (timedelta.max, 0),
    ],
)
def test_a_time_to_live_is_seconds_or_a_timedelta(ttl: Any, ms: float | None) -> None:
    if ttl == timedelta.max:
        with pytest.raises(UsageError, match="at most 100 years"):
            checked_ttl_ms(ttl)
    else:
        assert checked_ttl_ms(ttl) == ms


@pytest.mark.parametrize("ttl", [0, -1, timedelta(0), -inf, float("nan"), True, "60", 1e12, [1]])
def test_what_is_no_time_to_live_is_refused(ttl: Any) -> None:
    with pytest.raises(UsageError, match="not a time above 0"):
        checked_ttl_ms(ttl)


def test_the_end_stands_behind_the_encoding() -> None:
    until = int(AT.timestamp() * 1000) + 1500
    assert stored(lasting("json", 1500), AT) == f"json until {until}"
    assert stored(lasting("msgpack", inf), AT) == "msgpack"
    for encoding in (f"json until {until}", f"raw until {until}"):
        assert form_of(encoding) in ("json", "raw")
        assert until_of(encoding) == until
        assert expires_at(encoding) == (AT + timedelta(milliseconds=1500)).replace(microsecond=956_000)
        assert ending(form_of(encoding), expires_at(encoding)) == encoding
    for encoding in ("json", "msgpack", "raw", "", "json for ever and", "json until ²", "json until "):
        assert until_of(encoding) is None
        assert expires_at(encoding) is None


def test_values_are_read_whatever_their_end() -> None:
    assert codec_for(encoding="json").decode(b"[1]", key="a/b", encoding="json until 1795489200123") == [1]
    assert codec_for(encoding="json").decode(b"\x91\x01", key="a/b", encoding="msgpack until 1") == [1]
    assert codec_for(encoding="raw").decode(b"x", key="a/b", encoding="raw until 1") == b"x"


# Whose clock counts.


def test_a_record_is_alive_until_its_end() -> None:
    clock = ServerClock()
    now = clock.now_ms()
    lasts, ends = record(1), record(2)
    assert clock.lived(lasts) is lasts
    for until, op in ((now + 60_000, "set"), (now - 1, "expired")):
        one = clock.lived(_until(ends, until))
        assert (one.op, one.exists, one.version) == (op, op == "set", 2)
        assert one.tip == ("c2" if op == "set" else "c2~")


def _until(one: Any, ms: int) -> Any:
    return replace(one, encoding=f"json until {ms}")


# What the verbs make of it.


async def test_an_ended_state_is_as_if_it_were_deleted(cache: AsyncStateCache) -> None:
    await cache.set("runs/2", 2)
    state = await ended(cache, "runs/1")
    reads: list[Any] = ["local", "primary"]
    for read in reads:
        assert await cache.get("runs/1", read=read) is None
        assert not await cache.exists("runs/1", read=read)
        found = await cache.get_many(["runs/1", "runs/2"], read=read)
        assert [one is None for one in found.values()] == [True, False]
    assert (await cache.get("runs/1", default=7)).value == 7
    orders: list[Any] = ["key", "-key", "newest", "oldest"]
    for order in orders:
        assert [one.key async for one in cache.list("runs/", order=order)] == ["runs/2"]
    assert [one.key async for one in cache.list("runs/", limit=1)] == ["runs/2"]
    assert await cache.delete("runs/1") is None
    assert await cache.delete("runs/1", expected=None) is None
    assert await cache.delete_many(["runs/1"], dry_run=True) == 0
    for verb in (
        lambda: cache.set("runs/1", 1, expected=state),
        lambda: cache.set("runs/1", 1, expected=state.change_id),
        lambda: cache.delete("runs/1", expected=state),
    ):
        with pytest.raises(VersionConflict) as caught:
            await verb()
        assert (caught.value.expected, caught.value.actual) == (state.change_id, None)
    missing: list[Callable[[], Any]] = [
        lambda: cache.touch("runs/1", ttl=5),
        lambda: cache.update("runs/1", _upper),
        lambda: cache.copy("runs/1", "runs/3"),
        lambda: cache.rename("runs/1", "runs/1/b"),
        lambda: cache.commit([Delete("runs/1"), Create("runs/1/b", 1)]),
    ]
    for verb in missing:
        with pytest.raises(NotFound):
            await verb()


async def _deleted(client: Any, key: str) -> None:
    await client.set(key, "old")
    await client.delete(key)


@pytest.mark.parametrize("gone", [ended, _deleted])
async def test_a_default_of_what_is_gone_expects_that_there_is_still_none(
    cache: AsyncStateCache, gone: Callable[..., Any]
) -> None:
    reads: list[Any] = ["local", "primary"]
    for read in reads:
        await gone(cache, "runs/1")
        state = await cache.get("runs/1", default=0, read=read)
        assert (state.value, state.change_id, state.expires_at) == (0, "", None)
        assert await cache.delete("runs/1", expected=state) is None
        assert await cache.commit([Delete("runs/1", expected=state)]) == [None]
        await _deleted(cache, "runs/1")  # as by another, which leaves nothing behind either
        stored = await cache.set("runs/1", 1, expected=state)
        assert stored.version > state.version
        for verb in (cache.set("runs/1", 2, expected=state), cache.delete("runs/1", expected=state)):
            with pytest.raises(VersionConflict):
                await verb
        assert await cache.wait_for("runs/1", after=state, timeout=5) == stored


async def test_what_comes_behind_an_ended_state_goes_on_from_its_version(cache: AsyncStateCache) -> None:
    verbs: list[Callable[[], Any]] = [
        lambda: cache.create("runs/1", "new"),
        lambda: cache.set("runs/1", "new"),
        lambda: cache.set("runs/1", "new", expected=None),
        lambda: cache.update("runs/1", _upper, default="new"),
        lambda: cache.copy("runs/0", "runs/1"),
    ]
    for verb in verbs:
        await cache.set("runs/0", "other")
        before = await ended(cache, "runs/1")
        state = await verb()
        assert state.version == before.version + 1
        assert state.parent_change_id == before.change_id
        assert state.expires_at is None
        assert (await cache.get("runs/1", default=None)).value in ("new", "NEW", "other")
        await cache.delete("runs/1")
    before = await ended(cache, "runs/1")
    (made,) = await cache.commit([Create("runs/1", "new", ttl=HOUR)])
    assert made is not None
    assert made.expires_at is not None
    assert (made.version, made.expires_at - made.updated_at <= HOUR) == (before.version + 1, True)
    with pytest.raises(AlreadyExists):
        await cache.create("runs/1", "again")


async def test_a_transaction_takes_an_ended_state_for_deleted(cache: AsyncStateCache) -> None:
    await ended(cache, "runs/1")
    async with cache.transaction("runs/1", "runs/1/b") as tx:
        assert await tx.get("runs/1") is None
        with pytest.raises(NotFound):
            tx.delete("runs/1")
        tx.create("runs/1/b", 1)
    assert await cache.get("runs/1") is None
    async with cache.transaction("runs/1") as tx:
        tx.create("runs/1", "new", ttl=HOUR)
    assert tx.states["runs/1"].expires_at is not None


async def test_a_state_that_ends_in_a_transaction_is_a_conflict(cache: AsyncStateCache) -> None:
    state = await cache.set("runs/1", 1, ttl=0.2)

    async def transaction() -> None:
        async with cache.transaction("runs/1") as tx:
            found = await tx.get("runs/1")
            assert found is not None
            while await cache.get("runs/1") is not None:
                await pause()
            tx.set("runs/1", found.value + 1)

    with pytest.raises(VersionConflict):
        await transaction()
    assert await cache.get("runs/1") is None
    assert (await cache.set("runs/1", 5)).version == state.version + 1


async def test_an_update_whose_state_ends_under_its_hands_begins_anew() -> None:
    async with memory() as cache:
        await cache.set("runs/1", 1, ttl=0.1)
        seen: list[int] = []

        async def slow(value: int) -> int:
            seen.append(value)
            while value == 1 and await cache.get("runs/1") is not None:
                await pause()
            return value + 1

        state = await cache.update("runs/1", slow, default=100)
        assert (seen, state.value, state.expires_at) == ([1, 100], 101, None)


# How long it lasts.


async def test_a_write_says_how_long_the_state_lasts_and_an_update_keeps_that(cache: AsyncStateCache) -> None:
    first = await cache.set("runs/1", 1, ttl=HOUR)
    assert first.expires_at is not None
    assert timedelta(0) <= first.updated_at + HOUR - first.expires_at < timedelta(milliseconds=1)
    assert await cache.get("runs/1") == first
    second = await cache.update("runs/1", _one_more)
    assert (second.value, second.expires_at) == (2, first.expires_at)
    async with cache.transaction("runs/1") as tx:
        tx.set("runs/1", 3)
    assert tx.states["runs/1"].expires_at == first.expires_at
    third = await cache.update("runs/1", _one_more, ttl=2 * HOUR)
    assert third.expires_at is not None
    assert third.expires_at > first.expires_at + HOUR - timedelta(milliseconds=1)
    assert (await cache.update("runs/1", _one_more, ttl=inf)).expires_at is None
    assert (await cache.set("runs/1", 1, ttl=HOUR)).expires_at is not None
    assert (await cache.set("runs/1", 1)).expires_at is None  # written whole, so nothing is left of what was


def _upper(value: str) -> str:
    return value.upper()


def _one_more(value: int) -> int:
    return value + 1


async def test_touch_prolongs_and_changes_nothing_else(cache: AsyncStateCache) -> None:
    state = await cache.set("runs/1", {"a": 1}, ttl=60)
    longer = await cache.touch("runs/1", ttl=HOUR, reason="still wanted")
    assert (longer.value, longer.version, longer.parent_change_id) == ({"a": 1}, 2, state.change_id)
    assert longer.expires_at > state.expires_at + timedelta(minutes=58)  # type: ignore[operator]
    assert await cache.get("runs/1") == longer
    for_ever = await cache.touch("runs/1", ttl=inf)
    assert (for_ever.expires_at, for_ever.version) == (None, 3)
    with pytest.raises(UsageError, match="touch does not know how long"):
        await cache.touch("runs/1")
    with pytest.raises(NotFound):
        await cache.touch("runs/absent", ttl=5)


async def test_copies_end_when_the_original_does(cache: AsyncStateCache) -> None:
    state = await cache.set("runs/1", 1, ttl=HOUR)
    assert (await cache.copy("runs/1", "runs/2")).expires_at == state.expires_at
    assert (await cache.rename("runs/1", "runs/1/b")).expires_at == state.expires_at


async def test_a_namespace_says_how_long_its_states_last(cache: AsyncStateCache) -> None:
    sessions = cache.namespace("sessions", type=dict[str, int], ttl=HOUR)
    states = [
        await sessions.set("1", {"a": 1}), await sessions.create("2", {"a": 1}),
        *(await sessions.set_many({"3": {"a": 1}})).values(), *await sessions.commit([Set("4", {"a": 1})]),
        await sessions.update("1", lambda value: value), await sessions.touch("1"),
        await sessions.namespace("inner").set("5", {"a": 1}),
    ]  # fmt: skip
    for state in states:
        assert state is not None
        assert state.expires_at is not None
        assert timedelta(0) <= state.updated_at + HOUR - state.expires_at < timedelta(milliseconds=1)
    for one, other in pairwise(states[-3:-1]):
        assert one.expires_at <= other.expires_at  # type: ignore[union-attr,operator]
    assert (await sessions.set("6", {}, ttl=inf)).expires_at is None
    minute = await sessions.set("6", {}, ttl=60)
    assert minute.expires_at < minute.updated_at + timedelta(minutes=2)  # type: ignore[operator]
    lasting_ones = cache.namespace("sessions", ttl=inf)
    assert (await lasting_ones.set("7", 1)).expires_at is None
    with pytest.raises(UsageError, match="not a time above 0"):
        cache.namespace("sessions", ttl=timedelta(0))


async def test_a_step_leaves_the_end_of_its_state_as_it_is(cache: AsyncStateCache) -> None:
    state = await cache.set("runs/1", 1, ttl=HOUR)
    await cache.step("runs/1", "pay", lambda step: 5, type=int, apply=lambda value, result: value + result)
    found = await cache.get("runs/1", read="primary")
    assert found is not None
    assert (found.value, found.expires_at) == (6, state.expires_at)


async def test_a_lease_and_many_states_take_it_too(cache: AsyncStateCache) -> None:
    async with cache.lock("runs/1") as lease:
        assert (await lease.set("runs/1", 1, ttl=HOUR)).expires_at is not None
    states = await cache.set_many({"runs/2": 1, "runs/3": 1}, ttl=HOUR)
    assert all(state.expires_at for state in states.values())


@pytest.mark.parametrize("encoding", ["json", "msgpack", "raw"])
async def test_every_encoding_can_end(cache: AsyncStateCache, encoding: Any) -> None:
    view = cache.namespace("runs", encoding=encoding)
    state = await view.set("1", b"bytes" if encoding == "raw" else [1], ttl=HOUR)
    assert await view.get("1", read="primary") == state
    assert [one async for one in view.list("")] == [state]
    assert (await view.touch("1", ttl=2 * HOUR)).value == state.value
    await ended(view, "1", b"" if encoding == "raw" else [])


async def test_readers_of_changes_see_the_delete_as_one_like_any_other() -> None:
    async with memory() as cache:
        await ended(cache, "runs/1")
        found = [one async for one in cache.changes("runs/1", follow=False)]
        told = [(one.op, one.version, one.value, one.reason, one.expires_at is None) for one in found]
        assert told == [("set", 1, "old", "", False), ("delete", 2, None, "expired", True)]
        assert [one async for one in cache.changes("runs/1", follow=False)] == found


async def test_a_repeat_tells_the_end_of_the_first_time(cache: AsyncStateCache) -> None:
    state = await cache.set("runs/1", 1, ttl=HOUR, change_id="0123456789abcdef")
    again = await cache.set("runs/1", 1, ttl=HOUR, change_id="0123456789abcdef")
    assert again == state

"""The connection on which events are heard: nobody waits long for it, and it is not asked for again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from statecache import ConfigurationError, RedisUnavailable
from statecache.clock import monotonic
from statecache.concurrency import TASKS
from statecache.core.redis import pubsub
from statecache.core.redis.pubsub import Subscriptions

WAIT_S = 20.0


class Link:
    """A connection on which nothing arrives; it notes what was sent on it."""

    def __init__(self) -> None:
        self.alive = True
        self.sent: list[Any] = []

    async def send(self, command: Any, *, seconds: float) -> None:
        """Note the command."""
        self.sent.append(command)

    async def receive(self, *, seconds: float) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()

    def abandon(self) -> None:
        """Part with it in a child."""

    def hang_up(self) -> None:
        """Do nothing: nobody is to be woken."""

    async def close(self) -> None:
        """Be closed."""
        self.alive = False


class Redis:
    """A Redis whose connections open once they are told to, or fail as they are told to."""

    io = TASKS

    def __init__(self) -> None:
        self.attempts = 0
        self.opens: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self.pool = self

    def check_place(self) -> None:
        """Find nothing wrong."""

    async def link(self) -> Link:
        """Return the connection, once there is one."""
        self.attempts += 1
        return await asyncio.shield(self.opens)

    def again(self) -> None:
        """Have another connection be opened next."""
        self.opens = asyncio.get_running_loop().create_future()


@pytest.fixture
async def redis() -> Redis:
    return Redis()


@pytest.fixture
async def events(redis: Redis) -> AsyncIterator[Subscriptions]:
    events = Subscriptions(cast("Any", redis), owner=object)
    yield events
    await events.close()


async def _watch(events: Subscriptions, channel: str = "a") -> bool:
    await events.watch(channel, lambda _: None, end=monotonic() + WAIT_S)
    return events.listens(channel)


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_callers_wait_for_one_attempt_and_all_they_want_is_subscribed(
    redis: Redis, events: Subscriptions
) -> None:
    waiting = [asyncio.create_task(_watch(events, channel)) for channel in "ab"]
    await _turns()
    redis.opens.set_result(link := Link())
    assert await asyncio.gather(*waiting) == [True, True]
    assert await _watch(events, "c")
    assert (redis.attempts, link.sent) == (1, [("SSUBSCRIBE", channel) for channel in "abc"])


async def test_a_connection_that_takes_long_is_waited_for_no_more_and_heard_on_once_it_stands(
    redis: Redis, events: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "_OPENING_S", 0.0)
    assert [await _watch(events, channel) for channel in "aba"] == [False, False, False]
    await _turns()
    assert redis.attempts == 1
    redis.opens.set_result(Link())
    await _turns()
    assert events.listens("a")
    assert events.listens("b")


async def test_after_an_attempt_that_took_long_and_failed_nobody_waits_until_one_succeeds(
    redis: Redis, events: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "_OPENING_S", 0.0)
    assert not await _watch(events)
    redis.opens.set_exception(RedisUnavailable("timeout"))
    await _turns()
    redis.again()
    assert [await _watch(events) for _ in range(5)] == [False] * 5
    assert redis.attempts == 1
    monkeypatch.setattr(pubsub, "_OPENING_S", WAIT_S)
    monkeypatch.setattr(events, "_not_before", 0.0)  # as once that time has passed
    assert [await _watch(events) for _ in range(5)] == [False] * 5
    await _turns()
    assert redis.attempts == 2
    redis.opens.set_result(Link())
    await _turns()
    assert events.listens("a")


async def test_an_attempt_that_fails_at_once_is_repeated_by_the_next_caller(
    redis: Redis, events: Subscriptions
) -> None:
    redis.opens.set_exception(RedisUnavailable("connect"))
    assert [await _watch(events) for _ in range(3)] == [False] * 3
    assert redis.attempts == 3
    redis.again()
    redis.opens.set_result(Link())
    assert await _watch(events)


async def test_what_refuses_it_for_good_is_raised(redis: Redis, events: Subscriptions) -> None:
    redis.opens.set_exception(ConfigurationError("this Redis is another deployment's"))
    with pytest.raises(ConfigurationError, match="another deployment's"):
        await _watch(events)


async def test_a_connection_that_has_died_is_replaced(redis: Redis, events: Subscriptions) -> None:
    redis.opens.set_result(first := Link())
    assert await _watch(events)
    first.alive = False
    assert not events.listens("a")
    redis.again()
    redis.opens.set_result(second := Link())
    assert await _watch(events)
    assert second.sent == [("SSUBSCRIBE", "a")]


async def test_a_connection_that_comes_when_the_client_is_closed_is_closed_too(
    redis: Redis, events: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "_OPENING_S", 0.0)
    assert not await _watch(events)
    await _turns()
    events._closed = True  # as a thread finds it that nobody cancels
    redis.opens.set_result(link := Link())
    await _turns()
    assert (link.alive, link.sent) == (False, [])

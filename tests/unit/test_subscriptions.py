"""The connection on which events are heard: little time goes into one that cannot be opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from statecache import ConfigurationError, PostgresUnavailable, RedisUnavailable
from statecache.concurrency import TASKS, NoThread
from statecache.core.redis import pubsub
from statecache.core.redis.pubsub import Subscriptions
from statecache.errors import StateCacheError
from tests.support.failed_over import until

END = 1e6


class Link:
    """A connection on which nothing arrives; it notes what was sent on it."""

    def __init__(self) -> None:
        self.alive = True
        self.sent: list[Any] = []
        self.refuses: RedisUnavailable | None = None

    async def send(self, command: Any, *, seconds: float) -> None:
        """Note the command."""
        self.sent.append(command)

    async def receive(self, *, seconds: float) -> None:
        """Wait until cancelled, or be closed over what was sent."""
        if self.refuses is not None:
            self.alive = False
            raise self.refuses
        await asyncio.Event().wait()

    def let_go(self) -> None:
        """Be parted with."""
        self.alive = False

    def hang_up(self) -> None:
        """Do nothing: nobody is to be woken."""

    async def close(self) -> None:
        """Be closed."""
        self.alive = False


class Redis:
    """A Redis that answers a request for a connection after some time of a clock of its own."""

    io = TASKS

    def __init__(self) -> None:
        self.now, self.opened_at = 100.0, 0.0
        self.takes_s = 0.0
        self.answer: Link | StateCacheError = Link()
        self.attempts = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.pool = self

    def check_place(self) -> None:
        """Find nothing wrong."""

    async def link(self, seconds: float | None = None) -> Link:
        """Return the connection, or raise what hinders it, after its time."""
        self.attempts += 1
        await asyncio.sleep(0)  # others come meanwhile
        await self.may_answer.wait()
        self.now += self.takes_s
        if isinstance(self.answer, Link):
            return self.answer
        raise self.answer


@pytest.fixture
async def redis(monkeypatch: pytest.MonkeyPatch) -> Redis:
    redis = Redis()
    monkeypatch.setattr(pubsub, "monotonic", lambda: redis.now)
    return redis


@pytest.fixture
async def events(redis: Redis) -> AsyncIterator[Subscriptions]:
    events = Subscriptions(cast("Any", redis), owner=object)
    yield events
    await events.close()


async def _watch(events: Subscriptions, channel: str = "a", *, end: float = END) -> bool:
    await events.watch(channel, lambda _: None, end=end)
    return events.listens(channel)


async def test_callers_share_one_connection_and_all_that_they_want_is_subscribed(
    redis: Redis, events: Subscriptions
) -> None:
    redis.answer = link = Link()
    assert await asyncio.gather(*(_watch(events, channel) for channel in "abc")) == [True] * 3
    assert await _watch(events, "d")
    assert redis.attempts == 1
    assert sorted(link.sent) == [("SSUBSCRIBE", channel) for channel in "abcd"]


async def test_after_an_attempt_that_took_long_callers_do_without_for_some_time(
    redis: Redis, events: Subscriptions
) -> None:
    redis.takes_s, redis.answer = 2.0, RedisUnavailable("timeout")
    waiting = (_watch(events, channel) for channel in "aab")
    assert await asyncio.gather(*waiting) == [False] * 3
    redis.now += 9.9
    assert [await _watch(events, channel) for channel in "ab"] == [False, False]
    assert redis.attempts == 1
    redis.now += 0.2
    redis.answer = link = Link()
    assert await _watch(events, "a")
    assert events.listens("b")
    assert link.sent == [("SSUBSCRIBE", channel) for channel in "ab"]


async def test_they_do_without_no_longer_once_another_connection_was_opened(
    redis: Redis, events: Subscriptions
) -> None:
    """The server, or what stands before it, is back."""
    redis.takes_s, redis.answer = 2.0, RedisUnavailable("timeout")
    assert not await _watch(events)
    redis.now += 1.0
    redis.answer = Link()
    assert not await _watch(events)
    redis.opened_at = redis.now
    redis.now += 0.1
    assert await _watch(events)


async def test_a_connection_that_was_opened_while_the_attempt_was_under_way_shows_that_the_server_is_there(
    redis: Redis, events: Subscriptions
) -> None:
    """The attempt was begun while nobody answered, and waits for an answer that never comes."""
    redis.may_answer.clear()
    redis.takes_s, redis.answer = 5.0, RedisUnavailable("timeout")
    assert not await _watch(events, end=redis.now + 0.01)
    redis.opened_at = redis.now + 1.0
    redis.may_answer.set()
    await until(lambda: events._under_way is None)
    redis.answer = Link()
    assert await _watch(events)


async def test_a_process_that_was_stopped_meanwhile_does_not_do_without_for_long(
    redis: Redis, events: Subscriptions
) -> None:
    redis.takes_s, redis.answer = 600.0, RedisUnavailable("timeout")
    assert not await _watch(events)
    redis.now += 10.1
    redis.takes_s, redis.answer = 0.0, Link()
    assert await _watch(events)


async def test_an_attempt_that_fails_at_once_is_repeated_by_the_next_caller(
    redis: Redis, events: Subscriptions
) -> None:
    redis.answer = RedisUnavailable("connect")
    assert [await _watch(events) for _ in range(3)] == [False] * 3
    assert redis.attempts == 3
    redis.answer = Link()
    assert await _watch(events)


async def test_an_attempt_goes_on_for_longer_than_its_callers_have(redis: Redis, events: Subscriptions) -> None:
    """The server is far, and their calls are short."""
    redis.may_answer.clear()
    short = redis.now + 0.01
    assert [await _watch(events, channel, end=short) for channel in "ab"] == [False, False]
    redis.may_answer.set()
    await until(lambda: events.listens("a"))
    assert (events.listens("b"), redis.attempts) == (True, 1)


async def test_nobody_waits_for_an_attempt_that_goes_on_for_long(redis: Redis, events: Subscriptions) -> None:
    redis.may_answer.clear()
    assert not await _watch(events, end=redis.now + 0.01)
    redis.now += 2.1
    async with asyncio.timeout(1):
        assert not await _watch(events, "b")
    assert redis.attempts == 1


async def test_a_postgres_that_is_away_is_no_refusal(redis: Redis, events: Subscriptions) -> None:
    """It is asked whether it belongs to this Redis."""
    redis.answer = PostgresUnavailable("connect")
    assert not await _watch(events)
    redis.answer = Link()
    assert await _watch(events)


async def test_a_caller_that_is_cancelled_takes_nothing_from_the_others(redis: Redis, events: Subscriptions) -> None:
    redis.may_answer.clear()
    first, second = (asyncio.create_task(_watch(events, channel)) for channel in "ab")
    await until(lambda: redis.attempts)
    first.cancel()
    await asyncio.wait([first])
    redis.may_answer.set()
    assert await second
    assert redis.attempts == 1


@pytest.mark.parametrize(
    "error",
    [ConfigurationError("this Redis is another deployment's"), RedisUnavailable("authentication")],
    ids=["configuration", "password"],
)
async def test_after_a_refusal_callers_do_without_for_ten_seconds(
    redis: Redis, events: Subscriptions, caplog: pytest.LogCaptureFixture, error: StateCacheError
) -> None:
    """What else they need of the server, if anything, tells them why."""
    redis.answer = error
    assert [await _watch(events) for _ in range(3)] == [False] * 3
    assert (redis.attempts, caplog.text.count("events are not heard")) == (1, 1)
    redis.now += 10.1
    redis.answer = Link()
    assert await _watch(events)


async def test_a_connection_that_is_closed_over_its_first_subscription_is_not_tried_again_at_once(
    redis: Redis, events: Subscriptions
) -> None:
    """As where this user may not subscribe."""
    redis.answer = forbidding = Link()
    forbidding.refuses = RedisUnavailable("connection", detail="NOPERM")
    await _watch(events)
    await until(lambda: not events.listens("a"))
    assert [await _watch(events) for _ in range(3)] == [False] * 3
    assert redis.attempts == 1


async def test_where_no_thread_can_be_started_callers_do_without(
    redis: Redis, events: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: object) -> None:
        raise NoThread("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("statecache.concurrency.tasks.TaskBackground.start", start)
        assert not await _watch(events)
    assert not await _watch(events)
    redis.now += 10.1
    assert await _watch(events)


async def test_a_connection_that_has_died_is_replaced(redis: Redis, events: Subscriptions) -> None:
    redis.answer = first = Link()
    assert await _watch(events)
    first.alive = False
    assert not events.listens("a")
    redis.answer = second = Link()
    assert await _watch(events)
    assert second.sent == [("SSUBSCRIBE", "a")]

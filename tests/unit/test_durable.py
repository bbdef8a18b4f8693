"""Waiting for durability, with servers that answer as slowly as the story wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from statecache.clock import monotonic
from statecache.concurrency import TASKS
from statecache.core.commit.durable import HELD, Durable
from statecache.core.redis.pubsub import Subscriptions
from statecache.keys import KeySpace
from statecache.model import Position

KEYS = KeySpace()
SHARD = 7
WAIT_S = 20.0


class QuietLink:
    """A connection on which nothing ever arrives."""

    alive = True

    async def send(self, command: Any, *, seconds: float) -> None:
        """Accept the subscription."""

    async def receive(self, *, seconds: float) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()

    def hang_up(self) -> None:
        """Do nothing: nobody is to be woken."""

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Pool:
    """A pool that any loop may use."""

    def check_place(self) -> None:
        """Find nothing wrong."""


class SlowRedis:
    """A Redis that runs `meanwhile` before its answers arrive, which are as of when it was asked."""

    io, pool, cluster = TASKS, Pool(), "a-cluster"

    def __init__(self, meta: list[bytes]) -> None:
        self.meta = meta
        self.looks = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def publishes(self, durable: Durable, event: bytes) -> None:
        """Have an event be heard during the first look, and the watermark be reached at the next one."""

        def meanwhile() -> None:
            heard(durable, event)
            self.meta, self.meanwhile = [b"1", b"5", b"0"], lambda: None

        self.meanwhile = meanwhile

    async def link(self, seconds: float | None = None) -> QuietLink:
        """Return a connection for events."""
        return QuietLink()

    async def exchange(self, commands: Any, *, seconds: float) -> list[Any]:
        """Return epoch, watermark and exception."""
        self.looks += 1
        answer = list(self.meta)
        self.meanwhile()
        return [answer]


@pytest.fixture
def redis() -> SlowRedis:
    return SlowRedis([b"1", b"4", b"0"])


@pytest.fixture
async def durable(redis: SlowRedis) -> AsyncIterator[Durable]:
    events = Subscriptions(cast("Any", redis), owner=object)
    yield Durable(KEYS, cast("Any", redis), cast("Any", None), events)
    await events.close()


def heard(durable: Durable, event: bytes) -> None:
    durable.heard(SHARD, event)


async def wait(durable: Durable) -> int:
    end = monotonic() + WAIT_S
    await durable.watch(SHARD, end=end)
    return await durable.wait(SHARD, Position(1, 5), "change", ["runs/1"], end=end)


@pytest.mark.parametrize(("seconds", "for_events"), [(10.0, 2.0), (2.0, 0.5), (0.04, 0.01)])
async def test_little_of_a_calls_time_is_spent_on_events(
    monkeypatch: pytest.MonkeyPatch, seconds: float, for_events: float
) -> None:
    bounds = list[float]()

    class Events:
        async def watch(self, channel: str, hear: object, *, end: float) -> None:
            bounds.append(end)

    monkeypatch.setattr("statecache.core.commit.durable.monotonic", lambda: 100.0)
    await Durable(KEYS, cast("Any", None), cast("Any", None), cast("Any", Events())).watch(SHARD, end=100.0 + seconds)
    assert bounds == [pytest.approx(100.0 + for_events)]


async def test_a_look_that_was_overtaken_by_an_event_takes_nothing_back(durable: Durable, redis: SlowRedis) -> None:
    redis.meanwhile = lambda: heard(durable, b"1 5 0 a-cluster")
    assert await wait(durable) == HELD
    assert redis.looks == 1


@pytest.mark.parametrize("event", [b"1 5 0 another", b"1 5 0", b"called", b"1 5 x a-cluster"])
async def test_an_event_that_is_no_watermark_of_this_deployment_settles_nothing(
    durable: Durable, redis: SlowRedis, monkeypatch: pytest.MonkeyPatch, event: bytes
) -> None:
    """Channels know no databases, and a release before said of nobody's watermark whose it is."""

    monkeypatch.setattr("statecache.core.commit.durable._LOOK_S", 0.05)
    redis.publishes(durable, event)
    assert await wait(durable) == HELD
    assert redis.looks == 2


@pytest.mark.parametrize(("cluster", "event"), [("", b"1 5 0 a-cluster"), ("a-cluster", b"1 5 0")])
async def test_who_cannot_tell_whose_watermark_it_is_looks_for_himself(
    durable: Durable, redis: SlowRedis, monkeypatch: pytest.MonkeyPatch, cluster: str, event: bytes
) -> None:
    """The cluster was not met yet, or a worker of a release before does not say it."""
    monkeypatch.setattr("statecache.core.commit.durable._LOOK_S", 4 * WAIT_S)
    redis.cluster = cluster
    redis.publishes(durable, event)
    assert await wait(durable) == HELD
    assert redis.looks == 2


async def test_a_look_that_still_shows_the_epoch_before_is_repeated(durable: Durable, redis: SlowRedis) -> None:
    redis.publishes(durable, b"2 9 0 a-cluster")
    assert await wait(durable) == HELD
    assert redis.looks == 2

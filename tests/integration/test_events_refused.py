"""No connection for events can be had, while all else goes on: nobody is ended over it, and who waits looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from statecache import AsyncStateCache, OutcomeUnknown, Settings, StateCache
from statecache.concurrency import NoThread
from statecache.concurrency.threads import ThreadBackground
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flushing
from tests.fixtures.locks import Place
from tests.support.failed_over import until
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause

pytestmark = [pytest.mark.counts_seconds, pytest.mark.own_servers]

KEY = "runs/42"


@pytest.fixture
def user(redis_raw: Any, settings: Settings) -> Callable[..., Settings]:
    """Gives or takes rights of a user, ends its connections, and returns the settings that name it."""
    name = settings.prefix

    def ruled(*rules: str) -> Settings:
        redis_raw.execute_command("ACL", "SETUSER", name, "on", ">secret", "~*", "&*", *rules)
        redis_raw.execute_command("CLIENT", "KILL", "USER", name)
        parts = urlsplit(settings.redis_url)
        url = parts._replace(netloc=f"{name}:secret@{parts.hostname}:{parts.port}").geturl()
        return settings.model_copy(update={"redis_url": url})

    return ruled


async def test_a_follower_goes_on_where_its_user_has_lost_a_right(
    cache: AsyncStateCache, user: Callable[..., Settings], worker: Worker
) -> None:
    async with flushing(worker), AsyncStateCache(settings=user("+@all")) as reader, reader.changes("runs/") as feed:
        await cache.set(KEY, 1, durability="postgres")
        assert (await anext(feed)).value == 1
        user("-hlen")
        for number in (2, 3):
            await cache.set(KEY, number, durability="postgres")
            assert (await asyncio.wait_for(anext(feed), 20)).value == number


async def test_a_commit_that_waits_for_postgres_goes_on_where_its_user_has_lost_a_right(
    cache: AsyncStateCache, user: Callable[..., Settings], worker: Worker
) -> None:
    async with AsyncStateCache(settings=user("+@all")) as writer:
        await writer.set(KEY, 1)
        writing = asyncio.ensure_future(writer.set(KEY, 2, durability="postgres", timeout=20))
        while (state := await cache.get(KEY)) is None or state.version < 2:
            await pause()
        user("-hlen")
        await asyncio.wait([writing], timeout=2.5)
        assert not writing.done()
        async with flushing(worker):
            assert (await writing).version == 2


def test_a_commit_whose_events_can_have_no_thread_is_not_told_as_failed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker runs: it waits in vain, and may have been applied."""

    def start(_: ThreadBackground) -> None:
        raise NoThread("can't start new thread")

    with StateCache(settings=settings) as client:
        client.set(KEY, 1)
        monkeypatch.setattr(ThreadBackground, "start", start)
        with pytest.raises(OutcomeUnknown):
            client.set(KEY, 2, durability="postgres", timeout=1.5)
        state = client.get(KEY)
        assert state is not None
        assert state.version == 2


async def test_a_waiter_for_a_lock_whose_subscription_is_not_confirmed_keeps_its_turn(
    cache: AsyncStateCache, settings: Settings, proxy: FaultProxy, place: Place
) -> None:
    """It was asked for, and the answer has not come: the call is missed, so it asks by itself, and soon."""
    order: list[str] = []

    async def takes(client: AsyncStateCache, name: str) -> None:
        async with client.lock(KEY, timeout=20):
            order.append(name)

    far = through(settings, redis=proxy)
    async with AsyncStateCache(settings=far) as first, AsyncStateCache(settings=far) as second:
        for client in (first, second):
            await client.set(KEY, 1)
        fault = proxy.arm("hold_request", at=b"SSUBSCRIBE")
        async with asyncio.timeout(60), asyncio.TaskGroup() as waiting, cache.lock(KEY):
            waiting.create_task(takes(first, "first"))
            await until(lambda: proxy.requests.count(b"$5\r\nqueue\r\n") == 2)  # it has asked again, and waits
            waiting.create_task(takes(second, "second"))
            await place.until_waiting(2)
        proxy.disarm(fault)
    assert order == ["first", "second"]

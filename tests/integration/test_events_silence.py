"""The connection on which a client hears events: what goes silent is given up, though nobody has ended it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statecache import OutcomeUnknown, Settings
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flushing
from tests.fixtures.servers import MakeClient
from tests.support.fault_proxy import WAIT_S, FaultProxy
from tests.support.polling import pause

pytestmark = [pytest.mark.counts_seconds, pytest.mark.own_servers]

KEY = "runs/42"


def _listening(redis_raw: Any) -> set[int]:
    """Return the ports by which the server knows the connections that listen for events."""
    return {int(one["addr"].rpartition(":")[2]) for one in redis_raw.client_list(_type="pubsub")}


async def _until_it_listens(client: Any, redis_raw: Any, *, not_by: set[int]) -> set[int]:
    """Write at `postgres`, where no worker runs, until events are heard by another connection."""
    async with asyncio.timeout(WAIT_S):
        while not (found := _listening(redis_raw) - not_by):
            with pytest.raises(OutcomeUnknown):
                await client.set(KEY, 1, durability="postgres", timeout=1)
    return found


async def test_a_connection_that_a_proxy_keeps_while_nobody_answers_is_given_up(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, redis_raw: Any
) -> None:
    others = _listening(redis_raw)
    client = make_client(through(settings, redis=proxy))
    heard_by = await _until_it_listens(client, redis_raw, not_by=others)
    proxy.freeze(heard_by)
    assert await _until_it_listens(client, redis_raw, not_by=others | heard_by)


async def test_a_connection_on_which_nothing_happens_is_kept(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, redis_raw: Any
) -> None:
    others = _listening(redis_raw)
    client = make_client(through(settings, redis=proxy))
    heard_by = await _until_it_listens(client, redis_raw, not_by=others)
    async with asyncio.timeout(WAIT_S):
        while proxy.requests.count(b"PING") < 5:
            await pause()
    assert heard_by <= _listening(redis_raw)


async def test_a_far_server_is_heard_though_each_call_is_short(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, redis_raw: Any
) -> None:
    """To connect takes longer than the part of a call that goes into it."""
    others = _listening(redis_raw)
    client = make_client(through(settings, redis=proxy))
    await client.set(KEY, 0)
    proxy.delay_s = 0.08
    assert await _until_it_listens(client, redis_raw, not_by=others)


async def test_commits_are_not_held_up_where_no_connection_for_events_can_be_opened(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, worker: Worker, redis_raw: Any
) -> None:
    """As behind a proxy that leaves new connections unanswered, while those that stand go on."""
    others = _listening(redis_raw)
    client = make_client(through(settings, redis=proxy))
    keys = [f"runs/{number}" for number in range(8)]
    async with flushing(worker):
        await asyncio.gather(*(client.set(key, 1, durability="postgres") for key in keys))
        (heard_by,) = _listening(redis_raw) - others
        proxy.silent = True
        proxy.cut([heard_by])
        async with asyncio.timeout(WAIT_S):
            while heard_by in _listening(redis_raw):
                await pause()
        for turn in (2, 3):
            states = await asyncio.gather(*(client.set(key, turn, durability="postgres", timeout=5) for key in keys))
            assert [one.version for one in states] == [turn] * len(keys)

"""Two deployments on one Redis, apart by the number of their database alone: channels know no databases."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, OutcomeUnknown, Settings
from tests.fixtures.flusher import rows
from tests.fixtures.servers import MakeSettings, every_redis, on_database, plain_client
from tests.support.workers import at_work

KEY = "runs/1"


@pytest.fixture
def another(settings: Settings, make_settings: MakeSettings) -> Iterator[Settings]:
    """Settings of a deployment of the same prefix, in another database of either server."""
    url = on_database(settings.redis_url, 7)
    yield make_settings(redis_url=url, prefix=settings.prefix)
    with plain_client(url) as client:
        client.flushdb()


@every_redis
@pytest.mark.own_servers("it uses another database")
async def test_the_watermark_of_another_deployment_acknowledges_nothing(
    settings: Settings, another: Settings, psql: psycopg.Connection[Any]
) -> None:
    """It is further on, and goes on while ours is waited for, whose worker is away."""
    async with AsyncStateCache(settings=settings) as ours, AsyncStateCache(settings=another) as theirs:
        for number in range(20):
            await theirs.set(KEY, number)
        await ours.set(KEY, 0)
        async with at_work(another):
            for number in range(1, 4):
                waiting = asyncio.create_task(ours.set(KEY, number, durability="postgres", timeout=1.0))
                while not waiting.done():
                    await theirs.set(KEY, "theirs", durability="postgres")
                with pytest.raises(OutcomeUnknown) as told:
                    await waiting
                assert told.value.reason == OutcomeUnknown.awaited
        assert rows(psql, "SELECT count(*) FROM change") == [(0,)]
        async with at_work(settings):
            await ours.set(KEY, "ours", durability="postgres")
        assert rows(psql, "SELECT count(*) FROM change") == [(5,)]

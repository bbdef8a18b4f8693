"""A Redis that runs a script of somebody else's for long: it is called what it is."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis

from statecache import RedisUnavailable, Settings
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.unwritable_redis import configured


@every_redis
@pytest.mark.own_servers("it changes settings of the server, and keeps it busy")
async def test_a_redis_that_runs_a_long_script_is_called_busy_and_is_used_once_it_is_free(
    make_client: MakeClient, settings: Settings, redis_raw: Any
) -> None:
    with configured(redis_raw, **{"lua-time-limit": "5"}):
        running = threading.Thread(target=_run_for_ever, args=[settings.redis_url])
        running.start()
        client = make_client(settings)
        try:
            with pytest.raises(RedisUnavailable, match=r"\(busy\): .*BUSY") as found:
                await client.set("runs/1", 1, timeout=2)
            assert found.value.reason == "busy"
            reading = asyncio.create_task(client.get("runs/1"))
            with pytest.raises(RedisUnavailable, match="BUSY"):
                await client.get("runs/1", timeout=1)
        finally:
            redis_raw.script_kill()
            running.join()
        assert await reading is None
        assert (await client.set("runs/1", 1)).version == 1


def _run_for_ever(url: str) -> None:
    with redis.Redis.from_url(url) as raw, pytest.raises(redis.ResponseError, match="killed"):
        raw.eval("while true do end", 0)

"""A server that cannot be reached: both clients tell the system's reason."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, RedisUnavailable, Settings, StateCache, Unavailable
from statecache.cli.status.sample import Sampler

NOBODY = "postgresql://x@127.0.0.1:1/x"


def test_a_refused_connect_is_told_as_such_to_threads() -> None:
    with (
        pytest.raises(Unavailable, match="Connection refused"),
        StateCache(redis_url="redis://127.0.0.1:1/0", postgres_url=NOBODY) as cache,
    ):
        cache.get("runs/42")


async def test_a_refused_connect_is_told_as_such_to_tasks() -> None:
    with pytest.raises(Unavailable, match="Connection refused"):
        async with AsyncStateCache(redis_url="redis://127.0.0.1:1/0", postgres_url=NOBODY) as cache:
            await cache.get("runs/42")


async def test_an_attempt_that_the_end_of_the_time_cut_off_hides_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    connects = 0

    async def connect(*_: Any, **__: Any) -> Any:
        nonlocal connects
        connects += 1
        if connects == 1:
            raise ConnectionRefusedError(111, "Connection refused")
        await asyncio.Event().wait()

    monkeypatch.setattr("asyncio.open_connection", connect)
    url = "redis://127.0.0.1:1/0"
    async with AsyncStateCache(redis_url=url, postgres_url=NOBODY, connect_timeout_s=5, timeout_s=5) as cache:
        with pytest.raises(Unavailable, match="Connection refused"):
            await cache.get("runs/42", read="primary", timeout=0.5)
    assert connects == 2


@pytest.mark.counts_seconds
@pytest.mark.parametrize("durability", ["memory", "postgres"])
async def test_a_server_that_leaves_tls_unanswered_is_told_of_at_each_durability(
    monkeypatch: pytest.MonkeyPatch, durability: Any
) -> None:
    """Events are looked for as well at `postgres`, and the last attempts have no time to hear anything."""

    async def connect(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("asyncio.open_connection", connect)
    url = "rediss://127.0.0.1:1/0"
    async with AsyncStateCache(redis_url=url, postgres_url=NOBODY, connect_timeout_s=0.5) as cache:
        with pytest.raises(RedisUnavailable, match="leaves rediss:// unanswered") as caught:
            await cache.set("runs/42", 1, durability=durability, timeout=2)
    assert caught.value.reason == "connect"


async def test_a_look_that_is_cut_off_at_its_end_hides_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    connects = 0

    async def connect(*_: Any, **__: Any) -> Any:
        nonlocal connects
        connects += 1
        if connects == 1:
            raise psycopg.OperationalError("connection refused")
        await asyncio.Event().wait()

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connect)
    sampler = Sampler(Settings(redis_url="redis://127.0.0.1:1/0", postgres_url=NOBODY), patience_s=0.5)
    seen = await sampler.take()
    await sampler.close()
    assert connects == 2
    assert seen.postgres.trouble.startswith("connect: ")
    assert seen.postgres.trouble.endswith("connection refused")

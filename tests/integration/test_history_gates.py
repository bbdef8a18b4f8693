"""What is asked of the past while a gate is closed: it is left a moment to open, as for every other read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, HistoryIncomplete, Settings
from statecache.core.history.tail import Tails
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient
from tests.support.closed_shard import KEY, Shard


@pytest.fixture
async def shard(
    cache: AsyncStateCache, worker: Worker, settings: Settings, redis_raw: Any, psql: psycopg.Connection[Any]
) -> Shard:
    """A closed shard, of which Postgres holds one version of KEY, and Redis two."""
    await cache.set(KEY, 1)
    await flush(worker)
    await cache.set(KEY, 2)
    made = Shard(settings, redis_raw, psql)
    made.close()
    return made


async def _history(client: AsyncStateCache, **how: Any) -> list[int]:
    return [one.version async for one in client.history(KEY, **how)]


async def _group(client: AsyncStateCache) -> Any:
    return {key: state.value for key, state in (await client.get_group_at(KEY, time=datetime.now(UTC))).items()}


async def _value_now(client: AsyncStateCache) -> Any:
    state = await client.get_at(KEY, time=datetime.now(UTC))
    return state and state.value


ASKED: list[tuple[Callable[[AsyncStateCache], Awaitable[Any]], Any]] = [
    (_history, [1, 2]),
    (lambda client: _history(client, reverse=True), [2, 1]),
    (_value_now, 2),
    (_group, {KEY: 2}),
]
NAMES = ["history", "history-reverse", "get_at", "get_group_at"]


@pytest.mark.parametrize(("ask", "there"), ASKED, ids=NAMES)
async def test_a_gate_that_opens_in_a_moment_is_waited_for(
    make_client: MakeClient, settings: Settings, shard: Shard, monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[AsyncStateCache], Awaitable[Any]], there: Any,
) -> None:  # fmt: skip
    behind, met = Tails.behind, list[str]()

    async def opened(self: Tails, *asked: Any, **more: Any) -> Any:
        tail = await behind(self, *asked, **more)
        if not met:
            met.append(tail.lacking)
            shard.open()
        return tail

    monkeypatch.setattr(Tails, "behind", opened)
    assert await ask(make_client(settings)) == there
    assert met == ["the gate of its shard is closed"]


async def test_a_gate_that_stays_closed_is_told_of_soon(
    make_client: MakeClient, settings: Settings, shard: Shard
) -> None:
    """It is left its moment, however much time a call has."""
    client = make_client(settings.model_copy(update={"timeout_s": 600.0}))
    for ask, _ in ASKED:
        with pytest.raises(HistoryIncomplete, match="the gate of its shard is closed"):
            await ask(client)
    shard.open()
    assert await _history(client) == [1, 2]

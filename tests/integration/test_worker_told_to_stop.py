"""A worker that is told to stop while a server does not answer: what it says is left, and how soon it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache_workers.runner import DRAINED, LEFT, Runner
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, Log
from tests.fixtures.servers import SHARDS, MakeSettings
from tests.support.failed_over import until
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.counts_seconds

TIMEOUT_S, DRAIN_S = 0.5, 1.0


class Told:
    """A worker's process in this one, whose networks can fall silent, and what it said as it ended."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self.runner = Runner(settings)
        self.task = asyncio.create_task(self.runner.run())
        self._log = log

    async def stopped(self) -> dict[str, Any]:
        """Return what it says once it has stopped."""
        assert await self.task == LEFT
        (told,) = self._log.of("stopped")
        return told


@asynccontextmanager
async def _told(settings: Settings, log: Log) -> AsyncIterator[Told]:
    made = Told(settings, log)
    await until(lambda: made.runner.worker.ready)
    yield made
    made.task.cancel()
    await asyncio.wait([made.task])


@pytest.fixture
async def told(settings: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy, log: Log) -> AsyncIterator[Told]:
    """A worker at work, through proxies."""
    quick = {"timeout_s": TIMEOUT_S, "hydrate_token_s": TIMEOUT_S, "connect_timeout_s": TIMEOUT_S, "drain_s": DRAIN_S}
    async with _told(through(settings.model_copy(update=quick), redis=proxy, postgres=postgres_proxy), log) as made:
        yield made


async def test_what_is_left_is_unknown_where_redis_has_not_answered_since(
    told: Told, agents: Agents, proxy: FaultProxy
) -> None:
    """It has never seen what was committed last, though all that it has seen is flushed."""
    proxy.freeze()
    agents.commit(agents.key_on(0))
    told.runner.signalled()
    assert (await told.stopped())["left"] is None


async def test_what_is_left_is_unknown_to_a_worker_that_never_came_to_serve(
    settings: Settings, agents: Agents, postgres_proxy: FaultProxy, log: Log
) -> None:
    postgres_proxy.refusing = True
    agents.commit(agents.key_on(0))
    runner = Runner(through(settings, postgres=postgres_proxy))
    task = asyncio.create_task(runner.run())
    await until(lambda: bool(log.of("outage")))
    runner.signalled()
    assert await task == LEFT
    (told,) = log.of("stopped")
    assert told["left"] is None


async def test_a_worker_whose_shards_all_went_unserved_leaves_what_is_unknown(told: Told) -> None:
    worker = told.runner.worker
    worker.taking = False
    await worker.leave()
    worker.holdings.clear()
    worker.refresh()
    await until(lambda: worker.share.unowned == SHARDS)
    told.runner.signalled()
    assert (await told.stopped())["left"] is None


async def test_nothing_is_left_by_a_worker_that_has_no_shards_beside_one_that_has_all(
    make_settings: MakeSettings, agents: Agents, log: Log
) -> None:
    settings = make_settings(shards=1)
    async with _told(settings, log), _told(settings, log) as spare:
        assert not spare.runner.worker.holdings
        spare.runner.signalled()
        assert await spare.task == DRAINED
        assert [line["left"] for line in log.of("stopped")] == [0]


async def test_what_is_left_is_counted_where_redis_falls_silent_later(
    told: Told, agents: Agents, proxy: FaultProxy, psql: psycopg.Connection[Any]
) -> None:
    """Somebody holds the rows meanwhile."""
    with psql.transaction():
        psql.execute("SELECT FROM shard FOR UPDATE")
        for i in range(3):
            agents.commit((agents.key_on(0), str(i)))
        told.runner.signalled()
        await until(lambda: told.runner._targets)
        proxy.freeze()
        assert (await told.stopped())["left"] == 3


@pytest.mark.parametrize("which", ["redis", "postgres"])
async def test_a_turn_that_waits_for_a_server_takes_of_the_time_for_the_draining(
    settings: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy, log: Log, which: str
) -> None:
    """Whoever told it to stop will not wait for as long as one exchange may take."""
    slow = settings.model_copy(update={"timeout_s": 300.0, "hydrate_token_s": 300.0, "drain_s": DRAIN_S})
    silent = proxy if which == "redis" else postgres_proxy
    async with _told(through(slow, redis=proxy, postgres=postgres_proxy), log) as told:
        fault = silent.arm("silence", at=b"")  # whatever is asked next
        told.runner.worker.refresh()
        await fault.wait()
        silent.freeze()
        told.runner.signalled()
        await until(told.task.done)
        assert log.of("stopped")

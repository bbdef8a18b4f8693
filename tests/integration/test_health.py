"""The port of a real worker process: when it is ready, when it is not, and what stays healthy meanwhile."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

from statecache import Settings
from statecache.clock import monotonic
from statecache.keys import KeySpace
from statecache.testing import servers
from statecache.testing.embedded import Servers
from statecache_workers import health, runner
from statecache_workers.health import Page
from tests.fixtures.flusher import Agents, MakeWorker, rows
from tests.fixtures.servers import plain_client
from tests.support.polling import pause
from tests.support.probing import Answer, ask, samples
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.counts_seconds

Psql = psycopg.Connection[Any]
WAIT_S = 60.0
NUL = "a\0b"


class Watched(NamedTuple):
    """A worker process with its port."""

    process: WorkerProcess
    port: int

    async def ask(self, path: str) -> Answer:
        """Send a request as a probe does and return the answer."""
        return await asyncio.to_thread(ask, self.port, path)

    async def metrics(self) -> dict[str, float]:
        """Scrape the metrics."""
        return samples((await self.ask("/metrics")).body)

    async def until(self, path: str, fits: Callable[[Answer], bool]) -> Answer:
        """Ask until the answer fits, as a probe does again and again."""
        async with asyncio.timeout(WAIT_S):
            while not fits(answer := await self.ask(path)):
                await pause()
        return answer

    async def until_metric(self, fits: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Scrape until the samples fit.

        The worker goes on while a page is built, so samples that stand further up in it may be older.
        """
        return samples((await self.until("/metrics", lambda answer: fits(samples(answer.body)))).body)


@asynccontextmanager
async def _watched(settings: Settings, **more: Any) -> AsyncIterator[Watched]:
    async with WorkerProcess(settings, health_port=0, **more) as process:
        told = await process.until("listening")
        assert told["host"] == "127.0.0.1"
        yield Watched(process, told["port"])


async def test_it_is_ready_only_when_its_shards_are_in_step(settings: Settings, psql: Psql) -> None:
    with psql.transaction():
        psql.execute("SELECT FROM shard FOR UPDATE")
        async with _watched(settings) as worker:
            starting = await worker.until("/readyz", lambda answer: "in step" in answer.body)
            assert (starting.status, starting.body) == (503, "starting: the shards are not in step with Redis\n")
            assert (await worker.ask("/healthz")).status == 200
            found = await worker.metrics()
            assert (found["statecache_ready"], found["statecache_shards_owned"]) == (0, 0)
            assert found["statecache_shards_unowned"] == settings.shards
            psql.execute("ROLLBACK")
            psql.execute("BEGIN")
            await worker.process.until("ready")
            assert (await worker.until("/readyz", lambda answer: answer.status == 200)).body == "ok\n"
            found = await worker.until_metric(lambda now: now["statecache_shards_owned"] == settings.shards)
            assert found["statecache_ready"] == 1
            assert (found["statecache_shards_unowned"], found["statecache_workers_live"]) == (0, 1)


async def test_draining_it_is_healthy_and_not_ready(agents: Agents, settings: Settings, psql: Psql) -> None:
    async with _watched(settings, drain_s=600) as worker:
        await worker.process.until("ready")
        with psql.transaction():
            psql.execute("SELECT FROM shard FOR UPDATE")
            agents.commit(agents.key_on(0))
            worker.process.send(signal.SIGTERM)
            await worker.process.until("draining")
            answer = await worker.ask("/readyz")
            assert (answer.status, answer.body) == (503, "draining\n")
            assert (await worker.ask("/healthz")).status == 200
        assert (await worker.process.until("stopped"))["left"] == 0
        assert await worker.process.ended() == 0


async def test_a_port_that_is_taken_is_told_once_and_ends_the_worker(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with WorkerProcess(settings, health_port=port) as process:
            told = await process.until("configuration")
            assert f"127.0.0.1:{port} cannot be served" in told["detail"]
            assert await process.ended() == 3


async def test_the_loop_beats_while_it_works_and_the_port_is_free_when_it_has_ended(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "BEAT_S", 0.01)
    one = runner.Runner(settings.model_copy(update={"health_port": 0}))
    running = asyncio.create_task(one.run())
    try:
        async with asyncio.timeout(WAIT_S):
            while one.health is None or not one.worker.ready:
                assert not (await asyncio.wait([running], timeout=0.05))[0]
            beat = one.pulse.beat
            while one.pulse.beat < beat + 0.1:
                assert (await asyncio.to_thread(ask, one.health.port, "/healthz")).status == 200
    finally:
        one.signalled()
        assert await running == 0
    with pytest.raises(ConnectionError):
        await asyncio.to_thread(ask, one.health.port, "/healthz")


async def test_a_spare_worker_notices_redis_too(settings: Settings, make_worker: MakeWorker) -> None:
    """It has no shards, so its work would never ask Redis."""
    spare = make_worker(settings.model_copy(update={"health_port": 0}))
    spare.taking = False
    assert await spare.turn() is False
    assert spare.heads is not None


async def test_without_a_port_nothing_listens(settings: Settings) -> None:
    async with WorkerProcess(settings) as process:
        await process.until("ready")
        assert "listening" not in [line["event"] for line in process.lines]


async def test_without_the_extra_the_page_says_what_it_needs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "statecache_workers.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    one = runner.Runner(settings)
    page: Page = runner._metrics(one.worker, one.pulse)()
    assert page.status == 501
    assert b"pip install 'statecache[metrics]' ('.[metrics]' in a checkout)" in page.body


async def test_poison_and_foreign_entries_and_gaps_and_forks_are_counted(
    agents: Agents, settings: Settings, redis_raw: Any
) -> None:
    key, other = agents.key_on(0), agents.key_on(1)
    for i in range(4):
        agents.commit((key, str(i)))
    redis_raw.xdel(agents.keys.changes(0), "1-2", "1-3")
    agents.commit(other, reason=NUL)
    agents.commit(agents.key_on(2))
    redis_raw.xadd(agents.keys.changes(2), {"what": "ever"})
    async with _watched(settings) as worker:
        found = await worker.until_metric(
            lambda now: now["statecache_quarantined_total"] >= 2 and now["statecache_flushed_entries_total"] >= 4
        )
        assert found["statecache_quarantined_total"] == 2
        assert found["statecache_flushed_entries_total"] == 4
        assert found["statecache_gaps_total"] == 1
        assert found["statecache_gap_entries_lost_total"] == 2
        assert found["statecache_gap_entries_repaired_total"] == 0
        assert found["statecache_conflicts_total{behind}"] == 0
        newest = agents.key_on(3)
        agents.commit(newest)
        await worker.until_metric(lambda now: now["statecache_flushed_entries_total"] == 5)
        redis_raw.delete(agents.keys.state(newest))
        agents.commit((newest, "as if it were new"))
        await worker.until_metric(lambda now: now["statecache_conflicts_total{behind}"] == 1)
        found = await worker.until_metric(lambda now: now["statecache_lag_entries"] == 0)
        assert found["statecache_conflicts_total{behind}"] == 1
        assert found["statecache_errors_total{postgres}"] == 0


@pytest.fixture(scope="module")
def own() -> Iterator[Servers]:
    """Servers that may be stopped."""
    with servers(workers=0, settings={"shards": "4"}, fsync=False) as started:
        yield started


@pytest.fixture
def own_settings(own: Servers) -> Settings:
    """The settings of the deployment on the servers that may be stopped."""
    return Settings(redis_url=own.redis_url, postgres_url=own.postgres_url, shards=4)


async def test_in_an_outage_of_postgres_it_is_healthy_and_unready_and_the_lag_grows_and_goes(
    own: Servers, own_settings: Settings
) -> None:
    with plain_client(own_settings.redis_url) as raw:
        agents = Agents(own_settings, KeySpace("sc", 4), raw)
        async with _watched(own_settings) as worker:
            await worker.process.until("ready")
            for shard in range(4):
                agents.commit((agents.key_on(shard), "before"))
            await worker.until_metric(lambda now: now["statecache_flushed_entries_total"] == 4)
            before = await worker.until_metric(lambda now: now["statecache_lag_entries"] == 0)
            own.stop("postgres")
            await worker.process.until("outage")
            for shard in (0, 0, 0, 1, 2):
                agents.commit((agents.key_on(shard), "during"))
            during = await worker.until_metric(
                lambda now: now["statecache_lag_entries"] == 5 and now["statecache_oldest_unflushed_age_seconds"] > 2
            )
            assert [during[f"statecache_shard_lag_entries{{{shard}}}"] for shard in range(4)] == [3, 1, 1, 0]
            assert during["statecache_lag_bytes"] >= 5 * 200
            assert during["statecache_outage{postgres}"] == 1
            assert during["statecache_outage{redis}"] == 0
            assert during["statecache_errors_total{postgres}"] >= 1
            assert during["statecache_errors_total{redis}"] == 0
            unready = await worker.ask("/readyz")
            assert (unready.status, unready.body.partition(" (")[0]) == (503, "postgres cannot be used")
            assert (await worker.ask("/healthz")).status == 200
            await asyncio.to_thread(own.restart, "postgres")
            await worker.process.until("recovered")
            await worker.until_metric(lambda now: now["statecache_flushed_entries_total"] == 9)
            after = await worker.until_metric(lambda now: now["statecache_lag_entries"] == 0)
            assert after["statecache_lag_bytes"] == 0
            assert after["statecache_oldest_unflushed_age_seconds"] == 0
            assert after["statecache_outage{postgres}"] == 0
            assert after["statecache_flush_lag_seconds_sum"] > 2
            assert (await worker.until("/readyz", lambda answer: answer.status == 200)).body == "ok\n"
            assert _not_smaller(before, during, after)


async def test_a_fresh_worker_knows_the_age_of_what_was_left_to_it(
    agents: Agents, settings: Settings, psql: Psql
) -> None:
    """Somebody holds up every flush, and the worker that saw the change come is replaced by another one."""
    with psql.transaction():
        psql.execute("LOCK TABLE change IN ACCESS EXCLUSIVE MODE")
        async with _watched(settings, drain_s=0) as first:
            await first.process.until("ready")
            agents.commit((agents.key_on(0), "held up"))
            await first.until_metric(lambda now: now["statecache_oldest_unflushed_age_seconds"] > 3)
            first.process.send(signal.SIGTERM)
            assert await first.process.ended() == 1
        begun = monotonic()
        async with _watched(settings, drain_s=600) as second:
            await second.until_metric(lambda now: now["statecache_stream_entries"] == 1)
            asked = monotonic()
            found = await second.metrics()
            assert found["statecache_lag_entries"] == 1
            assert found["statecache_oldest_unflushed_age_seconds"] > 3 + asked - begun - 0.5
            psql.execute("ROLLBACK")
            psql.execute("BEGIN")
            await second.until_metric(lambda now: now["statecache_flushed_entries_total"] == 1)
            found = await second.until_metric(lambda now: now["statecache_lag_entries"] == 0)
            assert found["statecache_oldest_unflushed_age_seconds"] == 0


async def test_in_an_outage_of_redis_it_is_healthy_and_unready(own: Servers, own_settings: Settings) -> None:
    async with _watched(own_settings) as worker:
        await worker.process.until("ready")
        before = await worker.metrics()
        own.kill("redis")
        await worker.process.until("outage")
        unready = await worker.ask("/readyz")
        assert (unready.status, unready.body.partition(" (")[0]) == (503, "redis cannot be used")
        assert (await worker.ask("/healthz")).status == 200
        during = await worker.metrics()
        assert during["statecache_errors_total{redis}"] >= 1
        assert during["statecache_errors_total{postgres}"] == 0
        assert (during["statecache_outage{redis}"], during["statecache_outage{postgres}"]) == (1, 0)
        await asyncio.to_thread(own.restart, "redis")
        await worker.process.until("epoch_opened")
        after = await worker.until_metric(lambda now: now["statecache_epoch"] > before["statecache_epoch"])
        await worker.until_metric(lambda now: now["statecache_epochs_opened_total"] >= 4)
        after = await worker.until_metric(lambda now: now["statecache_shards_closed"] == 0)
        assert after["statecache_epochs_opened_total"] == 4
        assert (await worker.until("/readyz", lambda answer: answer.status == 200)).body == "ok\n"
        assert _not_smaller(before, during, after)


async def test_a_worker_that_loses_a_right_in_redis_says_so_in_postgres_and_leaves_its_shards_to_others(
    agents: Agents, settings: Settings, redis_raw: Any, psql: Psql
) -> None:
    name, short, others = (
        settings.prefix,
        {"lease_s": 1.0, "lease_renew_s": 0.3},
        "SELECT count(*) FROM shard WHERE owner <> %s AND lease_until > now()",
    )
    redis_raw.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", "~*", "&*", "+@all")
    url = urlsplit(settings.redis_url)
    url = url._replace(netloc=f"{name}:secret@{url.netloc.rpartition('@')[2]}")
    async with _watched(settings, redis_url=url.geturl(), **short) as worker:
        mine = (await worker.process.until("ready"))["worker"]
        told = "SELECT avoids, trouble, beat_until > now() FROM worker WHERE id = %s"
        redis_raw.execute_command("ACL", "SETUSER", name, "-xrange")
        agents.commit(agents.key_on(0))
        unready = await worker.until("/readyz", lambda answer: answer.status == 503 and "rights" in answer.body)
        assert unready.body == "redis cannot be used (rights)\n"
        found = await worker.until_metric(lambda now: now["statecache_shards_unowned"] == settings.shards)
        assert (found["statecache_outage{redis}"], found["statecache_outage{postgres}"]) == (1, 0)
        assert found["statecache_errors_total{other}"] == 0
        async with _watched(settings, **short) as other:
            await other.process.until("ready")
            await other.until_metric(lambda now: now["statecache_flushed_entries_total"] == 1)
            assert rows(psql, others, mine) == [(settings.shards,)]
            await worker.until_metric(lambda now: now["statecache_shards_unowned"] == 0)
            ((avoids, trouble, lives),) = rows(psql, told, mine)
            assert (avoids, lives) == (settings.shards, True)
            assert "may not run XRANGE" in trouble
            redis_raw.execute_command("ACL", "SETUSER", name, "+xrange")
            await worker.until_metric(lambda now: now["statecache_shards_owned"] == settings.shards // 2)
            async with asyncio.timeout(WAIT_S):
                while rows(psql, told, mine) != [(0, "", True)]:
                    await pause()
    redis_raw.acl_deluser(name)


def _not_smaller(*pages: dict[str, float]) -> bool:
    """Return whether no counter ever went down."""
    grows = [name for name in pages[0] if name.partition("{")[0].endswith(("_total", "_bucket", "_count", "_sum"))]
    assert grows
    return all(one[name] <= other[name] for one, other in pairwise(pages) for name in grows)

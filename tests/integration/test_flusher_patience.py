"""One row that somebody holds, one batch that Postgres cannot write in time: the rest goes on."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from redis.asyncio.connection import DefaultParser

from statecache import Settings
from statecache.errors import PostgresUnavailable
from statecache.testing import servers
from statecache_workers import runner
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flush_through, flushed, rows, turn_until
from tests.fixtures.servers import MakeSettings, plain_client
from tests.support.command_line import CommandLine
from tests.support.fault_proxy import FaultProxy
from tests.support.full_pipe import FullPipe
from tests.support.polling import pause
from tests.support.unwritable_redis import configured
from tests.support.workers import WorkerProcess

WAIT_S = 60.0
Psql = psycopg.Connection[Any]


@contextmanager
def _held(settings: Settings, shard: int) -> Iterator[Psql]:
    """Hold a shard's row as a stranger does that forgot its transaction."""
    with psycopg.connect(settings.postgres_url) as stranger:
        row = f'SELECT FROM "{settings.postgres_schema}".shard WHERE shard = {shard} FOR UPDATE'
        stranger.execute(row.encode())
        yield stranger
        stranger.rollback()


@contextmanager
def _refused_changes(psql: Psql, what: str, *, most: int) -> Iterator[None]:
    """Let every statement that adds more than so many changes take longer than any timeout, or be refused by a code."""
    does = "PERFORM pg_sleep(60)" if what == "slow" else f"RAISE EXCEPTION 'too large' USING ERRCODE = '{what}'"
    body = f"IF (SELECT count(*) FROM added) > {most} THEN {does}; END IF; RETURN NULL;"
    psql.execute(f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$".encode())
    psql.execute(
        b"CREATE TRIGGER slow AFTER INSERT ON change REFERENCING NEW TABLE AS added "
        b"FOR EACH STATEMENT EXECUTE FUNCTION slow()"
    )
    try:
        yield
    finally:
        psql.execute(b"DROP FUNCTION slow() CASCADE")


async def test_a_row_that_somebody_holds_stops_its_own_shard_alone(
    agents: Agents, make_worker: MakeWorker, settings: Settings, psql: Psql, log: Log
) -> None:
    worker = make_worker(settings.model_copy(update={"timeout_s": 1.0, "hydrate_token_s": 1.0}))
    await flush(worker)
    for shard in range(4):
        agents.commit(agents.key_on(shard))
    with _held(settings, 2):
        worker.refresh()
        for _ in range(6):
            await worker.turn()
        assert flushed(psql) == {0: 1, 1: 1, 2: 0, 3: 1}
        assert set(worker.holdings) == {0, 1, 2, 3}, "its lease may still stand"
    worker.refresh()
    await flush(worker)
    assert flushed(psql) == {0: 1, 1: 1, 2: 1, 3: 1}


async def test_a_row_that_is_held_at_the_flush_leaves_the_others_of_the_batch(
    agents: Agents, worker: Worker, settings: Settings, psql: Psql
) -> None:
    await flush(worker)
    for shard in range(4):
        agents.commit(agents.key_on(shard))
    with _held(settings, 1):
        await worker.turn()
        assert flushed(psql) == {0: 1, 1: 0, 2: 1, 3: 1}
    await flush(worker)
    assert flushed(psql) == {0: 1, 1: 1, 2: 1, 3: 1}


async def test_a_row_that_is_held_for_long_is_alarmed_with_who_holds_it(
    make_worker: MakeWorker, settings: Settings, log: Log
) -> None:
    worker = make_worker(settings.model_copy(update={"lease_s": 0.3, "lease_renew_s": 0.05}))
    await flush(worker)
    with _held(settings, 2) as stranger:
        await turn_until(worker, log, "row_held")
        (told,) = log.of("row_held")
        assert (told["shard"], told["alarm"]) == (2, True)
        assert f"pid {stranger.info.backend_pid}" in told["reason"]
        worker.holdings[2].reason = ""
        assert worker.trouble == "shard 2: held", "before it is known by whom"


async def test_a_row_that_a_prepared_transaction_holds_is_told_so(
    log: Log, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"max_prepared_transactions": "1"}
    with servers(workers=0, fsync=False, settings={"shards": "4"}, postgres_config=config) as started:
        own = {"redis_url": started.redis_url, "postgres_url": started.postgres_url, "shards": 4}
        settings = Settings.model_validate(own | {"lease_s": 0.3, "lease_renew_s": 0.05})
        worker = Worker(settings)
        try:
            await flush(worker)
            with _held(settings, 2) as stranger:
                stranger.execute("PREPARE TRANSACTION 'held'")
                await turn_until(worker, log, "row_held")
                assert log.of("row_held")[0]["reason"].endswith("a prepared transaction: see pg_prepared_xacts")
                cli = CommandLine(settings, monkeypatch, capsys)
                attention = (await cli.beside("status", "--json")).json["attention"]
                told = "shard 2 can be taken by no worker: a prepared transaction has locked the row in Postgres"
                assert f"{told}: see pg_prepared_xacts" in attention
        finally:
            await worker.close()


async def test_a_worker_leaves_although_somebody_holds_one_of_its_rows(
    make_worker: MakeWorker, settings: Settings, psql: Psql
) -> None:
    worker = make_worker(settings.model_copy(update={"timeout_s": 1.0, "hydrate_token_s": 1.0}))
    await flush(worker)
    with _held(settings, 2):
        assert await worker.leave()
        assert rows(psql, "SELECT shard FROM shard WHERE owner IS NOT NULL") == [(2,)]


@pytest.mark.parametrize("what", ["slow", "53200", "53400"])
async def test_a_batch_that_is_too_large_is_halved_until_it_fits_and_grows_back(
    agents: Agents, make_worker: MakeWorker, settings: Settings, psql: Psql, log: Log, what: str
) -> None:
    """It takes too long, more memory than there is, or more of something than a setting allows."""
    worker = make_worker(settings.model_copy(update={"timeout_s": 0.5, "hydrate_token_s": 0.5}))
    await flush_through(worker)
    for i in range(40):
        agents.commit((agents.key_on(i % 4), str(i)))
    with _refused_changes(psql, what, most=5):
        await flush_through(worker)
        assert sum(flushed(psql).values()) == 40
        assert worker.flusher.size.entries < settings.flush_batch_max
        assert log.of("batch_too_large")
    for _ in range(12):
        agents.commit(agents.key_on(0))
        await flush(worker)
    assert worker.flusher.size.entries == settings.flush_batch_max
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(0,)]


@pytest.mark.parametrize("reason", ["53100", "08006"])
async def test_an_outage_that_says_nothing_of_time_halves_nothing(
    agents: Agents, worker: Worker, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await flush(worker)
    agents.commit(agents.key_on(0))

    async def refused(*_: Any) -> None:
        raise PostgresUnavailable(reason, detail="here")

    with monkeypatch.context() as patched:
        patched.setattr(worker.flusher.batches, "write", refused)
        for _ in range(3):
            with pytest.raises(PostgresUnavailable):
                await flush(worker)
    assert worker.flusher.size.entries == worker.settings.flush_batch_max


@contextmanager
def _full_disk(psql: Psql) -> Iterator[None]:
    """Refuse every change, as a Postgres without room on its disk."""
    psql.execute(
        b"CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
        b"$$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'no room'; END $$"
    )
    psql.execute(b"CREATE TRIGGER full_disk BEFORE INSERT ON change EXECUTE FUNCTION full_disk()")
    yield
    psql.execute(b"DROP FUNCTION full_disk() CASCADE")


@contextmanager
def _no_garbage_looked_for() -> Iterator[None]:
    """Have garbage looked for by who asks for it alone: in the worker's process it happens once in many batches."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _readers() -> int:
    """Return how many readers of replies there are, those of broken connections too: each may hold much of a batch."""
    return sum(isinstance(one, DefaultParser) for one in gc.get_objects())


async def _until(running: asyncio.Task[int], holds: Callable[[], bool]) -> None:
    """Wait until something holds, while the worker runs."""
    async with asyncio.timeout(WAIT_S):
        while not holds():
            assert not running.done()
            await pause()


async def test_an_outage_keeps_nothing_of_the_batches_that_it_refused(
    agents: Agents, settings: Settings, proxy: FaultProxy, psql: Psql, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read ahead is given up each time, in the middle of a reply, and its connection with it."""
    monkeypatch.setattr(runner, "PAUSE_MAX_S", 0.02)
    for number in range(40):
        agents.commit((agents.key_on(number % 4), "x" * 100_000))
    proxy.delay_s = 0.02
    working = runner.Runner(through(settings, redis=proxy).model_copy(update={"flush_bytes_max": 500_000}))
    with _full_disk(psql), _no_garbage_looked_for():
        before = _readers()
        running = asyncio.create_task(working.run())
        await _until(running, lambda: len(log.of("outage")) >= 12)
        assert _readers() - before < 6
    proxy.delay_s = 0.0
    await _until(running, lambda: sum(flushed(psql).values()) == 40)
    working.signalled()
    assert await running == runner.DRAINED


@pytest.mark.own_servers("it changes settings of the server")
async def test_what_redis_does_not_let_out_at_once_is_read_in_parts(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, log: Log
) -> None:
    """It ends the connection of whoever asks for more than its limit."""
    await flush(worker)
    large, *others = [agents.key_on(shard) for shard in range(agents.keys.shards)]
    for _ in range(20):
        agents.commit((large, "1" * 200_000))
    for key in others:
        agents.commit(key)
    with configured(redis_raw, **{"client-output-buffer-limit": "normal 1000000 0 0"}):
        await flush_through(worker)
    assert flushed(psql) == {agents.keys.shard(key): 1 for key in others} | {agents.keys.shard(large): 20}
    assert {line["reason"] for line in log.of("batch_too_large")} == {"connection"}


async def test_one_entry_is_never_told_as_too_large_a_batch(
    agents: Agents, make_worker: MakeWorker, settings: Settings, psql: Psql, log: Log
) -> None:
    """Nothing smaller can be tried, as where a pooler pauses."""
    worker = make_worker(settings.model_copy(update={"timeout_s": 0.5, "hydrate_token_s": 0.5}))
    await flush_through(worker)
    agents.commit(agents.key_on(0))
    with _refused_changes(psql, "slow", most=0), pytest.raises(PostgresUnavailable):
        await flush(worker)
    assert not log.of("batch_too_large")
    await flush_through(worker)
    assert sum(flushed(psql).values()) == 1


async def test_a_time_that_postgres_cannot_count_is_as_long_as_it_can(
    make_settings: MakeSettings, make_worker: MakeWorker
) -> None:
    settings = make_settings(timeout_s=3e6)  # in milliseconds, as somebody believed
    worker = make_worker(settings)
    with plain_client(settings.redis_url) as raw:
        Agents(settings, worker.keys, raw).commit("runs/1")
        await flush(worker)
    assert worker.flusher.counters.changes == 1


async def test_a_log_that_nobody_reads_stops_neither_the_flushing_nor_the_end(
    agents: Agents, settings: Settings, psql: Psql
) -> None:
    pipe = FullPipe()
    async with WorkerProcess(settings, log=pipe.end) as process, asyncio.timeout(WAIT_S):
        agents.commit(agents.key_on(0))
        while flushed(psql)[0] == 0:
            await pause()
        process.send(signal.SIGTERM)
        assert await process.ended() == 0
    pipe.close()

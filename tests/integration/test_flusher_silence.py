"""A connection to Postgres that falls silent in the middle of a flush, with the shards' rows locked behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.core.postgres.connection import BEGIN, SILENCE_S, limits
from statecache.errors import PostgresUnavailable
from statecache.settings import masked
from statecache.sql import statement
from statecache_workers.database import Call
from statecache_workers.runner import LEAVE_S
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flush_through, flushed, rows, turn_until
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause, pause_thread

Psql = psycopg.Connection[Any]

IN_MID_PIPELINE = b"flushed_at = now()"
"""Stands in the second statement of a flush's last exchange: the first has run by then, and no Sync has come."""
BOUND_S = 8.0
"""Far less than `timeout_s` here, far more than it takes."""

STUCK = "SELECT state, wait_event FROM pg_stat_activity WHERE application_name = %s AND state <> 'idle'"


def _name(worker: Worker) -> str:
    return f"statecache worker {worker.id[-8:]}"


async def _named(worker: Worker, name: str) -> None:
    """Give the worker's session the name that a pooler gives it."""
    _, database = await worker.connect()
    await database.session.connection.execute("SELECT set_config('application_name', %s, false)", [name])


@pytest.mark.parametrize("added", ["", " - 127.0.0.1:6432"])
async def test_a_flush_that_falls_silent_is_given_up_soon_and_holds_no_rows(
    agents: Agents, make_worker: MakeWorker, settings: Settings, postgres_proxy: FaultProxy, psql: Psql, added: str
) -> None:
    """A pooler may add an address to the name by which the session is known."""
    worker = make_worker(through(settings, postgres=postgres_proxy))
    await flush(worker)
    await _named(worker, _name(worker) + added)
    agents.commit("runs/1")
    fault = postgres_proxy.arm("silence", at=IN_MID_PIPELINE)
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(PostgresUnavailable, match="waits for us"):
            await flush(worker)
        assert fault.struck
        await flush_through(worker)
    assert sum(flushed(psql).values()) == 1
    assert rows(psql, STUCK, _name(worker) + added) == []


@pytest.mark.parametrize(
    ("name", "ended"), [("ours", True), ("ours - 1.2.3.4:5", True), ("ours too", False), ("", False)]
)
def test_a_session_that_a_pooler_has_given_to_somebody_else_is_not_ended(
    settings: Settings, psql: Psql, name: str, ended: bool
) -> None:
    with psycopg.connect(settings.postgres_url, application_name=name) as session:
        session.execute("SELECT 1")
        asked = {"pid": session.info.backend_pid, "name": "ours", "end": True}
        while rows(psql, "SELECT wait_event FROM pg_stat_activity WHERE pid = %s", asked["pid"]) != [("ClientRead",)]:
            pause_thread()
        found = psql.execute(statement("session_probe", settings.postgres_schema).encode(), asked).fetchall()
        assert found == [(True, ended)]
        with pytest.raises(psycopg.OperationalError) if ended else contextlib.nullcontext():
            session.execute("SELECT 1")


@pytest.mark.parametrize("silently", [False, True])
async def test_a_worker_whose_connection_has_died_unseen_gives_its_shards_back_on_another(
    make_worker: MakeWorker, settings: Settings, postgres_proxy: FaultProxy, psql: Psql, *, silently: bool
) -> None:
    worker = make_worker(through(settings, postgres=postgres_proxy))
    await flush(worker)
    if silently:
        postgres_proxy.freeze(postgres_proxy.ports)
    else:
        postgres_proxy.cut_all()
    async with asyncio.timeout(LEAVE_S):
        assert await worker.leave()
    assert rows(psql, "SELECT shard FROM shard WHERE owner IS NOT NULL") == []
    assert rows(psql, "SELECT id FROM worker") == []


async def test_a_write_waits_a_few_seconds_for_a_half_open_postgres(
    agents: Agents, make_worker: MakeWorker, settings: Settings, postgres_proxy: FaultProxy
) -> None:
    worker = make_worker(through(settings, postgres=postgres_proxy))
    await flush(worker)

    async def work() -> None:
        while True:
            with contextlib.suppress(PostgresUnavailable):
                if not await worker.turn():
                    await worker.rest()

    async with AsyncStateCache(settings=settings) as cache:
        await cache.set("runs/1", 1)
        await flush(worker)
        postgres_proxy.freeze(postgres_proxy.ports)
        working = asyncio.create_task(work())
        try:
            async with asyncio.timeout(BOUND_S):
                await cache.set("runs/1", 2, durability="postgres")
        finally:
            working.cancel()
            await asyncio.wait([working])


@pytest.mark.parametrize("pooled", [False, True])
async def test_a_transaction_that_is_slow_to_begin_is_waited_for(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, *, pooled: bool
) -> None:
    """A pooler tells a number that is no session's, and takes another session for each transaction."""
    monkeypatch.setattr("statecache_workers.database.PROBE_S", 0.1)
    monkeypatch.setattr("statecache_workers.database._LOOK_AGAIN_S", 0.1)
    worker = make_worker()
    await flush(worker)
    _, database = await worker.connect()
    if pooled:
        database._told_pid, database._pid = 1, 2**31 - 1
    assert await database.begin(BEGIN, limits(30), [("SELECT 1 FROM pg_sleep(1)", None)]) == [[(1,)]]


async def test_the_next_owner_ends_the_session_of_a_lapsed_lease(
    agents: Agents,
    make_worker: MakeWorker,
    settings: Settings,
    postgres_proxy: FaultProxy,
    psql: Psql,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker is gone, and asks nobody how its session stands."""
    monkeypatch.setattr("statecache_workers.database.PROBE_S", 3600.0)
    quick = settings.model_copy(update={"lease_s": 0.3, "lease_renew_s": 0.1})
    gone, heir = make_worker(through(quick, postgres=postgres_proxy)), make_worker(quick)
    await flush(gone)
    agents.commit("runs/1")
    fault = postgres_proxy.arm("silence", at=IN_MID_PIPELINE)
    turning = asyncio.create_task(gone.turn())
    await fault.wait()
    async with asyncio.timeout(BOUND_S):
        while rows(psql, STUCK, _name(gone)) != [("active", "ClientRead")]:
            await asyncio.wait([turning], timeout=0.01)
    async with asyncio.timeout(BOUND_S):
        await turn_until(heir, log, "session_ended")
        while not sum(flushed(psql).values()):
            await flush_through(heir)
            await pause()
    postgres_proxy.cut_all()
    with pytest.raises(PostgresUnavailable):
        await turning
    assert sum(flushed(psql).values()) == 1
    (ended,) = log.of("session_ended")
    assert ended["shards"] == [heir.keys.shard("runs/1")]
    assert rows(psql, STUCK, _name(gone)) == []


async def test_a_transaction_of_a_live_worker_is_left_alone(
    make_worker: MakeWorker, settings: Settings, psql: Psql
) -> None:
    """Its lease stands, or it is a stranger's: nobody ends that."""
    first, second = make_worker(), make_worker()
    await flush(first)
    _, database = await first.connect()
    with psycopg.connect(settings.postgres_url) as stranger:
        row = f'SELECT FROM "{settings.postgres_schema}".shard WHERE shard = 0 FOR UPDATE'
        async with database.transaction() as transaction:
            await transaction.run(Call("flush_lock", {"shards": [1, 2, 3], "owner": first.id}))
            stranger.execute(row.encode())
            psql.execute("UPDATE worker SET beat_until = now() - interval '1 hour'")
            await second.turn()
            await transaction.run(Call("cluster", {}))
        stranger.execute("SELECT 1")
        stranger.rollback()


async def test_every_transaction_lets_the_server_notice_a_silent_worker(worker: Worker, settings: Settings) -> None:
    _, database = await worker.connect()
    shown = """SELECT current_setting('tcp_keepalives_idle'), current_setting('tcp_user_timeout'),
                      current_setting('transaction_timeout', true)"""
    async with database.transaction() as transaction:
        await transaction.run(Call("cluster", {}))
        found = await (await database.session.connection.execute(shown)).fetchone()
    assert found is not None
    assert found[:2] == ("2", f"{SILENCE_S * 1000}") or "host=/" in masked(settings.postgres_url)
    assert found[2] in ("3min", None), "Postgres has known it since 17"


async def test_every_connection_notices_a_silent_server(worker: Worker) -> None:
    _, database = await worker.connect()
    with socket.socket(fileno=socket.dup(database.session.connection.fileno())) as line:
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == SILENCE_S * 1000


async def test_an_exchange_that_is_still_being_sent_is_not_given_up(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres waits for the rest of it, again and again, as long as this side has other things to do."""
    monkeypatch.setattr("statecache_workers.database.PROBE_S", 0.0)
    _, database = await worker.connect()
    execute = database._connection.execute

    async def late(*given: Any, **more: Any) -> Any:
        for _ in range(10):
            await pause()
        return await execute(*given, **more)

    monkeypatch.setattr(database._connection, "execute", late)
    sized = [("SELECT octet_length(%s::bytea)", [bytes([number]) * (8 << 20)]) for number in range(4)]
    async with asyncio.timeout(60.0):
        assert await database.exchange(sized) == [[(8 << 20,)]] * 4


@pytest.fixture
def role(settings: Settings, psql: Psql) -> Iterator[str]:
    """A role that others may take on."""
    name = f"{settings.postgres_schema}_group"
    psql.execute(f"CREATE ROLE {name} SUPERUSER".encode())
    yield name
    psql.execute(f"DROP ROLE {name}".encode())


@pytest.mark.parametrize("known_as", ["itself", "another role", "named by a pooler", "without a name"])
async def test_a_flush_that_postgres_works_at_is_not_given_up(
    agents: Agents,
    make_worker: MakeWorker,
    settings: Settings,
    psql: Psql,
    role: str,
    monkeypatch: pytest.MonkeyPatch,
    known_as: str,
) -> None:
    monkeypatch.setattr("statecache_workers.database.PROBE_S", 0.05)
    monkeypatch.setattr("statecache_workers.database._LOOK_AGAIN_S", 0.05)
    default = f"{settings.postgres_url}{'&' if '?' in settings.postgres_url else '?'}options=-c%20role%3D{role}"
    taken = settings.model_copy(update={"postgres_url": default}) if known_as == "another role" else settings
    worker = make_worker(taken)
    await flush(worker)
    agents.commit("runs/1")
    if known_as == "named by a pooler":
        await _named(worker, f"{_name(worker)} - 127.0.0.1:6432")
    if known_as == "without a name":
        await _named(worker, "")
    body = "PERFORM pg_sleep(0.5); RETURN NEW;"
    psql.execute(f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$".encode())
    psql.execute(b"CREATE TRIGGER slow BEFORE INSERT ON change FOR EACH ROW EXECUTE FUNCTION slow()")
    await flush(worker)
    assert sum(flushed(psql).values()) == 1

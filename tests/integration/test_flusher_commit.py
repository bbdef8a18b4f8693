"""What counts as committed, what is waited out, and what a flush leaves behind on its connection."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from statecache import Settings
from statecache.errors import PostgresUnavailable, RedisUnavailable
from statecache.testing import servers
from statecache_workers.database import Call, Database, Transaction
from statecache_workers.postgres_errors import Poison, translated
from statecache_workers.read_ahead import UNREAD_PART
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, acknowledged, flush, flush_through, flushed, rows, trigger
from tests.fixtures.servers import MakeSettings, plain_client
from tests.support.polling import pause_thread

Psql = psycopg.Connection[Any]


def _until_commits_wait(url: str, admin: Psql) -> None:
    """Commit until that waits for a standby: the server's processes learn of a setting one after the other."""
    waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
    with psycopg.connect(url, autocommit=True) as witness, ThreadPoolExecutor(1) as threads:
        statement, pid = b"COMMENT ON SCHEMA public IS 'a witness'", witness.info.backend_pid
        committing = threads.submit(witness.execute, statement)
        while not rows(admin, waits, pid):
            if committing.done():
                committing = threads.submit(witness.execute, statement)
            pause_thread()
        admin.execute("SELECT pg_cancel_backend(%s)", [pid])
        committing.result()


async def test_a_commit_that_waits_for_a_missing_standby_is_notacknowledged() -> None:
    """The real thing: a synchronous standby that never comes, and a wait that the statement timeout cancels."""
    with servers(workers=0, settings={"shards": "4"}, fsync=False) as s:
        urls = {"redis_url": s.redis_url, "postgres_url": s.postgres_url}
        settings = Settings(shards=4, timeout_s=1.0, hydrate_token_s=1.0, **urls)
        worker = Worker(settings)
        with plain_client(s.redis_url) as raw, psycopg.connect(s.postgres_url, autocommit=True) as admin:
            agents = Agents(settings, worker.keys, raw)
            await flush_through(worker)
            agents.commit("runs/1")
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            admin.execute("SELECT pg_reload_conf()")
            _until_commits_wait(s.postgres_url, admin)
            with pytest.raises(PostgresUnavailable):
                await flush(worker)
            assert acknowledged(agents) == 0
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")
            await flush_through(worker)
            assert acknowledged(agents) == 1
        await worker.close()


async def test_a_commit_that_postgres_answers_with_rollback_moves_nothing(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody swallows an error inside the transaction; psycopg then commits without a word."""
    await flush(worker)
    agents.commit("runs/1")
    commit = Transaction.commit

    async def spoilt(transaction: Transaction, *calls: Call) -> None:
        await transaction.run(*calls)
        connection = transaction._database.session.connection
        with pytest.raises(psycopg.errors.DivisionByZero):
            await connection.execute("SELECT 1 / 0")
        await commit(transaction)

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit", spoilt)
        with pytest.raises(PostgresUnavailable, match="ROLLBACK"):
            await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change") == [(0,)]
    assert acknowledged(agents) == 0
    await flush_through(worker)
    assert acknowledged(agents) == 1


@pytest.mark.parametrize(("table", "took"), [("change", "took_0_of_1_changes"), ("state", "of_0_of_1_keys")])
async def test_what_postgres_takes_only_in_part_is_not_committed(
    agents: Agents, worker: Worker, psql: Psql, table: str, took: str
) -> None:
    """Somebody's trigger keeps a row out, without a word."""
    await flush(worker)
    agents.commit("runs/1")
    with trigger(psql, table, "RETURN NULL;"), pytest.raises(PostgresUnavailable, match=took):
        await flush(worker)
    assert sum(flushed(psql).values()) == 0
    assert rows(psql, "SELECT (SELECT count(*) FROM change), (SELECT count(*) FROM quarantine)") == [(0, 0)]
    await flush_through(worker)
    assert acknowledged(agents) == 1


async def test_a_flush_takes_two_round_trips(agents: Agents, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    agents.commit("runs/1")
    await flush(worker)
    agents.commit("runs/1")
    trips: list[list[str]] = []
    pipelined = Database._pipelined

    async def noted(database: Database, statements: Sequence[tuple[str, Any]]) -> Any:
        trips.append([text.partition("\n")[0] for text, _ in statements])
        return await pipelined(database, statements)

    monkeypatch.setattr(Database, "_pipelined", noted)
    await worker.turn()
    assert [len(trip) for trip in trips] == [3, 3], "begin, limits and lock; changes, watermarks and commit"
    assert trips[-1][-1] == "COMMIT"


async def test_a_lost_acknowledgement_repeats_nothing(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await flush(worker)
    agents.commit("runs/1")
    agents.commit("runs/1")

    async def lost(*_: Any) -> list[int]:
        raise RedisUnavailable("connection", detail="cut")

    with monkeypatch.context() as patched:
        patched.setattr(worker.flusher.acknowledgement, "tell", lost)
        with pytest.raises(RedisUnavailable):
            await flush(worker)
    assert sum(flushed(psql).values()) == 2
    assert acknowledged(agents) == 0
    await flush_through(worker)
    assert acknowledged(agents) == 2
    assert rows(psql, "SELECT version, gap FROM change ORDER BY version") == [(1, False), (2, False)]


async def test_what_is_committed_is_acknowledged_although_reading_on_fails(
    agents: Agents, make_worker: MakeWorker, settings: Settings, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Postgres commits a batch that left some behind, Redis refuses to give the next one."""
    worker = make_worker(settings.model_copy(update={"flush_batch_max": 5 * UNREAD_PART}))
    await flush(worker)
    for _ in range(8):
        agents.commit("runs/1")
    heads, asked = worker.flusher.streams.heads, count()

    async def refused(*args: Any) -> Any:
        if next(asked) == 1:
            raise RedisUnavailable("refused", detail="BUSY")
        return await heads(*args)

    with monkeypatch.context() as patched:
        patched.setattr(worker.flusher.streams, "heads", refused)
        assert await worker.turn()
    assert (acknowledged(agents), worker.flusher.counters.entries) == (5, 5)
    await flush(worker)
    assert acknowledged(agents) == 8


OUTAGES = [
    "53100",
    "53200",
    "53300",
    "57014",
    "57P01",
    "58030",
    "25006",
    "08006",
    "40001",
    "40P01",
    "55P03",
    "42501",
    "XX000",
]


@pytest.mark.parametrize("state", OUTAGES)
async def test_an_outage_is_waited_out_and_never_blamed_on_the_data(
    agents: Agents, worker: Worker, psql: Psql, state: str
) -> None:
    await flush(worker)
    agents.commit("runs/1")
    body = f"RAISE EXCEPTION 'no room' USING ERRCODE = '{state}';"
    with trigger(psql, "change", body), pytest.raises(PostgresUnavailable, match="no room"):
        await flush(worker)
    assert rows(psql, "SELECT (SELECT count(*) FROM quarantine), (SELECT count(*) FROM change)") == [(0, 0)]
    assert acknowledged(agents) == 0
    await flush_through(worker)
    assert acknowledged(agents) == 1
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(0,)]


async def test_an_error_at_commit_that_is_not_of_the_data_is_blamed_on_no_change(
    agents: Agents, worker: Worker, psql: Psql
) -> None:
    await flush(worker)
    agents.commit("runs/1")
    body = "RAISE EXCEPTION 'deferred' USING ERRCODE = 'XX001';"
    with trigger(psql, "change", body, deferred=True), pytest.raises(PostgresUnavailable, match="deferred"):
        await flush(worker)
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(0,)]
    await flush_through(worker)
    assert acknowledged(agents) == 1


async def test_while_a_batch_fails_what_was_read_ahead_is_not_written(
    agents: Agents, make_worker: MakeWorker, psql: Psql, settings: Settings
) -> None:
    worker = make_worker(settings.model_copy(update={"flush_batch_max": 5 * UNREAD_PART}))
    await flush(worker)
    for i in range(25):
        agents.commit(("runs/1", str(i)))
    body = "IF NEW.version = 8 THEN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END IF;"
    with trigger(psql, "change", body), pytest.raises(PostgresUnavailable):
        await flush(worker)
    assert rows(psql, "SELECT max(version) FROM change") == [(5,)]
    await flush_through(worker)
    assert rows(psql, "SELECT count(*), bool_or(gap) FROM change") == [(25, False)]


async def test_shards_that_somebody_locks_are_tried_again(
    agents: Agents, make_worker: MakeWorker, make_settings: MakeSettings, psql: Psql, settings: Settings
) -> None:
    worker = make_worker(settings.model_copy(update={"timeout_s": 1.0}))
    await flush_through(worker)
    agents.commit("runs/1")
    with psycopg.connect(settings.postgres_url) as other:
        other.execute(f'SELECT FROM "{settings.postgres_schema}".shard FOR UPDATE'.encode())
        for _ in range(5):
            await worker.turn()
        assert acknowledged(agents) == 0
        other.rollback()
    worker.refresh()
    await flush_through(worker)
    assert acknowledged(agents) == 1


async def test_a_flush_is_read_committed_and_waits_for_the_disk_whatever_the_role_says(
    make_settings: MakeSettings, make_worker: MakeWorker, site: Any
) -> None:
    roles = "-c default_transaction_isolation=serializable -c synchronous_commit=off"
    url = f"{site.postgres_url}?options={quote(roles)}"
    settings = make_settings(postgres_url=url)
    worker = make_worker(settings)
    path = f"-c search_path={settings.postgres_schema}"
    with (
        psycopg.connect(site.postgres_url, autocommit=True, options=path) as psql,
        plain_client(settings.redis_url) as raw,
    ):
        psql.execute("CREATE TABLE seen (isolation text, synchronous text)")
        shown = "current_setting('transaction_isolation'), current_setting('synchronous_commit')"
        with trigger(psql, "change", f"INSERT INTO {settings.postgres_schema}.seen SELECT {shown};"):
            Agents(settings, worker.keys, raw).commit("runs/1")
            await flush(worker)
        assert rows(psql, "SELECT * FROM seen") == [("read committed", "on")]


async def test_a_flush_leaves_nothing_behind_on_its_connection(agents: Agents, worker: Worker) -> None:
    """A transaction-mode pooler hands the connection to somebody else after every transaction."""
    agents.commit("runs/1")
    await flush(worker)
    _, database = await worker.connect()
    connection = database.session.connection
    assert connection.prepare_threshold is None
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    changed = """SELECT name FROM pg_settings WHERE setting <> reset_val AND name IN
        ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'synchronous_commit')"""
    assert await (await connection.execute(changed)).fetchall() == []
    left = "SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels())"
    assert await (await connection.execute(left)).fetchall() == [(0, 0)]


async def test_every_transaction_is_bounded(worker: Worker) -> None:
    _, database = await worker.connect()
    bounds = """SELECT current_setting('statement_timeout'), current_setting('lock_timeout'),
                       current_setting('idle_in_transaction_session_timeout')"""
    async with database.transaction() as transaction:
        await transaction.run(Call("cluster", {}))
        shown = await (await database.session.connection.execute(bounds)).fetchone()
    assert shown == ("30s", "2s", "30s")


@pytest.mark.parametrize(
    ("state", "kind"),
    [("22021", Poison), ("23505", Poison), ("54000", Poison), ("P0001", Poison), ("53100", PostgresUnavailable)],
)
def test_errors_of_the_data_are_told_from_errors_of_the_circumstances(state: str, kind: type[Exception]) -> None:
    error = psycopg.errors.lookup(state)("x")
    assert isinstance(translated(error, "here", of_data=True), kind)
    assert isinstance(translated(error, "here", of_data=False), PostgresUnavailable)


async def test_nobody_is_told_when_a_deadlock_ends_one_of_two(
    agents: Agents, worker: Worker, psql: Psql, log: Log
) -> None:
    """40P01 comes back as an outage: the batch is repeated, the connection stays."""
    await flush(worker)
    agents.commit("runs/1")
    with (
        trigger(psql, "change", "RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01';"),
        pytest.raises(PostgresUnavailable),
    ):
        await flush(worker)
    _, database = await worker.connect()
    before = database.session.connection.info.backend_pid
    await flush_through(worker)
    assert database.session.connection.info.backend_pid == before
    assert not [fields for _, fields in log.lines if fields.get("alarm")]

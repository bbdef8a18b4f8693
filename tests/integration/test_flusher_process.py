"""The worker as a process: signals, exit statuses, outages at the start and in the middle, and what it logs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.keys import KeySpace
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.fixtures.flusher import Agents, rows
from tests.fixtures.servers import MakeSettings, plain_client
from tests.support.polling import pause_thread
from tests.support.workers import WAIT_S, WorkerProcess, ready

Psql = psycopg.Connection[Any]


async def _until_flushed(agents: Agents, shard: int, n: int) -> None:
    """Wait until Redis has been told that the shard is flushed up to n."""
    listener = agents.raw.pubsub()
    listener.ssubscribe(agents.keys.events(shard))
    async with asyncio.timeout(WAIT_S):
        while int(agents.meta(shard)["flushed"]) < n:
            await asyncio.to_thread(listener.get_message, timeout=1)
    listener.close()


def _session_names(psql: Psql) -> list[str]:
    """Return by which names Postgres shows the sessions of this deployment's workers."""
    return [row[0] for row in rows(psql, "SELECT 'statecache worker ' || right(id, 8) FROM worker")]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_stop_it_drains_gives_back_and_says_that_nothing_is_left(
    agents: Agents, settings: Settings, psql: Psql, kind: signal.Signals
) -> None:
    async with ready(settings) as process:
        for i in range(300):
            agents.commit((f"runs/{i % 9}", "x" * 100))
        process.send(kind)
        stopped = await process.until("stopped")
        assert (stopped["left"], stopped["given_back"]) == (0, True)
        assert await process.ended() == 0
    assert rows(psql, "SELECT count(*) FROM change") == [(300,)]
    assert rows(psql, "SELECT count(*) FROM shard WHERE owner IS NOT NULL OR lease_until > now()") == [(0,)]
    assert rows(psql, "SELECT count(*) FROM worker") == [(0,)]


@pytest.mark.counts_seconds  # it is told to stop while it deletes
async def test_what_it_was_deleting_because_it_has_ended_is_flushed_before_it_goes(
    agents: Agents, settings: Settings, cache: AsyncStateCache, psql: Psql
) -> None:
    counted = "SELECT count(*) FROM state WHERE op = %s"
    async with ready(settings) as process:
        await cache.set_many({f"runs/{i:04d}": i for i in range(5_000)}, ttl=0.2, durability="postgres")
        while rows(psql, counted, "delete") == [(0,)]:
            pause_thread()
        process.send(signal.SIGTERM)
        assert (await process.until("stopped"))["left"] == 0
        assert await process.ended() == 0
    assert rows(psql, counted, "set") != [(0,)]  # what is left is for the next worker
    assert all(meta["flushed"] == meta["n"] for meta in map(agents.meta, range(settings.shards)))


async def test_killed_it_loses_nothing_and_repeats_nothing(agents: Agents, settings: Settings, psql: Psql) -> None:
    async with ready(settings) as process:
        for i in range(200):
            agents.commit((f"runs/{i % 9}", str(i)))
        process.send(signal.SIGKILL)
        assert await process.ended() == -signal.SIGKILL
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = ANY(%s)"
    names = _session_names(psql)
    while rows(psql, sessions, names) != [(0,)]:  # Postgres may still be at what it had sent, renewing leases too
        pause_thread()
    psql.execute("UPDATE shard SET lease_until = now() - interval '1 second'")
    psql.execute("DELETE FROM worker")
    async with ready(settings) as process:
        process.send(signal.SIGTERM)
        assert await process.ended() == 0
    assert rows(psql, "SELECT count(*), count(DISTINCT change_id), bool_or(gap) FROM change") == [(200, 200, False)]


async def test_what_is_left_when_the_deadline_comes_is_counted(agents: Agents, settings: Settings, psql: Psql) -> None:
    """Somebody holds the rows for longer than the worker may take."""
    async with ready(settings, drain_s=0.5) as process:
        with psql.transaction():
            psql.execute("SELECT FROM shard FOR UPDATE")
            for i in range(7):
                agents.commit((agents.key_on(0), str(i)))
            process.send(signal.SIGTERM)
            stopped = await process.until("stopped")
            assert stopped["left"] == 7
            assert await process.ended() == 1


async def test_a_second_signal_cuts_the_draining_short(agents: Agents, settings: Settings, psql: Psql) -> None:
    async with ready(settings, drain_s=600) as process:
        with psql.transaction():
            psql.execute("SELECT FROM shard FOR UPDATE")
            agents.commit(agents.key_on(0))
            process.send(signal.SIGTERM)
            await process.until("draining")
            process.send(signal.SIGTERM)
            await process.until("stopped")
            assert await process.ended() == 1


async def test_a_database_without_our_schema_is_a_matter_of_configuration(make_settings: MakeSettings) -> None:
    async with WorkerProcess(make_settings(migrated=False)) as process:
        told = await process.until("configuration")
        assert "statecache migrate" in told["detail"]
        assert await process.ended() == 3


@pytest.mark.parametrize("more", [{"shards": 8}, {"prefix": "other"}])
async def test_a_pin_that_differs_is_refused(settings: Settings, more: dict[str, Any]) -> None:
    async with WorkerProcess(settings, **more) as process:
        told = await process.until("configuration")
        assert "pinned" in told["detail"]
        assert await process.ended() == 3


async def test_a_schema_that_is_too_new_is_refused(settings: Settings, psql: Psql) -> None:
    psql.execute("UPDATE cluster SET min_code = 999")
    async with WorkerProcess(settings) as process:
        assert "999" in (await process.until("configuration"))["detail"]
        assert await process.ended() == 3


async def test_the_redis_of_another_cluster_is_refused(settings: Settings, psql: Psql) -> None:
    psql.execute("UPDATE cluster SET id = gen_random_uuid()")
    async with WorkerProcess(settings) as process:
        await process.until("configuration")
        assert await process.ended() == 3


async def test_a_variable_that_is_no_setting_is_logged(settings: Settings) -> None:
    async with WorkerProcess(settings, lease=5) as process:
        told = await process.until("unknown_settings")
        assert (told["level"], told["variables"]) == ("warning", ["STATECACHE_LEASE"])


@pytest.mark.own_servers("they ask for a password")
@pytest.mark.parametrize("which", ["redis_url", "postgres_url"])
async def test_a_wrong_password_is_told_at_once_and_never_shown(settings: Settings, which: str) -> None:
    url = getattr(settings, which)
    secret = url.partition("@")[0].rpartition(":")[2]
    async with WorkerProcess(settings, **{which: url.replace(secret, "not-the-password")}) as process:
        told = await process.until("unreachable")
        assert told["reason"] == "authentication"
        assert "not-the-password" not in repr(process.lines)
        assert await process.ended() == 4


def _without(settings: Settings, redis_raw: Any, right: str) -> str:
    """Return the URL of a user that may do all but this."""
    name, parts = settings.prefix, urlsplit(settings.redis_url)
    redis_raw.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", "~*", "&*", "+@all", f"-{right}")
    return parts._replace(netloc=f"{name}:secret@{parts.netloc.rpartition('@')[2]}").geturl()


@pytest.mark.parametrize("right", ["spublish", "xtrim", "scan", "hgetall"])
async def test_a_right_that_it_lacks_at_its_start_ends_it_and_is_named(
    settings: Settings, redis_raw: Any, right: str
) -> None:
    """One that only workers need, too: it took shards, flushed into Postgres and acknowledged nothing."""
    async with WorkerProcess(settings, redis_url=_without(settings, redis_raw, right)) as process:
        told = await process.until("configuration")
        assert f"the Redis user may not run {right.upper()}. " in told["detail"]
        assert await process.ended() == 3
    redis_raw.acl_deluser(settings.prefix)


async def test_a_kind_of_keys_that_it_lacks_at_its_start_is_named(settings: Settings, redis_raw: Any) -> None:
    url, name = _without(settings, redis_raw, "acl"), settings.prefix
    redis_raw.execute_command("ACL", "SETUSER", name, "resetkeys", f"~{name}:{{*}}:[^w]*")
    async with WorkerProcess(settings, redis_url=url) as process:
        told = await process.until("configuration")
        assert f"may not use the keys ~{name}:{{*}}:waiters (HDEL, HSCAN)" in told["detail"]
        assert await process.ended() == 3
    redis_raw.acl_deluser(name)


@pytest.mark.parametrize("command", ["SCAN", "XTRIM", "ZRANGEBYSCORE", "XREAD", "HSCAN", "HGETALL", "XLEN", "RENAME"])
async def test_a_command_that_the_server_lacks_ends_it_and_is_named(settings: Settings, command: str) -> None:
    with servers(workers=0, migrate=False, fsync=False, redis_config={"rename-command": f'{command} ""'}) as own:
        async with WorkerProcess(settings, redis_url=own.redis_url) as process:
            told = await process.until("configuration")
            assert f"this Redis server lacks the command {command}." in told["detail"]
            assert await process.ended() == 3


@pytest.mark.parametrize("right", ["persist", "spublish"])
async def test_a_right_that_it_lacks_when_it_connects_again_is_waited_for(
    agents: Agents, settings: Settings, redis_raw: Any, right: str
) -> None:
    """At its start it would be told, and end; in mid-life whoever took the right away may give it back."""
    name, url = settings.prefix, _without(settings, redis_raw, "flushall")
    async with ready(settings, redis_url=url) as process:
        redis_raw.execute_command("ACL", "SETUSER", name, f"-{right}")
        redis_raw.execute_command("CLIENT", "KILL", "USER", name)
        while f"may not run {right.upper()}" not in (await process.until("outage"))["detail"]:
            continue  # at first it is told that the connection is gone
        redis_raw.execute_command("ACL", "SETUSER", name, f"+{right}")
        agents.commit(agents.key_on(0))
        await _until_flushed(agents, 0, 1)
        process.send(signal.SIGTERM)
        assert await process.ended() == 0
    redis_raw.acl_deluser(name)


async def test_a_right_that_is_taken_away_in_mid_life_is_named(
    agents: Agents, settings: Settings, redis_raw: Any
) -> None:
    name, url = settings.prefix, _without(settings, redis_raw, "flushall")
    async with ready(settings, redis_url=url) as process:
        redis_raw.execute_command("ACL", "SETUSER", name, "-spublish")
        agents.commit(agents.key_on(0))
        while "may not run SPUBLISH" not in (await process.until("outage"))["detail"]:
            continue  # at first only a script's failure is told
        redis_raw.execute_command("ACL", "SETUSER", name, "+spublish")
        await _until_flushed(agents, 0, 1)
    redis_raw.acl_deluser(name)


ENDED = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ANY(%s)"
AWAY = {
    "the schema": ("ALTER SCHEMA {schema} RENAME TO {schema}_away", "ALTER SCHEMA {schema}_away RENAME TO {schema}"),
    "a table": ("ALTER TABLE {schema}.cluster RENAME TO away", "ALTER TABLE {schema}.away RENAME TO cluster"),
    "the cluster's row": (
        "CREATE TABLE {schema}.away AS SELECT * FROM {schema}.cluster; DELETE FROM {schema}.cluster",
        "INSERT INTO {schema}.cluster SELECT * FROM {schema}.away; DROP TABLE {schema}.away",
    ),
}


@pytest.mark.parametrize("missing", AWAY)
async def test_a_schema_that_is_restored_in_place_is_waited_for(
    agents: Agents, settings: Settings, psql: Psql, missing: str
) -> None:
    """It was there, so that it may come back; a worker that never saw it ends at once."""
    name = settings.postgres_schema
    away, back = (text.format(schema=name) for text in AWAY[missing])
    async with ready(settings) as process:
        names = _session_names(psql)
        psql.execute(away.encode())
        psql.execute(ENDED, [names])
        while (await process.until("outage"))["reason"] != "schema":
            continue  # at first it is told that the connection is gone
        psql.execute(back.encode())
        agents.commit(agents.key_on(0))
        await _until_flushed(agents, 0, 1)
        process.send(signal.SIGTERM)
        assert await process.ended() == 0


async def test_rights_that_a_restore_grants_last_are_waited_for(agents: Agents, settings: Settings, psql: Psql) -> None:
    schema, role = settings.postgres_schema, f"{settings.postgres_schema}_worker"
    granted = f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}"
    psql.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA {schema} TO {role}; {granted};"
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role};"
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role}"
    )
    parts = urlsplit(settings.postgres_url)
    url = parts._replace(netloc=f"{role}:secret@{parts.netloc.rpartition('@')[2]}").geturl()
    try:
        async with ready(settings, postgres_url=url) as process:
            psql.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}")
            psql.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")
            while (await process.until("outage"))["reason"] != "schema":
                continue  # at first it is told that the connection is gone
            psql.execute(granted)
            agents.commit(agents.key_on(0))
            await _until_flushed(agents, 0, 1)
            process.send(signal.SIGTERM)
            assert await process.ended() == 0
    finally:
        psql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture(scope="module")
def own() -> Iterator[Servers]:
    """Servers that may be stopped."""
    with servers(workers=0, settings={"shards": "4"}, fsync=False) as started:
        yield started


@pytest.fixture
def own_settings(own: Servers) -> Settings:
    """The settings of the deployment on the servers that may be stopped."""
    return Settings(redis_url=own.redis_url, postgres_url=own.postgres_url, shards=4)


@pytest.mark.parametrize("name", ["redis", "postgres"])
async def test_a_server_that_is_down_at_the_start_is_waited_for(
    own: Servers, own_settings: Settings, name: str
) -> None:
    own.stop(name)
    async with WorkerProcess(own_settings) as process:
        told = await process.until("outage")
        assert own_settings.redis_url not in repr(told)
        await asyncio.to_thread(own.restart, name)
        await process.until("ready")
        process.send(signal.SIGTERM)
        assert await process.ended() == 0


@pytest.mark.parametrize("name", ["redis", "postgres"])
async def test_a_server_that_dies_in_the_middle_is_waited_for_and_nothing_is_lost(
    own: Servers, own_settings: Settings, name: str
) -> None:
    with plain_client(own_settings.redis_url) as raw:
        keys = KeySpace("sc", 4)
        agents = Agents(own_settings, keys, raw)
        async with ready(own_settings) as process:
            key, other = agents.key_on(0), agents.key_on(0, f"jobs-{name}")
            before = int(agents.commit((key, "before")).partition("-")[2])
            await _until_flushed(agents, 0, before)
            if name == "postgres":
                own.kill(name)
                agents.commit((other, "during"))
            else:
                own.kill(name)
            await process.until("outage")
            await asyncio.to_thread(own.restart, name)
            await process.until("recovered", *(["epoch_opened"] if name == "redis" else []))
            after = int(await _committed(agents, (other, "after")))
            await _until_flushed(agents, 0, after)
            process.send(signal.SIGTERM)
            assert await process.ended() == 0
    with psycopg.connect(own_settings.postgres_url) as psql:
        found = rows(psql, "SELECT value, gap FROM statecache.change WHERE key = %s ORDER BY version", other)
    assert found == ([(b"during", False)] if name == "postgres" else []) + [(b"after", False)]


async def test_a_database_that_is_restored_in_place_is_waited_for(own: Servers, own_settings: Settings) -> None:
    elsewhere = urlsplit(own_settings.postgres_url)._replace(path="/template1").geturl()
    with plain_client(own_settings.redis_url) as raw, psycopg.connect(elsewhere, autocommit=True) as psql:
        agents = Agents(own_settings, KeySpace("sc", 4), raw)
        async with ready(own_settings) as process:
            psql.execute("ALTER DATABASE postgres WITH ALLOW_CONNECTIONS false")
            psql.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = 'postgres'")
            psql.execute("ALTER DATABASE postgres RENAME TO away")
            while (await process.until("outage"))["reason"] != "schema":
                continue
            psql.execute("ALTER DATABASE away RENAME TO postgres")
            psql.execute("ALTER DATABASE postgres WITH ALLOW_CONNECTIONS true")
            n = int(await _committed(agents, (agents.key_on(1), "after")))
            await _until_flushed(agents, 1, n)
            process.send(signal.SIGTERM)
            assert await process.ended() == 0


async def _committed(agents: Agents, state: Any) -> str:
    """Commit as soon as the gate is open, and return n."""
    async with asyncio.timeout(WAIT_S):
        while (answer := agents.ask(state))[1] == b"FENCED":
            await asyncio.to_thread(agents.raw.xread, {agents.keys.changes(0): "$"}, block=50)
    assert answer[1] == b"OK", answer
    return str(answer[2].decode()).partition("-")[2]


async def test_told_to_stop_while_it_waits_for_a_server_it_goes_at_once(own: Servers, own_settings: Settings) -> None:
    own.stop("postgres")
    try:
        async with WorkerProcess(own_settings, drain_s=600) as process:
            await process.until("outage")
            process.send(signal.SIGTERM)
            assert (await process.until("stopped"))["left"] is None  # it never came to know
            assert await process.ended() == 1
    finally:
        await asyncio.to_thread(own.restart, "postgres")


async def test_drained_during_an_outage_it_tells_what_is_left(own: Servers, own_settings: Settings) -> None:
    with plain_client(own_settings.redis_url) as raw:
        agents = Agents(own_settings, KeySpace("sc", 4), raw)
        async with ready(own_settings, drain_s=1) as process:
            own.stop("postgres")
            try:
                await process.until("outage")
                agents.commit(agents.key_on(1))
                process.send(signal.SIGTERM)
                stopped = await process.until("stopped")
                assert stopped["left"] == 1
                assert stopped["given_back"] is False
                assert await process.ended() == 1
            finally:
                await asyncio.to_thread(own.restart, "postgres")

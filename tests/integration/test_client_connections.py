"""Connections that break, hang, or answer somebody else: nobody reads another's reply, and every wait has an end."""

from __future__ import annotations

import asyncio
import traceback
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    ConfigurationError,
    ForeignData,
    PostgresUnavailable,
    RedisUnavailable,
    Settings,
    State,
    Unavailable,
    UsageError,
)
from statecache.keys import KeySpace
from statecache.lua import script
from tests.fixtures.faults import through
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis, on_database
from tests.support.denying import SAYS, denying
from tests.support.fault_proxy import FaultProxy
from tests.support.unread_replies import leave_unread

pytestmark = pytest.mark.counts_seconds

GRACE_S = 1.5
"""What a call may take beyond its timeout on a machine that has other things to do."""


@pytest.fixture
def behind(make_client: MakeClient, settings: Settings, proxy: FaultProxy) -> AsyncStateCache:
    """A client with a single connection to Redis, which leads through the proxy."""
    return make_client(through(settings, redis=proxy).model_copy(update={"redis_connections_max": 1}))


@every_redis
async def test_a_cancelled_reader_leaves_no_reply_behind_for_the_next(
    settings: Settings, proxy: FaultProxy, cache: AsyncStateCache
) -> None:
    for name in ("first", "second"):
        await cache.set(f"runs/{name}", name)
    single = through(settings, redis=proxy).model_copy(update={"redis_connections_max": 1})
    async with AsyncStateCache(settings=single) as behind:
        await behind.get("runs/first")
        fault = proxy.arm("hold_reply", at=b"runs/first")
        reading = asyncio.create_task(behind.get("runs/first"))
        await fault.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        fault.release()
        assert (await behind.get("runs/second")).value == "second"  # type: ignore[union-attr]


@every_redis
async def test_a_reader_that_ran_out_of_time_leaves_no_reply_behind_for_the_next(
    behind: AsyncStateCache, proxy: FaultProxy, cache: AsyncStateCache
) -> None:
    for name in ("first", "second"):
        await cache.set(f"runs/{name}", name)
    await behind.get("runs/first")
    fault = proxy.arm("hold_reply", at=b"runs/first")
    with pytest.raises(RedisUnavailable) as caught:
        await behind.get("runs/first", timeout=0.05)
    assert caught.value.reason == "timeout"
    fault.release()
    assert (await behind.get("runs/second")).value == "second"  # type: ignore[union-attr]
    assert (await behind.set("runs/second", "again")).version == 2


async def test_a_cancelled_writer_leaves_no_reply_behind_for_the_next(settings: Settings, proxy: FaultProxy) -> None:
    single = through(settings, redis=proxy).model_copy(update={"redis_connections_max": 1})
    async with AsyncStateCache(settings=single) as behind:
        await behind.set("runs/first", 1)
        fault = proxy.arm("hold_reply", at=b"the-cancelled")
        writing = asyncio.create_task(behind.set("runs/first", 2, actor="the-cancelled"))
        await fault.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert (await behind.set("runs/second", 1)).key == "runs/second"
        assert (await behind.get("runs/first")).version == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("write", ["set", "transaction"])
async def test_a_reply_to_another_request_is_not_believed(
    cache: AsyncStateCache, settings: Settings, redis_raw: Any, write: str
) -> None:
    """Whatever made the connection slip by one reply, the commit sees that its answer is not its own."""
    await cache.set("runs/first", 1)
    single = settings.model_copy(update={"redis_connections_max": 1})
    async with AsyncStateCache(settings=single) as other:
        await other.set("runs/first", 2)
        await leave_unread(other)
        if write == "set":
            assert (await other.set("runs/second", 1)).version == 1
        else:
            async with other.transaction("runs/second") as tx:
                await leave_unread(other, tx._link)
                tx.set("runs/second", 1)
            assert tx.states["runs/second"].version == 1
        assert (await other.get("runs/second")).key == "runs/second"  # type: ignore[union-attr]


@every_redis
async def test_a_state_that_names_another_key_is_not_believed(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    await client.set("runs/first", 1)
    redis_raw.hset(keys.state("runs/first"), "key", "runs/second")
    with pytest.raises(ForeignData, match="runs/second"):
        await client.get("runs/first")
    with pytest.raises(ForeignData):
        await client.set("runs/first", 2)


async def test_a_command_is_sent_once_whatever_becomes_of_its_reply(
    settings: Settings, proxy: FaultProxy, redis_raw: Any
) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as behind:
        await behind.get("runs/first")
        proxy.arm("drop_reply", at=b"a-counter")
        with pytest.raises(RedisUnavailable):
            await behind._runtime.redis.exchange([("INCR", f"{settings.prefix}-a-counter")], seconds=1)
    assert redis_raw.getdel(f"{settings.prefix}-a-counter") == b"1"


@pytest.mark.own_servers("it makes the server forget its scripts")
async def test_what_a_pipeline_could_not_run_because_the_script_was_forgotten_is_run_again(
    settings: Settings, proxy: FaultProxy, redis_raw: Any, keys: KeySpace
) -> None:
    hydrating = keys.hydrating(0)
    redis_raw.hset(hydrating, mapping={f"runs/{number}": f"token-{number}|1|0" for number in range(4)})
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as behind:
        link = await behind._runtime.redis.link(1.0)
        fault = proxy.arm("hold_request", at=b"token-3")
        calls = [([hydrating], [f"token-{number}", f"runs/{number}"]) for number in range(4)]
        running = asyncio.create_task(link.scripts(script("hydrate_forget"), calls, seconds=5.0))
        await fault.wait()
        redis_raw.script_flush()
        fault.release()
        assert await running == [1, 1, 1, 1]
        await link.close()
    assert redis_raw.hkeys(hydrating) == [b"_"]


async def test_a_read_is_repeated_when_its_reply_is_lost(behind: AsyncStateCache, proxy: FaultProxy) -> None:
    await behind.set("runs/first", 1)
    fault = proxy.arm("drop_reply", at=script("fenced_read").text[:40].encode())
    assert (await behind.get("runs/first")).value == 1  # type: ignore[union-attr]
    assert fault.struck


@pytest.mark.own_servers("it ends the connections of others")
async def test_connections_that_the_server_has_closed_are_replaced(
    client: AsyncStateCache, redis_raw: Any, psql: psycopg.Connection[Any]
) -> None:
    assert await client.get("runs/first") is None
    redis_raw.client_kill_filter(_type="normal", skipme=True)
    psql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'statecache'")
    assert (await client.set("runs/first", 1)).version == 1
    redis_raw.client_kill_filter(_type="normal", skipme=True)
    assert await client.get("runs/second") is None


def _nowhere(settings: Settings, **urls: str) -> Settings:
    return settings.model_copy(update=urls)


async def test_a_url_that_leads_to_another_kind_of_server(make_client: MakeClient, settings: Settings) -> None:
    redis_at, postgres_at = (
        urlsplit(url).netloc.rpartition("@")[2] for url in (settings.redis_url, settings.postgres_url)
    )
    with pytest.raises(Unavailable):
        await make_client(_nowhere(settings, redis_url=f"redis://{postgres_at}")).get("runs/first", timeout=0.2)
    client = make_client(_nowhere(settings, postgres_url=f"postgresql://{redis_at}/x"))
    with pytest.raises(PostgresUnavailable, match=redis_at):
        await client.get("runs/first", timeout=2.0)


async def test_what_a_server_says_before_it_hangs_up_is_told(make_client: MakeClient, settings: Settings) -> None:
    with denying() as at, pytest.raises(RedisUnavailable, match=f"{at}.*{SAYS}"):
        await make_client(_nowhere(settings, redis_url=f"redis://{at}")).get("runs/first", timeout=0.5)


async def test_a_password_that_a_server_repeats_is_not_told(make_client: MakeClient, settings: Settings) -> None:
    """Redis repeats the words of a command that it does not know; AUTH may be renamed away, as any other."""
    with denying("ERR unknown command 'AUTH', with args beginning with: 'agent' 's3cr3t' ") as at:
        client = make_client(_nowhere(settings, redis_url=f"redis://agent:s3cr3t@{at}"))
        with pytest.raises(RedisUnavailable, match="unknown command 'AUTH'") as caught:
            await client.get("runs/first", timeout=0.5)
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


async def test_a_database_that_was_never_migrated(make_client: MakeClient, make_settings: MakeSettings) -> None:
    settings = make_settings(migrated=False)
    for call in ("get", "set"):
        client = make_client(settings)
        arguments = [1] if call == "set" else []
        with pytest.raises(ConfigurationError, match="statecache migrate"):
            await getattr(client, call)("runs/first", *arguments)


async def test_a_database_that_does_not_exist(make_client: MakeClient, settings: Settings) -> None:
    client = make_client(_nowhere(settings, postgres_url=on_database(settings.postgres_url, "elsewhere")))
    with pytest.raises(ConfigurationError, match="elsewhere"):
        await client.get("runs/first")


async def test_settings_that_differ_from_the_pin_are_refused_by_both_tiers(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    """Redis says so first; where nothing is pinned in it, or with another prefix nothing met, Postgres says so."""
    changes: list[dict[str, Any]] = [{"shards": count} for count in (1, 2, 3, 5, 8, 64)]
    changes.append({"postgres_schema": "another"})
    await cache.set("runs/first", 1)
    states = redis_raw.keys(f"{settings.prefix}:*:state:*")
    for change in changes:
        client = make_client(settings.model_copy(update=change))
        for call in (partial(client.get, "runs/first"), partial(client.create, "runs/new", 1, assume_new=True)):
            with pytest.raises(ConfigurationError, match=r"this Redis is pinned.*Use the same settings everywhere"):
                await call()
    for shard in range(settings.shards):
        redis_raw.unlink(keys.meta(shard))
    changes.append({"prefix": "another"})
    for change in changes:
        client = make_client(settings.model_copy(update=change))
        reason = "statecache migrate" if "postgres_schema" in change else "this schema is pinned.*Use the same settings"
        with pytest.raises(ConfigurationError, match=reason):
            await client.set("runs/second", 1)
    assert redis_raw.keys(f"{settings.prefix}:*:state:*") == states


@pytest.mark.parametrize(
    "what", ["what Redis holds", "what it lacks", "a blind write", "a write at postgres", "a list"]
)
async def test_two_tiers_of_two_deployments_are_not_mixed(
    what: str, make_client: MakeClient, settings: Settings, psql: psycopg.Connection[Any], cache: AsyncStateCache
) -> None:
    """The second deployment has the first one's names, on a Redis of its own: only the cluster's identity tells."""
    await cache.set("runs/first", 1)
    psql.execute("UPDATE cluster SET id = gen_random_uuid()")
    client = make_client(settings)
    calls: dict[str, Any] = {
        "what Redis holds": partial(client.get, "runs/first"),
        "what it lacks": partial(client.get, "runs/second"),
        "a blind write": partial(client.set, "runs/first", 2),
        "a write at postgres": partial(client.set, "runs/first", 2, durability="postgres"),
        "a list": partial(_listed, client),
    }
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="Redis belongs to cluster"):
            await calls[what]()
    found = await cache.get("runs/first", read="primary")
    assert found is not None
    assert found.value == 1


async def _listed(client: AsyncStateCache) -> list[State[Any]]:
    return [state async for state in client.list("runs/")]


async def test_a_redis_of_another_deployment_behind_the_same_address_is_refused(
    behind: AsyncStateCache, proxy: FaultProxy, settings: Settings, keys: KeySpace, redis_raw: Any
) -> None:
    await behind.set("runs/first", 1)
    identity = redis_raw.hget(keys.meta(0), "cluster")
    for shard in range(settings.shards):
        redis_raw.hset(keys.meta(shard), "cluster", "another")
    proxy.cut_all()
    with pytest.raises(ConfigurationError, match="Redis belongs to cluster another"):
        await behind.get("runs/first", read="primary")
    for shard in range(settings.shards):
        redis_raw.hset(keys.meta(shard), "cluster", identity)
    assert (await behind.set("runs/first", 2)).version == 2


async def test_redis_serves_who_has_never_reached_postgres(
    make_client: MakeClient, settings: Settings, postgres_proxy: FaultProxy, cache: AsyncStateCache
) -> None:
    await cache.set("runs/first", 1)
    postgres_proxy.freeze()
    client = make_client(through(settings, postgres=postgres_proxy).model_copy(update={"connect_timeout_s": 0.5}))
    with pytest.raises(Unavailable):
        await client.get("runs/first", read="primary", timeout=0.1)  # Postgres may still answer
    assert (await client.set("runs/first", 2)).version == 2
    asked = postgres_proxy.connections
    found = await client.get("runs/first")  # on another connection, for which nobody waits for Postgres any more
    assert found is not None
    assert found.version == 2
    assert postgres_proxy.connections == asked
    postgres_proxy.thaw()
    assert await client.get("runs/second") is None


async def test_a_schema_that_asks_for_newer_code_is_refused(
    make_client: MakeClient, settings: Settings, psql: psycopg.Connection[Any]
) -> None:
    psql.execute("UPDATE cluster SET min_code = 99")
    with pytest.raises(ConfigurationError, match="Upgrade statecache"):
        await make_client(settings).get("runs/first")


async def test_after_close_nothing_connects_again(client: AsyncStateCache, redis_raw: Any) -> None:
    state = await client.set("runs/first", 1)
    await client.close()
    for call in (client.wait_durable(state), client.set("runs/first", 2, durability="postgres"), client.get("runs/x")):
        with pytest.raises(UsageError, match="closed"):
            await call


async def test_a_caller_with_little_time_closes_its_own_connection_and_nobody_elses(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy
) -> None:
    client = make_client(through(settings, redis=proxy))
    await _many_at_once(client, proxy)
    standing = proxy.ports
    held = proxy.arm("hold_reply", at=b"runs/slow")
    with pytest.raises(Unavailable):
        await client.get("runs/slow", timeout=0.05)
    held.release()
    await _many_at_once(client, proxy)
    assert len(standing - proxy.ports) == 1


async def test_a_server_that_falls_silent_costs_one_wait_and_not_one_for_each_idle_connection(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy
) -> None:
    client = make_client(through(settings, redis=proxy))
    await _many_at_once(client, proxy)
    proxy.freeze(proxy.ports)
    assert await client.get("runs/0", timeout=2.0) is None
    proxy.thaw()


async def _many_at_once(client: AsyncStateCache, proxy: FaultProxy) -> None:
    """Read over as many connections as there are reads."""
    faults = {f"runs/{number}": proxy.arm("hold_reply", at=f"runs/{number}".encode()) for number in range(6)}
    reads = [asyncio.create_task(_get(client, key)) for key in faults]
    for fault in faults.values():
        await fault.wait()
    for fault in faults.values():
        fault.release()
    await asyncio.gather(*reads)


async def _get(client: AsyncStateCache, key: str) -> Any:
    return await client.get(key)

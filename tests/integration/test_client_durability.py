"""The four levels: given as promised, or refused with the reason where the server cannot; never degraded in silence."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    DurabilityNotMet,
    DurabilityRefused,
    Forked,
    OutcomeUnknown,
    Quarantined,
    Settings,
)
from statecache.keys import KeySpace
from statecache.testing import servers
from statecache.testing.embedded import Servers
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, flush, rows
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis, plain_client
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause
from tests.support.workers import at_work

pytestmark = pytest.mark.counts_seconds

KEY = "runs/42"
ACTOR = "the-unlucky"
WAIT_S = 20.0

Psql = psycopg.Connection[Any]


async def _as_coroutine(call: Any) -> Any:
    return await call


# Postgres.


@every_redis
async def test_a_durable_write_is_in_postgres_when_it_returns(
    client: AsyncStateCache, settings: Settings, psql: Psql
) -> None:
    async with at_work(settings):
        state = await client.set(KEY, 1, durability="postgres")
        assert rows(psql, "SELECT change_id FROM change") == [(state.change_id,)]
        async with client.transaction(KEY, f"{KEY}/plan", durability="postgres") as tx:
            tx.set(KEY, 2)
            tx.set(f"{KEY}/plan", 1)
        assert rows(psql, "SELECT count(*) FROM change") == [(3,)]
        runs = client.namespace("runs", durability="postgres")
        updated = await runs.update("42", lambda value: value + 1)
        deleted = await runs.delete("42")
        assert deleted is not None
        assert rows(psql, "SELECT version, op FROM change WHERE version > 2 ORDER BY version") == [
            (updated.version, "set"), (deleted.version, "delete"),
        ]  # fmt: skip
        later = await client.set(KEY, 3)
        assert await client.wait_durable(later) == later
        assert rows(psql, "SELECT version FROM state WHERE key = %s", KEY) == [(later.version,)]
        assert await client.wait_durable(state) == state


@every_redis
async def test_a_wait_that_is_too_short_does_not_read_as_failure(
    client: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    assert await client.get(KEY) is None
    with pytest.raises(OutcomeUnknown, match="applied in Redis, and not yet known to be in Postgres") as caught:
        await client.set(KEY, 1, durability="postgres", timeout=1.5)
    state = await client.get(KEY)
    assert state is not None
    assert state.change_id == caught.value.change_id
    with pytest.raises(OutcomeUnknown):
        await client.wait_durable(state, timeout=0.05)
    waiting = asyncio.create_task(_as_coroutine(client.wait_durable(state)))
    await flush(worker)
    assert await waiting == state
    assert await client.set(KEY, 1, durability="postgres", change_id=state.change_id) == state


@pytest.mark.own_servers("it counts all listeners")
async def test_many_wait_at_once_on_one_listener(client: AsyncStateCache, settings: Settings, redis_raw: Any) -> None:
    async with at_work(settings):
        await asyncio.gather(*(client.set(f"runs/{number}", 1, durability="postgres") for number in range(40)))
        listeners = [one for one in redis_raw.client_list(_type="pubsub") if int(one.get("ssub", 1))]
        assert len(listeners) <= 2


@pytest.mark.own_servers("it ends the connections of others")
async def test_a_waiter_whose_listener_is_killed_looks_for_itself(
    client: AsyncStateCache, worker: Worker, redis_raw: Any
) -> None:
    state = await client.set(KEY, 1)
    waiting = asyncio.create_task(_as_coroutine(client.wait_durable(state)))
    async with asyncio.timeout(WAIT_S):
        while not redis_raw.client_kill_filter(_type="pubsub"):
            await pause()
    await flush(worker)
    assert await waiting == state


async def test_a_waiter_survives_an_outage_of_redis(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    client = make_client(through(settings, redis=proxy))
    state = await client.set(KEY, 1)
    waiting = asyncio.create_task(_as_coroutine(client.wait_durable(state, timeout=20)))
    async with asyncio.timeout(WAIT_S):
        while not _listeners(redis_raw, keys):
            await pause()
    proxy.refusing = True
    proxy.cut_all()
    await flush(worker)
    assert await waiting == state


def _listeners(redis_raw: Any, keys: KeySpace) -> int:
    """Return how many clients listen to the events of KEY's shard, as the server counts them."""
    _, count = redis_raw.execute_command("PUBSUB", "SHARDNUMSUB", keys.events(keys.shard(KEY)))
    return int(count)


async def test_a_broken_vow_of_newness_is_told_to_who_waits(
    client: AsyncStateCache, settings: Settings, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    truth = await client.set(KEY, "the truth")
    await flush(worker)
    redis_raw.unlink(keys.state(KEY))
    fork = await client.create(KEY, "another", assume_new=True)
    waiting = asyncio.create_task(_as_coroutine(client.wait_durable(fork)))
    await flush(worker)
    with pytest.raises(Forked, match=f"'{KEY}'") as caught:
        await waiting
    assert caught.value.change_id == fork.change_id
    with pytest.raises(Forked):
        await client.wait_durable(fork)
    assert await client.get(KEY) == truth
    assert rows(psql, "SELECT change_id FROM conflict") == [(fork.change_id,)]
    again = await client.set(KEY, "goes on")
    await flush(worker)
    assert await client.wait_durable(again) == again


async def test_a_quarantined_change_is_told_to_who_waits(
    client: AsyncStateCache, agents: Agents, worker: Worker, psql: Psql
) -> None:
    agents.commit(KEY, actor="a\0b")
    state = await client.get(KEY)
    assert state is not None
    await flush(worker)
    assert rows(psql, "SELECT change_id FROM quarantine") == [(state.change_id,)]
    with pytest.raises(Quarantined, match=f"'{KEY}'"):
        await client.wait_durable(state)


async def test_watermarks_are_compared_as_numbers(
    client: AsyncStateCache, agents: Agents, worker: Worker, psql: Psql
) -> None:
    """Of texts, "10" would be the lower: the tenth change would never be durable, and its fault never be told."""
    for number in range(1, 9):
        await client.set(KEY, number)
    await flush(worker)
    for _ in (9, 10):
        agents.commit(KEY, actor="a\0b")
        parked = await client.get(KEY)
        await flush(worker)
        assert parked is not None
        with pytest.raises(Quarantined):
            await client.wait_durable(parked, timeout=2)
    assert rows(psql, "SELECT n FROM quarantine ORDER BY n") == [(9,), (10,)]
    for number in (11, 12):
        state = await client.set(KEY, number)
        await flush(worker)
        assert await client.wait_durable(state, timeout=2) == state


async def test_a_commit_that_was_lost_with_its_redis_is_applied_again(make_client: MakeClient) -> None:
    """Postgres did not have it yet; others have written since; the writer who still waits writes it once more."""
    with servers(workers=0, fsync=False, settings={"shards": "1"}) as mortal:
        settings = Settings(redis_url=mortal.redis_url, postgres_url=mortal.postgres_url, shards=1, timeout_s=30.0)
        client = make_client(settings)
        async with at_work(settings):
            await client.set("runs/first", 1, durability="postgres")
        writing = asyncio.create_task(_as_coroutine(client.set(KEY, "precious", durability="postgres")))
        with plain_client(mortal.redis_url) as raw, psycopg.connect(mortal.postgres_url) as connection:
            async with asyncio.timeout(WAIT_S):
                while not raw.exists(KeySpace(shards=1).state(KEY)):
                    await pause()
            raw.flushall()
            async with at_work(settings, flushed_from=[raw.info("replication")["master_replid"]]):
                for number in range(3):
                    await client.set(f"runs/{number}", number, durability="postgres")
                state = await writing
                for many in range(6):  # more than are kept one by one
                    await client.set_many({f"more/{many}-{n}": n for n in range(200)}, durability="postgres")
                assert (await client.close(drain=WAIT_S)).nothing
            found = connection.execute(
                "SELECT version, change_id FROM statecache.change WHERE key = %s", (KEY,)
            ).fetchall()
        assert found == [(1, state.change_id)]
        assert state.epoch > 1


# Replica and disk.


@pytest.mark.parametrize("level", ["replica", "disk"])
async def test_a_level_that_can_be_given_is_given(make_client: MakeClient, paired: Settings, level: Any) -> None:
    client = make_client(paired)
    assert (await client.set(KEY, 1, durability=level)).version == 1
    async with client.transaction(KEY, durability=level) as tx:
        tx.set(KEY, 2)
    assert tx.states[KEY].version == 2


async def test_a_replica_that_does_not_acknowledge_is_told_and_the_change_is_applied(
    make_client: MakeClient, paired: Settings, pair: Servers
) -> None:
    client = make_client(paired)
    await client.set(KEY, 1, durability="replica")
    pair.pause("replica-1")
    try:
        with pytest.raises(DurabilityNotMet, match="0 of 1 copies") as caught:
            await client.set(KEY, 2, durability="replica", timeout=2.0)
        assert (caught.value.applied, caught.value.level) == (True, "replica")
        with pytest.raises(DurabilityNotMet):
            async with client.transaction(KEY, durability="replica", timeout=2.0) as tx:
                tx.set(KEY, 3)
    finally:
        pair.resume("replica-1")
    state = await client.get(KEY)
    assert state is not None
    assert (state.value, state.version) == (3, 3)


async def test_a_repeat_waits_for_the_replica_too(
    make_client: MakeClient, make_settings: MakeSettings, pair: Servers, paired: Settings
) -> None:
    """The first try was applied, its reply lost; the second finds that, and a WAIT for nothing is no WAIT."""
    host, _, port = paired.redis_url.rpartition("@")[2].partition("/")[0].partition(":")
    async with FaultProxy(host, int(port)) as proxy:
        client = make_client(through(paired, redis=proxy))
        await client.set(KEY, 1, durability="replica")
        pair.pause("replica-1")
        try:
            fault = proxy.arm("drop_reply", at=ACTOR.encode())
            with pytest.raises(DurabilityNotMet):
                await client.set(KEY, 2, durability="replica", actor=ACTOR, timeout=2.0)
            assert fault.struck
        finally:
            pair.resume("replica-1")
        state = await client.get(KEY)
        assert state is not None
        assert state.version == 2


@pytest.mark.parametrize(
    ("config", "level", "reason"),
    [
        ({"appendfsync": "no"}, "disk", "never syncs"),
        ({"appendonly": "no"}, "disk", "no append-only file"),
        ({"appendonly": "no"}, "replica", "keeps nothing over a restart"),
    ],
)
async def test_a_level_that_the_server_cannot_give_is_refused_with_the_reason(
    make_client: MakeClient, paired: Settings, pair_raw: Any, config: dict[str, str], level: Any, reason: str
) -> None:
    kept = {name: pair_raw.config_get(name)[name] for name in config}
    for name, value in config.items():
        pair_raw.config_set(name, value)
    client = make_client(paired)
    try:
        with pytest.raises(DurabilityRefused, match=reason) as caught:
            await client.set(KEY, 1, durability=level)
        assert caught.value.level == level
        with pytest.raises(DurabilityRefused, match=reason):
            async with client.transaction(KEY, durability=level):
                pytest.fail("refused too late")
        assert await client.get(KEY) is None
    finally:
        for name, value in kept.items():
            pair_raw.config_set(name, value)


@pytest.mark.parametrize(
    ("denied", "fence", "level", "reason"),
    [
        ("config", "on", "disk", "CONFIG GET appendfsync is refused"),
        ("info", "off", "disk", "INFO is refused"),
        ("info", "off", "replica", "INFO is refused"),
        ("wait", "on", "replica", "may not run WAIT"),
        ("waitaof", "on", "disk", "may not run WAITAOF"),
    ],
)
async def test_what_may_not_be_asked_of_the_server_is_not_assumed(
    make_client: MakeClient, paired: Settings, pair_raw: Any, denied: str, fence: str, level: Any, reason: str
) -> None:
    name = paired.prefix
    pair_raw.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", "~*", "&*", "+@all", f"-{denied}")
    where = paired.redis_url.rpartition("@")[2]
    asking = paired.model_copy(update={"redis_url": f"redis://{name}:secret@{where}", "fence": fence})
    try:
        with pytest.raises(DurabilityRefused, match=reason):
            await make_client(asking).set(KEY, 1, durability=level)
        assert await make_client(paired).get(KEY) is None
    finally:
        pair_raw.acl_deluser(name)


async def test_what_needs_no_asking_about_the_server_is_given_without_the_right_to_ask(
    make_client: MakeClient, paired: Settings, pair_raw: Any
) -> None:
    """That a command is there is seen by running it."""
    name = paired.prefix
    pair_raw.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", "~*", "&*", "+@all", "-command")
    where = paired.redis_url.rpartition("@")[2]
    asking = paired.model_copy(update={"redis_url": f"redis://{name}:secret@{where}"})
    try:
        assert (await make_client(asking).set(KEY, 1, durability="disk")).version == 1
    finally:
        pair_raw.acl_deluser(name)


async def test_a_level_that_was_refused_is_given_as_soon_as_the_server_can(
    make_client: MakeClient, paired: Settings, pair_raw: Any
) -> None:
    client = make_client(paired)
    pair_raw.config_set("appendfsync", "no")
    try:
        with pytest.raises(DurabilityRefused):
            await client.set(KEY, 1, durability="disk")
    finally:
        pair_raw.config_set("appendfsync", "everysec")
    assert (await client.set(KEY, 1, durability="disk")).version == 1


@pytest.mark.parametrize("config", [{"appendfsync": "no"}, {"appendonly": "no"}])
async def test_a_disk_that_ceases_to_be_synced_is_told_and_the_change_is_applied(
    make_client: MakeClient, paired: Settings, pair_raw: Any, config: dict[str, str]
) -> None:
    """The level was given a moment ago, so it is not asked for again before the commit."""
    client = make_client(paired)
    await client.set(KEY, 1, durability="disk")
    kept = {name: pair_raw.config_get(name)[name] for name in config}
    for name, value in config.items():
        pair_raw.config_set(name, value)
    try:
        with pytest.raises(DurabilityNotMet, match="0 of 1 copies") as caught:
            await client.set(KEY, 2, durability="disk", timeout=2.0)
        assert "append" in caught.value.reason.lower()
        with pytest.raises(DurabilityNotMet):
            async with client.transaction(KEY, durability="disk", timeout=2.0) as tx:
                tx.set(KEY, 3)
    finally:
        for name, value in kept.items():
            pair_raw.config_set(name, value)
    assert (caught.value.applied, caught.value.level) == (True, "disk")
    assert (await client.get(KEY)).version == 3  # type: ignore[union-attr]


@every_redis
async def test_without_a_replica_or_without_waitaof_the_level_is_refused(
    client: AsyncStateCache, redis_raw: Any
) -> None:
    with pytest.raises(DurabilityRefused, match="0 replicas are connected and 1 must acknowledge"):
        await client.set(KEY, 1, durability="replica")
    if not redis_raw.command_list(pattern="waitaof"):
        with pytest.raises(DurabilityRefused, match="WAITAOF"):
            await client.set(KEY, 1, durability="disk")

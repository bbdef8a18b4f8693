"""Agents and workers at work under the rights of config/users.acl and config/roles.sql, and under no others.

The servers are those of a deployment, with its files. What each user is granted is compared with what it then runs, by
the server's own count: nothing is refused that is needed, and nothing is granted that is not.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    ConfigurationError,
    OutcomeUnknown,
    State,
    StateCache,
    StateCacheError,
    Unavailable,
)
from statecache.clock import monotonic
from statecache.core.postgres.vector_indexes import create, drop, indexes
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, flush, flush_through, flushing, turn_until
from tests.support.deployment_files import grants
from tests.support.deployment_world import SHARDS, Deployment, Ran, agent, at_work, denied, granted
from tests.support.polling import pause


@contextmanager
def followed(deployment: Deployment, raw: Any) -> Iterator[None]:
    """Give the server a replica that has everything, during the block."""
    follower = deployment.redis.follower("replica")
    follower.start()
    try:
        assert raw.wait(1, 20_000) == 1
        yield
    finally:
        follower.discard()


def set_aside(deployment: Deployment, raw: Any, name: str) -> Path:
    """Copy what Redis holds, once all of it has reached the disk; return the copy."""
    server = deployment.redis
    raw.config_set("appendfsync", "always")
    raw.set("on-disk", name)
    shutil.copytree(server.folder / server.name, server.folder / name)
    raw.config_set("appendfsync", "everysec")
    return server.folder / name


def rewound(deployment: Deployment, kept: Path) -> None:
    """Kill Redis, and start it again with the data of the copy."""
    server = deployment.redis
    server.kill()
    shutil.rmtree(server.folder / server.name)
    kept.rename(server.folder / server.name)
    server.start()


async def _in_turn(client: AsyncStateCache) -> None:
    """Let one task wait until another passes the lock on to it."""
    holds, waits = asyncio.Event(), client._runtime.leases

    async def second() -> None:
        await holds.wait()
        async with client.lock("runs/1"):
            pass

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(second())
        async with client.lock("runs/1", ttl=5) as lease:
            await lease.update("runs/1", lambda value: value)
            holds.set()
            async with asyncio.timeout(60):
                while not waits.waiting:
                    await pause()


async def _called(client: AsyncStateCache, raw: Any) -> None:
    """Let an update wait for the turn until it is called."""
    queues, end = client._runtime.shared_queues, monotonic() + 60
    queues.crowd("runs/1")
    async with queues.of("runs/1", end=end) as turn:
        assert await turn.comes()
        update = asyncio.create_task(client.update("runs/1", lambda value: value))
        async with asyncio.timeout(20):
            while raw.info("clients")["blocked_clients"] == 0:
                await pause()
    await update


async def _verbs(client: AsyncStateCache, raw: Any) -> State[Any]:
    state = await client.set("runs/1", 1, change_id="a" * 24)
    assert await client.set("runs/1", 1, change_id="a" * 24) == state, "a repeat is answered as the first was"
    await client.create("runs/2", {"a": 1})
    await client.create("runs/new", 1, assume_new=True)
    await client.update("runs/1", lambda value: value + 1)
    assert (await client.set("runs/1", 1, change_id="a" * 24)).version == 1, "one that is not the newest"
    async with client.transaction("runs/1", "runs/1/plan") as tx:
        tx.set("runs/1/plan", (await tx.get("runs/1")).value)  # type: ignore[union-attr]
    async with client.transaction("runs/1") as tx:
        await tx.get("runs/1")
    await _in_turn(client)
    await _called(client, raw)
    assert await client.warm(["runs/1"]) == 1
    with suppress(ZeroDivisionError):
        async with client.transaction("runs/1"):
            raise ZeroDivisionError
    await client.delete("runs/2")
    assert [one.key async for one in client.list("runs/")] == ["runs/1", "runs/1/plan", "runs/new"]
    got = await client.get("runs/1")
    assert got is not None
    return got


async def _levels(deployment: Deployment, client: AsyncStateCache, raw: Any, ran: Ran) -> None:
    """Ask for every level: `disk` where the server gives it, `postgres` while nobody flushes."""
    with followed(deployment, raw), ran.noting(raw):
        await client.set("runs/levels", 1)  # its first replica has changed the server's replid
        assert (await client.set("runs/levels", 2, durability="replica")).version == 2
        if "waitaof" in granted(deployment, "agent"):
            assert (await client.set("runs/levels", 3, durability="disk")).version == 3
        with pytest.raises(OutcomeUnknown):
            await client.set("runs/levels", 4, durability="postgres", timeout=2)


async def _races_for(key: str, deployment: Deployment, raw: Any, ran: Ran, keys: Any) -> None:
    """Let readers load one state at once until one of them comes just after another has loaded it."""
    async with agent(deployment) as one, agent(deployment) as other:
        for _ in range(50):
            raw.unlink(keys.state(key))
            with ran.noting(raw):
                found = await asyncio.gather(*(client.get(key) for client in (one, other) for _ in range(8)))
            assert len({state.change_id for state in found if state is not None}) == 1
            if "hexists" in ran.commands:
                return


async def _opens_after_a_loss(deployment: Deployment, client: AsyncStateCache, raw: Any, ran: Ran) -> None:
    """Let Redis come back without a durable change: the agent opens the gate and drops what is stale."""
    await client.set("runs/lost", 1)
    async with at_work(deployment) as worker:
        await flush(worker)
        kept = set_aside(deployment, raw, "kept")
        durable = await client.set("runs/lost", 2)
        await flush(worker)
    rewound(deployment, kept)
    with ran.noting(raw):
        assert (await client.set("runs/lost", 3)).parent_change_id == durable.change_id
    raw.delete(deployment_meta := worker.keys.meta(worker.keys.shard("runs/lost")))
    with ran.noting(raw), pytest.raises(Unavailable, match="no data set of ours"):
        await client.set("runs/lost", 4, timeout=1.5)
    (server,) = deployment.sql("SELECT DISTINCT replid FROM shard")[0]
    async with at_work(deployment) as worker:
        worker.gatekeeper.agreed(server)  # as one that has flushed from it before
        await flush_through(worker)
    assert raw.exists(deployment_meta)
    assert (await client.get("runs/lost")).value == 3  # type: ignore[union-attr]


async def test_agents_run_everything_that_they_are_granted_and_need_no_more(deployment: Deployment, raw: Any) -> None:
    ran = Ran()
    async with agent(deployment) as client:
        with ran.noting(raw):
            state = await _verbs(client, raw)
        with StateCache(settings=client.settings) as sync_client:
            assert await asyncio.to_thread(sync_client.get, "runs/1") == state
        await _levels(deployment, client, raw, ran)
        async with at_work(deployment) as worker:
            durable = asyncio.create_task(client.set("runs/1", "kept", durability="postgres"))
            while not durable.done():
                await flush_through(worker)
                await pause()
            assert (await client.wait_durable(await durable)).value == "kept"
            raw.unlink(worker.keys.state("runs/1"))
            with ran.noting(raw):
                assert (await client.get("runs/1")).value == "kept"  # type: ignore[union-attr]
        await _races_for("runs/1", deployment, raw, ran, worker.keys)
        await _opens_after_a_loss(deployment, client, raw, ran)
    given = granted(deployment, "agent")
    assert given - ran.commands == set()
    assert denied(raw, "agent") == []


async def test_a_worker_may_delete_what_has_ended(deployment: Deployment, raw: Any) -> None:
    async with agent(deployment) as client, at_work(deployment) as worker:
        await client.set("runs/ends", 1, ttl=0.001)
        async with asyncio.timeout(60):
            while not worker.expiry.deleted:
                await flush_through(worker)
                await pause()
        assert await client.get("runs/ends", read="primary") is None
        assert (await client.create("runs/ends", 2)).version == 3
    assert denied(raw, "worker") == []


async def test_whoever_holds_a_row_is_told_although_a_worker_may_not_see_what_it_does(
    deployment: Deployment, log: Log
) -> None:
    """Its age was formatted, which Postgres does not tell: the worker's turn ended with a TypeError."""
    stranger = psycopg.connect(deployment.postgres.url.rpartition("/")[0] + "/statecache")
    async with at_work(deployment, lease_s=0.3, lease_renew_s=0.05) as worker:
        await flush(worker)
        with stranger:
            stranger.execute("SELECT FROM statecache.shard WHERE shard = 2 FOR UPDATE")
            await turn_until(worker, log, "row_held")
            assert "of which this role may see no more" in log.of("row_held")[0]["reason"]
        await flush_through(worker)


async def test_an_operator_erases_with_a_workers_rights_and_agents_may_not(deployment: Deployment, raw: Any) -> None:
    async with agent(deployment) as client, at_work(deployment) as worker:
        await client.set("visitors/ada", "Ada")
        with pytest.raises(ConfigurationError, match="erase_history"):
            await client.erase("visitors/ada")
        async with (
            AsyncStateCache(settings=deployment.settings_of("worker", shards=SHARDS)) as operator,
            flushing(worker),
        ):
            proof = await operator.erase("visitors/ada", timeout=30)
        assert {one.place: one.rows for one in proof.places}["change"] == 1
        assert await client.get("visitors/ada", read="primary") is None
    assert deployment.sql("SELECT value FROM change WHERE key = 'visitors/ada' AND version = 1") == [(None,)]


async def test_the_owner_indexes_vectors_a_worker_keeps_them_and_agents_search(
    deployment: Deployment, raw: Any
) -> None:
    owner = deployment.settings_of("migrate", shards=SHARDS)
    async with agent(deployment) as client, agent(deployment) as another, at_work(deployment) as worker:
        await client.set("notes/ada", {"vectors": [1.0, 0.0]})
        await flush(worker)
        for settings in (client.settings, owner):
            with pytest.raises(ConfigurationError, match=r"permission denied.*CREATE EXTENSION vector"):
                await create(settings, "notes", member="vectors", dims=2)
        deployment.sql("CREATE SCHEMA ext; CREATE EXTENSION vector SCHEMA ext")
        with pytest.raises(ConfigurationError, match="GRANT USAGE ON SCHEMA ext TO statecache_migrate"):
            await create(owner, "notes", member="vectors", dims=2)
        deployment.sql("GRANT USAGE ON SCHEMA ext TO statecache_migrate")
        with pytest.raises(ConfigurationError, match="permission denied"):
            await create(client.settings, "notes", member="vectors", dims=2)
        url = deployment.postgres.url.rpartition("/")[0] + "/statecache"
        superuser = owner.model_copy(update={"postgres_url": url})
        assert await create(superuser, "notes", member="vectors", dims=2) == 1
        async with flushing(worker), asyncio.timeout(30):
            while (await indexes(client.settings))[0].waiting:
                await pause()
            assert [state.key for state, _ in await client.nearest([1.0, 0.5], "notes/")] == ["notes/ada"]
        assert worker.janitor.vectors.indexed == 1
        deployment.sql("REVOKE USAGE ON SCHEMA ext FROM statecache_migrate")
        with pytest.raises(ConfigurationError, match=r"permission denied for schema ext\. Grant the schema's owner"):
            await another.nearest([1.0, 0.5], "notes/")
        assert await drop(owner, "notes")
    deployment.sql("DROP EXTENSION vector; DROP SCHEMA ext")


async def test_an_agent_that_lacks_any_of_them_is_refused_something(deployment: Deployment, raw: Any) -> None:
    given = granted(deployment, "agent")
    assert set(grants()["agent"]) - given == ({"waitaof"} if "waitaof" not in given else set())
    password = deployment.passwords["REDIS_AGENT_PASSWORD"]
    lesser = deployment.redis.url_of("agent").replace("//agent:", "//lesser:")
    settings = deployment.settings_of("agent", shards=SHARDS).model_copy(update={"redis_url": lesser})
    let_in = set()
    with followed(deployment, raw):
        async with agent(deployment) as client:
            await client.set("runs/1", 1)  # its first replica has changed the server's replid
        for command in sorted(given):
            rules = [f"+{one}" for one in given - {command}]
            raw.execute_command("ACL", "SETUSER", "lesser", "reset", "on", f">{password}", "~sc:{*", "&sc:{*", *rules)
            raw.acl_log_reset()
            async with AsyncStateCache(settings=settings) as client:
                refused = await _refused(client) or await _uncalled(client, raw)
            if not refused or "spublish" in refused or "blmpop" in refused:
                let_in.add(command)
            assert command.partition("|")[0] in refused or command in denied(raw, "lesser"), command
    raw.acl_deluser("lesser")
    assert let_in == given & {
        "blmpop", "rpush", "spublish", "ssubscribe", "wait", "waitaof", "config|get", "client|tracking",
        "client|caching",
    }  # fmt: skip


async def _refused(client: AsyncStateCache) -> str:
    """Ask for every level and a lock; return why the client was not let in, or not let lock."""
    try:
        await client.get("runs/1")
    except StateCacheError as error:
        return str(error).lower()
    for level in ("replica", "disk", "postgres"):
        with suppress(StateCacheError):
            await client.set("runs/1", 1, durability=level, timeout=1)
    with suppress(StateCacheError):
        await client.warm(["runs/1"], timeout=30)
    try:
        async with client.lock("runs/1", timeout=0):
            return ""
    except StateCacheError as error:
        return str(error).lower()


async def _uncalled(client: AsyncStateCache, raw: Any) -> str:
    """Update a state that others want too; return the rights lacking if it was done without waiting for its turn."""
    client._runtime.shared_queues.crowd("runs/1")
    turn, _, _ = client._runtime.keys.turn("runs/1")
    raw.delete(turn)
    await client.update("runs/1", lambda value: value, default=1)
    return "" if raw.exists(turn) else "rpush or blmpop"


async def _trouble(deployment: Deployment, client: AsyncStateCache, raw: Any, worker: Worker) -> str:
    """Leave a worker everything that it can meet: a gap, data that Postgres refuses, a fork, a foreign entry."""
    keys = worker.keys
    with deployment.raw("agent") as commits:
        agents = Agents(worker.settings, keys, commits)
        gap, poison, fork, stray = (agents.key_on(shard, "trouble") for shard in range(SHARDS))
        await client.set(fork, 1)
        await flush(worker)
        agents.commit((gap, "1"), (f"{gap}/b", "2"))
        raw.xtrim(keys.changes(keys.shard(gap)), maxlen=0)
        raw.zremrangebyscore(keys.unflushed(keys.shard(gap)), 1, "+inf")
        agents.commit((poison, "1"), reason="a\0b")
        raw.unlink(keys.state(fork))
        await client.create(fork, 2, assume_new=True)
        raw.xadd(keys.changes(keys.shard(stray)), {"not": "ours"})
        assert agents.ask(stray)[1] == b"FOREIGN"
    return stray


async def test_workers_run_everything_that_they_are_granted_beside_what_all_are_asked_for(
    deployment: Deployment, raw: Any, log: Log
) -> None:
    ran = Ran()
    count = "SELECT (SELECT count(*) FROM conflict), (SELECT count(*) FROM quarantine)"
    async with agent(deployment) as client, at_work(deployment) as worker:
        await client.set("runs/1", 1)
        await flush_through(worker)
        ((conflicts, parked),) = deployment.sql(count)
        stray = await _trouble(deployment, client, raw, worker)
        raw.acl_log_reset()
        with ran.noting(raw):
            await turn_until(worker, log, "expelled")
            await flush(worker)
            assert (await client.set(stray, 1)).version == 1
            await flush(worker)
        assert deployment.sql(count) == [(conflicts + 1, parked + 2)]
        assert [line["repaired"] for line in log.of("gap")] == [1]
    async with at_work(deployment) as another:
        with ran.noting(raw):
            await flush(another)
    given = granted(deployment, "worker")
    assert given == set(grants()["worker"])
    assert given - ran.commands - set(grants()["agent"]) == set()
    assert denied(raw, "worker") == []


async def test_a_restart_loses_nothing_whatever_the_default_user_may_not_do(deployment: Deployment, raw: Any) -> None:
    async with agent(deployment) as client:
        written = [await client.set(f"runs/{number}", number) for number in range(20)]
        before = {state.key: raw.hgetall(client_key(state.key)) for state in written}
        deployment.redis.restart()
        assert {key: raw.hgetall(client_key(key)) for key in before} == before
        for state in written:
            await client.delete(f"{state.key}/never-there")  # who writes opens the gates
        assert [await client.get(state.key) for state in written] == written
    assert "CRITICAL" not in (deployment.folder / "redis.log").read_text()


def client_key(key: str) -> str:
    """Return the Redis key of a state of this module's deployments."""
    return KeySpace(shards=SHARDS).state(key)


def test_a_branch_that_comes_back_is_set_aside_by_an_operator_with_a_workers_rights(
    deployment: Deployment, raw: Any
) -> None:
    with StateCache(settings=deployment.settings_of("agent", shards=SHARDS, reservation_s=0.2)) as client:
        client.set("runs/branch", "common")
        before = set_aside(deployment, raw, "before")
        client.set("runs/branch", "of the branch")
        branch = set_aside(deployment, raw, "branch")
        rewound(deployment, before)
        client.set("runs/branch", "of the lineage")
        rewound(deployment, branch)
        with pytest.raises((Unavailable, OutcomeUnknown), match="operator's word"):
            client.set("runs/branch", "on the branch", timeout=30)
        servers = [word for row in deployment.sql("SELECT DISTINCT replid FROM shard") for word in ("--from", *row)]
        adopt = ("epoch", "adopt", "all", *servers)
        done = deployment.try_to_run("workers", *adopt, STATECACHE_SHARDS=str(SHARDS))
        assert done.returncode == 0, done.stderr
        kept = deployment.sql("SELECT value FROM conflict WHERE key = 'runs/branch'")
        assert kept == [(b'"of the branch"',)]

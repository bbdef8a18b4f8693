"""A policy that others must keep belongs to the namespace: recorded once, kept by all, changed by an explicit word."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from statecache import AsyncStateCache, LockHeld, PostgresUnavailable, Settings, Unavailable, UsageError
from statecache.keys import KeySpace
from statecache_workers import policies
from tests.fixtures.faults import through
from tests.fixtures.flusher import Log, flush, rows
from tests.fixtures.servers import MakeClient, on_database
from tests.support.fault_proxy import FaultProxy
from tests.support.workers import at_work

if TYPE_CHECKING:
    from statecache.model import Locking
    from statecache_workers.worker import Worker

KEY = "runs/42"
Psql = psycopg.Connection[Any]


async def test_nobody_writes_past_a_holder_once_the_namespace_says_so(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings
) -> None:
    other = make_client(settings)
    views = [client, other, other.namespace("runs"), client.namespace("runs", encoding="msgpack")]
    await client.set(f"{KEY}/plan", 0)
    async with client.namespace("runs", locking="enforced").lock("42") as lease:
        for view in views:
            name = "42/plan" if view not in (client, other) else f"{KEY}/plan"
            calls = [
                view.set(name, 1),
                view.update(name, lambda plan: 1),
                view.delete(name),
                view.create(f"{name}/more", 1),
                view.step(name.removesuffix("/plan"), "charge", lambda step: 1),
            ]
            for call in calls:
                with pytest.raises(LockHeld, match=r"runs/42"):
                    await call
            with pytest.raises(LockHeld):
                async with view.transaction(name) as tx:
                    tx.set(name, 1)
        await lease.set("42/plan", 2)
        await other.set("users/a", 1)
    for at, view in enumerate(views):
        await view.set("42/plan" if view not in (client, other) else f"{KEY}/plan", at)


async def test_it_is_recorded_once_in_postgres_and_in_every_shard(
    cache: AsyncStateCache, redis_raw: Any, keys: KeySpace, psql: Psql, settings: Settings
) -> None:
    for _ in range(2):
        await cache.namespace("runs", locking="enforced").set("42", 1)
    async with AsyncStateCache(settings=settings) as other:
        await other.namespace("users", locking="enforced").set("a", 1)
        await other.namespace("runs", locking="enforced").set("42", 1)
    found = rows(psql, "SELECT name, locking, revision, changed_by FROM namespace ORDER BY name")
    assert found == [("runs", "enforced", 1, settings.writer), ("users", "enforced", 2, settings.writer)]
    for shard in range(keys.shards):
        assert redis_raw.hget(keys.meta(shard), "enforced") == b"2 runs users "


async def test_a_lock_alone_records_it_in_every_shard(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings
) -> None:
    async with client.namespace("runs", locking="enforced").lock("7"):
        with pytest.raises(LockHeld):
            await make_client(settings).set("runs/7", 1)


async def test_a_lock_records_it_again_where_both_tiers_have_forgotten_it(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, redis_raw: Any, psql: Psql
) -> None:
    """As where Postgres was restored to before it, and Redis came back empty: the view was made long before."""
    view = client.namespace("runs", locking="enforced")
    async with at_work(settings):
        async with view.lock("7"):
            pass
        await client.set("users/a", 1, durability="postgres")  # so that the worker has flushed from this server
        psql.execute("DELETE FROM namespace")
        redis_raw.delete(*redis_raw.keys(f"{settings.prefix}:*"))
        await make_client(settings).set("runs/7", 1, timeout=30)
        async with view.lock("7"):
            with pytest.raises(LockHeld):
                await make_client(settings).set("runs/7", 2)


async def test_nothing_is_recorded_by_way_of_another_database_of_the_server(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, psql: Psql
) -> None:
    await client.set(KEY, 1)
    another = settings.model_copy(update={"redis_url": on_database(settings.redis_url, 1)})
    view = make_client(another).namespace("runs", locking="enforced")
    with pytest.raises(Unavailable, match="another database number"):
        await view.set("42", 2, timeout=2)
    with pytest.raises(Unavailable, match="another database number"):
        await make_client(another)._runtime.policies.record("runs", "enforced", seconds=2.0)
    assert rows(psql, "SELECT name FROM namespace") == []


async def test_it_is_changed_back_by_a_word_and_all_who_knew_it_hear_of_it(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, cache: AsyncStateCache
) -> None:
    other = make_client(settings)
    async with client.namespace("runs", locking="enforced").lock("42"):
        with pytest.raises(LockHeld):
            await other.set(KEY, 1)
        await cache._runtime.policies.record("runs", "advisory", seconds=10.0)
        await other.set(KEY, 2)
        await client.namespace("runs").set("42", 3)
        await cache._runtime.policies.record("runs", "enforced", seconds=10.0)
        with pytest.raises(LockHeld):
            await other.set(KEY, 4)


async def test_a_view_that_says_advisory_of_an_enforced_namespace_is_told_so(client: AsyncStateCache) -> None:
    await client.namespace("runs", locking="enforced").set("42", 1)
    lenient = client.namespace("runs", locking="advisory")
    with pytest.raises(UsageError, match="the locks of the namespace 'runs' are enforced"):
        await lenient.set("42", 2)
    with pytest.raises(UsageError, match="enforced"):
        async with lenient.transaction("42") as tx:
            tx.set("42", 2)
    await client.namespace("users", locking="advisory").set("a", 1)
    state = await lenient.get("42")
    assert state is not None
    assert state.value == 1


async def test_a_data_set_that_is_new_knows_it_from_its_opening(
    make_client: MakeClient, settings: Settings, redis_raw: Any, keys: KeySpace
) -> None:
    async with at_work(settings):
        first = make_client(settings)
        await first.namespace("runs", locking="enforced").set("42", 1, durability="postgres")
        for shard in range(keys.shards):
            redis_raw.unlink(*redis_raw.keys(f"{settings.prefix}:{{{shard:02d}}}:*"))
        other = make_client(settings)
        async with other.lock(KEY), asyncio.timeout(60):
            with pytest.raises(LockHeld):
                await first.set(KEY, 2)
            with pytest.raises(LockHeld):
                await make_client(settings).set(KEY, 2)


async def test_a_shard_that_lacks_it_gets_it_by_the_next_commit_of_who_asks_for_it(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, redis_raw: Any, keys: KeySpace
) -> None:
    runs = client.namespace("runs", locking="enforced")
    await runs.set("42", 1)
    shard = keys.shard(KEY)
    for lost in (b"", b"9 users "):  # the first is as if its recorder had died, the second as if Postgres had gone back
        redis_raw.hset(keys.meta(shard), "enforced", lost)
        await runs.set("42", 2)
        async with runs.lock("42"):
            with pytest.raises(LockHeld):
                await make_client(settings).set(KEY, 3)


async def test_two_who_record_at_one_moment_lose_neither(
    settings: Settings, make_client: MakeClient, redis_raw: Any, keys: KeySpace
) -> None:
    names = [f"n{number}" for number in range(8)]
    clients = [make_client(settings) for _ in names]
    await asyncio.gather(
        *(one.namespace(name, locking="enforced").set("a", 1) for one, name in zip(clients, names, strict=True))
    )
    for shard in range(keys.shards):
        assert redis_raw.hget(keys.meta(shard), "enforced").split()[1:] == [name.encode() for name in names]


async def test_what_postgres_does_not_know_is_not_promised(
    make_client: MakeClient, settings: Settings, postgres_proxy: FaultProxy
) -> None:
    await make_client(settings).set(KEY, 0)
    far = make_client(through(settings, postgres=postgres_proxy))
    await far.set(KEY, 0)
    await postgres_proxy.cut_off()
    with pytest.raises(PostgresUnavailable):
        await far.namespace("runs", locking="enforced").set("42", 1, timeout=1.0)
    state = await far.get(KEY)
    assert state is not None
    assert state.value == 0


@pytest.mark.parametrize("since", [False, True])
async def test_what_a_postgres_that_went_back_knows_no_more_is_recorded_again_from_redis(
    cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace, log: Log, since: bool
) -> None:
    """What is enforced on either side is; `since`, others were recorded under the revision that Redis has too."""
    for name, locking in (("runs", "enforced"), ("users", "enforced"), ("runs", "advisory")):
        await cache._runtime.policies.record(name, cast("Locking", locking), seconds=10.0)
    psql.execute("DELETE FROM namespace WHERE name = 'users'")
    psql.execute("UPDATE namespace SET locking = 'enforced', revision = 1")
    if since:
        psql.execute("INSERT INTO namespace VALUES ('jobs', 'enforced', 3, 'somebody')")
    await flush(worker)
    names = ["jobs", "runs", "users"] if since else ["runs", "users"]
    assert rows(psql, "SELECT name, locking FROM namespace ORDER BY name") == [(name, "enforced") for name in names]
    ((newest,),) = rows(psql, "SELECT max(revision) FROM namespace")
    assert newest > 3
    copies = {redis_raw.hget(keys.meta(shard), "enforced").decode() for shard in range(keys.shards)}
    assert copies == {" ".join([str(newest), *names, ""])}
    (told,) = log.of("policies_went_back")
    assert told["namespaces"] == names
    assert told["taken_back"] == (["jobs", "runs"] if since else ["runs"])
    assert (await cache.set(KEY, 1)).version == 1


@pytest.mark.parametrize("when", ["before a worker takes the shards", "while it flushes"])
async def test_what_was_recorded_by_somebody_who_died_before_the_shards_knew_is_told_to_them(
    cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace, log: Log,
    monkeypatch: pytest.MonkeyPatch, when: str,
) -> None:  # fmt: skip
    """A word that takes it back is told as well, for it is the newer one."""
    await cache._runtime.policies.record("jobs", "enforced", seconds=10.0)
    if when == "while it flushes":
        monkeypatch.setattr(policies, "POLICIES_S", 0.0)
        await flush(worker)
    for locking, known in (("enforced", [b"jobs", b"runs"]), ("advisory", [b"jobs"])):
        psql.execute("SELECT set_locking('runs', %s, 'who died', 0)", (locking,))
        worker.forget() if when != "while it flushes" else None
        await flush(worker)
        for shard in range(keys.shards):
            assert redis_raw.hget(keys.meta(shard), "enforced").split()[1:] == known
    assert log.of("policies_went_back") == []


async def test_a_word_takes_effect_whatever_postgres_has_forgotten(
    client: AsyncStateCache, cache: AsyncStateCache, psql: Psql, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("runs", "users"):
        await cache._runtime.policies.record(name, "enforced", seconds=10.0)
    psql.execute("DELETE FROM namespace")
    psql.execute("INSERT INTO namespace VALUES ('jobs', 'enforced', 2, 'somebody')")
    await cache._runtime.policies.record("runs", "advisory", seconds=10.0)
    (told,) = [record.getMessage() for record in caplog.records if "went back" in record.getMessage()]
    assert "locks of jobs, runs, users are recorded again; those of jobs may have been taken back since" in told
    async with cache.lock(KEY), cache.lock("users/a"), cache.lock("jobs/a"):
        await client.set(KEY, 1)
        for key in ("users/a", "jobs/a"):
            with pytest.raises(LockHeld):
                await client.set(key, 1)
    found = rows(psql, "SELECT name, locking FROM namespace ORDER BY name")
    assert found == [("jobs", "enforced"), ("runs", "advisory"), ("users", "enforced")]


async def test_a_word_against_enforced_locks_stands_until_the_next_word_whatever_views_say(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, psql: Psql, cache: AsyncStateCache
) -> None:
    old, locker = client.namespace("runs", locking="enforced"), make_client(settings)
    await old.set("42", 1)
    await cache._runtime.policies.record("runs", "advisory", seconds=10.0)
    views = [old, make_client(settings).namespace("runs", locking="enforced")]
    async with views[1].lock("42"):
        for view in views:
            await view.set("42", 2)
            await view.set("42/plan", 2)
    assert rows(psql, "SELECT locking FROM namespace") == [("advisory",)]
    await cache._runtime.policies.record("runs", "enforced", seconds=10.0)
    async with locker.lock(KEY):
        for view in views:
            with pytest.raises(LockHeld):
                await view.set("42", 3)
    async with views[1].lock("42"):
        with pytest.raises(LockHeld):
            await views[0].set("42", 4)

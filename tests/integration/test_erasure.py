"""A subject is erased everywhere: what it held is in no table, no stream, no state and no cache any more."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Erasure, NotFound, Settings, Unavailable, UsageError
from statecache.errors import ConfigurationError, InvalidKey
from statecache.keys import KeySpace
from statecache_workers.parked_entries import ParkedAt
from statecache_workers.quarantine_drop import drop
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, flushing, rows
from tests.fixtures.servers import MakeClient
from tests.support.command_line import CommandLine
from tests.support.histories import Psql, conversation, growing, policy, pruned, read, versions
from tests.support.remains import SECRET, in_postgres, in_redis


async def told(cache: AsyncStateCache, key: str, *, times: int = 5) -> None:
    for number in range(times):
        await cache.set(key, growing(number) | {"who": SECRET}, actor=SECRET, reason=f"said {SECRET} {number}")


async def erased(cache: AsyncStateCache, worker: Worker, key: str, **more: Any) -> Erasure:
    async with flushing(worker):
        return await cache.erase(key, **more)


async def test_nothing_is_left_of_a_key_but_its_name_and_version(
    make_client: MakeClient, settings: Settings, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    client, reader = make_client(settings), make_client(settings, read="local")
    await told(client, "runs/1")
    await client.delete("runs/1", actor=SECRET)
    await told(client, "runs/1", times=2)
    await told(client, "runs/2")
    await flush(worker)
    await client.set("runs/1", SECRET)
    assert (await reader.get("runs/1")).value == SECRET  # type: ignore[union-attr]
    change_ids = rows(psql, "SELECT version, change_id FROM change WHERE key = 'runs/1' ORDER BY 1")
    proof = await erased(client, worker, "runs/1", actor="operator", reason="asked for")
    assert (proof.key, proof.keys, proof.branches) == ("runs/1", ("runs/1",), ())
    places = {one.place: one.rows for one in proof.places}
    assert places == {"change": 9, "conflict": 0, "quarantine": 0, "lost_change": 0, "branch": 0, "stream": 9}
    assert sum(one.bytes for one in proof.places) > 1000
    assert any("backups" in what for what in proof.left)
    assert await reader.get("runs/1") is None
    assert await client.get("runs/1", read="primary") is None
    assert (
        rows(psql, "SELECT version, change_id FROM change WHERE key = 'runs/1' AND version < 9 ORDER BY 1")
        == change_ids
    )
    assert rows(psql, "SELECT op, version, reason, actor FROM change WHERE key = 'runs/1' AND writer <> ''") == [
        ("delete", 10, "erased: asked for", "operator")
    ]  # fmt: skip
    for other in ("runs/2",):
        psql.execute("DELETE FROM change WHERE key = %s", (other,))
        psql.execute("DELETE FROM state WHERE key = %s", (other,))
    assert in_postgres(psql) == set()
    redis_raw.delete(keys.state("runs/2"))
    redis_raw.xtrim(keys.changes(keys.shard("runs/2")), maxlen=0)
    assert in_redis(redis_raw, keys) == set()
    assert (await client.create("runs/1", "anew")).version == 11


async def test_what_is_left_is_whole_and_goes_on(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await told(cache, "runs/1")
    await told(cache, "runs/2")
    await flush(worker)
    await erased(cache, worker, "runs/1")
    counts, faults = await verify(settings)
    assert (faults, counts.erased) == ([], 5)
    await conversation(cache, "runs/1", times=4)
    await cache.delete("runs/1")
    await flush(worker)
    await erased(cache, worker, "runs/1")
    await conversation(cache, "runs/1", times=3)
    await flush(worker)
    counts, faults = await verify(settings)
    assert (faults, counts.erased, counts.unhashed) == ([], 11, 0)
    policy(psql, count=1)
    await pruned(settings)
    assert (await verify(settings))[1] == []
    after = await read(cache, psql)
    assert (versions(after, "runs/1"), versions(after, "runs/2")) == ([15], [5])
    changes = [change async for change in cache.changes("runs/1", follow=False)]
    assert [change.kept for change in changes if change.op == "set"] == [False] * 11 + [True]
    psql.execute("UPDATE change SET value = 'x' WHERE key = 'runs/1' AND version = 3")
    assert [(fault.version, fault.what) for fault in (await verify(settings))[1]] == [(3, "value")]


async def test_a_group_goes_with_what_was_set_aside_and_its_records(
    settings: Settings,
    cache: AsyncStateCache,
    agents: Agents,
    worker: Worker,
    psql: Psql,
    redis_raw: Any,
    keys: KeySpace,
) -> None:
    await told(cache, "runs/1", times=2)
    await told(cache, "runs/1/plan", times=2)
    await told(cache, "runs/1/plan/checkpoints/a", times=1)
    await told(cache, "runs/10", times=1)
    await flush(worker)
    redis_raw.unlink(keys.state("runs/1"))
    agents.commit({"key": "runs/1", "value": f'"{SECRET}"', "new": "1"}, actor=SECRET)  # it forks
    await flush(worker)
    psql.execute("ALTER TABLE change ADD CONSTRAINT small CHECK (reason <> 'poison')")
    await cache.set("runs/1/plan", SECRET, reason="poison")
    await cache.set("runs/1/parked", SECRET, reason="poison")
    await flush(worker)
    lost = "INSERT INTO lost_change VALUES ('c', 'runs/1', 0, 1, 1, 'test')"
    psql.execute(lost)
    assert in_postgres(psql) == {"change", "state", "conflict", "quarantine"}
    await cache.set("runs/1/new", SECRET)
    proof = await erased(cache, worker, "runs/1", group=True)
    assert proof.keys == ("runs/1", "runs/1/new", "runs/1/parked", "runs/1/plan", "runs/1/plan/checkpoints/a")
    places = {one.place: one.rows for one in proof.places}
    assert places | {"stream": 0} == {
        "change": 6, "conflict": 1, "quarantine": 2, "lost_change": 1, "branch": 0, "stream": 0,
    }  # fmt: skip
    assert rows(psql, "SELECT sqlstate, error FROM quarantine") == [("dropped", "erased")] * 2
    psql.execute("DELETE FROM change WHERE key = 'runs/10'; DELETE FROM state WHERE key = 'runs/10'")
    assert in_postgres(psql) == set()
    shard = keys.shard("runs/1")
    assert f"{SECRET}" not in str(redis_raw.xrange(keys.changes(shard))) or keys.shard("runs/10") == shard
    assert (await verify(settings))[1] == []


async def test_with_a_key_go_its_steps_and_checkpoints_and_nothing_else(
    cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    for key in ("runs/1", "runs/1/plan", "runs/1/steps/charge", "runs/1/checkpoints/a", "runs/1/plan/checkpoints/b"):
        await cache.set(key, SECRET)
    await flush(worker)
    proof = await erased(cache, worker, "runs/1")
    assert proof.keys == ("runs/1", "runs/1/checkpoints/a", "runs/1/steps/charge")
    assert (await cache.get("runs/1/plan")).value == SECRET  # type: ignore[union-attr]
    assert rows(psql, "SELECT DISTINCT key FROM change WHERE value IS NOT NULL AND op = 'set' ORDER BY 1") == [
        ("runs/1/plan",), ("runs/1/plan/checkpoints/b",),
    ]  # fmt: skip


async def test_a_branch_keeps_its_values_and_is_named(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await conversation(cache, "runs/1", times=5)
    await flush(worker)
    await cache.branch("runs/1", "runs/branch", at=4)
    await conversation(cache, "runs/branch", times=3, first=4)
    await flush(worker)
    before = await read(cache, psql)
    assert (await verify(settings))[1] == []
    refused = "SELECT * FROM erase_history(ARRAY['runs/1'], ARRAY[4], 'test', 10)"
    assert rows(psql, refused) == [("delta", 1, 0)]
    with pytest.raises(psycopg.errors.RaiseException, match="the newest of its key"):
        psql.execute(refused.replace("4]", "5]"))
    proof = await erased(cache, worker, "runs/1")
    assert proof.branches == ("runs/branch",)
    after = await read(cache, psql)
    assert after == {place: value for place, value in before.items() if place[0] == "runs/branch"}
    assert (await verify(settings))[1] == []
    again = await erased(cache, worker, "runs/branch")
    assert ({one.place: one.rows for one in again.places}["branch"], again.branches) == (1, ())


async def test_an_erasure_that_is_killed_may_be_begun_again(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statecache.core.history.erasing.ROWS", 2)
    await told(cache, "runs/1", times=6)
    await flush(worker)
    fetch, calls = cache._runtime.postgres.fetch, 0

    async def dies(name: str, parameters: Any, *, seconds: float) -> Any:
        nonlocal calls
        calls += name == "erase_history"
        if calls == 3:
            raise asyncio.CancelledError
        return await fetch(name, parameters, seconds=seconds)

    with monkeypatch.context() as patch:
        patch.setattr(cache._runtime.postgres, "fetch", dies)
        with pytest.raises(asyncio.CancelledError):
            await erased(cache, worker, "runs/1")
    assert in_postgres(psql) == {"change"}
    faults = (await verify(settings))[1]
    assert {(fault.version, fault.detail) for fault in faults} == {
        (version, "it was erased, and something of it is there") for version in range(3, 7)
    }
    await erased(cache, worker, "runs/1")
    assert in_postgres(psql) == set()
    assert (await verify(settings))[1] == []


async def test_what_quarantine_holds_with_others_is_for_an_operator_first(
    cache: AsyncStateCache, agents: Agents, worker: Worker, psql: Psql
) -> None:
    await cache.set("runs/1", SECRET)
    agents.commit(("runs/1", f'"{SECRET}"'), ("runs/1/plan", "1"), reason="a\0b")
    await flush(worker)
    with pytest.raises(UsageError, match=r"in quarantine holds changes of 'runs/1' and of others"):
        await erased(cache, worker, "runs/1")
    assert in_postgres(psql) == {"change", "quarantine"}
    await erased(cache, worker, "runs/1", group=True)
    assert in_postgres(psql) == set()


async def test_bad_calls(cache: AsyncStateCache, worker: Worker, psql: Psql) -> None:
    await flush(worker)
    with pytest.raises(NotFound, match="never anything"):
        await cache.erase("runs/1")
    with pytest.raises(InvalidKey, match="it is no group"):
        await cache.erase("runs/1/plan", group=True)
    with pytest.raises(InvalidKey):
        await cache.erase("runs")
    assert rows(psql, "SELECT count(*) FROM state") == [(0,)]


async def test_what_was_given_up_of_quarantine_goes_whomever_it_was_with(
    settings: Settings, cache: AsyncStateCache, agents: Agents, worker: Worker, psql: Psql
) -> None:
    agents.commit(("runs/1", f'"{SECRET}"'), ("runs/1/plan", "1"), reason=f"{SECRET}\0b")
    await flush(worker)
    ((shard, epoch, n),) = rows(psql, "SELECT shard, epoch, n FROM quarantine")
    async with flushing(worker):
        await drop(settings, [ParkedAt(shard, epoch, n)], actor=SECRET, reason=SECRET, durability="postgres")
    assert "quarantine" in in_postgres(psql)
    proof = await erased(cache, worker, "runs/1")
    assert {one.place: one.rows for one in proof.places}["quarantine"] == 1
    assert in_postgres(psql) - {"change"} == set()
    await erased(cache, worker, "runs/1/plan")
    assert in_postgres(psql) == set()
    assert (await verify(settings))[1] == []


async def test_a_key_that_is_known_by_its_conflict_alone_is_erased(
    cache: AsyncStateCache, worker: Worker, psql: Psql, keys: KeySpace
) -> None:
    await cache.set("runs/2", 1)
    await flush(worker)
    fork = "INSERT INTO conflict VALUES (%s, %s, %s, 1, 1, 'set', 1, '', %s, 'json', '', 'w', %s, '', now(), 'fork')"
    psql.execute(fork, ("c1", "runs/1", keys.shard("runs/1"), SECRET.encode(), SECRET))
    psql.execute(fork, ("c2", "runs/10", keys.shard("runs/10"), b"1", ""))
    proof = await erased(cache, worker, "runs/1", group=True)
    assert proof.keys == ("runs/1",)
    assert {one.place: one.rows for one in proof.places}["conflict"] == 1
    assert in_postgres(psql) == set()
    assert rows(psql, "SELECT key FROM conflict WHERE value <> ''") == [("runs/10",)]


async def test_what_modifiers_checkpoints_steps_and_branches_keep_goes_too(
    settings: Settings, make_client: MakeClient, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    client, reader = make_client(settings), make_client(settings, read="local")
    async with flushing(worker):
        await told(client, "runs/1/notes")
        await client.set("runs/1/list", [growing(9) | {"who": SECRET}])
        await client.append("runs/1/list", SECRET)
        await client.checkpoint("runs/1/list", "a", metadata={"who": SECRET}, reason=SECRET)
        await client.checkpoint("runs/1", "b", group=True, metadata={"who": SECRET})
        await client.append("runs/1/list", SECRET)
        await client.rollback("runs/1/list", "a", reason=SECRET)
        await client.branch("runs/1/list", "runs/1/other", reason=SECRET)
        await client.append("runs/1/other", SECRET)
        await client.set("runs/1/other", 7)
        await client.append("runs/1/list", SECRET)
        assert await reader.get("runs/1/list") is not None
    await client.append("runs/1/list", SECRET)
    assert redis_raw.hexists(keys.state("runs/1/list"), "asked")
    proof = await erased(client, worker, "runs/1", group=True)
    assert len(proof.keys) == 5
    assert proof.branches == ()
    assert (in_postgres(psql), in_redis(redis_raw, keys)) == (set(), set())
    assert not redis_raw.hexists(keys.state("runs/1/list"), "asked")
    assert await reader.get("runs/1/list") is None
    assert await client.checkpoints("runs/1") == []
    assert (await verify(settings))[1] == []


async def test_a_role_without_the_right_deletes_nothing(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql
) -> None:
    await cache.set("runs/1", SECRET)
    await flush(worker)
    schema = settings.postgres_schema
    role = f"agent_{schema}"
    url = f"postgresql://{role}:secret@{settings.postgres_url.rpartition('@')[2]}"
    psql.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
    psql.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}".encode())
    try:
        async with AsyncStateCache(settings=settings.model_copy(update={"postgres_url": url})) as client:
            with pytest.raises(ConfigurationError, match="permission denied for function erase_history"):
                await client.erase("runs/1")
            assert (await client.get("runs/1")).value == SECRET  # type: ignore[union-attr]
            granted = f"GRANT EXECUTE ON FUNCTION erase_history, detach_branch TO {role}"
            psql.execute(granted.encode())
            await erased(client, worker, "runs/1")
    finally:
        psql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
    assert in_postgres(psql) == set()


async def test_a_redis_that_came_back_empty_is_opened_first(
    make_client: MakeClient, settings: Settings, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    client, hasty = make_client(settings), make_client(settings.model_copy(update={"timeout_s": 1.0}))
    await told(client, "runs/1", times=3)
    await flush(worker)
    shard = keys.shard("runs/1")
    redis_raw.unlink(keys.meta(shard), keys.changes(shard), keys.unflushed(shard), keys.state("runs/1"))
    with pytest.raises(Unavailable, match="holds no data set of ours") as refused:
        await hasty.erase("runs/1")
    assert refused.value.reason == "epoch"
    proof = await erased(client, worker, "runs/1")
    assert proof.keys == ("runs/1",)
    assert (in_postgres(psql), in_redis(redis_raw, keys)) == (set(), set())


async def test_enforced_locks_are_not_in_the_way(cache: AsyncStateCache, worker: Worker, psql: Psql) -> None:
    runs = cache.namespace("runs", locking="enforced")
    async with runs.lock("1") as lease:
        await lease.set("1", SECRET)
        proof = await erased(cache, worker, "runs/1")
    assert proof.keys == ("runs/1",)
    assert in_postgres(psql) == set()


async def test_locks_that_a_client_does_not_know_to_be_enforced_are_not_in_its_way_either(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql
) -> None:
    runs = cache.namespace("runs", locking="enforced")
    async with runs.lock("1") as lease, AsyncStateCache(settings=settings) as other:
        await lease.set("1", SECRET)
        proof = await erased(other, worker, "runs/1")
    assert proof.keys == ("runs/1",)
    assert in_postgres(psql) == set()


async def test_the_command_asks_and_prints_the_proof(
    cache: AsyncStateCache, worker: Worker, psql: Psql, cli: CommandLine
) -> None:
    await told(cache, "runs/1", times=3)
    await flush(worker)
    assert (await cli.beside("erase", "runs/2", "--yes")).status == 1
    shown = await cli.beside("erase", "runs/1", "--dry-run", "--json")
    assert (shown.status, shown.json) == (0, {"keys": ["runs/1"], "branches": [], "dry_run": True})
    assert (await cli.beside("erase", "runs/2", "--dry-run")).status == 1
    asked = await cli.beside("erase", "runs/1")
    assert asked.status == 2
    assert "1 key (runs/1) would be erased for good, with all history. Say --yes if that is meant." in asked.err
    assert in_postgres(psql) == {"change", "state"}
    async with flushing(worker):
        done = await cli.beside("erase", "runs/1", "--yes", "--reason", "asked for", "--json")
    assert done.status == 0
    assert done.json["keys"] == ["runs/1"]
    assert {one["place"]: one["rows"] for one in done.json["places"]}["change"] == 3
    assert in_postgres(psql) == set()
    await told(cache, "runs/1", times=1)
    await flush(worker)
    async with flushing(worker):
        shown = await cli.beside("erase", "runs/1", "--yes")
    assert shown.out.splitlines()[0] == "erased: runs/1"
    assert "  change       2 rows, " in shown.out
    assert "it is still in: backups" in shown.out


def test_in_memory_it_is_erased_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from statecache.testing import memory

    with memory().client() as client:
        client.set("runs/1", SECRET)
        client.set("runs/1", "other")
        proof = client.erase("runs/1")
        assert {one.place: one.rows for one in proof.places} == {"change": 2, "stream": 2}
        assert client.get("runs/1") is None
        changes = [*client.changes("runs/", follow=False)]
        assert [(change.op, change.kept, change.value) for change in changes] == [
            ("set", False, None), ("set", False, None), ("delete", True, None),
        ]  # fmt: skip

"""Reads where an epoch began that Postgres, Redis or the reader does not know all about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.errors import Unavailable
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient
from tests.simulation.backups import Backup
from tests.support.closed_shard import GONE, KEY, WHOLE, Shard, in_order
from tests.support.local_reads import until

EVICTED = "runs/1/evicted"

pytestmark = pytest.mark.counts_seconds


async def _value(client: AsyncStateCache, key: str) -> Any:
    state = await client.get(key)
    return state and state.value


async def test_what_an_epoch_began_without_is_not_read_before_a_worker_has_looked_for_it(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, worker: Worker, redis_raw: Any,
    psql: psycopg.Connection[Any],
) -> None:  # fmt: skip
    """Postgres went back, and an agent opens the gate: what it holds no more has left the list of what is dirty."""
    shard = Shard(settings, redis_raw, psql)
    await cache.set(KEY, "old")
    await cache.set(GONE, 1)
    await flush(worker)
    backup = Backup(psql)
    await cache.set(KEY, "new")
    await cache.delete(GONE)
    await cache.set(WHOLE, 1)
    await cache.set(EVICTED, 1)
    await flush(worker)
    backup.put_back()
    keys, number = shard.keys, shard.number
    redis_raw.hset(shard.meta, "retired", redis_raw.hget(shard.meta, "n"))
    redis_raw.zremrangebyscore(keys.unflushed(number), 1, "+inf")
    redis_raw.xtrim(keys.changes(number), maxlen=0, approximate=False)
    redis_raw.unlink(keys.state(EVICTED))
    shard.move("a" * 40)
    client, epoch = make_client(settings.model_copy(update={"timeout_s": 1.0})), shard.epoch
    await client.set(KEY, "newest")
    assert shard.epoch > epoch
    asked: list[Callable[[], Awaitable[Any]]] = [
        client.namespaces, partial(client.get, EVICTED), partial(client.create, EVICTED, 2),
        partial(client.erase, EVICTED),
        *(partial(in_order, client, *one) for one in (("runs/1", "key"), ("runs/1", "newest"), ("", "key"))),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(Unavailable, match="a worker has to compare") as told:
            await ask()
        assert told.value.reason == "hydration"
    assert await _value(client, WHOLE) == 1
    shard.close()
    with pytest.raises(Unavailable, match="less of it than it did"):
        await client.get(EVICTED)
    shard.open()
    await flush(worker)
    assert await in_order(client, "runs/1", "key") == [(KEY, "newest"), (WHOLE, 1)]
    assert await client.namespaces() == ["runs"]
    assert await client.get(EVICTED) is None


async def test_an_opener_with_little_time_says_that_a_row_is_held_too(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, redis_raw: Any, psql: psycopg.Connection[Any]
) -> None:
    shard = Shard(settings, redis_raw, psql)
    await cache.set(KEY, 1)
    client = make_client(settings.model_copy(update={"timeout_s": 1.5}))
    shard.move("a" * 40)
    with psql.transaction():
        psql.execute("SELECT FROM shard FOR UPDATE")
        with pytest.raises(Unavailable, match="or hold its row in Postgres") as told:
            await client.set(KEY, 2)
    assert told.value.reason == "epoch"


async def test_what_was_retired_of_a_branch_that_is_set_aside_is_waited_for_by_nobody(
    make_client: MakeClient, settings: Settings, worker: Worker, redis_raw: Any, psql: psycopg.Connection[Any]
) -> None:
    shard, client = Shard(settings, redis_raw, psql), make_client(settings)
    await client.set(KEY, "old")
    redis_raw.hset(shard.meta, "retired", 100)
    shard.move("a" * 40)
    await client.set(KEY, "new")
    assert int(redis_raw.hget(shard.meta, "retired")) < int(redis_raw.hget(shard.meta, "n"))
    redis_raw.hset(shard.meta, "retired", 100)  # as an opener of an earlier release leaves it
    await flush(worker)
    assert await in_order(client, "runs/1", "key") == [(KEY, "new")]
    assert await client.get(GONE) is None
    assert (await client.create(WHOLE, 1)).version == 1


async def test_an_old_primary_is_not_read_by_who_has_met_the_later_epoch(
    make_client: MakeClient, settings: Settings, worker: Worker, redis_raw: Any, psql: psycopg.Connection[Any]
) -> None:
    """An agent that has not met it goes on there; the name, or a proxy, leads this one there once more."""
    shard = Shard(settings, redis_raw, psql)
    other = shard.key_of("more")
    async with AsyncStateCache(settings=settings) as agent:
        await agent.set(KEY, "flushed")
        await flush(worker)
        await agent.set(GONE, "of the old branch")
        await agent.set(other, "of the old branch")
    client, at = (
        make_client(settings.model_copy(update={"read": "local", "timeout_s": 1.0})),
        (shard.epoch, redis_raw.hget(shard.meta, "replid")),
    )
    await client.get("other/1")
    await until(lambda: client.near.trusted)
    client._runtime.opener.epochs.note(shard.number, at[0] + 5)
    psql.execute("UPDATE shard SET epoch = %s, replid = %s WHERE shard = %s", [at[0] + 5, "b" * 40, shard.number])
    asked: list[Callable[[], Awaitable[Any]]] = [
        partial(client.get, KEY, read="local"), partial(client.get, GONE, read="primary"), client.namespaces,
        partial(client.get_many, [KEY, GONE]),
        *(partial(in_order, client, "runs/1", order) for order in ("key", "newest")),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(Unavailable) as told:
            await ask()
        assert told.value.reason == "epoch"
    psql.execute("UPDATE shard SET epoch = %s, replid = %s WHERE shard = %s", [at[0], at[1].decode(), shard.number])
    assert await in_order(client, "runs/1", "key") == [(KEY, "flushed"), (GONE, "of the old branch")]
    assert client._runtime.opener.epochs.of(shard.number) == at[0]
    assert await _value(client, KEY) == "flushed"
    await flush(worker)
    client._runtime.opener.epochs.note(shard.number, at[0] + 5)
    assert await in_order(client, "runs/1", "key") == [(KEY, "flushed"), (GONE, "of the old branch")]
    assert client._runtime.opener.epochs.of(shard.number) == at[0], "Postgres was asked, for there was no other way"
    client._runtime.near.seen(KEY, (at[0] + 5, 9))
    assert (await client.get(KEY, read="fenced")) == await client.get(KEY)


async def test_namespaces_hide_none_behind_a_closed_gate_of_which_a_state_was_seen(
    make_client: MakeClient, settings: Settings, worker: Worker, redis_raw: Any, psql: psycopg.Connection[Any]
) -> None:
    """Both tiers were put back."""
    shard, client = Shard(settings, redis_raw, psql), make_client(settings.model_copy(update={"timeout_s": 1.0}))
    other = shard.key_of("more")
    await client.set(KEY, 1)
    await client.set(other, 1)
    await flush(worker)
    psql.execute("DELETE FROM state WHERE key = %s", [other])
    redis_raw.unlink(shard.keys.state(other))
    shard.close()
    with pytest.raises(Unavailable) as told:
        await client.namespaces()
    assert told.value.reason == "epoch"
    assert await make_client(settings).namespaces() == ["runs"]

"""No key goes back for a process that has seen it, until what it saw is proven to be gone."""

from __future__ import annotations

from typing import Any

import pytest

from statecache import AsyncStateCache, Settings
from statecache.errors import Unavailable
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, MakeSettings
from tests.support.local_reads import KEY, kept, until

pytestmark = pytest.mark.counts_seconds


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of clients that read locally."""
    return make_settings(read="local")


async def test_a_state_that_went_back_is_not_read_before_a_later_epoch_is_open(
    one: AsyncStateCache, other: AsyncStateCache, settings: Settings, redis_raw: Any, psql: Any
) -> None:
    """Redis loses the last commit, as a promoted replica does, and nobody may open its gate yet."""
    space = KeySpace(settings.prefix, settings.shards)
    shard = space.shard(KEY)
    await one.set(KEY, "old")
    await kept(one)
    lost = redis_raw.dump(space.state(KEY))
    await one.set(KEY, "new")
    await kept(one)
    redis_raw.hset(space.meta(shard), "replid", "a" * 40)
    psql.execute("UPDATE shard SET replid = %s WHERE shard = %s", ["b" * 40, shard])
    for read in ("local", "primary"):
        redis_raw.restore(space.state(KEY), 0, lost, replace=True)
        await until(lambda: one.near.entries == 0)
        with pytest.raises(Unavailable) as refused:
            await one.get(KEY, read=read, timeout=0.3)
        assert refused.value.reason == "epoch"
    psql.execute("UPDATE shard SET replid = %s WHERE shard = %s", ["a" * 40, shard])  # the data set continues the row
    neighbour = next(f"runs/{number}" for number in range(2, 100) if space.shard(f"runs/{number}") == shard)
    await other.set(neighbour, "opens the gate")
    state = await one.get(KEY, read="primary")
    assert state is not None
    assert state.value == "old"
    await kept(one)


async def test_a_state_that_went_back_needs_the_word_of_postgres_in_the_same_epoch(
    make_client: MakeClient, settings: Settings, redis_raw: Any
) -> None:
    space = KeySpace(settings.prefix, settings.shards)
    alone = make_client(settings.model_copy(update={"postgres_url": "postgresql://127.0.0.1:1/none"}))
    await make_client(settings).set(KEY, "old")
    lost = redis_raw.dump(space.state(KEY))
    await alone.set(KEY, "new")
    redis_raw.restore(space.state(KEY), 0, lost, replace=True)
    with pytest.raises(Unavailable, match=r"older state|in time"):
        await alone.get(KEY, read="primary", timeout=0.5)


async def test_a_write_that_was_set_aside_does_not_hide_what_stands(
    one: AsyncStateCache, other: AsyncStateCache, settings: Settings, redis_raw: Any, worker: Worker
) -> None:
    """It was made on a wrong assumption, and is a conflict: its writer, too, reads what it did not replace."""
    stands = await other.set(KEY, "stands")
    await flush(worker)
    redis_raw.unlink(KeySpace(settings.prefix, settings.shards).state(KEY))
    await one.create(KEY, 1, assume_new=True)
    await one.set(KEY, 2)
    await kept(one)
    await flush(worker)
    for read in ("primary", "local"):
        assert await one.get(KEY, read=read) == stands
    await kept(one)


async def test_a_state_that_went_back_is_neither_listed_nor_read_in_a_transaction(
    one: AsyncStateCache, settings: Settings, redis_raw: Any, psql: Any
) -> None:
    space = KeySpace(settings.prefix, settings.shards)
    shard = space.shard(KEY)
    await one.set(KEY, "old")
    lost = redis_raw.dump(space.state(KEY))
    written = await one.set(KEY, "new")
    found = redis_raw.dump(space.state(KEY))
    redis_raw.restore(space.state(KEY), 0, lost, replace=True)
    psql.execute("UPDATE shard SET replid = %s WHERE shard = %s", ["b" * 40, shard])  # no word for this server
    for ask in (_listed, _in_transaction):
        with pytest.raises(Unavailable) as refused:
            await ask(one, timeout=0.5)
        assert refused.value.reason == "epoch"
    redis_raw.restore(space.state(KEY), 0, found, replace=True)
    assert [await _listed(one), await _in_transaction(one)] == [written, written]


async def _listed(client: AsyncStateCache, **more: Any) -> Any:
    (state,) = [state async for state in client.list(KEY, **more)]
    return state


async def _in_transaction(client: AsyncStateCache, **more: Any) -> Any:
    async with client.transaction(KEY, **more) as tx:
        return await tx.get(KEY)

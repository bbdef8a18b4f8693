"""Misses of what Postgres holds nothing of: absence is installed without a token, where nothing was flushed since."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import psycopg
import pytest

from statecache import AlreadyExists, AsyncStateCache, Set, Settings, Unavailable
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, rows
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis
from tests.support.fault_proxy import FaultProxy
from tests.support.misses import ABSENT, ASKS, KEY, LOOKS, evict_clean, hold_at

pytestmark = pytest.mark.counts_seconds


Psql = psycopg.Connection[Any]


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings whose hydration tokens do not stand for long."""
    return make_settings(hydrate_token_s=0.25)


@pytest.fixture
def slow(make_client: MakeClient, settings: Settings, postgres_proxy: FaultProxy) -> AsyncStateCache:
    """A client whose way to Postgres leads through the proxy."""
    return make_client(through(settings, postgres=postgres_proxy))


async def test_who_found_nothing_in_an_earlier_epoch_installs_no_absence(
    slow: AsyncStateCache, postgres_proxy: FaultProxy, redis_raw: Any, keys: KeySpace
) -> None:
    """It looks again, and this Postgres is still in that epoch."""
    fault, reading = await hold_at(postgres_proxy, LOOKS, slow.get(KEY, timeout=1.0))
    redis_raw.hincrby(keys.meta(keys.shard(KEY)), "epoch", 1)
    fault.release()
    with pytest.raises(Unavailable, match="holds less than was flushed"):
        await reading
    assert not redis_raw.exists(keys.state(KEY))


@every_redis
async def test_a_create_is_not_undone_by_a_slow_reader_that_found_nothing(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, redis_raw: Any, keys: KeySpace
) -> None:
    fault, reading = await hold_at(postgres_proxy, LOOKS, slow.get(KEY))
    created = await cache.create(KEY, 1)
    fault.release()
    assert await reading == created
    assert await cache.get(KEY) == created
    assert redis_raw.pttl(keys.state(KEY)) == -1


@every_redis
async def test_who_found_nothing_and_is_slow_installs_no_absence_over_what_was_flushed_since(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    """The watermark tells: it has moved since Postgres was read. So the key is looked for again."""
    fault, reading = await hold_at(postgres_proxy, LOOKS, slow.get(KEY))
    created = await cache.create(KEY, 1, assume_new=True)
    await flush(worker)
    evict_clean(redis_raw, keys)
    fault.release()
    assert await reading == created
    assert (await cache.set(KEY, 2)).parent_change_id == created.change_id


@every_redis
async def test_who_found_nothing_waits_for_what_was_made_since_and_removed_by_hand(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    """It is dirty, and in neither tier: it is no absence."""
    fault, reading = await hold_at(postgres_proxy, LOOKS, slow.get(KEY))
    created = await cache.create(KEY, 1)
    redis_raw.unlink(keys.state(KEY))
    fault.release()
    await asyncio.wait([reading], timeout=0.1)
    assert not reading.done()
    assert not redis_raw.exists(keys.state(KEY))
    await flush(worker)
    assert await reading == created


async def test_no_absence_is_installed_of_a_postgres_that_holds_less_than_was_flushed(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    redis_raw.hset(keys.meta(keys.shard(KEY)), mapping={"n": 5, "flushed": 5})
    for call in (client.get, partial(client.set, value=1)):
        with pytest.raises(Unavailable, match="holds less than was flushed"):
            await call(KEY, timeout=1.0)
    assert not redis_raw.exists(keys.state(KEY))


@pytest.mark.parametrize(
    ("silence_s", "told"), [(60.0, "holds less than was flushed"), (0.0, "Postgres is unavailable")]
)
async def test_a_last_attempt_that_had_hardly_any_time_is_not_what_a_call_fails_for(
    slow: AsyncStateCache, postgres_proxy: FaultProxy, redis_raw: Any, keys: KeySpace, monkeypatch: pytest.MonkeyPatch,
    silence_s: float, told: str,
) -> None:  # fmt: skip
    """What it had waited for until then is; a Postgres that is silent for longer is told."""
    monkeypatch.setattr("statecache.core.read.hydration.SILENCE_S", silence_s)
    redis_raw.hset(keys.meta(keys.shard(KEY)), mapping={"n": 5, "flushed": 5})
    fault, reading = await hold_at(postgres_proxy, ASKS, slow.get(KEY, timeout=1.0))
    last = postgres_proxy.arm("hold_request", at=ASKS)
    fault.release()
    with pytest.raises(Unavailable, match=told):
        await reading
    assert last.struck


async def test_a_key_that_has_nothing_but_lost_changes_remembers_that(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    """A repeat of one of them is looked up: its absence is installed under a token, with that said."""
    psql.execute("INSERT INTO lost_change VALUES ('c', %s, %s, 1, 1, 'test')", [KEY, keys.shard(KEY)])
    assert await client.get(KEY) is None
    assert redis_raw.hmget(keys.state(KEY), "op", "lost") == [b"absent", b"1"]
    assert await client.get(f"{KEY}/b") is None
    assert redis_raw.hmget(keys.state(f"{KEY}/b"), "op", "lost") == [b"absent", None]


async def test_an_absence_that_is_installed_takes_the_token_of_a_slower_reader_away(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy,
    postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any, keys: KeySpace,
) -> None:  # fmt: skip
    """The reader's first exchange was lost, so it took a token; nobody waits for that where nothing is to be read."""
    slow = make_client(through(settings, redis=proxy, postgres=postgres_proxy))
    lost = proxy.arm("drop_request", at=ABSENT)
    fault, reading = await hold_at(postgres_proxy, ASKS, slow.get(KEY))
    hydrating = keys.hydrating(keys.shard(KEY))
    assert lost.struck
    assert redis_raw.hexists(hydrating, KEY)
    assert await cache.get(KEY) is None
    assert redis_raw.hkeys(hydrating) == [b"_"]
    evict_clean(redis_raw, keys)
    fault.release()
    assert await reading is None
    assert not redis_raw.exists(keys.state(KEY))


@every_redis
async def test_of_many_that_create_one_succeeds(
    make_client: MakeClient, settings: Settings, psql: Psql, worker: Worker
) -> None:
    clients = [make_client(settings) for _ in range(3)]
    outcomes = await asyncio.gather(
        *(client.create(KEY, number) for number, client in enumerate(clients * 3)), return_exceptions=True
    )
    assert [type(one).__name__ for one in outcomes].count("State") == 1
    assert [one for one in outcomes if not hasattr(one, "version") and not isinstance(one, AlreadyExists)] == []
    await flush(worker)
    assert rows(psql, "SELECT key, version FROM change") == [(KEY, 1)]


@every_redis
async def test_who_found_nothing_and_is_slow_does_not_write_over_what_was_flushed_since(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace, psql: Psql,
) -> None:  # fmt: skip
    fault, writing = await hold_at(postgres_proxy, LOOKS, slow.set(KEY, 2))
    created = await cache.create(KEY, 1, assume_new=True)
    await flush(worker)
    evict_clean(redis_raw, keys)
    fault.release()
    assert (await writing).parent_change_id == created.change_id
    await flush(worker)
    assert rows(psql, "SELECT version FROM change ORDER BY version") == [(1,), (2,)]
    assert rows(psql, "SELECT * FROM conflict") == []


@every_redis
async def test_who_found_nothing_does_not_write_over_what_was_made_since_and_removed_by_hand(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace, psql: Psql,
) -> None:  # fmt: skip
    fault, writing = await hold_at(postgres_proxy, LOOKS, slow.set(KEY, 2))
    created = await cache.create(KEY, 1)
    redis_raw.unlink(keys.state(KEY))
    fault.release()
    await asyncio.wait([writing], timeout=0.1)
    assert not writing.done()
    await flush(worker)
    assert (await writing).parent_change_id == created.change_id
    await flush(worker)
    assert rows(psql, "SELECT * FROM conflict") == []


async def test_who_found_nothing_in_an_earlier_epoch_writes_nothing_on_that_word(
    slow: AsyncStateCache, postgres_proxy: FaultProxy, redis_raw: Any, keys: KeySpace
) -> None:
    fault, writing = await hold_at(postgres_proxy, LOOKS, slow.set(KEY, 1, timeout=1.0))
    redis_raw.hincrby(keys.meta(keys.shard(KEY)), "epoch", 1)
    fault.release()
    with pytest.raises(Unavailable, match="holds less than was flushed"):
        await writing
    assert not redis_raw.exists(keys.state(KEY))


async def test_a_word_that_postgres_holds_nothing_counts_for_the_keys_that_were_looked_for_alone(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace, psql: Psql,
) -> None:  # fmt: skip
    """One of two states was there and is evicted meanwhile: its change is continued."""
    first = await cache.set(KEY, 1)
    await flush(worker)
    fault, writing = await hold_at(postgres_proxy, LOOKS, slow.commit([Set(KEY, 2), Set(f"{KEY}/new", 2)]))
    evict_clean(redis_raw, keys)
    fault.release()
    states = await writing
    assert {state.key: state.version for state in states} == {KEY: 2, f"{KEY}/new": 1}
    assert states[0].parent_change_id == first.change_id
    await flush(worker)
    assert rows(psql, "SELECT * FROM conflict") == []


async def test_a_repeat_of_a_first_write_is_known_again(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, worker: Worker, redis_raw: Any, keys: KeySpace,
    psql: Psql,
) -> None:  # fmt: skip
    """Its second attempt was executed, and the reply lost; it is flushed and evicted before it is sent once more."""
    client = make_client(through(settings, redis=proxy))
    await client.set(f"{KEY}/first", 1)
    lost = proxy.arm("drop_reply", at=b"w1-")
    written = await client.set(KEY, 1)
    assert lost.struck
    assert written.version == 1
    await flush(worker)
    evict_clean(redis_raw, keys)
    assert await client.set(KEY, 1, change_id=written.change_id) == written
    await flush(worker)
    assert rows(psql, "SELECT version FROM change WHERE key = %s", KEY) == [(1,)]

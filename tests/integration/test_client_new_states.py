"""Commits of several states that are to be new: Postgres is asked for them before Redis can say that it lacks them."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Create, Set, Settings, VersionConflict
from statecache.errors import PostgresUnavailable
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, rows
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.fault_proxy import FaultProxy
from tests.support.misses import KEY, LOOKS, evict_clean, hold_at

Psql = psycopg.Connection[Any]
OTHER = f"{KEY}/other"
BOTH = [Set(KEY, 1, expected=None), Set(OTHER, 1, expected=None)]


class Asked:
    """The keys that a client's commits looked for in Postgres, and how many attempts they made."""

    def __init__(self, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks, self.attempts, self.fails = list[list[str]](), 0, False
        committer = cache._runtime.committer
        look, send = committer._hydrator.look, committer.attempts.send

        async def looking(keys: Any, *, end: float) -> Any:
            self.looks.append([*keys])
            if self.fails:
                raise PostgresUnavailable("connection")
            return await look(keys, end=end)

        async def sending(*arguments: Any) -> Any:
            self.attempts += 1
            return await send(*arguments)

        monkeypatch.setattr(committer._hydrator, "look", looking)
        monkeypatch.setattr(committer.attempts, "send", sending)


@pytest.fixture
def slow(make_client: MakeClient, settings: Settings, postgres_proxy: FaultProxy) -> AsyncStateCache:
    """A client whose way to Postgres leads through the proxy."""
    return make_client(through(settings, postgres=postgres_proxy))


@every_redis
async def test_several_new_states_take_one_attempt(cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> None:
    await cache.set(f"{KEY}/before", 1)  # its shard is open
    asked = Asked(cache, monkeypatch)
    made = await cache.commit(BOTH)
    assert [state.version for state in made if state] == [1, 1]
    assert (asked.looks, asked.attempts) == ([[KEY, OTHER]], 1)


async def test_postgres_is_not_asked_for_what_is_known_here_or_vouched_for(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await cache.get(KEY) is None
    asked = Asked(cache, monkeypatch)
    await cache.commit([Set(KEY, 1, expected=None), Create(OTHER, 1, assume_new=True)])
    assert (asked.looks, asked.attempts) == ([], 1)


async def test_one_state_alone_is_refused_by_redis_without_postgres(
    cache: AsyncStateCache, make_client: MakeClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many processes that want to be the first to make a state, all but one learn so, be Postgres there or not."""
    await make_client(settings).create(KEY, 1)
    asked = Asked(cache, monkeypatch)
    with pytest.raises(VersionConflict):
        await cache.commit([Set(KEY, 2, expected=None)])
    assert (asked.looks, asked.attempts) == ([], 1)


async def test_what_redis_holds_conflicts_while_postgres_cannot_be_had(
    cache: AsyncStateCache, make_client: MakeClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_client(settings).commit(BOTH)
    asked = Asked(cache, monkeypatch)
    asked.fails = True
    with pytest.raises(VersionConflict) as told:
        await cache.commit(BOTH)
    assert (told.value.key, asked.attempts) == (KEY, 1)


@every_redis
async def test_who_found_nothing_conflicts_with_what_was_made_and_flushed_since(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace, psql: Psql,
) -> None:  # fmt: skip
    """Redis holds it no more by then: the watermark, which has moved, tells that the word of Postgres is old."""
    fault, writing = await hold_at(postgres_proxy, LOOKS, slow.commit(BOTH))
    made = await cache.create(OTHER, 2, assume_new=True)
    await flush(worker)
    evict_clean(redis_raw, keys, OTHER)
    fault.release()
    with pytest.raises(VersionConflict) as told:
        await writing
    assert (told.value.key, told.value.actual) == (OTHER, made.change_id)
    await flush(worker)
    assert rows(psql, "SELECT key FROM change") == [(OTHER,)]
    assert rows(psql, "SELECT * FROM conflict") == []


@every_redis
async def test_who_found_nothing_waits_for_what_was_made_since_and_removed_by_hand(
    slow: AsyncStateCache, cache: AsyncStateCache, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    fault, writing = await hold_at(postgres_proxy, LOOKS, slow.commit(BOTH))
    await cache.create(KEY, 2)
    redis_raw.unlink(keys.state(KEY))
    fault.release()
    await asyncio.wait([writing], timeout=0.1)
    assert not writing.done()
    await flush(worker)
    with pytest.raises(VersionConflict):
        await writing

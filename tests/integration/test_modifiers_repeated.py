"""Counters and collections whose answer is lost, or that are asked for again: each counts once, as it did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    ChangeIdReused,
    OutcomeUnknown,
    Settings,
    UnknownCommit,
    VersionNotFound,
)
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.fault_proxy import FaultProxy
from tests.support.repeat_places import PLACES, Elsewhere

KEY = "runs/42"
LOG = "runs/42/log"
CHANGE = "c" * 24
ACTOR = "the-unlucky"
MARK = ACTOR.encode()
Psql = psycopg.Connection[Any]


@every_redis
@pytest.mark.parametrize("kind", ["drop_reply", "drop_request", "reset"])
async def test_a_lost_answer_is_counted_once(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, kind: Any
) -> None:
    behind = make_client(through(settings, redis=proxy))
    await behind.increment(KEY, 10)
    await behind.append(LOG, "a")
    for number in range(3):
        fault = proxy.arm(kind, at=MARK)
        state = await behind.increment(KEY, actor=ACTOR)
        assert fault.struck
        assert (state.value, state.version) == (11 + number, 2 + number)
        fault = proxy.arm(kind, at=MARK)
        log = await behind.append(LOG, number, actor=ACTOR)
        assert fault.struck
        assert log.value == ["a", *range(number + 1)]
        assert await behind.get(LOG) == log


@every_redis
@pytest.mark.parametrize("gone", ["stream", "Postgres"])
async def test_a_lost_answer_that_the_state_no_longer_remembers_is_found_with_its_value(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy, worker: Worker,
    redis_raw: Any, keys: KeySpace, gone: str,
) -> None:  # fmt: skip
    """Others have counted meanwhile; what it gives is the value that it has made itself."""
    behind = make_client(through(settings, redis=proxy))
    await behind.increment(KEY, 10)
    fault = proxy.arm("hold_reply", at=MARK)
    counting = asyncio.create_task(behind.increment(KEY, 5, actor=ACTOR, ttl=3600))
    await fault.wait()
    for _ in range(8):
        last = await cache.increment(KEY)
    if gone == "Postgres":
        await flush(worker)
        redis_raw.xtrim(keys.changes(keys.shard(KEY)), maxlen=0)
    proxy.cut_all()
    state = await counting
    assert (state.value, state.version) == (15, 2)
    assert state.expires_at is not None
    assert (last.value, last.version) == (23, 10)
    assert await cache.get(KEY) == last


@every_redis
@pytest.mark.parametrize("number", [0, 1, 11])
async def test_a_repeat_finds_what_postgres_keeps_as_a_keyframe_or_as_a_delta(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, number: int
) -> None:
    """Neither is held as bytes: they are made again from what the key's history keeps."""
    states = [await client.append(LOG, f"{n}: " + "a line of a log " * 20) for n in range(12)]
    for n in range(7):
        last = await client.set(LOG, n)
    await flush(worker)
    redis_raw.xtrim(keys.changes(keys.shard(LOG)), maxlen=0)
    wanted = states[number]
    again = await client.append(LOG, wanted.value[-1], change_id=wanted.change_id)
    assert again == wanted
    with pytest.raises(ChangeIdReused):
        await client.append(LOG, "another line", change_id=wanted.change_id)
    assert await client.get(LOG) == last


@every_redis
async def test_a_repeat_whose_value_no_tier_keeps_is_not_counted_again(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    await client.increment(KEY, 5, change_id=CHANGE)
    for n in range(7):
        last = await client.set(KEY, n)
    await flush(worker)
    redis_raw.xtrim(keys.changes(keys.shard(KEY)), maxlen=0)
    psql.execute("UPDATE change SET value = NULL, packed = NULL WHERE change_id = %s", [CHANGE])
    with pytest.raises(VersionNotFound, match="it is applied, and what it has made of that is kept no more"):
        await client.increment(KEY, 5, change_id=CHANGE)
    assert (await client.outcome(CHANGE, KEY)).verdict == "applied"
    assert await client.get(KEY) == last


@pytest.fixture(params=PLACES)
def move(
    request: pytest.FixtureRequest, client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> Callable[[], Awaitable[None]]:
    """What moves a change to one of the places where a repeat looks for it."""
    moved: Callable[[], Awaitable[None]] = getattr(Elsewhere(client, worker, redis_raw, keys), request.param)
    return moved


@every_redis
@pytest.mark.parametrize("before", ["nothing", "number", "deleted", "ended"])
async def test_a_named_repeat_answers_as_the_first_and_another_modifier_is_refused(
    client: AsyncStateCache, move: Callable[[], Awaitable[None]], redis_raw: Any, keys: KeySpace, before: str
) -> None:
    if before != "nothing":
        await client.set(KEY, 7, ttl=3600 if before == "ended" else None)
    if before == "deleted":
        await client.delete(KEY)
    if before == "ended":
        await _end(redis_raw, keys)
    first = await client.increment(KEY, 5, change_id=CHANGE)
    assert first.value == (12 if before == "number" else 5)
    await move()
    found = await client.get(KEY)
    assert await client.increment(KEY, 5, change_id=CHANGE) == first
    for other in (
        client.increment(KEY, 6, change_id=CHANGE), client.append(KEY, 5, change_id=CHANGE),
        client.set(KEY, 6, change_id=CHANGE), client.delete(KEY, change_id=CHANGE),
    ):  # fmt: skip
        with pytest.raises(ChangeIdReused) as caught:
            await other
        assert (caught.value.key, caught.value.change_id) == (KEY, CHANGE)
        assert caught.value.version == first.version
    assert await client.get(KEY) == found


@every_redis
@pytest.mark.parametrize("before_s", [None, 7200], ids=["lasts", "ends"])
@pytest.mark.parametrize("ttl", [None, 60, 9000])
async def test_a_named_repeat_with_another_end_is_refused_wherever_the_first_stands(
    client: AsyncStateCache, move: Callable[[], Awaitable[None]], before_s: int | None, ttl: int | None
) -> None:
    await client.set(KEY, 7, ttl=before_s)
    first = await client.increment(KEY, 5, ttl=ttl, change_id=CHANGE)
    await move()
    found = await client.get(KEY)
    assert await client.increment(KEY, 5, ttl=ttl, change_id=CHANGE) == first
    for other in {None, 60, 9000} - {ttl}:
        with pytest.raises(ChangeIdReused) as caught:
            await client.increment(KEY, 5, ttl=other, change_id=CHANGE)
        assert caught.value.version == first.version
    assert await client.get(KEY) == found


async def _end(redis_raw: Any, keys: KeySpace) -> None:
    """Let the state have ended a while ago, in its hash and in its entry."""
    stream = keys.changes(keys.shard(KEY))
    redis_raw.hset(keys.state(KEY), "encoding", "json until 1000")
    entry_id, fields = redis_raw.xrange(stream)[-1]
    n = int(entry_id.split(b"-")[1])
    redis_raw.delete(stream)
    redis_raw.xadd(stream, {**fields, b"encoding1": b"json until 1000"}, id=f"{entry_id.split(b'-')[0].decode()}-{n}")


async def test_a_change_id_of_another_verb_is_refused_wherever_it_stands(
    client: AsyncStateCache, move: Callable[[], Awaitable[None]]
) -> None:
    await client.set(KEY, 7, change_id=CHANGE)
    await move()
    with pytest.raises(ChangeIdReused):
        await client.increment(KEY, 6, change_id=CHANGE)
    with pytest.raises(ChangeIdReused):
        await client.append(KEY, 7, change_id=CHANGE)


async def test_a_named_repeat_of_the_newest_needs_no_postgres(
    make_client: MakeClient, settings: Settings, postgres_proxy: FaultProxy, worker: Worker, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    """Not even where what was there before has left Redis."""
    behind = make_client(through(settings, postgres=postgres_proxy))
    await behind.increment(KEY, 5)
    await flush(worker)
    redis_raw.xtrim(keys.changes(keys.shard(KEY)), maxlen=0)
    postgres_proxy.refusing = True
    postgres_proxy.cut_all()
    state = await behind.increment(KEY, 2)
    again = make_client(through(settings, postgres=postgres_proxy))
    assert await again.increment(KEY, 2, change_id=state.change_id) == state
    with pytest.raises(ChangeIdReused):
        await again.increment(KEY, 3, change_id=state.change_id)


@every_redis
async def test_an_unknown_outcome_is_repeated_by_its_change_id(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy
) -> None:
    behind = make_client(through(settings, redis=proxy))
    await behind.increment(KEY)
    fault = proxy.arm("drop_reply", at=MARK)
    fault.then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown) as caught:
        await behind.increment(KEY, 5, actor=ACTOR, timeout=1.0)
    for _ in range(8):
        last = await cache.increment(KEY)
    proxy.refusing = False
    assert [one.change_id for one in _unknown(behind)] == [caught.value.change_id]
    again = await behind.increment(KEY, 5, change_id=caught.value.change_id)
    assert (again.value, again.version, again.change_id) == (6, 2, caught.value.change_id)
    assert _unknown(behind) == ()
    assert await cache.get(KEY) == last


def _unknown(client: AsyncStateCache) -> tuple[UnknownCommit, ...]:
    return client._runtime.unknown_outcomes.all()

"""A change_id names one change of a key: the same one again is a repeat, another one is refused, wherever it stands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, ChangeIdReused, Create, Forked, Set, Settings, State
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, rows
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.repeat_places import PLACES, Elsewhere

KEY = "runs/42"
OTHER = "runs/42/plan"
CHANGE = "c" * 24

Psql = psycopg.Connection[Any]


@pytest.fixture(params=PLACES)
def move(
    request: pytest.FixtureRequest, client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> Callable[[], Awaitable[None]]:
    """What moves the change to one of these places."""
    moved: Callable[[], Awaitable[None]] = getattr(Elsewhere(client, worker, redis_raw, keys), request.param)
    return moved


@every_redis
async def test_a_used_change_id_is_refused_for_another_value(
    client: AsyncStateCache, move: Callable[[], Awaitable[None]]
) -> None:
    first = await client.set(KEY, {"step": 1}, change_id=CHANGE)
    await move()
    before = await client.get(KEY)
    with pytest.raises(ChangeIdReused, match=f"Change {CHANGE} of '{KEY}' is applied already") as caught:
        await client.set(KEY, {"step": 2}, change_id=CHANGE)
    assert (caught.value.key, caught.value.change_id, caught.value.version) == (KEY, CHANGE, 1)
    with pytest.raises(ChangeIdReused):
        await client.delete(KEY, change_id=CHANGE)
    assert await client.set(KEY, {"step": 1}, change_id=CHANGE) == first
    assert await client.get(KEY) == before


@pytest.mark.parametrize("ttl", [None, 3600, 7200.5])
async def test_a_used_change_id_is_refused_for_another_end(
    client: AsyncStateCache, move: Callable[[], Awaitable[None]], ttl: float | None
) -> None:
    """What a repeat gives is what is stored, and with its end: one that asks for another end is no repeat."""
    first = await client.set(KEY, {"step": 1}, change_id=CHANGE, ttl=ttl)
    await move()
    for other in (None, 3600, 7200.5, 7200.501):
        if other != ttl:
            with pytest.raises(ChangeIdReused):
                await client.set(KEY, {"step": 1}, change_id=CHANGE, ttl=other)
    assert await client.set(KEY, {"step": 1}, change_id=CHANGE, ttl=ttl) == first
    assert (first.expires_at is None) == (ttl is None)


async def test_a_used_change_id_of_a_delete_is_refused_for_a_value(
    client: AsyncStateCache, move: Callable[[], Awaitable[None]]
) -> None:
    await client.set(KEY, 1)
    tombstone = await client.delete(KEY, change_id=CHANGE)
    assert tombstone is not None
    await move()
    with pytest.raises(ChangeIdReused) as caught:
        await client.set(KEY, "", change_id=CHANGE)
    assert caught.value.version == 2
    again: State[None] | None = await client.delete(KEY, change_id=CHANGE)
    assert again == tombstone


async def test_a_change_id_of_several_keys_is_compared_key_by_key(client: AsyncStateCache, agents: Agents) -> None:
    """Their values differ, and stand in one entry, whose actor looks like one of its keys."""
    agents.commit((KEY, '"a"'), (OTHER, '"b"'), change_id=CHANGE, actor=OTHER)
    await client.set(OTHER, "later")
    assert (await client.set(OTHER, "b", change_id=CHANGE)).version == 1
    assert (await client.set(KEY, "a", change_id=CHANGE)).version == 1
    for key, value in ((KEY, "b"), (OTHER, "a")):
        with pytest.raises(ChangeIdReused):
            await client.set(key, value, change_id=CHANGE)


# One change_id at two keys: each is a change of its own.


async def _apart(
    client: AsyncStateCache, agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> tuple[Any, Any]:
    """Use one change_id at two keys of a shard: one change continues its key, the other forks."""
    await client.set(OTHER, "the truth")
    await flush(worker)
    redis_raw.unlink(keys.state(OTHER))
    agents.commit({"key": OTHER, "value": '"a fork"', "expected": "!"}, change_id=CHANGE)
    return await client.set(KEY, "mine", change_id=CHANGE), await client.get(OTHER)


async def test_whether_a_change_is_durable_is_told_by_its_key_too(
    client: AsyncStateCache, agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    mine, fork = await _apart(client, agents, worker, redis_raw, keys)
    await flush(worker)
    assert rows(psql, "SELECT key FROM conflict") == [(OTHER,)]
    with pytest.raises(Forked):
        await client.wait_durable(fork, timeout=5)
    assert await client.wait_durable(mine, timeout=5) == mine


async def test_a_repeat_is_told_what_became_of_it_at_its_key(
    client: AsyncStateCache, agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    mine, _ = await _apart(client, agents, worker, redis_raw, keys)
    for number in range(7):
        await client.set(KEY, number)
    await flush(worker)
    redis_raw.xtrim(keys.changes(keys.shard(KEY)), maxlen=0)
    assert await client.set(KEY, "mine", change_id=CHANGE) == mine


async def test_what_is_in_the_lineage_is_no_fork_whatever_was_set_aside(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    """A returning old branch may have brought the change along that its writer had applied again in the lineage."""
    mine = await client.set(KEY, "mine", change_id=CHANGE)
    for number in range(7):
        await client.set(KEY, number)
    await flush(worker)
    redis_raw.xtrim(keys.changes(keys.shard(KEY)), maxlen=0)
    columns = "key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding, schema, writer, actor"
    psql.execute(
        f"INSERT INTO conflict ({columns}, reason, at, cause)"
        f" SELECT {columns}, reason, at, 'another branch' FROM change WHERE change_id = %s".encode(),
        [CHANGE],
    )
    assert await client.set(KEY, "mine", change_id=CHANGE) == mine
    assert await client.wait_durable(mine) == mine


# Several keys: a commit is known by its change_id at every one of them.


@every_redis
@pytest.mark.parametrize("stranger", [False, True], ids=["its writer", "a stranger"])
async def test_a_change_id_of_a_commit_is_refused_for_one_of_other_keys(
    client: AsyncStateCache, move: Callable[[], Awaitable[None]], make_client: MakeClient, settings: Settings,
    psql: Psql, worker: Worker, stranger: bool,
) -> None:  # fmt: skip
    """Whoever repeats it with a key more, or another one, is not told that it is lost, and does not apply it again."""
    draft = "runs/42/draft"
    first = await client.commit([Set(KEY, 1), Set(OTHER, 2)], change_id=CHANGE)
    await move()
    for number in range(7):  # a state that remembers the commit no more than the first one does in `move`
        await client.set(OTHER, number)
    repeats = make_client(settings) if stranger else client
    before = await client.get_many([KEY, OTHER])
    for more in ([Set(KEY, 1), Set(OTHER, 2), Set(draft, 3)], [Set(KEY, 1), Create(draft, 3)]):
        with pytest.raises(ChangeIdReused) as caught:
            await repeats.commit(more, change_id=CHANGE)
        assert (caught.value.key, caught.value.version) == (KEY, 1)
    assert await client.get_many([KEY, OTHER, draft], read="primary") == before | {draft: None}
    assert await repeats.commit([Set(KEY, 1), Set(OTHER, 2)], change_id=CHANGE) == first
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(0,)]

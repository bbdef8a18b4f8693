"""A commit whose entry left the stream, repeated with its change_id: never applied twice, whoever knows what of it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Create, Lost, OutcomeUnknown, Set, Settings, State
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows
from tests.fixtures.servers import MakeClient

GROUP = "runs/42"
A, B = f"{GROUP}/a", f"{GROUP}/b"

Psql = psycopg.Connection[Any]


@pytest.fixture
def other(make_client: MakeClient, settings: Settings) -> AsyncStateCache:
    """Another client, which was told nothing of what the first one wrote."""
    return make_client(settings)


@pytest.fixture
def trimmed(redis_raw: Any, keys: KeySpace) -> Any:
    """What removes all entries of the group's stream."""

    def trim() -> None:
        assert redis_raw.xtrim(keys.changes(keys.shard(GROUP)), maxlen=0) > 0

    return trim


async def _version(client: AsyncStateCache, key: str) -> int:
    state = await client.get(key, read="primary")
    assert state is not None
    return state.version


async def _overwritten(client: AsyncStateCache, times: int, *keys: str) -> None:
    for value in range(times):
        for key in keys:
            await client.set(key, f"later {value}")


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("behind", [1, 4, 5, 6, 8])
async def test_before_a_worker_has_passed_it_its_writer_is_told_that_it_is_unknown(
    client: AsyncStateCache, other: AsyncStateCache, worker: Worker, trimmed: Any, before: int, behind: int
) -> None:
    await _overwritten(client, before, A)
    await flush(worker)
    gone = await client.set(A, "first")
    trimmed()
    await _overwritten(client, behind, A)
    asking = (client, other) if behind < 6 else (client,)  # nobody else can know of it then
    for one in asking:
        for durability in ("memory", "postgres"):
            with pytest.raises(OutcomeUnknown):
                await one.set(A, "first", change_id=gone.change_id, durability=durability, timeout=20)
        assert [left.change_id for left in one._runtime.unknown_outcomes.all()] == [gone.change_id]
    assert await _version(client, A) == before + 1 + behind
    await flush(worker)
    for one in asking:
        with pytest.raises(Lost):
            await one.set(A, "first", change_id=gone.change_id)
    assert await _version(client, A) == before + 1 + behind


async def test_a_repeat_of_what_postgres_holds_is_told_as_the_first_time(
    client: AsyncStateCache, other: AsyncStateCache, worker: Worker, trimmed: Any
) -> None:
    first = await client.set(A, "first", durability="memory")
    await _overwritten(client, 5, A)
    await flush(worker)
    trimmed()
    for one in (client, other):
        again = await one.set(A, "first", change_id=first.change_id)
        assert (again.version, again.position) == (first.version, first.position)


async def test_of_however_many_states_behind_a_gap_what_they_remember_is_kept(
    client: AsyncStateCache, other: AsyncStateCache, worker: Worker, psql: Psql, trimmed: Any
) -> None:
    gone = await client.set(A, "first")
    trimmed()
    for start in range(0, 1250, 250):
        many = [Create(f"{GROUP}/{number}", 0, assume_new=True) for number in range(start, start + 250)]
        await client.commit(many, durability="memory")
    await client.set(A, "later")
    await flush(worker)
    assert rows(psql, "SELECT change_id, key FROM lost_change") == [(gone.change_id, A)]
    await _overwritten(other, 6, A)
    with pytest.raises(Lost):
        await other.set(A, "first", change_id=gone.change_id)


async def _lost_transaction(client: AsyncStateCache, worker: Worker, trimmed: Any) -> list[State[Any] | None]:
    both = await client.commit([Set(A, "first"), Set(B, "first")])
    trimmed()
    await _overwritten(client, 6, A, B)
    trimmed()
    await client.set(A, "last")
    await flush(worker)
    return both


@pytest.mark.parametrize("how", ["lost", "wait", "repeat"])
async def test_what_a_writer_is_told_is_kept_for_all_keys_of_the_commit(
    client: AsyncStateCache, other: AsyncStateCache, worker: Worker, psql: Psql, trimmed: Any, how: str
) -> None:
    a, b = await _lost_transaction(client, worker, trimmed)
    assert a is not None
    assert b is not None
    if how == "lost":
        assert [(one.key, one.change_id) for one in await client.lost() if one.change_id == a.change_id] == [
            (A, a.change_id)
        ]
    elif how == "wait":
        with pytest.raises(Lost):
            await client.wait_durable(a)
    else:
        with pytest.raises(Lost):
            await client.commit([Set(A, "first"), Set(B, "first")], change_id=a.change_id)
    told = rows(psql, "SELECT key FROM lost_change WHERE change_id = %s ORDER BY key", a.change_id)
    assert told == [(A,), (B,)]
    for key in (A, B):
        with pytest.raises(Lost):
            await other.set(key, "first", change_id=a.change_id)
        assert (await other.outcome(a.change_id, key)).verdict == "lost"


async def test_a_key_that_a_transaction_only_read_is_not_what_it_lost(
    client: AsyncStateCache, other: AsyncStateCache, worker: Worker, trimmed: Any
) -> None:
    await client.set(A, "read")
    await flush(worker)
    async with client.transaction(A, B) as tx:
        await tx.get(A)
        tx.set(B, "first")
    gone = tx.states[B]
    trimmed()
    await _overwritten(client, 6, B)
    trimmed()
    await client.set(A, "last")
    await flush(worker)
    assert (B, gone.change_id) in [(one.key, one.change_id) for one in await client.lost()]
    with pytest.raises(Lost):
        await other.set(B, "first", change_id=gone.change_id)


@pytest.mark.parametrize("before", [0, 3])
async def test_a_state_that_left_redis_with_its_entry_is_not_written_by_a_repeat(
    client: AsyncStateCache, other: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, trimmed: Any,
    before: int,
) -> None:  # fmt: skip
    await _overwritten(client, before, A)
    await flush(worker)
    gone = await client.set(A, "first")
    trimmed()
    redis_raw.delete(keys.state(A))
    await client.set(B, 1)
    await flush(worker)
    with pytest.raises(Lost):
        await client.wait_durable(gone)
    for one in (other, client):
        for durability in ("memory", "postgres"):
            with pytest.raises(Lost):
                await one.set(A, "first", change_id=gone.change_id, durability=durability)
    assert (await other.set(A, "new")).version == before + 1
    for one in (other, client):
        with pytest.raises(Lost):
            await one.set(A, "first", change_id=gone.change_id)

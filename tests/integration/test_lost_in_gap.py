"""A commit whose entry left the stream before it was flushed: all who ask are told the same of it."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Lost, LostCommit, OutcomeUnknown, Settings, State
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, flushing, rows
from tests.fixtures.servers import MakeClient

GROUP = "runs/42"
A, B = f"{GROUP}/a", f"{GROUP}/b"

Psql = psycopg.Connection[Any]


async def _awaited(call: Any) -> Any:
    return await call


async def _told_lost(client: AsyncStateCache, state: State[Any]) -> None:
    """Assert that whoever waits for the state's change, or asks about it, is told that it is lost, at once."""
    with pytest.raises(Lost, match=f"Postgres went past its position {state.position}") as told:
        await client.wait_durable(state, timeout=60)
    assert (told.value.key, told.value.change_id, told.value.position) == (state.key, state.change_id, state.position)
    outcome = await client.outcome(state.change_id, state.key, timeout=60)
    assert (outcome.verdict, outcome.position, outcome.durable, outcome.settled) == (
        "lost", state.position, False, True,
    )  # fmt: skip


async def _both(client: AsyncStateCache, value: Any) -> list[State[Any]]:
    """Write both keys in one commit, and return their states."""

    def write(tx: Any) -> None:
        tx.set(A, value)
        tx.set(B, value)

    await client.transact([A, B], write)
    found = [await client.get(key, read="primary") for key in (A, B)]
    return [state for state in found if state is not None]


def _dropped(redis_raw: Any, keys: KeySpace) -> None:
    assert redis_raw.xtrim(keys.changes(keys.shard(GROUP)), maxlen=0) > 0


@pytest.mark.parametrize("often", [1, 7])
async def test_a_commit_that_is_gone_with_its_entry_is_lost_for_all_who_ask_and_never_applied_again(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, worker: Worker, psql: Psql, redis_raw: Any,
    keys: KeySpace, often: int,
) -> None:  # fmt: skip
    """Also where the state has forgotten by then that it was applied: its writer knows where it was."""
    gone = await client.set(A, 0)
    _dropped(redis_raw, keys)
    for value in range(1, often + 1):
        await client.set(A, value)
    await flush(worker)
    await _told_lost(client, gone)
    if often == 1:
        await _told_lost(make_client(settings), gone)
    for durability in ("memory", "postgres"):
        with pytest.raises(Lost, match="Postgres went past"):
            await client.set(A, 0, change_id=gone.change_id, durability=durability)
    assert rows(psql, "SELECT count(*) FROM change WHERE change_id = %s", gone.change_id) == [(0,)]
    now = await client.get(A, read="primary")
    assert now is not None
    assert (now.value, now.version) == (often, often + 1)
    assert gone.position is not None
    told = LostCommit(change_id=gone.change_id, key=A, position=gone.position, ended_by=gone.position.epoch)
    assert await client.lost() == (told,)
    left = await client.close(drain=20)
    assert (left.lost, left.shards, str(left)) == ((told,), (), "1 acknowledged commits were lost")


async def test_what_a_state_remembers_of_a_lost_commit_outlives_the_state(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, worker: Worker, psql: Psql, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    """Whoever repeats it later would write over what came behind it, as Redis has let go of the state."""
    gone = await client.set(A, "first")
    _dropped(redis_raw, keys)
    await client.set(A, "later")
    await flush(worker)
    redis_raw.delete(keys.state(A))
    for asking in (make_client(settings), client):
        for durability in ("memory", "postgres"):
            with pytest.raises(Lost, match=f"Postgres went past its position {gone.position}"):
                await asking.set(A, "first", change_id=gone.change_id, durability=durability)
        outcome = await asking.outcome(gone.change_id, A, timeout=60)
        assert (outcome.verdict, outcome.position) == ("lost", gone.position)
    await flush(worker)
    assert rows(psql, "SELECT version, op FROM change ORDER BY n") == [(2, "set")]
    assert (await make_client(settings).set(B, "first", change_id=gone.change_id)).version == 1, "another key's change"


async def test_what_only_the_writer_remembers_of_a_lost_commit_is_kept_once_it_was_told(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    gone = await client.set(A, "first")
    for value in range(7):
        await client.set(A, value)
    _dropped(redis_raw, keys)
    await client.set(A, "later")
    await flush(worker)
    with pytest.raises(Lost):
        await client.set(A, "first", change_id=gone.change_id)
    with pytest.raises(Lost):
        await make_client(settings).set(A, "first", change_id=gone.change_id)


@pytest.mark.parametrize("again", [A, B])
async def test_a_commit_of_which_a_part_is_gone_is_lost_at_each_of_its_keys(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, worker: Worker, psql: Psql, redis_raw: Any,
    keys: KeySpace, again: str,
) -> None:  # fmt: skip
    both = await _both(client, "half")
    _dropped(redis_raw, keys)
    await client.set(again, "later")
    await flush(worker)
    kept = B if again == A else A
    assert rows(psql, "SELECT key FROM change WHERE n = 1") == [(kept,)], "what came later may build on it"
    for asking in (client, make_client(settings)):
        for state in both:
            await _told_lost(asking, state)
    assert [one.change_id for one in await client.lost()] == [both[0].change_id]
    after = await client.set(kept, "next", timeout=20)
    await flush(worker)
    assert await client.wait_durable(after) == after


async def test_a_commit_that_was_rebuilt_whole_is_held(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    both = await _both(client, "whole")
    _dropped(redis_raw, keys)
    await flush(worker)
    for state in both:
        assert await client.wait_durable(state, timeout=20) == state
        outcome = await client.outcome(state.change_id, state.key)
        assert (outcome.verdict, outcome.durable) == ("applied", True)
    assert await client.lost() == ()
    assert not await client.close(drain=20)


async def test_what_postgres_has_not_come_to_yet_may_still_be_rebuilt(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    state = await client.set(A, 1)
    _dropped(redis_raw, keys)
    outcome = await client.outcome(state.change_id, A)
    assert (outcome.verdict, outcome.durable) == ("applied", False)
    with pytest.raises(OutcomeUnknown, match="not yet known to be in Postgres"):
        await client.wait_durable(state, timeout=0.05)
    assert await client.lost() == ()
    await flush(worker)
    assert await client.wait_durable(state, timeout=20) == state
    assert (await client.set(A, 1, change_id=state.change_id)).version == 1


async def test_a_durable_write_whose_entry_was_removed_before_the_flush_is_lost(
    cache: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    """Redis goes on to say that it is applied, and Postgres that it does not have it: nobody repeats it for ever."""
    writing = [
        asyncio.create_task(_awaited(cache.set(GROUP, number, durability="postgres", timeout=20)))
        for number in range(2)
    ]
    shard = keys.shard(GROUP)
    while redis_raw.hget(keys.meta(shard), "n") != b"2":
        await asyncio.wait(writing, timeout=0.01)
    redis_raw.delete(keys.changes(shard))
    async with asyncio.timeout(60):
        await flush(worker)
        lost, kept = await asyncio.gather(*writing, return_exceptions=True)
    if isinstance(kept, Lost):
        lost, kept = kept, lost
    assert isinstance(lost, Lost)
    assert (lost.key, lost.position) == (GROUP, (1, 1))
    assert isinstance(kept, State)
    assert rows(psql, "SELECT change_id FROM change WHERE key = %s", GROUP) == [(kept.change_id,)]


@pytest.mark.parametrize("again", [A, B])
async def test_a_durable_transaction_of_which_a_part_is_gone_is_lost(
    cache: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, again: str
) -> None:
    """Whether the state that Redis looks at last still knows when it was applied, or not."""

    def write(tx: Any) -> None:
        tx.set(A, 1)
        tx.set(B, 1)

    writing = asyncio.create_task(_awaited(cache.transact([A, B], write, durability="postgres", timeout=20)))
    while not redis_raw.xlen(keys.changes(keys.shard(GROUP))):
        await asyncio.wait([writing], timeout=0.01)
    _dropped(redis_raw, keys)
    await cache.set(again, "later")
    async with asyncio.timeout(60):
        await flush(worker)
        with pytest.raises(Lost, match="Postgres went past its position 1-1"):
            await writing


async def test_a_step_whose_record_is_held_gives_its_result_though_what_it_was_applied_to_is_gone(
    cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    """What came later was built on it, so the step is not to run again."""
    await cache.set(GROUP, 1)
    called: list[int] = []

    async def effect(step: Any) -> int:
        called.append(step.attempt)
        return 5

    async def apply(value: int, result: int) -> int:
        await worker_at_rest()
        return value + result

    async def worker_at_rest() -> None:
        working.cancel()
        await asyncio.wait([working])

    async def work() -> None:
        async with flushing(worker):
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    assert await cache.step(GROUP, "add", effect, apply=apply, durability="memory") == 5
    _dropped(redis_raw, keys)
    await cache.set(GROUP, 7)
    await flush(worker)
    assert rows(psql, "SELECT positions, keys FROM lost") == [(1, [f"{GROUP}/steps/add", GROUP])]
    assert await cache.step(GROUP, "add", effect, apply=apply, durability="postgres", timeout=20) == 5
    assert called == [1]


async def test_a_gap_where_the_epoch_began_without_a_tail_is_recorded_beside_it(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    await flush(worker)
    tail = "INSERT INTO lost VALUES (0, 1, 1, 3, 'tail', 3, '{}', 'somebody')"
    psql.execute(tail)
    group = agents.key_on(0)
    agents.commit((f"{group}/x", "1"), (f"{group}/y", "1"))
    redis_raw.xtrim(keys.changes(0), maxlen=0)
    agents.commit((f"{group}/y", "2"))
    await flush(worker)
    recorded = rows(psql, "SELECT first_n, last_n, cause, positions FROM lost ORDER BY cause")
    assert recorded == [(1, 1, "gap", 1), (1, 3, "tail", 3)]

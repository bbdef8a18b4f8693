"""Many writes in few exchanges: each a commit of its own, applied once whatever becomes of an exchange."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any, Literal

import msgspec
import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    Backpressure,
    BulkError,
    CodecError,
    DurabilityNotMet,
    DurabilityRefused,
    ForeignData,
    InvalidKey,
    LockHeld,
    OutcomeUnknown,
    Settings,
    Unavailable,
)
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis
from tests.support.fault_proxy import FaultProxy
from tests.support.workers import at_work

ACTOR = "the-unlucky"
MARK = ACTOR.encode()
NAMES = [f"runs/{number}" for number in range(150)]
VALUES = {name: name for name in NAMES}


class Run(msgspec.Struct, frozen=True):
    goal: str


async def _versions(client: AsyncStateCache) -> dict[str, int]:
    return {name: state.version for name, state in (await client.get_many(NAMES)).items() if state is not None}


@every_redis
async def test_every_value_is_written_and_its_state_returned(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    states = await client.set_many(VALUES, actor="somebody", reason="because")
    assert list(states) == NAMES
    assert states == await client.get_many(NAMES)
    await client.delete("runs/7")
    await flush(worker)
    redis_raw.unlink(*map(keys.state, NAMES[:40]))
    again = await client.set_many(dict.fromkeys(NAMES, 2))
    assert {state.version for name, state in again.items() if name != "runs/7"} == {2}
    assert again["runs/7"].version == 3
    assert again["runs/8"].parent_change_id == states["runs/8"].change_id
    assert again == await client.get_many(NAMES)
    assert await client.set_many({}) == {}
    pair: dict[str, Any] = await client.set_many({"runs/1": (1, 2)})
    assert pair == await client.get_many(["runs/1"])
    assert pair["runs/1"].value == [1, 2]


async def test_postgres_holds_each_as_a_change_of_its_own(
    client: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    states = await client.set_many(VALUES, actor="somebody")
    await flush(worker)
    found = psql.execute("SELECT key, change_id, actor FROM change").fetchall()
    assert sorted(found) == sorted((name, state.change_id, "somebody") for name, state in states.items())
    assert psql.execute("SELECT count(DISTINCT change_id) FROM change").fetchall() == [(150,)]


async def test_at_postgres_each_is_durable_when_it_returns(
    make_client: MakeClient, settings: Settings, psql: psycopg.Connection[Any]
) -> None:
    client = make_client(settings)
    async with at_work(settings):
        await client.set_many(VALUES, durability="postgres")
        assert psql.execute("SELECT count(*) FROM state").fetchall() == [(150,)]


async def test_copies_are_counted_for_each(make_client: MakeClient, paired: Settings) -> None:
    client = make_client(paired)
    assert len(await client.set_many(VALUES, durability="replica")) == 150
    many = make_client(paired.model_copy(update={"replicas": 2}))
    with pytest.raises(BulkError) as failed:
        await many.set_many({"runs/1": 1}, durability="replica", timeout=2.0)
    assert isinstance(failed.value.errors["runs/1"], (DurabilityNotMet, DurabilityRefused))


async def test_one_that_fails_is_nothing_to_the_others(client: AsyncStateCache, redis_raw: Any, keys: KeySpace) -> None:
    redis_raw.set(keys.state("runs/70"), "somebody else's")
    with pytest.raises(BulkError, match="1 of 150 writes failed, first that of 'runs/70': The Redis key") as failed:
        await client.set_many(VALUES)
    assert list(failed.value.errors) == ["runs/70"]
    assert isinstance(failed.value.errors["runs/70"], ForeignData)
    assert list(failed.value.states) == [name for name in NAMES if name != "runs/70"]
    redis_raw.unlink(keys.state("runs/70"))
    assert set((await _versions(client)).values()) == {1}
    again = pickle.loads(pickle.dumps(failed.value))
    assert (again.states, str(again)) == (failed.value.states, str(failed.value))


async def test_what_cannot_be_written_is_refused_before_anything_is(client: AsyncStateCache) -> None:
    runs = client.namespace("runs", type=Run)
    values: Any = {"1": Run("one"), "2": object()}
    with pytest.raises(CodecError):
        await runs.set_many(values)
    with pytest.raises(InvalidKey):
        await client.set_many({"runs/1": 1, "runs": 2})
    assert not await client.exists("runs/1")
    assert (await runs.set_many({"1": Run("one")}))["1"].value == Run("one")


async def test_a_backlog_that_is_full_refuses_some_and_says_which(make_client: MakeClient, settings: Settings) -> None:
    client = make_client(settings.model_copy(update={"backlog_entries_max": 10}))
    with pytest.raises(BulkError) as failed:
        await client.set_many(VALUES)
    assert len(failed.value.states) == 10 * settings.shards
    assert {type(error) for error in failed.value.errors.values()} == {Backpressure}
    assert {*await _versions(client)} == {*failed.value.states}


Harm = Literal["drop_request", "cut", "drop_reply", "reset"]


@pytest.mark.parametrize("harm", ["drop_request", "cut", "drop_reply", "reset"])
@pytest.mark.parametrize("known", [True, False])
async def test_an_exchange_that_breaks_is_repeated_and_nothing_applied_twice(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy, harm: Harm, known: bool
) -> None:
    client = make_client(through(settings, redis=proxy))
    if known:
        await client.set_many(dict.fromkeys(NAMES, 0))
    fault = proxy.arm(harm, at=MARK)
    states = await client.set_many(VALUES, actor=ACTOR)
    assert fault.struck
    assert states == await cache.get_many(NAMES)
    assert set((await _versions(cache)).values()) == {1 + known}
    assert not client._runtime.unknown_outcomes.all()


async def test_what_cannot_even_be_sent_fails_one_by_one(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, postgres_proxy: FaultProxy
) -> None:
    """A Postgres that says nothing may belong to another Redis: nothing is sent before that is known."""
    postgres_proxy.silent = True
    client = make_client(through(settings, postgres=postgres_proxy))
    with pytest.raises(BulkError) as failed:
        await client.set_many(VALUES, durability="postgres", timeout=0.3)
    assert not failed.value.states
    assert [*failed.value.errors] == NAMES
    assert {type(error) for error in failed.value.errors.values()} <= {*_unavailable()}
    assert not client._runtime.unknown_outcomes.all()
    assert await cache.get_many(NAMES) == dict.fromkeys(NAMES)


async def test_without_an_answer_each_that_was_sent_is_unknown_and_the_others_are_not_applied(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy
) -> None:
    client = make_client(through(settings, redis=proxy))
    await client.set_many(dict.fromkeys(NAMES, 0))
    proxy.arm("drop_reply", at=MARK).then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(BulkError) as failed:
        await client.set_many(VALUES, actor=ACTOR, timeout=1.0)
    proxy.refusing = False
    assert not failed.value.states
    unknown = {name for name, error in failed.value.errors.items() if isinstance(error, OutcomeUnknown)}
    assert 0 < len(unknown) < 150
    assert {type(error) for name, error in failed.value.errors.items() if name not in unknown} <= {*_unavailable()}
    versions = await _versions(cache)
    assert {name for name, version in versions.items() if version == 2} <= unknown
    assert {key for one in client._runtime.unknown_outcomes.all() for key in one.keys} == unknown
    for name in unknown:
        repeated = await client.set(name, VALUES[name], change_id=failed.value.errors[name].change_id)  # type: ignore[attr-defined]
        assert repeated.version == 2


def _unavailable() -> list[type]:
    return [Unavailable, *Unavailable.__subclasses__()]


async def test_who_is_cancelled_finds_all_that_was_sent_unsettled(
    settings: Settings, cache: AsyncStateCache, proxy: FaultProxy
) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as client:
        await client.set_many(dict.fromkeys(NAMES, 0))
        fault = proxy.arm("hold_reply", at=b"runs/100")
        writing = asyncio.create_task(client.set_many(VALUES, actor=ACTOR))
        await fault.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        fault.release()
        left = {one.keys[0]: one.change_id for one in client.unknown_outcomes()}
        written = {name for name, version in (await _versions(cache)).items() if version == 2}
        assert len(written) < 150
        assert written <= {*left}
        for name, change_id in left.items():
            outcome = await client.outcome(change_id, name)
            assert outcome.verdict == ("applied" if name in written else "not applied")
        assert not client.unknown_outcomes()


async def test_a_closed_gate_is_opened_once_for_all(
    make_client: MakeClient, settings: Settings, redis_raw: Any, keys: KeySpace, psql: psycopg.Connection[Any]
) -> None:
    client = make_client(settings)
    await client.set_many(dict.fromkeys(NAMES, 0))
    for shard in range(settings.shards):
        redis_raw.hset(keys.meta(shard), "replid", "a" * 40)
    psql.execute("UPDATE shard SET replid = %s", ["a" * 40])
    assert {state.version for state in (await client.set_many(VALUES)).values()} == {2}
    assert psql.execute("SELECT count(*) FROM epoch").fetchall() == [(2 * settings.shards,)]


async def test_locks_are_heeded_by_each(make_client: MakeClient, settings: Settings) -> None:
    client, other = make_client(settings), make_client(settings)
    held = client.namespace("runs", locking="enforced")
    async with held.lock("1", ttl=30) as lease:
        with pytest.raises(BulkError) as failed:
            await other.set_many({"runs/1": 1, "runs/2": 2})
        assert isinstance(failed.value.errors["runs/1"], LockHeld)
        assert list(failed.value.states) == ["runs/2"]
        assert list(await lease.set_many({"1": 1, "1/plan": 2})) == ["1", "1/plan"]
        with pytest.raises(InvalidKey):
            await lease.set_many({"1": 1, "2": 2})


async def test_a_verb_of_many_writes_what_is_kept_here_anew(
    make_client: MakeClient, make_settings: MakeSettings
) -> None:
    client = make_client(make_settings(read="local"))
    await client.set_many(dict.fromkeys(NAMES, 0))
    await client.warm(NAMES)
    await client.get_many(NAMES)
    states = await client.set_many(VALUES)
    assert await client.get_many(NAMES) == states

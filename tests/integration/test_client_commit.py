"""One commit of several states that were not read first: all or none, known by one change_id."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import AsyncStateCache, Create, Delete, Set, Settings
from statecache.errors import (
    AlreadyExists,
    ChangeIdReused,
    CodecError,
    InvalidKey,
    LimitExceeded,
    LockHeld,
    NotFound,
    SchemaNewer,
    UsageError,
    VersionConflict,
)
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient
from tests.support.fault_proxy import FaultProxy, Kind

Psql = psycopg.Connection[Any]


MARK = "the-commit-that-is-hindered"


class Old(msgspec.Struct):
    """A value, as an old release knows it."""

    goal: str


class New(msgspec.Struct):
    """The same, as a new release writes it."""

    goal: str
    tries: int = 0


async def _values(client: AsyncStateCache, prefix: str = "runs/1/") -> dict[str, Any]:
    return {state.key.removeprefix(prefix): state.value async for state in client.list(prefix)}


async def test_states_are_written_together_and_given_in_order(
    client: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await client.set("runs/1/a", "old")
    gone = await client.set("runs/1/gone", 1)
    states = await client.commit(
        [Create("runs/1/b", "b", assume_new=True), Delete("runs/1/gone"), Set("runs/1/a", "new")], actor="ann"
    )
    made, tombstone, changed = states
    assert made is not None
    assert tombstone is not None
    assert changed is not None
    assert [state and (state.key, state.value, state.version) for state in states] == [
        ("runs/1/b", "b", 1),
        ("runs/1/gone", None, 2),
        ("runs/1/a", "new", 2),
    ]
    assert tombstone.parent_change_id == gone.change_id
    assert {made.change_id, made.position} == {changed.change_id, changed.position}
    assert await client.get("runs/1/b") == made
    assert await _values(client) == {"a": "new", "b": "b"}
    await flush(worker)
    rows = psql.execute("SELECT key, op, actor FROM change WHERE change_id = %s ORDER BY key", [made.change_id])
    assert rows.fetchall() == [("runs/1/a", "set", "ann"), ("runs/1/b", "set", "ann"), ("runs/1/gone", "delete", "ann")]


@pytest.mark.parametrize(
    ("hindered", "error"),
    [
        (Create("runs/1/a", 2), AlreadyExists),
        (Set("runs/1/a", 2, expected=None), VersionConflict),
        (Set("runs/1/a", 2, expected="0" * 24), VersionConflict),
        (Delete("runs/1/a", expected="0" * 24), VersionConflict),
        (Delete("runs/1/a", expected=None), VersionConflict),
        (Delete("runs/1/none"), NotFound),
        (Set("runs/1/a", float("nan")), CodecError),
        (Set("runs/2/a", 2), InvalidKey),
    ],
)
async def test_what_hinders_one_hinders_all(client: AsyncStateCache, hindered: Any, error: type[Exception]) -> None:
    before = await client.set("runs/1/a", 1)
    with pytest.raises(error, match=hindered.name):
        await client.commit([Set("runs/1/b", 1), hindered, Create("runs/1/c", 1)])
    assert await _values(client) == {"a": 1}
    assert await client.get("runs/1/a") == before


async def test_what_was_expected_is_compared(client: AsyncStateCache) -> None:
    first, second = await client.set("runs/1/a", 1), await client.set("runs/1/b", 1)
    done = await client.commit(
        [
            Set("runs/1/a", 2, expected=first),
            Delete("runs/1/b", expected=second.change_id),
            Set("runs/1/c", 2, expected=None),
            Delete("runs/1/d", expected=None),
        ]
    )
    assert done[3] is None
    assert await _values(client) == {"a": 2, "c": 2}
    assert await client.commit([Delete("runs/1/e", expected=None), Delete("runs/1/d", expected=None)]) == [None, None]


async def test_that_there_is_nothing_is_read_of_all_at_once(
    client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written where each of the writes only expects that."""
    writes = [Delete(f"runs/1/{number}", expected=None) for number in range(200)]
    assert await client.commit(writes) == [None] * 200
    taken, take = list[float](), client._runtime.redis.pool.take

    async def counted(seconds: float, *, ahead: bool = False) -> Any:
        taken.append(seconds)
        return await take(seconds, ahead=ahead)

    monkeypatch.setattr(client._runtime.redis.pool, "take", counted)
    assert await client.commit(writes) == [None] * 200
    assert len(taken) <= 3
    await client.set("runs/1/150", 1)
    with pytest.raises(VersionConflict, match="'runs/1/150'"):
        await client.commit(writes)


@pytest.mark.parametrize(
    "writes",
    [
        [],
        [Set("runs/1/a", 1), Delete("runs/1/a")],
        [Set(f"runs/1/{number}", 1) for number in range(257)],
        [("runs/1/a", 1)],
        [Set("runs/1/a", 1), "runs/1/b"],
    ],
)
async def test_what_is_no_commit_is_refused(client: AsyncStateCache, writes: Any) -> None:
    with pytest.raises(UsageError, match="a commit is"):
        await client.commit(writes)
    assert await _values(client) == {}


async def test_as_many_as_a_commit_takes(client: AsyncStateCache) -> None:
    writes = [Create(f"runs/1/{number:03}", number, assume_new=True) for number in range(256)]
    states = await client.commit(writes)
    assert [state and state.value for state in states] == list(range(256))
    assert len(await _values(client)) == 256
    with pytest.raises(LimitExceeded):
        await client.commit([Set(f"runs/1/{number:03}", "x" * 100_000) for number in range(256)])


async def test_what_many_states_cost_redis_is_a_command_or_two_for_each(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    """Each state is written by one, whether its operation changes or not, and all are noted as dirty by one."""
    names = [f"runs/1/{number}" for number in range(32)]
    made = await client.commit([Create(name, 1, assume_new=True) for name in names])
    kept, gone = made[:16], made[16:]
    before = _calls(redis_raw)
    over = [Set(state.key, 2, expected=state) for state in kept if state]
    states = await client.commit([*over, *(Delete(state.key, expected=state) for state in gone if state)])
    after = _calls(redis_raw)
    assert {name: after[name] - before.get(name, 0) for name in ("hset", "zadd", "persist")} == {
        "hset": 33, "zadd": 1, "persist": 32,
    }  # fmt: skip
    assert [state.version for state in states if state] == [2] * 32
    shard = keys.shard(names[0])
    dirty = dict(redis_raw.zrange(keys.unflushed(shard), 0, -1, withscores=True))
    n = states[0].position.n  # type: ignore[union-attr]
    assert [dirty[name.encode()] for name in names] == [n] * 32
    fields = [redis_raw.hmget(keys.state(name), "key", "op", "version", "parts") for name in names]
    parts = f"{states[0].position} 32".encode()  # type: ignore[union-attr]
    ops = [b"set"] * 16 + [b"delete"] * 16
    assert fields == [[name.encode(), op, b"2", parts] for name, op in zip(names, ops, strict=True)]


def _calls(redis_raw: Any) -> dict[str, int]:
    """Return how often each command was run."""
    return {name.removeprefix("cmdstat_"): one["calls"] for name, one in redis_raw.info("commandstats").items()}


async def test_a_view_and_a_lease_have_names_and_types_of_their_own(
    client: AsyncStateCache, make_client: MakeClient
) -> None:
    runs = client.namespace("runs", type=New, encoding="msgpack", locking="enforced")
    async with runs.lock("1") as lease:
        (state,) = await lease.commit([Set("1/plan", New("buy", 2))])
        assert state is not None
        assert (state.key, state.value) == ("runs/1/plan", New("buy", 2))
        with pytest.raises(LockHeld):
            await make_client(client.settings).commit([Set("runs/1/plan", 1), Create("runs/1/more", 1)])
    with pytest.raises(CodecError):
        await runs.commit([Set("1/plan", Old("sell"))])


async def test_a_newer_release_keeps_what_an_older_one_does_not_know(client: AsyncStateCache) -> None:
    await client.namespace("runs", type=New).set("1/plan", New("buy", 2))
    old = client.namespace("runs", type=Old)
    state = await old.get("1/plan")
    assert state is not None
    with pytest.raises(SchemaNewer):
        await old.commit([Set("1/plan", Old("sell"), expected=state), Create("1/log", Old("x"))])


async def test_a_repeat_is_applied_once(client: AsyncStateCache, make_client: MakeClient) -> None:
    mine = "c" * 24
    writes = [Set("runs/1/a", 1), Create("runs/1/b", 2)]
    first = await client.commit(writes, change_id=mine)
    assert await make_client(client.settings).commit(writes, change_id=mine) == first
    await client.set("runs/1/a", "later")
    assert await client.commit(writes, change_id=mine) == first
    assert await _values(client) == {"a": "later", "b": 2}
    with pytest.raises(ChangeIdReused):
        await client.commit([Set("runs/1/a", 1), Create("runs/1/b", 3)], change_id=mine)
    assert await _values(client) == {"a": "later", "b": 2}


@pytest.mark.parametrize("kind", ["drop_reply", "drop_request", "cut"])
async def test_a_commit_whose_exchange_breaks_is_applied_once(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, kind: Kind
) -> None:
    client = make_client(through(settings, redis=proxy))
    await client.commit([Set("runs/1/a", 1), Create("runs/1/b", 1)])
    fault = proxy.arm(kind, at=MARK.encode())
    states = await client.commit([Set("runs/1/a", 2), Create("runs/1/c", 2), Delete("runs/1/b")], actor=MARK)
    assert fault.struck
    assert [state and state.version for state in states] == [2, 1, 2]
    assert await _values(client) == {"a": 2, "c": 2}


async def test_of_many_who_move_one_of_two_states_none_tears_the_other(client: AsyncStateCache) -> None:
    await client.commit([Set("runs/1/a", 0), Set("runs/1/b", 0)])

    async def both(number: int) -> None:
        await client.commit([Set("runs/1/a", number), Set("runs/1/b", number)])

    await asyncio.gather(*map(both, range(1, 40)))
    values = await _values(client)
    assert values["a"] == values["b"]
    state = await client.get("runs/1/a")
    assert state is not None
    assert state.version == 40

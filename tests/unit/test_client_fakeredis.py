"""What the verbs do, told of both clients on a Redis in this process. What needs a server is told elsewhere."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from statecache import (
    AlreadyExists,
    AsyncStateCache,
    CodecError,
    DurabilityRefused,
    InvalidKey,
    LimitExceeded,
    NotFound,
    State,
    UsageError,
    VersionConflict,
)
from statecache.codec import codec_for
from statecache.entries import change_set
from tests.fixtures.redis import FakeDeployment, FakePostgres


class Run(msgspec.Struct, frozen=True):
    goal: str
    done: tuple[str, ...] = ()


class Odd(msgspec.Struct, frozen=True):
    at: datetime
    who: UUID
    cost: Decimal
    tags: frozenset[int]
    raw: bytes


def _entries(fake: FakeDeployment, key: str) -> list[Any]:
    stream = fake.redis.xrange(fake.keys.changes(fake.keys.shard(key)))
    return [change_set(number, [part for pair in fields.items() for part in pair]) for number, fields in stream]


async def test_what_was_set_is_read_back_with_its_place_in_history(fake_cache: AsyncStateCache) -> None:
    first = await fake_cache.set("runs/42", {"step": 1})
    second = await fake_cache.set("runs/42", {"step": 2}, actor="planner", reason="it was time")
    assert (first.version, first.parent_change_id, first.epoch) == (1, "", 1)
    assert (second.version, second.parent_change_id) == (2, first.change_id)
    assert second.position is not None
    assert second.position.n == 2
    assert second.updated_at.utcoffset() == timedelta(0)
    assert abs(second.updated_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert second.writer == "the-test"
    assert await fake_cache.get("runs/42") == second


async def test_a_state_is_a_readable_hash_and_a_change_is_one_entry(
    fake_cache: AsyncStateCache, fake: FakeDeployment
) -> None:
    state = await fake_cache.set("runs/42", {"step": 1}, actor="planner", reason="it was time")
    shown = fake.state("runs/42")
    assert list(shown) == [
        "key", "op", "value", "version", "epoch", "change_id", "parent_change_id", "position", "encoding", "schema",
        "updated_at", "writer", "recent", "parts",
    ]  # fmt: skip
    assert shown["value"] == b'{"step":1}'
    assert shown["parts"].decode() == f"{state.position} 1 7 plannerit was time"
    assert shown["recent"].decode() == f"{state.change_id}@{state.position}"
    (entry,) = _entries(fake, "runs/42")
    assert (entry.actor, entry.reason, entry.writer) == ("planner", "it was time", "the-test")
    assert (entry.entries, entry.bytes) == (1, len("runs/42") + len('{"step":1}') + 200)
    assert [(change.key, change.version, change.value) for change in entry.changes] == [("runs/42", 1, b'{"step":1}')]


async def test_expected_is_compared_by_change_id(fake_cache: AsyncStateCache) -> None:
    first = await fake_cache.set("runs/42", 1)
    second = await fake_cache.set("runs/42", 2, expected=first)
    with pytest.raises(VersionConflict) as caught:
        await fake_cache.set("runs/42", 3, expected=first.change_id)
    assert (caught.value.key, caught.value.expected, caught.value.actual) == (
        "runs/42", first.change_id, second.change_id,
    )  # fmt: skip
    assert await fake_cache.get("runs/42") == second


async def test_create_writes_only_the_first(fake_cache: AsyncStateCache) -> None:
    assert (await fake_cache.create("runs/42", 1)).version == 1
    with pytest.raises(AlreadyExists, match="'runs/42'"):
        await fake_cache.create("runs/42", 2)
    await fake_cache.delete("runs/42")
    assert (await fake_cache.create("runs/42", 3)).version == 3


async def test_assume_new_asks_postgres_nothing(fake_cache: AsyncStateCache, fake_postgres: FakePostgres) -> None:
    await fake_cache.create("runs/42", 1, assume_new=True)
    assert fake_postgres.asked == []
    with pytest.raises(AlreadyExists):
        await fake_cache.create("runs/42", 2, assume_new=True)


async def test_what_nobody_wrote_is_asked_for_once_and_then_known_to_be_absent(
    fake_cache: AsyncStateCache, fake: FakeDeployment, fake_postgres: FakePostgres
) -> None:
    assert await fake_cache.get("runs/42") is None
    assert await fake_cache.get("runs/42") is None
    assert fake_postgres.asked == ["watermarks", "state_keys", "lost_keys"]
    shown = fake.state("runs/42")
    assert (shown["op"], shown["version"], shown["change_id"], shown["position"]) == (b"absent", b"0", b"", b"")
    assert 0 < fake.redis.pttl(fake.keys.state("runs/42")) <= fake.settings.absent_ttl_s * 1000


async def test_delete_leaves_a_tombstone_and_recreation_goes_on_from_it(
    fake_cache: AsyncStateCache, fake: FakeDeployment
) -> None:
    first = await fake_cache.set("runs/42", 1)
    tombstone = await fake_cache.delete("runs/42")
    assert tombstone is not None
    assert (tombstone.version, tombstone.value, tombstone.parent_change_id) == (2, None, first.change_id)
    assert await fake_cache.get("runs/42") is None
    assert await fake_cache.delete("runs/42") is None
    assert fake.state("runs/42")["op"] == b"delete"
    again = await fake_cache.set("runs/42", 3)
    assert (again.version, again.parent_change_id) == (3, tombstone.change_id)


async def test_delete_compares_too(fake_cache: AsyncStateCache) -> None:
    first = await fake_cache.set("runs/42", 1)
    await fake_cache.set("runs/42", 2)
    with pytest.raises(VersionConflict):
        await fake_cache.delete("runs/42", expected=first)


async def test_update_reads_calls_and_writes(fake_cache: AsyncStateCache) -> None:
    with pytest.raises(NotFound, match="'runs/42'"):
        await fake_cache.update("runs/42", lambda value: value + 1)
    assert (await fake_cache.update("runs/42", lambda value: value + 1, default=1)).value == 2
    assert (await fake_cache.update("runs/42", lambda value: value + 1, default=1)).value == 3
    made = await fake_cache.update("runs/43", lambda run: Run(run["goal"]), default=lambda: {"goal": "refund"})
    assert made.value == {"goal": "refund", "done": []}


async def test_an_exception_in_update_aborts_it(fake_cache: AsyncStateCache) -> None:
    before = await fake_cache.set("runs/42", 1)

    def refuse(value: int) -> int:
        raise LookupError("not today")

    with pytest.raises(LookupError, match="not today"):
        await fake_cache.update("runs/42", refuse)
    with pytest.raises(UsageError, match="returned None"):
        await fake_cache.update("runs/42", lambda value: None)
    assert await fake_cache.get("runs/42") == before


async def test_update_is_called_again_when_someone_was_quicker(fake_cache: AsyncStateCache) -> None:
    """Ten tasks or threads add one each, a hundred times in all, and nothing is lost."""
    await fake_cache.set("runs/42", 0)

    async def add() -> None:
        for _ in range(10):
            await fake_cache.update("runs/42", lambda value: value + 1)

    await asyncio.gather(*(add() for _ in range(10)))
    state = await fake_cache.get("runs/42")
    assert state is not None
    assert (state.value, state.version) == (100, 101)


async def test_an_asynchronous_function_is_awaited(fake: FakeDeployment) -> None:
    async def add(value: int) -> int:
        await asyncio.sleep(0)
        return value + 1

    async with AsyncStateCache(settings=fake.settings, dial=fake.dial) as cache:
        assert (await cache.update("runs/42", add, default=0)).value == 1


async def test_a_transaction_writes_all_its_states_as_one_change_set(
    fake_cache: AsyncStateCache, fake: FakeDeployment
) -> None:
    await fake_cache.set("runs/42", {"step": 1})
    async with fake_cache.transaction("runs/42", "runs/42/plan", "runs/42/log", reason="together") as tx:
        run = await tx.get("runs/42")
        assert run is not None
        assert await tx.get("runs/42/plan") is None
        tx.set("runs/42", {"step": run.value["step"] + 1})
        tx.create("runs/42/plan", ["ask", "refund"])
    assert (tx.states["runs/42"].version, tx.states["runs/42/plan"].version) == (2, 1)
    assert tx.states["runs/42"].change_id == tx.states["runs/42/plan"].change_id
    assert await fake_cache.get("runs/42/plan") == tx.states["runs/42/plan"]
    assert await fake_cache.get("runs/42/log") is None
    entry = _entries(fake, "runs/42")[-1]
    assert [(change.key, change.version) for change in entry.changes] == [("runs/42", 2), ("runs/42/plan", 1)]
    assert (entry.entries, entry.reason) == (2, "together")


async def test_an_exception_in_a_transaction_writes_nothing(fake_cache: AsyncStateCache) -> None:
    with pytest.raises(LookupError):  # noqa: PT012
        async with fake_cache.transaction("runs/42") as tx:
            tx.set("runs/42", 1)
            raise LookupError
    assert await fake_cache.get("runs/42") is None


async def test_a_transaction_sees_the_states_of_its_start_and_its_rules(fake_cache: AsyncStateCache) -> None:
    await fake_cache.set("runs/42", 1)
    async with fake_cache.transaction("runs/42", "runs/42/a") as tx:
        tx.set("runs/42", 2)
        seen = await tx.get("runs/42")
        assert seen is not None
        assert seen.value == 1
        with pytest.raises(AlreadyExists):
            tx.create("runs/42", 3)
        with pytest.raises(NotFound):
            tx.delete("runs/42/a")
        with pytest.raises(UsageError, match="not among the transaction's keys"):
            tx.set("runs/42/b", 1)
        tx.create("runs/42/a", 1)
        tx.delete("runs/42/a")
        tx.delete("runs/42")
        tx.create("runs/42", 4)
    assert list(tx.states) == ["runs/42"]
    assert tx.states["runs/42"].value == 4


async def test_a_transaction_takes_keys_of_one_group(fake_cache: AsyncStateCache) -> None:
    with pytest.raises(InvalidKey, match=r"'runs/43'.*not of the group 'runs/42'"):
        async with fake_cache.transaction("runs/42", "runs/42/plan", "runs/43"):
            pass


async def test_a_change_by_somebody_else_ends_a_transaction_even_in_a_key_that_it_only_read(
    fake_cache: AsyncStateCache,
) -> None:
    await fake_cache.set("runs/42/plan", 1)
    with pytest.raises(VersionConflict) as caught:  # noqa: PT012
        async with fake_cache.transaction("runs/42", "runs/42/plan") as tx:
            tx.set("runs/42", 2)
            await fake_cache.set("runs/42/plan", 2)
    assert caught.value.key == "runs/42/plan"
    assert await fake_cache.get("runs/42") is None
    with pytest.raises(VersionConflict) as caught:
        async with fake_cache.transaction("runs/42", "runs/42/plan") as tx:
            await fake_cache.set("runs/42/plan", 3)
    assert caught.value.key == "runs/42/plan"


async def test_transact_runs_again_until_it_was_first(fake_cache: AsyncStateCache) -> None:
    turns: list[int] = []
    lock = threading.Lock()

    def add(tx: Any) -> int:
        value = tx._records["runs/42"]
        with lock:
            turns.append(value.version)
        tx.set("runs/42", value.version)
        return int(value.version)

    await fake_cache.set("runs/42", 0)
    results = await asyncio.gather(*(fake_cache.transact(["runs/42"], add) for _ in range(8)))
    assert sorted(results) == list(range(1, 9))
    assert len(turns) >= 8


async def test_a_namespace_is_typed_and_its_names_are_relative(fake_cache: AsyncStateCache) -> None:
    runs = fake_cache.namespace("runs", type=Run)
    state = await runs.set("42", Run("refund"))
    assert state.key == "runs/42"
    assert await runs.get("42") == state
    assert isinstance((await runs.update("42", lambda run: Run(run.goal, ("asked",)))).value, Run)
    assert (await fake_cache.get("runs/42")).value == {"goal": "refund", "done": ["asked"]}  # type: ignore[union-attr]
    assert (await fake_cache.get("runs/42", type=Run)).value == Run("refund", ("asked",))  # type: ignore[union-attr]
    async with runs.transaction("42", "42/plan") as tx:
        tx.set("42", Run("done"))
    assert tx.states["42"].key == "runs/42"
    with pytest.raises(CodecError):
        await runs.set("42", {"goal": "refund"})  # type: ignore[arg-type]
    with pytest.raises(InvalidKey, match="runs/"):
        await runs.get("")


async def test_a_value_of_another_type_is_an_error_with_its_path(
    fake_cache: AsyncStateCache, fake: FakeDeployment
) -> None:
    await fake_cache.set("runs/42", {"goal": 5})
    with pytest.raises(CodecError, match="'runs/42'") as caught:
        await fake_cache.get("runs/42", type=Run)
    assert caught.value.path == "$.goal"
    assert (await fake_cache.get("runs/42")).value == {"goal": 5}  # type: ignore[union-attr]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_the_policy_of_a_namespace_is_kept(
    fake_cache: AsyncStateCache, fake: FakeDeployment, encoding: Any
) -> None:
    odd = fake_cache.namespace("odd", type=Odd, encoding=encoding, redis_ttl=timedelta(hours=1), value_bytes_max=1000)
    value = Odd(
        datetime(2026, 1, 1, tzinfo=UTC), UUID(int=7), Decimal("1.10"), frozenset({1, 2}), b"\0\xff" * 4
    )  # fmt: skip
    await odd.set("1", value)
    assert (await odd.get("1")).value == value  # type: ignore[union-attr]
    shown = fake.state("odd/1")
    assert (shown["encoding"], shown["schema"]) == (encoding.encode(), codec_for(Odd).schema.encode())
    assert shown["ttl"] == b"3600000"
    with pytest.raises(LimitExceeded, match="'odd/2'"):
        await odd.set("2", msgspec.structs.replace(value, raw=b"x" * 1000))
    with pytest.raises(DurabilityRefused, match="fence is off"):
        await fake_cache.namespace("odd", durability="postgres").set("2", 1)


async def test_a_value_that_was_read_is_the_readers_own(fake_cache: AsyncStateCache) -> None:
    given = {"messages": ["hello"]}
    await fake_cache.set("runs/42", given)
    given["messages"].append("changed after it was written")
    one = await fake_cache.get("runs/42")
    assert one is not None
    one.value["messages"].append("changed after it was read")
    other = await fake_cache.get("runs/42")
    assert other is not None
    assert other.value == {"messages": ["hello"]}


async def test_repeating_a_change_id_writes_nothing_twice(fake_cache: AsyncStateCache, fake: FakeDeployment) -> None:
    first = await fake_cache.set("runs/42", 1, change_id="0123456789abcdef")
    assert await fake_cache.set("runs/42", 1, change_id="0123456789abcdef") == first
    await fake_cache.set("runs/42", 2)
    assert await fake_cache.set("runs/42", 1, change_id="0123456789abcdef") == first
    assert len(_entries(fake, "runs/42")) == 2
    assert (await fake_cache.get("runs/42")).value == 2  # type: ignore[union-attr]


async def test_a_very_long_timeout_is_no_error(fake_cache: AsyncStateCache) -> None:
    await fake_cache.set("runs/42", 1, timeout=1e300)
    assert (await fake_cache.get("runs/42", timeout=10**30)) is not None


async def test_after_close_every_verb_says_so(fake_cache: AsyncStateCache, fake: FakeDeployment) -> None:
    state: State[Any] = await fake_cache.set("runs/42", 1)
    await fake_cache.close()
    await fake_cache.close()
    calls = [
        fake_cache.get("runs/42"),
        fake_cache.set("runs/42", 1),
        fake_cache.create("runs/42", 1),
        fake_cache.update("runs/42", lambda value: value),
        fake_cache.delete("runs/42"),
        fake_cache.transact(["runs/42"], lambda tx: None),
        fake_cache.namespace("runs").get("42"),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="closed"):
            await call
    with pytest.raises(UsageError, match="closed"):
        [one async for one in fake_cache.list("runs/")]
    assert fake.state("runs/42")["change_id"].decode() == state.change_id

"""Checkpoints: what they name was current at their position, whoever writes meanwhile; they list, move and go."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import (
    AlreadyExists,
    AsyncStateCache,
    Checkpoint,
    CheckpointExists,
    CheckpointNotFound,
    CodecError,
    Forked,
    InvalidKey,
    LimitExceeded,
    LockHeld,
    NotFound,
    Settings,
    UsageError,
)
from statecache.core.history.made_by import configuration_hash
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, flushing, rows
from tests.fixtures.servers import MakeClient, MakeSettings
from tests.support.local_reads import LIMIT_S
from tests.support.polling import pause

KEY = "runs/42"
Psql = psycopg.Connection[Any]


class Run(msgspec.Struct, frozen=True):
    """What an agent has come to."""

    step: int


async def test_a_checkpoint_names_the_current_version_and_is_durable_when_it_returns(
    client: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await client.set(KEY, Run(1))
    state = await client.set(KEY, Run(2))
    async with flushing(worker):
        made = await client.checkpoint(
            KEY, "before payment", metadata={"by": ["ada"]}, actor="ada", reason="to be sure"
        )
    assert (made.key, made.label, made.scope, made.version) == (KEY, "before payment", "key", 2)
    assert (made.change_id, made.schema, made.metadata) == (state.change_id, state.schema, {"by": ["ada"]})
    assert made.sha256 == sha256(msgspec.json.encode(Run(2))).hexdigest()
    assert made.writer == client.settings.writer
    assert abs(made.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert made.made_by.statecache_version
    assert {"python", "msgspec", "redis", "psycopg", "zstandard"} <= made.made_by.dependencies.keys()
    assert made.made_by.configuration_hash == configuration_hash(client.settings)
    assert (made.automatic, made.pinned) == (False, True)
    held = rows(psql, "SELECT n, epoch, op, actor, reason FROM change WHERE key LIKE '%/checkpoints/%'")
    assert held == [(made.position.n, made.position.epoch, "set", "ada", "to be sure")]
    (found,) = await client.checkpoints(KEY)
    assert msgspec.structs.replace(found, created_at=made.created_at) == made


async def test_people_find_it_with_psql(client: AsyncStateCache, worker: Worker, psql: Psql) -> None:
    await client.set(KEY, 1)
    await client.checkpoint(KEY, "a", durability="memory", metadata={"why": "payment"})
    await flush(worker)
    ((stored,),) = rows(psql, "SELECT value_json FROM state_view WHERE key = 'runs/42/checkpoints/a'")
    assert stored["label"] == "a"
    assert stored["key"] == KEY
    assert stored["version"] == 1
    assert stored["metadata"] == {"why": "payment"}
    assert "point" not in stored


async def test_the_version_that_is_named_is_the_one_at_its_position_whoever_writes_meanwhile(
    make_client: MakeClient, settings: Settings, worker: Worker, psql: Psql
) -> None:
    one, other = make_client(settings), make_client(settings)
    await one.set(KEY, 0)
    over = asyncio.Event()

    async def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            await other.set(KEY, number)

    writing = asyncio.create_task(write())
    made = [await one.checkpoint(KEY, durability="memory", timeout=30) for _ in range(20)]
    over.set()
    await writing
    await flush(worker)
    for mark in made:
        newest = rows(
            psql, "SELECT version, change_id FROM change WHERE key = %s AND n <= %s ORDER BY n DESC LIMIT 1", KEY,
            mark.position.n,
        )  # fmt: skip
        assert newest == [(mark.version, mark.change_id)]
    assert len({mark.label for mark in made}) == 20
    assert [mark.label for mark in made] == sorted(mark.label for mark in made)


async def test_a_label_is_used_once_and_the_error_says_where(client: AsyncStateCache, worker: Worker) -> None:
    await client.set(KEY, 1)
    async with flushing(worker):
        made = await client.checkpoint(KEY, "a")
        await client.set(KEY, 2)
        with pytest.raises(CheckpointExists) as caught:
            await client.checkpoint(KEY, "a")
        assert caught.value.position == str(made.position)
        with pytest.raises(CheckpointExists):
            await client.checkpoint(KEY, "a", group=True)
        assert [one.version for one in await client.checkpoints(KEY)] == [1]
        assert (await client.checkpoint(KEY, "b")).version == 2


async def test_of_two_who_want_one_label_one_gets_it(make_client: MakeClient, settings: Settings) -> None:
    clients = [make_client(settings) for _ in range(4)]
    await clients[0].set(KEY, 1)
    calls = (client.checkpoint(KEY, "a", durability="memory") for client in clients)
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert sorted(type(one).__name__ for one in found) == ["Checkpoint", *["CheckpointExists"] * 3]


async def test_there_is_none_of_what_is_not_there(client: AsyncStateCache) -> None:
    for group in (False, True):
        with pytest.raises(NotFound):
            await client.checkpoint(KEY, "a", durability="memory", group=group)
    await client.set(KEY, 1)
    await client.delete(KEY)
    for group in (False, True):
        with pytest.raises(NotFound):
            await client.checkpoint(KEY, "a", durability="memory", group=group)
    await client.set(f"{KEY}/plan", 1)
    with pytest.raises(NotFound):
        await client.checkpoint(KEY, "a", durability="memory")
    mark = await client.checkpoint(KEY, "a", durability="memory", group=True)
    assert (mark.scope, mark.version, mark.change_id, mark.sha256) == ("group", None, "", "")
    await client.delete(f"{KEY}/plan")
    with pytest.raises(NotFound):  # what is left of the group is its checkpoint
        await client.checkpoint(KEY, "b", durability="memory", group=True)
    with pytest.raises(UsageError, match="is a checkpoint itself"):
        await client.checkpoint(f"{KEY}/checkpoints/a", durability="memory")


async def test_a_state_that_has_ended_has_none(client: AsyncStateCache) -> None:
    await client.set(KEY, 1, ttl=0.001)
    async with asyncio.timeout(LIMIT_S):
        while await client.exists(KEY):
            await pause()
    with pytest.raises(NotFound):
        await client.checkpoint(KEY, "a", durability="memory")


@pytest.mark.parametrize("label", ["", "a/b", "a\0b", "é" * 65, "\ud800", 5, b"a"])
async def test_a_label_that_cannot_be_one_is_refused(client: AsyncStateCache, label: Any) -> None:
    await client.set(KEY, 1)
    for call in (
        client.checkpoint(KEY, label, durability="memory"),
        client.rename_checkpoint(KEY, "a", label, durability="memory"),
        client.delete_checkpoint(KEY, label),
    ):
        with pytest.raises(UsageError, match="label="):
            await call


async def test_what_metadata_may_be(client: AsyncStateCache) -> None:
    await client.set(KEY, 1)
    with pytest.raises(LimitExceeded, match="65,536") as caught:
        await client.checkpoint(KEY, "a", durability="memory", metadata="x" * 65_536)
    assert caught.value.key == KEY
    with pytest.raises(CodecError):
        await client.checkpoint(KEY, "a", durability="memory", metadata=object())
    assert await client.checkpoints(KEY) == []
    made = await client.checkpoint(KEY, "a", durability="memory", metadata="x" * 65_534)
    assert len(made.metadata) == 65_534
    with pytest.raises(InvalidKey):
        await client.checkpoint("runs/" + "x" * 480, "b" * 30, durability="memory")
    with pytest.raises(InvalidKey, match="no group"):
        await client.checkpoint(f"{KEY}/plan", "b", durability="memory", group=True)


async def test_they_are_listed_for_a_key_with_its_groups_and_for_a_whole_group(client: AsyncStateCache) -> None:
    plan = f"{KEY}/plan"
    for key in (KEY, plan, "runs/421"):
        await client.set(key, 1)
    await client.checkpoint(plan, "z", durability="memory")
    await client.checkpoint(KEY, "y", durability="memory", group=True)
    await client.checkpoint(KEY, "x", durability="memory")
    await client.checkpoint("runs/421", "w", durability="memory", group=True)
    assert [one.label for one in await client.checkpoints(plan)] == ["z", "y"]
    assert [one.label for one in await client.checkpoints(KEY)] == ["y", "x"]
    assert [one.label for one in await client.checkpoints(KEY, group=True)] == ["z", "y", "x"]
    assert await client.checkpoints("runs/43") == []
    end = asyncio.get_running_loop().time() + 10
    for key, label, of in ((plan, "z", plan), (plan, "y", KEY), (KEY, "y", KEY), (KEY, "x", KEY)):
        assert (await _found(client, key, label)).key == of
    for key, label in ((plan, "x"), (KEY, "z"), (KEY, "w"), ("runs/" + "a" * 500, "b" * 100)):
        with pytest.raises(CheckpointNotFound):
            await _found(client, key, label)
    assert end


async def _found(client: AsyncStateCache, key: str, label: str) -> Checkpoint:
    settings = client.settings
    async with AsyncStateCache(settings=settings) as other:
        return await other._runtime.checkpoints.find(key, label, end=other._view.end_of(None))


async def test_one_of_a_key_that_lies_where_checkpoints_do_is_listed_once(client: AsyncStateCache) -> None:
    own = "runs/42/checkpoints/of a user"
    for key in ("runs/42", own):
        await client.set(key, 1)
    await client.checkpoint("runs/42", "before", durability="memory")
    await client.checkpoint(own, "after", durability="memory")
    assert [one.label for one in await client.checkpoints(own)] == ["after"]
    assert [one.key for one in await client.checkpoints("runs/42")] == ["runs/42"]
    assert [one.key for one in await client.checkpoints("runs/42", group=True)] == ["runs/42", own]


async def test_a_renamed_one_names_the_same_point(client: AsyncStateCache, worker: Worker) -> None:
    await client.set(KEY, 1)
    made = await client.checkpoint(KEY, "a", durability="memory", metadata=[1])
    await client.set(KEY, 2)
    async with flushing(worker):
        renamed = await client.rename_checkpoint(KEY, "a", "b")
        assert renamed.label == "b"
        again = await client.rename_checkpoint(KEY, "b", "c")
    (found,) = await client.checkpoints(KEY)
    assert found == again
    for one in (renamed, again, found):
        assert (one.position, one.version, one.change_id, one.metadata) == (made.position, 1, made.change_id, [1])
        assert one.writer == made.writer
    with pytest.raises(CheckpointNotFound):
        await client.rename_checkpoint(KEY, "a", "d", durability="memory")
    await client.checkpoint(KEY, "other", durability="memory")
    with pytest.raises(CheckpointExists):
        await client.rename_checkpoint(KEY, "c", "other", durability="memory")
    with pytest.raises(UsageError):
        await client.rename_checkpoint(KEY, "c", "c", durability="memory")
    assert (await client.checkpoint(KEY, "a", durability="memory")).version == 2


async def test_a_deleted_one_is_gone_and_its_label_free(client: AsyncStateCache) -> None:
    await client.set(KEY, 1)
    made = await client.checkpoint(KEY, "a", durability="memory")
    gone = await client.delete_checkpoint(KEY, "a")
    assert (gone.pinned, gone.version, gone.position) == (False, 1, made.position)
    assert await client.checkpoints(KEY) == []
    with pytest.raises(CheckpointNotFound):
        await client.delete_checkpoint(KEY, "a")
    assert (await client.checkpoint(KEY, "a", durability="memory")).version == 1


async def test_what_somebody_else_keeps_there_is_left_alone(client: AsyncStateCache) -> None:
    await client.set(KEY, 1)
    await client.set(f"{KEY}/checkpoints/a", {"mine": True})
    with pytest.raises(AlreadyExists):
        await client.checkpoint(KEY, "a", durability="memory")
    for call in (client.delete_checkpoint(KEY, "a"), client.rename_checkpoint(KEY, "a", "b", durability="memory")):
        with pytest.raises(CheckpointNotFound):
            await call
    assert await client.checkpoints(KEY) == []


async def test_typed_views_pass_over_them(client: AsyncStateCache, worker: Worker) -> None:
    runs = client.namespace("runs", type=Run)
    await runs.set("42", Run(1))
    await runs.checkpoint("42", "a", durability="memory")
    for _ in range(2):
        assert [state.key async for state in runs.list()] == [KEY]
        assert [state.key async for state in client.list("runs/")] == [KEY, f"{KEY}/checkpoints/a"]
        await flush(worker)
    assert [one.key for one in await runs.checkpoints("42")] == [KEY]
    assert [*await runs.get_group_at("42", time=datetime.now(UTC))] == [KEY]


async def test_a_call_may_be_repeated_by_its_change_id(
    make_client: MakeClient, settings: Settings, worker: Worker
) -> None:
    client, change_id = make_client(settings), "c" * 24
    await client.set(KEY, 1)
    made = await client.checkpoint(KEY, "a", durability="memory", change_id=change_id)
    await client.set(KEY, 2)
    again = await make_client(settings).checkpoint(KEY, "a", durability="memory", change_id=change_id)
    assert (again.version, again.position) == (1, made.position)
    async with flushing(worker):
        again = await make_client(settings).checkpoint(KEY, "a", change_id=change_id)
    assert (again.version, again.position) == (1, made.position)
    with pytest.raises(CheckpointExists):
        await client.checkpoint(KEY, "a", durability="memory")
    with pytest.raises(CheckpointExists):
        await client.checkpoint(KEY, "a", durability="memory", change_id="d" * 24)


async def test_what_was_set_aside_is_not_pinned(
    make_client: MakeClient, settings: Settings, worker: Worker, agents: Agents, psql: Psql
) -> None:
    client = make_client(settings)
    await client.set(KEY, 1)
    await flush(worker)
    agents.raw.delete(agents.keys.state(KEY))
    await client.create(KEY, "a fork", assume_new=True)  # it claims to be the first, and is not
    making = asyncio.create_task(client.checkpoint(KEY, "a"))
    async with asyncio.timeout(LIMIT_S):
        while agents.raw.xlen(agents.keys.changes(agents.keys.shard(KEY))) < 3:
            await pause()
    async with flushing(worker):
        with pytest.raises(Forked) as caught:
            await making
    assert caught.value.key == KEY
    await flush(worker)
    assert await client.checkpoints(KEY) == []
    assert rows(psql, "SELECT key FROM conflict") == [(KEY,)]
    assert (await client.checkpoint(KEY, "a", durability="memory")).version == 1


async def test_a_lease_makes_its_own_and_a_locked_group_refuses_others(
    make_client: MakeClient, settings: Settings
) -> None:
    one = make_client(settings).namespace("runs", locking="enforced")
    other = make_client(settings).namespace("runs", locking="enforced")
    await one.set("42", 1)
    async with one.lock("42") as lease:
        assert (await lease.checkpoint("42", "mine", durability="memory")).version == 1
        with pytest.raises(LockHeld):
            await other.checkpoint("42", "theirs", durability="memory")
    await other.checkpoint("42", "theirs", durability="memory")
    assert [mark.label for mark in await one.checkpoints("42")] == ["mine", "theirs"]


def test_the_hash_of_the_configuration_tells_no_secret_and_no_server(make_settings: MakeSettings) -> None:
    plain = make_settings(migrated=False)
    other = plain.model_copy(update={"redis_url": "redis://u:secret@h/0", "writer": "w", "application_version": "2"})
    assert configuration_hash(plain) == configuration_hash(other)
    assert configuration_hash(plain) != configuration_hash(plain.model_copy(update={"redis_ttl_s": 5.0}))

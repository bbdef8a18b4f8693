"""What a checkpoint names is read without going back to it, by its label or by what was returned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statecache import AsyncStateCache, CheckpointNotFound, UsageError, VersionNotFound
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush

KEY = "runs/42"


@pytest.fixture(params=["flushed", "unflushed"])
async def marked(request: pytest.FixtureRequest, client: AsyncStateCache, worker: Worker) -> Any:
    """Checkpoints of a key, and of its group, whose keys have gone on since."""
    await client.set(KEY, {"step": 1})
    await client.set(f"{KEY}/plan", ["ask"])
    made = await client.checkpoint(KEY, "before payment", durability="memory")
    whole = await client.checkpoint(KEY, "whole", group=True, durability="memory")
    await client.set(KEY, {"step": 2})
    await client.delete(f"{KEY}/plan")
    if request.param == "flushed":
        await flush(worker)
    return made, whole


async def test_a_state_is_read_as_it_was_at_a_checkpoint(client: AsyncStateCache, marked: Any) -> None:
    made, whole = marked
    for asked in ("before payment", made, whole):
        state = await client.get_at(KEY, checkpoint=asked)
        assert state is not None
        assert (state.value, state.version) == ({"step": 1}, 1)
    plan = await client.get_at(f"{KEY}/plan", checkpoint=whole)
    assert plan is not None
    assert plan.value == ["ask"]


async def test_a_group_is_read_as_it_was_at_a_checkpoint_of_it(client: AsyncStateCache, marked: Any) -> None:
    made, whole = marked
    for asked in ("whole", whole):
        states = await client.get_group_at(KEY, checkpoint=asked)
        assert {key: states[key].value for key in (KEY, f"{KEY}/plan")} == {KEY: {"step": 1}, f"{KEY}/plan": ["ask"]}
    with pytest.raises(UsageError, match="not of the group"):
        await client.get_group_at(KEY, checkpoint=made)


async def test_what_differs_since_a_checkpoint_is_told(client: AsyncStateCache, marked: Any) -> None:
    for asked in marked:
        assert [(one.op, one.before, one.after) for one in await client.diff(KEY, asked)] == [("changed", 1, 2)]
    assert [one.after for one in await client.diff(KEY, "before payment", 2)] == [2]
    assert await client.diff(KEY, 1, "before payment") == ()


async def test_what_is_no_checkpoint_of_it_is_refused(client: AsyncStateCache, marked: Any) -> None:
    made, _ = marked
    with pytest.raises(CheckpointNotFound, match="no checkpoint 'nope'"):
        await client.get_at(KEY, checkpoint="nope")
    with pytest.raises(CheckpointNotFound, match="no checkpoint 'nope'"):
        await client.diff(KEY, "nope")
    with pytest.raises(UsageError, match="a checkpoint of 'runs/42', not of 'runs/43'"):
        await client.get_at("runs/43", checkpoint=made)
    for wrong in ({"checkpoint": made, "version": 1}, {"checkpoint": 7}, {"checkpoint": ""}, {"checkpoint": "a\0b"}):
        with pytest.raises(UsageError):
            await client.get_at(KEY, **wrong)
    with pytest.raises(UsageError, match="checkpoint="):
        await client.get_group_at(KEY)


async def test_a_checkpoint_whose_change_is_not_there_any_more_gives_nothing(
    client: AsyncStateCache, marked: Any, worker: Worker
) -> None:
    """The version that it names has another change than the one that it was made of."""
    made, _ = marked
    other = made.__class__(**{name: getattr(made, name) for name in made.__struct_fields__} | {"change_id": "another"})
    deleted = made.__class__(**{name: getattr(other, name) for name in made.__struct_fields__} | {"version": 3})
    await client.delete(KEY)
    for asked in (other, deleted):
        for call in (client.get_at(KEY, checkpoint=asked), client.diff(KEY, asked)):
            with pytest.raises(VersionNotFound, match="as the checkpoint names it"):
                await call


async def test_a_checkpoint_of_a_deleted_state_is_none(client: AsyncStateCache, worker: Worker) -> None:
    await client.set(KEY, 1)
    await client.set(f"{KEY}/plan", 1)
    await client.delete(KEY)
    whole = await client.checkpoint(KEY, "gone", group=True, durability="memory")
    await asyncio.gather(client.set(KEY, 2), client.set(f"{KEY}/plan", 2))
    assert await client.get_at(KEY, checkpoint=whole) is None
    assert (await client.get_group_at(KEY, checkpoint="gone")).keys() >= {f"{KEY}/plan"}

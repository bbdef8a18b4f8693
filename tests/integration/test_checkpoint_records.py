"""The state that a checkpoint is stored as, under the verbs for any state: it goes on naming what it named."""

from __future__ import annotations

from typing import Any

import pytest

from statecache import AlreadyCurrent, AsyncStateCache, Checkpoint, CheckpointNotFound, Settings, UsageError
from statecache.clock import monotonic
from statecache.core.history.terms import Terms, committed
from statecache.model import ABSENT, Write
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush

GROUP = "runs/42"
RECORD, OF_KEY = f"{GROUP}/checkpoints/mark", f"{GROUP}/checkpoints/of the key"


async def _marked(client: AsyncStateCache) -> Checkpoint:
    """Have a group whose second value a checkpoint names, and its key another one, and which went on since."""
    await client.set(GROUP, 1)
    await client.set(GROUP, 2)
    await client.checkpoint(GROUP, "of the key", durability="memory")
    mark = await client.checkpoint(GROUP, "mark", group=True, durability="memory")
    await client.set(GROUP, 3)
    return mark


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("way", ["deleted", "by hand", "overwritten"])
async def test_a_checkpoint_that_is_brought_back_names_the_same_position(
    client: AsyncStateCache, worker: Worker, flushed: bool, way: str
) -> None:
    mark = await _marked(client)
    if way == "deleted":
        await client.delete_checkpoint(GROUP, "mark", durability="memory")
    elif way == "by hand":
        await client.delete(RECORD)
    else:
        await client.set(RECORD, {"label": "mark", "scope": "group"})
    assert [one.label for one in await client.checkpoints(GROUP)] == ["of the key"]
    if flushed:
        await flush(worker)
    for verb in (client.undo, client.redo, client.undo):
        await verb(RECORD)
        await client.set(GROUP, 4)
    with pytest.raises(AlreadyCurrent):
        await client.rollback(RECORD, 1)
    found = {one.label: one for one in await client.checkpoints(GROUP)}
    assert (found["mark"].position, found["mark"].scope) == (mark.position, "group")
    held = await client.get_group_at(GROUP, position=found["mark"].position)
    assert held[GROUP].value == 2
    assert {key: state.value for key, state in (await client.rollback(GROUP, "mark", group=True)).items()} == {GROUP: 2}


async def test_going_back_to_what_a_checkpoint_is_already_changes_nothing(client: AsyncStateCache) -> None:
    mark = await _marked(client)
    with pytest.raises(AlreadyCurrent):
        await client.rollback(RECORD, 1)
    renamed = await client.rename_checkpoint(GROUP, "mark", "other", durability="memory")
    await client.undo(RECORD, durability="memory")
    assert renamed.position == mark.position
    assert {one.label: one.position for one in await client.checkpoints(GROUP) if one.scope == "group"} == {
        "mark": mark.position, "other": mark.position,
    }  # fmt: skip


async def test_a_checkpoint_is_moved_by_its_own_verbs_alone(client: AsyncStateCache) -> None:
    mark = await _marked(client)
    for record in (RECORD, OF_KEY):
        calls: tuple[Any, ...] = (
            client.rename(record, f"{GROUP}/checkpoints/moved"), client.copy(record, f"{GROUP}/elsewhere"),
            client.touch(record, ttl=60), client.branch(record, f"{GROUP}/checkpoints/branched"),
            client.branch(record, f"{GROUP}/checkpoints/branched", at=1),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(UsageError, match="is a checkpoint") as caught:
                await call
            assert "rename_checkpoint" in str(caught.value)
    assert {one.label: one.position for one in await client.checkpoints(GROUP)}["mark"] == mark.position
    assert sorted([state.key async for state in client.list(GROUP)]) == [GROUP, RECORD, OF_KEY]


async def test_a_record_at_another_place_is_no_checkpoint(settings: Settings) -> None:
    """As earlier releases have left them where such a state was renamed or copied: its label names nothing there."""
    async with AsyncStateCache(settings=settings) as cache:
        await _marked(cache)
        record = await cache._runtime.reader.record(RECORD, end=monotonic() + 10)
        await cache.delete_checkpoint(GROUP, "mark", durability="memory")
        terms = Terms.of(cache._view, durability="memory", actor="", reason="", timeout=10)
        for place in (f"{GROUP}/checkpoints/moved", f"{GROUP}/plan/checkpoints/mark"):
            write = Write(key=place, op="set", expected=ABSENT, value=record.value, schema=record.schema)
            await committed(cache._view, [write], terms, "")
            assert [one.label for one in await cache.checkpoints(GROUP, group=True)] == ["of the key"]
        for key, label in ((GROUP, "moved"), (f"{GROUP}/plan", "mark"), (GROUP, "mark")):
            with pytest.raises(CheckpointNotFound):
                await cache.rollback(key, label)

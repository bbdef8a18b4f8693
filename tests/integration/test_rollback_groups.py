"""A whole group goes back in one commit: what was created goes, what was deleted comes, no commit is seen in part."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from statecache import (
    AlreadyCurrent,
    AlreadyExists,
    AsyncStateCache,
    Delete,
    HistoryIncomplete,
    LimitExceeded,
    OutcomeUnknown,
    Position,
    PostgresUnavailable,
    Set,
    Settings,
    State,
    UsageError,
    VersionConflict,
    VersionNotFound,
)
from statecache.core.history import restoring_groups
from statecache.core.history.reader import HistoryReader
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.fixtures.servers import MakeClient
from tests.support.local_reads import LIMIT_S
from tests.support.polling import pause

RUN = "runs/42"
Psql = psycopg.Connection[Any]


def _key(name: str) -> str:
    return f"{RUN}/{name}" if name else RUN


async def _whole(client: AsyncStateCache) -> dict[str, Any]:
    """Return the values of the group's states, without checkpoints and steps."""
    own = (f"{RUN}/checkpoints/", f"{RUN}/steps/")
    found = [state async for state in client.list(RUN) if state.key == RUN or state.key.startswith(RUN + "/")]
    return {state.key.removeprefix(RUN + "/"): state.value for state in found if not state.key.startswith(own)}


def _position(state: State[Any]) -> Position:
    assert state.position is not None
    return state.position


@pytest.mark.parametrize("flushed", [True, False])
async def test_all_keys_go_back_in_one_commit(
    client: AsyncStateCache, worker: Worker, psql: Psql, flushed: bool
) -> None:
    for name, value in (("", 1), ("plan", ["a"]), ("same", "x" * 300), ("dropped", "y" * 300)):
        await client.set(_key(name), value)
    mark = await client.checkpoint(RUN, "mark", group=True, durability="memory")
    before = await _whole(client)
    if flushed:
        await flush(worker)
    await client.set(RUN, 2)
    await client.set(_key("plan"), ["a", "b"])
    await client.delete(_key("dropped"))
    await client.create(_key("new"), "n")
    await client.create(_key("short"), "n")
    await client.delete(_key("short"))
    after = await _whole(client)
    await client.set("runs/421", "another group's")
    if flushed:
        await flush(worker)
    written = await client.rollback(RUN, "mark", group=True, reason="all of it", actor="ada")
    assert await _whole(client) == before
    assert {key: state.value for key, state in written.items()} == {
        RUN: 1, _key("plan"): ["a"], _key("dropped"): "y" * 300, _key("new"): None,
    }  # fmt: skip
    assert len({_position(state) for state in written.values()}) == 1
    await flush(worker)
    n = _position(written[RUN]).n
    told = rows(psql, "SELECT key, op, reason, actor FROM change WHERE n = %s AND key LIKE 'runs/42%%' ORDER BY key", n)
    why = f"rollback to {mark.position}: all of it"
    assert [one[:2] for one in told] == [
        (RUN, "set"), (_key("dropped"), "set"), (_key("new"), "delete"), (_key("plan"), "set"),
    ]  # fmt: skip
    assert {one[2:] for one in told} == {(why, "ada")}
    with pytest.raises(AlreadyCurrent):
        await client.rollback(RUN, mark, group=True)
    assert [one.label for one in await client.checkpoints(RUN)] == ["mark"]
    again = await client.undo(RUN, group=True)
    assert await _whole(client) == after
    assert again.keys() == written.keys()
    await client.redo(RUN, group=True)
    assert await _whole(client) == before


async def test_undo_and_redo_of_a_group_go_from_commit_to_commit(client: AsyncStateCache, worker: Worker) -> None:
    seen: list[dict[str, Any]] = []

    async def note() -> None:
        seen.append(await _whole(client))

    await client.set(RUN, 1)
    await note()
    await client.commit([Set(RUN, 2), Set(_key("plan"), "p")])
    await note()
    await client.checkpoint(RUN, "a", durability="memory")
    await client.checkpoint(RUN, "b", durability="memory")
    await client.delete_checkpoint(RUN, "b")
    await client.commit([Delete(RUN), Set(_key("plan"), "q"), Set(_key("log"), [])])
    await note()
    await flush(worker)
    await client.set(_key("log"), [1])
    await note()
    for then in (2, 1, 0):
        await client.undo(RUN, group=True)
        assert await _whole(client) == seen[then]
    with pytest.raises(VersionNotFound, match="what the first change made"):
        await client.undo(RUN, group=True)
    await client.redo(RUN, group=True)
    assert await _whole(client) == seen[1]
    await client.redo(RUN, group=True)
    assert await _whole(client) == seen[2]
    await client.set(_key("log"), "an edit")
    with pytest.raises(VersionNotFound, match="no undo came"):
        await client.redo(RUN, group=True)
    await client.undo(RUN, group=True)
    assert await _whole(client) == seen[2]
    await client.undo(RUN, group=True)
    assert await _whole(client) == seen[1]


async def test_undo_and_redo_of_a_group_go_past_commits_that_changed_nothing(client: AsyncStateCache) -> None:
    for value in (1, 2, 2, 3, 3, 3):
        await client.set(RUN, value)
    for verb, values in ((client.undo, (2, 1)), (client.redo, (2, 3)), (client.undo, (2, 1))):
        for value in values:
            assert {key: state.value for key, state in (await verb(RUN, group=True)).items()} == {RUN: value}
        with pytest.raises(VersionNotFound):
            await verb(RUN, group=True)


async def test_an_edit_after_an_undo_that_went_past_commits_is_undone_to_what_that_had_come_to(
    client: AsyncStateCache,
) -> None:
    for value in (1, 2, 2):
        await client.set(RUN, value)
    assert (await client.undo(RUN, group=True))[RUN].value == 1
    await client.set(RUN, 5)
    assert (await client.undo(RUN, group=True))[RUN].value == 1


async def test_a_moment_is_one_position_of_a_group_where_the_clock_of_redis_went_back(
    client: AsyncStateCache, cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    """What the keys held at such a moment, each by itself, would be a group that never was."""
    for value in (0, 1):
        await client.commit([Set(RUN, value), Set(_key("plan"), value)])
    newest = await client.set(RUN, 2)
    await flush(worker)
    psql.execute("UPDATE change SET at = at + interval '1 hour' WHERE version = 2")
    psql.execute("UPDATE state SET updated_at = updated_at + interval '1 hour' WHERE version = 2")
    held = {RUN: 2, _key("plan"): 1}
    found = await client.get_group_at(RUN, time=newest.updated_at)
    assert {key: state.value for key, state in found.items()} == held
    with pytest.raises(AlreadyCurrent):
        await client.rollback(RUN, at=newest.updated_at, group=True)
    assert (await client.get_at(_key("plan"), time=newest.updated_at)).value == 0  # type: ignore[union-attr]
    before = await client.get_at(RUN, version=1)
    assert before is not None
    found = await client.get_group_at(RUN, time=before.updated_at)
    assert {key: state.value for key, state in found.items()} == {RUN: 0, _key("plan"): 0}
    assert await client.get_group_at(RUN, time=before.updated_at - timedelta(seconds=1)) == {}


async def test_undo_of_a_group_goes_past_what_has_ended_since(client: AsyncStateCache) -> None:
    await client.set(RUN, 1)
    await client.set(RUN, 2)
    await client.set(_key("session"), 1, ttl=0.05)
    async with asyncio.timeout(LIMIT_S):
        while await client.exists(_key("session")):
            await pause()
    written = await client.undo(RUN, group=True)
    assert {key: state.value for key, state in written.items()} == {RUN: 1}
    assert (await client.redo(RUN, group=True))[RUN].value == 2


@pytest.mark.parametrize("error", [PostgresUnavailable("timeout"), HistoryIncomplete(RUN, reason="it is lacking")])
async def test_where_the_time_is_up_while_it_is_decided_anew_the_conflict_is_raised(
    client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Somebody else wrote: both servers are well. With time left, and before any conflict, the error is another."""
    for value in (1, 2):
        await client.set(RUN, value)
    keys_at, failing = HistoryReader.keys_at, list[bool]()

    async def read(*args: Any, **more: Any) -> Any:
        if failing:
            raise error
        return await keys_at(*args, **more)

    async def conflicts(*_: Any, **__: Any) -> Any:
        failing.append(True)
        raise VersionConflict(RUN, "this", "that")

    monkeypatch.setattr(HistoryReader, "keys_at", read)
    monkeypatch.setattr(restoring_groups, "committed", conflicts)
    for fails_first, cut_off_s, raised in (
        (False, LIMIT_S, VersionConflict),
        (False, 0, type(error)),
        (True, LIMIT_S, type(error)),
    ):
        failing[:] = [True] * fails_first
        monkeypatch.setattr(restoring_groups, "_CUT_OFF_S", cut_off_s)
        with pytest.raises(raised) as caught:
            await client.undo(RUN, group=True, timeout=LIMIT_S)
        assert (caught.value.__cause__ is error) is (raised is VersionConflict)


async def test_after_an_undo_of_a_group_whose_answer_is_lost_its_outcome_says_that_it_is_done(
    client: AsyncStateCache,
) -> None:
    for value in (1, 2, 3):
        await client.set(RUN, value)
    with pytest.raises(OutcomeUnknown) as caught:
        await client.undo(RUN, group=True, durability="postgres", timeout=0.3)
    found = await client.outcome(caught.value.change_id, caught.value.keys[0])
    assert (found.verdict, found.version) == ("applied", 4)
    assert await _whole(client) == {RUN: 2}


async def test_whoever_would_repeat_a_verb_of_a_group_is_told_to_ask_for_the_outcome_first(
    client: AsyncStateCache, worker: Worker
) -> None:
    """A second undo goes a step further, and a second branch meets what the first one has made."""
    await client.set(RUN, 1)
    await flush(worker)
    verbs: list[Callable[..., Any]] = [
        client.undo, client.redo, partial(client.rollback, to="mark"), partial(client.branch, to="runs/43"),
    ]  # fmt: skip
    for verb in verbs:
        with pytest.raises(UsageError, match=r"ask outcome\(error.change_id, error.keys\[0\]\) first"):
            await verb(RUN, group=True, change_id="abcdefgh")
    await client.branch(RUN, "runs/43", group=True)
    with pytest.raises(AlreadyExists, match=r"ask outcome\(error.change_id, error.keys\[0\]\) first"):
        await client.branch(RUN, "runs/43", group=True)


async def test_steps_stay_as_they_are_unless_they_are_asked_for(
    make_client: MakeClient, settings: Settings, worker: Worker
) -> None:
    client, charged = make_client(settings), list[int]()

    def charge(step: Any) -> int:
        charged.append(1)
        return len(charged)

    await client.set(RUN, "begun")
    mark = await client.checkpoint(RUN, "mark", group=True, durability="memory")
    async with flushing(worker):
        assert await client.step(RUN, "charge", charge) == 1
        await client.set(RUN, "charged")
        await client.rollback(RUN, mark, group=True)
        assert (await client.get(RUN, default=None)).value == "begun"
        assert await client.step(RUN, "charge", charge) == 1
        await client.set(RUN, "charged")
        await client.rollback(RUN, mark, group=True, steps=True)
        assert await client.exists(_key("steps/charge")) is False
        assert await client.step(RUN, "charge", charge) == 2


async def test_a_group_goes_back_to_a_moment_and_not_before_the_first(client: AsyncStateCache) -> None:
    await client.set(RUN, 1)
    last = await client.set(_key("plan"), 1)
    await client.set(RUN, 2)
    await client.rollback(RUN, at=last.updated_at, group=True)
    assert await _whole(client) == {RUN: 1, "plan": 1}
    for more in ({"at": datetime(2020, 1, 1, tzinfo=UTC)}, {"to": Position(1, 0)}):
        with pytest.raises(VersionNotFound):
            await client.rollback(RUN, group=True, **more)
    with pytest.raises(VersionNotFound):
        await client.rollback("runs/none", Position(1, 5), group=True)
    with pytest.raises(VersionNotFound):
        await client.undo("runs/none", group=True)
    of_key = await client.checkpoint(RUN, "of the key", durability="memory")
    for to in (of_key, "of the key"):
        with pytest.raises(UsageError, match="not of the group"):
            await client.rollback(RUN, to, group=True)
    assert await _whole(client) == {RUN: 1, "plan": 1}


async def test_more_than_one_commit_takes_is_refused_before_any_effect(client: AsyncStateCache, worker: Worker) -> None:
    names = [_key(f"{number:03}") for number in range(257)]
    await client.set(RUN, 0)
    begun = await client.set(RUN, 1)
    await client.set_many(dict.fromkeys(names, 1))
    with pytest.raises(LimitExceeded, match="number of the group's keys is 258, more than the limit of 256"):
        await client.rollback(RUN, _position(begun), group=True)
    assert (await client.get(names[0], default=None)).value == 1
    await client.delete_many(names[:3])
    await client.rollback(RUN, _position(begun), group=True)
    assert await _whole(client) == {RUN: 1}
    big = "x" * (6 * 1024 * 1024)
    for name in ("a", "b", "c"):
        await client.set(_key(name), big)
    full = await client.set(RUN, 2)
    for name in ("a", "b", "c"):
        await client.set(_key(name), "small")
    await flush(worker)
    with pytest.raises(LimitExceeded, match="the group's size in bytes"):
        await client.rollback(RUN, _position(full), group=True)
    assert (await client.get(_key("a"), default=None)).value == "small"


async def test_what_has_ended_since_counts_as_deleted(client: AsyncStateCache) -> None:
    await client.set(RUN, 1)
    await client.set(_key("session"), 1, ttl=0.05)
    mark = await client.checkpoint(RUN, "mark", group=True, durability="memory")
    await client.set(RUN, 2)
    await client.set(_key("session"), 2)
    await client.set("runs/other", 1, ttl=0.05)  # it ends behind the other one
    async with asyncio.timeout(LIMIT_S):
        while await client.exists("runs/other"):
            await pause()
    written = await client.rollback(RUN, mark, group=True)
    assert {key: state.value for key, state in written.items()} == {RUN: 1, _key("session"): None}


async def test_nobodys_commit_is_overwritten_unseen_and_none_is_seen_in_part(
    make_client: MakeClient, settings: Settings, worker: Worker, psql: Psql
) -> None:
    """Two keys are always written together, and a third is created and deleted with them: no rollback parts them."""
    one, other = make_client(settings), make_client(settings)
    await one.commit([Set(RUN, 0), Set(_key("twin"), 0)])
    mark = await one.checkpoint(RUN, "mark", group=True, durability="memory")
    over = asyncio.Event()

    async def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            await other.commit([Set(RUN, number), Set(_key("twin"), number), Set(_key("third"), number)])
            await pause()

    writing, count = asyncio.create_task(write()), 0
    async with asyncio.timeout(LIMIT_S):
        while count < 10:
            with contextlib.suppress(AlreadyCurrent):
                await one.rollback(RUN, mark, group=True)
                count += 1
    over.set()
    await writing
    await flush(worker)
    changes = rows(psql, "SELECT n, key, op, value_json FROM change_view WHERE key LIKE 'runs/42%%' ORDER BY n, key")
    whole: dict[str, Any] = {}
    for n in sorted({one[0] for one in changes}):
        whole |= {key: value if op == "set" else None for at, key, op, value in changes if at == n}
        assert whole[RUN] == whole[_key("twin")]
        assert whole.get(_key("third")) in (None, whole[RUN])
        if whole[RUN] == 0:
            assert whole.get(_key("third")) is None

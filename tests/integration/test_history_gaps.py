"""A key of which Postgres lacks some versions: what it held then is not known, and nothing older stands in for it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg
import pytest

from statecache import AsyncStateCache, Checkpoint, HistoryIncomplete, Position, Settings, State, VersionNotFound
from statecache.keys import KeySpace
from statecache_workers.quarantine_release import retry
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing
from tests.support.command_line import CommandLine
from tests.support.polling import pause_thread

GROUP = "runs/42"
OTHER, LATE = f"{GROUP}/other", f"{GROUP}/late"
Psql = psycopg.Connection[Any]


class Torn(NamedTuple):
    """A key's seven versions, of which 4 to 6 are lost, with what a checkpoint and a moment before and within are."""

    states: list[State[Any]]
    before: Checkpoint
    moment: datetime
    within: Checkpoint
    then: datetime

    def position(self, version: int) -> Position:
        """Return where a version was committed."""
        position = self.states[version - 1].position
        assert position is not None
        return position


@pytest.fixture
async def torn(cache: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace) -> Torn:
    """What the stream held is gone before it was flushed; states that were not written again are rebuilt from Redis."""
    states = [await cache.set(GROUP, version) for version in (1, 2, 3)]
    await cache.set(OTHER, "as ever")
    before = await cache.checkpoint(GROUP, "before", group=True, durability="memory")
    moment = _next_moment(before.created_at)
    await cache.set(OTHER, "as ever")
    await flush(worker)
    states += [await cache.set(GROUP, version) for version in (4, 5)]
    await cache.set(LATE, "lost")
    within = await cache.checkpoint(GROUP, "within", group=True, durability="memory")
    then = _next_moment(within.created_at)
    states += [await cache.set(GROUP, version) for version in (6, 7)]
    await cache.set(LATE, "kept")
    assert redis_raw.xtrim(keys.changes(keys.shard(GROUP)), maxlen=0) > 0
    await flush(worker)
    assert [one.version async for one in cache.history(GROUP)] == [1, 2, 3, 7]
    assert [one.version async for one in cache.history(LATE)] == [2]
    return Torn(states, before, moment, within, then)


def _next_moment(at: datetime) -> datetime:
    """Return a moment that is later than one, and than which all that follows is later."""
    while (now := datetime.now(UTC)) <= at:
        pause_thread()
    pause_thread()
    return now


async def test_the_log_marks_no_version_with_a_checkpoint_at_which_it_is_not_known(
    torn: Torn, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = await CommandLine(settings, monkeypatch, capsys).beside("log", GROUP, "--json")
    rows = [json.loads(line) for line in told.out.splitlines()]
    marks = {row["version"]: row["checkpoints"] for row in rows if row["key"] == GROUP}
    assert marks == {7: [], 3: [torn.before.label], 2: [], 1: []}


async def test_what_a_key_held_amid_versions_that_are_missing_is_not_made_up(
    cache: AsyncStateCache, torn: Torn
) -> None:
    for version in (4, 5, 6):
        with pytest.raises(VersionNotFound, match=r"versions 4 to 6 are lost") as caught:
            await cache.get_at(GROUP, version=version)
        assert caught.value.nearest == (7 if version == 6 else 3)
        for asked in ({"position": torn.position(version)}, {"time": torn.then}):
            with pytest.raises(VersionNotFound, match=r"versions 4 to 6 are lost") as caught:
                await cache.get_at(GROUP, **asked)
            assert caught.value.nearest == 3
    for asked in ({"position": torn.within.position}, {"time": torn.then}):
        with pytest.raises(VersionNotFound, match="are lost"):
            await cache.get_group_at(GROUP, **asked)
        with pytest.raises(VersionNotFound, match="its version 1 is lost") as caught:
            await cache.get_at(LATE, **asked)
        assert caught.value.nearest == 2
    with pytest.raises(VersionNotFound, match="its newest is version 7"):
        await cache.get_at(GROUP, version=8)
    for which in (torn.position(5), torn.then, 5):
        with pytest.raises(VersionNotFound, match="are lost"):
            await cache.diff(GROUP, which)


async def test_nothing_goes_back_to_what_is_not_known_nor_branches_from_it(cache: AsyncStateCache, torn: Torn) -> None:
    before = {state.key: (state.version, state.value) async for state in cache.list(f"{GROUP}")}
    for to in (torn.within, "within"):
        with pytest.raises(VersionNotFound, match="are lost"):
            await cache.rollback(GROUP, to, group=True)
        with pytest.raises(VersionNotFound, match="are lost"):
            await cache.rollback(GROUP, to)
        with pytest.raises(VersionNotFound, match="are lost"):
            await cache.branch(GROUP, "runs/43", at=to, group=True)
    for aim in ({"to": torn.position(5)}, {"to": 5}, {"at": torn.then}):
        with pytest.raises(VersionNotFound, match="are lost"):
            await cache.rollback(GROUP, **aim)
    with pytest.raises(VersionNotFound, match="are lost"):
        await cache.rollback(GROUP, at=torn.then, group=True)
    with pytest.raises(VersionNotFound, match="are lost"):
        await cache.branch(GROUP, "runs/43/a", at=torn.position(5))
    with pytest.raises(VersionNotFound, match="are lost"):
        await cache.undo(GROUP)
    assert {state.key: (state.version, state.value) async for state in cache.list(f"{GROUP}")} == before
    assert await cache.get("runs/43") is None


async def test_what_was_before_the_missing_versions_and_behind_them_is_known(
    cache: AsyncStateCache, torn: Torn
) -> None:
    for version in (1, 2, 3, 7):
        for known in ({"version": version}, {"position": torn.position(version)}):
            state = await cache.get_at(GROUP, **known)
            assert state is not None
            assert state.value == version
    for asked in ({"position": torn.before.position}, {"time": torn.moment}):
        held = await cache.get_group_at(GROUP, **asked)
        assert {key: state.value for key, state in held.items() if "/checkpoints/" not in key} == {
            GROUP: 3, OTHER: "as ever",
        }  # fmt: skip
        with pytest.raises(VersionNotFound, match="nothing of it is that old"):
            await cache.get_at(LATE, **asked)
    since = [one.version async for one in cache.history(GROUP, since=torn.then)]
    until = [one.version async for one in cache.history(GROUP, until=torn.then)]
    assert (since, until) == ([7], [1, 2, 3])
    back = await cache.rollback(GROUP, "before", group=True)
    assert {key: state.value for key, state in back.items()} == {GROUP: 3, LATE: None}


@pytest.mark.parametrize(
    ("where", "why"),
    [("", "its version 2 is missing"), ("UPDATE shard SET kept_after = 1000000", "its version 2 is no longer kept")],
)
async def test_rows_that_were_deleted_are_not_passed_over(
    cache: AsyncStateCache, worker: Worker, psql: Psql, where: str, why: str
) -> None:
    states = [await cache.set(GROUP, version) for version in (1, 2, 3)]
    await flush(worker)
    psql.execute(f"DELETE FROM change WHERE version = 2; {where}".encode())
    for asked in ({"version": 2}, {"position": states[1].position}):
        with pytest.raises(VersionNotFound, match=why):
            await cache.get_at(GROUP, **asked)
    psql.execute("DELETE FROM change WHERE version = 1")
    with pytest.raises(VersionNotFound, match="its versions 1 to 2 are"):
        await cache.get_group_at(GROUP, position=states[0].position)
    psql.execute("DELETE FROM change")
    with pytest.raises(VersionNotFound, match="its versions 1 to 3 are"):
        await cache.get_at(GROUP, position=states[2].position)


@pytest.mark.parametrize("goes_on", [True, False])
async def test_what_is_in_quarantine_is_not_passed_over(
    cache: AsyncStateCache, worker: Worker, psql: Psql, goes_on: bool
) -> None:
    await cache.set(GROUP, 1)
    psql.execute("ALTER TABLE change ADD CONSTRAINT no_poison CHECK (writer <> '' AND actor <> 'poison')")
    parked = await cache.set(GROUP, 2, actor="poison")
    later = await cache.set(OTHER, 1)
    await flush(worker)
    if goes_on:
        await cache.set(GROUP, 3)
        await flush(worker)
    for asked in ({"version": 2}, {"position": parked.position}, {"position": later.position}):
        with pytest.raises(VersionNotFound, match="its version 2 is in quarantine") as caught:
            await cache.get_at(GROUP, **asked)
        assert caught.value.nearest == 1
    with pytest.raises(VersionNotFound, match="its version 2 is in quarantine"):
        await cache.get_group_at(GROUP, position=later.position)


@pytest.mark.parametrize("flushed", [True, False])
async def test_what_is_in_quarantine_is_not_passed_over_for_what_is_current(
    cache: AsyncStateCache, worker: Worker, psql: Psql, settings: Settings, flushed: bool
) -> None:
    for number in (1, 2):
        await cache.set(GROUP, number)
        await cache.set(OTHER, number)
    before = await cache.checkpoint(GROUP, "before", group=True, durability="memory")
    await cache.set(OTHER, 3)
    await flush(worker)
    psql.execute("ALTER TABLE change ADD CONSTRAINT no_poison CHECK (actor <> 'poison')")
    await cache.set(OTHER, 4, actor="poison")
    if flushed:
        await flush(worker)
    async with flushing(worker):
        for refused in (
            cache.branch(GROUP, "runs/43", group=True),
            cache.rollback(GROUP, before, group=True),
            cache.undo(GROUP, group=True),
            cache.diff(OTHER, 1),
        ):
            with pytest.raises(VersionNotFound, match=r"no current state .* version 4 is in quarantine") as caught:
                await refused
            assert (caught.value.key, caught.value.nearest) == (OTHER, 3)
        assert await cache.get("runs/43") is None
        assert (await cache.get(OTHER)).value == 4  # type: ignore[union-attr]
        psql.execute("ALTER TABLE change DROP CONSTRAINT no_poison")
        assert [one.done for one in await retry(settings, None)] == [True]
        made = await cache.branch(GROUP, "runs/43", group=True)
        assert {key: state.value for key, state in made.items()} == {"runs/43": 2, "runs/43/other": 4}
        back = await cache.rollback(GROUP, before, group=True)
        assert {key: state.value for key, state in back.items()} == {OTHER: 2}


async def test_no_merge_passes_over_versions_that_may_have_been_merges(
    cache: AsyncStateCache, torn: Torn, worker: Worker
) -> None:
    async with flushing(worker):
        await cache.branch(GROUP, "runs/before", at=3)
        await cache.branch(GROUP, "runs/behind", at=7)
        for new in ("runs/before", "runs/behind"):
            await cache.set(new, f"from {new}")
        for pair in (("runs/before", GROUP), (GROUP, "runs/before")):
            with pytest.raises(VersionNotFound, match="3 of its versions 4 to 7 are missing") as caught:
                await cache.merge(*pair, function=lambda _base, _ours, theirs: theirs)
            assert caught.value.key == GROUP
        assert (await cache.merge("runs/behind", GROUP)).value == "from runs/behind"
    assert torn.states[-1].value == 7


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_history_whose_next_entries_are_in_neither_tier_ends_in_its_time(
    cache: AsyncStateCache, redis_raw: Any, keys: KeySpace, *, reverse: bool
) -> None:
    for version in (1, 2, 3):
        await cache.set(GROUP, version)
    assert redis_raw.xtrim(keys.changes(keys.shard(GROUP)), maxlen=1, approximate=False) == 2
    async with asyncio.timeout(20):
        with pytest.raises(HistoryIncomplete):
            assert [one.version async for one in cache.history(GROUP, timeout=0.5, reverse=reverse)]

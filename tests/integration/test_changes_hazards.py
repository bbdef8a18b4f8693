"""What readers of changes are given, and told, where Redis or Postgres went back, or data was refused or deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Change, CursorEnded, Settings, StateCache
from statecache.core.history.values import HistoryValues
from statecache.errors import Unavailable
from statecache.testing import servers
from statecache.testing.embedded import Servers
from statecache_workers import quarantine_release
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, flushing
from tests.fixtures.servers import MakeSettings
from tests.simulation.backups import Backup as Rows
from tests.support.gate_world import World, world
from tests.support.histories import conversation, growing, policy, pruned
from tests.support.postgres_backup import Backup

Psql = psycopg.Connection[Any]
WAIT_S = 20.0
KEY = "runs/42"
POISON = "ALTER TABLE change ADD CONSTRAINT small CHECK (octet_length(value) < 10)"
CURE = "ALTER TABLE change DROP CONSTRAINT small"
BIG = '"much too big"'


class Reader:
    """A reader that keeps what it was given, and goes on from its cursor, each time as another process would."""

    def __init__(self, prefix: str = "runs/") -> None:
        self.prefix = prefix
        self.cursor: str | None = None
        self.given: list[Change[Any]] = []

    def read(self, cache: StateCache) -> list[Any]:
        """Read to the end, and return the values that are new."""
        feed = cache.changes(self.prefix, since=self.cursor, follow=False)
        new = [*feed]
        self.cursor = feed.cursor
        self.given += new
        return [change.value for change in new]


@pytest.fixture(scope="module")
def tiers() -> Iterator[Servers]:
    """A Postgres of these tests' own."""
    with servers(workers=0, migrate=False, fsync=False) as started:
        yield started


@pytest.fixture
def restorable(tiers: Servers, make_settings: MakeSettings, tmp_path: Path) -> Iterator[World]:
    """One shard on it."""
    with world(partial(make_settings, postgres_url=tiers.postgres_url), tmp_path) as made:
        yield made


def test_a_failover_that_loses_a_tail_takes_back_nothing_that_was_given(shard: World) -> None:
    """What was committed and not flushed is never given; what was is, once, and the new epoch goes on behind it."""
    a = shard.start("a")
    shard.open(a)
    b, reader = shard.replica(a, "b"), Reader()
    shard.open(a)  # the first replica of a server changes its replid
    shard.put(a, KEY, 1)
    shard.in_step(a)
    shard.promote(b)
    shard.put(a, KEY, 2)
    shard.flush(a)
    shard.put(a, KEY, "lost")
    assert reader.read(shard.client(a)) == [1, 2]
    a.kill()

    agent = shard.client(b)
    assert reader.read(agent) == []
    agent.set(KEY, 3)
    assert reader.read(agent) == []
    shard.flush(b)
    assert reader.read(agent) == [3]
    assert [change.change_id for change in reader.given] == shard.chain(KEY)
    assert [change.position.n for change in reader.given] == [1, 2, 3]
    assert reader.given[-1].epoch > reader.given[0].epoch


def test_a_cursor_says_where_a_restored_postgres_went_on_without_what_was_given(
    tiers: Servers, restorable: World, tmp_path: Path
) -> None:
    shard, reader, late = restorable, Reader(), Reader()
    a = shard.start("a")
    shard.open(a)
    shard.put(a, KEY, "kept")
    shard.flush(a)
    backup = Backup(tiers, tmp_path)
    a.restart()
    shard.open(a, "client")
    agent = shard.client(a)
    assert late.read(agent) == ["kept"]
    for number in range(5):
        shard.put(a, KEY, number)
    shard.flush(a)
    assert reader.read(agent) == ["kept", 0, 1, 2, 3, 4]
    shard.until_later_than(reader.given[-1].epoch)
    backup.put_back()
    assert reader.read(agent) == []  # whether what was given comes again is not known yet
    shard.raw(a).flushall()
    (opened,) = shard.open(a, "operator")
    for number in range(10, 12):
        shard.put(a, "runs/43", number)
    shard.flush(a)

    with pytest.raises(CursorEnded, match="a later epoch began at 1, and it has come to 6") as told:
        reader.read(agent)
    assert (told.value.shard, tuple(told.value.position)) == (0, (reader.given[-1].epoch, 6))
    reader.cursor = told.value.cursor
    assert reader.read(agent) == [10, 11]
    assert reader.given[-1].epoch == opened.epoch
    assert late.read(agent) == [10, 11]


async def test_a_postgres_that_is_flushed_again_is_waited_for(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker, psql: Psql
) -> None:
    """The same changes come at the same positions: none is given twice, and what is new follows."""
    await cache.set(KEY, 1)
    await flush(worker)
    older, reader = Rows(psql), Reader()
    for number in range(2, 6):
        await cache.set(KEY, number)
    await flush(worker)
    assert reader.read(sync_cache) == [1, 2, 3, 4, 5]
    older.put_back()
    assert reader.read(sync_cache) == []
    await cache.set(KEY, 6)
    for _ in range(100):
        try:
            await flush(worker)
        except Unavailable:
            continue
        if reader.read(sync_cache) or reader.given[-1].value == 6:
            break
    assert [change.value for change in reader.given] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("tip", [False, True])
async def test_what_comes_out_of_quarantine_is_given_to_those_who_have_passed_it(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker, agents: Agents, psql: Psql, *, tip: bool
) -> None:
    before, behind, fresh = Reader(), Reader(), Reader()
    agents.commit((KEY, "1"))
    await flush(worker)
    assert before.read(sync_cache) == [1]
    psql.execute(POISON)
    agents.commit((KEY, BIG), (f"{KEY}/part", BIG))
    agents.commit("runs/43")
    await flush(worker)
    psql.execute(CURE)
    if not tip:
        agents.commit((KEY, "3"))
        await flush(worker)
    behind.cursor = before.cursor
    assert sorted(behind.read(sync_cache)) == ([1] if tip else [1, 3])
    async with cache.watch("runs/") as watch, asyncio.timeout(WAIT_S):
        (done,) = await quarantine_release.retry(cache.settings, None)
        assert (done.done, done.taken) == (True, 2)
        seen = {(await anext(watch)).key for _ in range(2 if tip else 1)}
    assert seen == ({KEY, f"{KEY}/part"} if tip else {f"{KEY}/part"})  # its newest states, never an older one
    assert behind.read(sync_cache) == ["much too big"] * 2
    assert [(change.key, change.late) for change in behind.given[-2:]] == [(KEY, True), (f"{KEY}/part", True)]
    assert behind.read(sync_cache) == []

    for reader in (before, fresh):
        found = reader.read(sync_cache)
        assert found.count("much too big") == 2
        assert not any(change.late for change in reader.given)
        versions = [change.version for change in reader.given if change.key == KEY]
        assert versions == ([1, 2] if tip else [1, 2, 3])
        assert reader.read(sync_cache) == []


async def test_what_was_set_aside_as_a_conflict_is_never_given(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker, agents: Agents, psql: Psql
) -> None:
    reader = Reader()
    first = await cache.set(KEY, "first")
    await flush(worker)
    agents.raw.delete(agents.keys.state(KEY))
    fork = await cache.create(KEY, "fork", assume_new=True)
    await cache.set(KEY, "of the fork")
    await flush(worker)
    assert psql.execute("SELECT count(*) FROM conflict").fetchone() == (2,)
    await cache.set(KEY, "second")
    await flush(worker)
    assert reader.read(sync_cache) == ["first", "second"]
    assert reader.given[1].parent_change_id == first.change_id
    assert fork.change_id not in {change.change_id for change in reader.given}


async def test_a_cursor_before_what_was_deleted_says_so(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker, psql: Psql
) -> None:
    reader, behind, fresh = Reader(), Reader(), Reader()
    await cache.set(KEY, 0)
    await flush(worker)
    assert reader.read(sync_cache) == [0]
    for number in range(1, 4):
        await cache.set(KEY, number)
    await flush(worker)
    behind.cursor = reader.cursor
    assert behind.read(sync_cache) == [1, 2, 3]
    shard = cache._runtime.keys.shard(KEY)
    psql.execute("UPDATE shard SET kept_after = 3 WHERE shard = %s", [shard])
    psql.execute("DELETE FROM change WHERE key = %s AND version = 2", [KEY])  # it is under way

    with pytest.raises(CursorEnded, match="changes up to 3 may have been deleted, and it has come to 1") as told:
        reader.read(sync_cache)
    reader.cursor = told.value.cursor
    assert reader.read(sync_cache) == [3]
    assert fresh.read(sync_cache) == [3]
    assert behind.read(sync_cache) == []


@pytest.mark.parametrize("how", ["pruned", "erased"])
async def test_values_that_go_while_a_page_is_read_are_no_longer_kept_and_not_damaged(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Between the rows of a page and the value that the first delta needs: the rows behind are deltas to what went."""
    await conversation(cache, KEY, times=6)
    await flush(worker)
    feed = cache.changes("runs/", follow=False)
    assert (await anext(feed)).version == 1
    feed = cache.changes("runs/", since=feed.cursor, follow=False)
    values, went = HistoryValues.read, list[str]()

    async def goes_first(*args: Any, **more: Any) -> Any:
        if not went:
            went.append(how)
            if how == "pruned":
                policy(psql, count=2)
                assert (await pruned(settings)).values == 4
            else:
                async with flushing(worker):
                    assert (await cache.erase(KEY)).keys == (KEY,)
        return await values(*args, **more)

    monkeypatch.setattr(HistoryValues, "read", goes_first)
    given = [(one.version, one.kept, one.value) async for one in feed]
    assert went
    stay = {5: growing(4), 6: growing(5)} if how == "pruned" else {}
    assert given == [(version, version in stay, stay.get(version)) for version in range(2, 7)]

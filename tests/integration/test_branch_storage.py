"""What the flush records of branches and keeps of them: a reference where the origin's value stays, else the value."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, HistoryDamaged, Settings, VersionNotFound
from statecache_workers import origins, quarantine_release
from statecache_workers.flusher import Flusher
from statecache_workers.prune_by_hand import prune
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, MakeWorker, flush, flushing, rows

KEY, NEW, LAST = "runs/42", "runs/43", "runs/44"
LONG = [f"this is what was said in step {number}, and it is some words long" for number in range(40)]
HARD = [sha256(word.encode()).hexdigest() for word in LONG]
"""What does not compress by itself, so that the next version is a delta."""
OTHER_DIGEST = "UPDATE change SET digest = sha256('another') WHERE key = 'runs/42' AND version = 2"
DAMAGED = "^Version {} of '{}' cannot be read [^:]*: version 2 of 'runs/42', which it is made from, is damaged: "
Psql = psycopg.Connection[Any]
LINKS = "SELECT key, version, origin, origin_version FROM branch ORDER BY key, version"
TAKEN = "SELECT 1 FROM change WHERE key = 'runs/42' AND version = 2 FOR UPDATE"


def _kept(psql: Psql, key: str = NEW) -> list[str]:
    return [kept for (kept,) in rows(psql, "SELECT kept FROM change_view WHERE key = %s ORDER BY version", key)]


@pytest.fixture
async def origin(cache: AsyncStateCache, worker: Worker) -> AsyncStateCache:
    """A client, and three versions of a key that Postgres holds."""
    for number in (1, 2, 3):
        await cache.set(KEY, [number, *LONG])
    await flush(worker)
    return cache


async def _holds(cache: AsyncStateCache, value: Any, key: str = NEW, version: int = 1) -> None:
    state = await cache.get_at(key, version=version)
    assert state is not None
    assert state.value == value


async def test_a_value_that_is_no_longer_kept_when_the_branch_is_flushed_is_kept_by_the_branch(
    origin: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await origin.branch(KEY, NEW, at=2)
    psql.execute("UPDATE change SET value = NULL, packed = NULL WHERE key = %s AND version < 3", [KEY])
    await flush(worker)
    assert _kept(psql) == ["whole"]
    assert rows(psql, LINKS) == [(NEW, 1, KEY, 2)]
    await _holds(origin, [2, *LONG])


async def test_an_origin_that_is_gone_or_of_an_earlier_release_or_another_is_not_built_on(
    origin: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await origin.branch(KEY, NEW, at=3)
    await origin.branch(KEY, "runs/44", at=2)
    await origin.branch(KEY, "runs/45", at=1)
    psql.execute("DELETE FROM change WHERE key = %s AND version = 3", [KEY])
    psql.execute("UPDATE change SET digest = NULL WHERE key = %s AND version = 2", [KEY])
    psql.execute("UPDATE change SET digest = sha256('another') WHERE key = %s AND version = 1", [KEY])
    await flush(worker)
    for key in (NEW, "runs/44", "runs/45"):
        assert _kept(psql, key) == ["whole"]
    assert rows(psql, LINKS) == [(NEW, 1, KEY, 3), ("runs/44", 1, KEY, 2), ("runs/45", 1, KEY, 1)]
    await _holds(origin, [3, *LONG])
    await _holds(origin, [2, *LONG], "runs/44")


async def test_an_origin_that_postgres_takes_in_later_is_named_by_its_version_until_then(
    origin: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    """As where Postgres has gone back, and takes in one shard's changes before another's."""
    await origin.branch(KEY, NEW, at=2)
    ((change_id,),) = rows(psql, "SELECT change_id FROM change WHERE key = %s AND version = 2", KEY)
    psql.execute("CREATE TABLE later AS SELECT * FROM change WHERE key = 'runs/42' AND version >= 2")
    psql.execute("DELETE FROM change WHERE key = 'runs/42' AND version >= 2")
    await flush(worker)
    assert rows(psql, LINKS) == [(NEW, 1, KEY, 2)]
    assert [one.origin_change_id for one in await origin.branches(KEY)] == [""]
    psql.execute("INSERT INTO change SELECT * FROM later")
    assert [one.origin_change_id for one in await origin.branches(KEY)] == [change_id]
    assert [one.origin_change_id for one in await origin.ancestry(NEW)] == [change_id]
    assert _kept(psql) == ["whole"]
    await _holds(origin, [2, *LONG])


async def test_a_group_is_read_whose_keys_branched_from_one_another_in_a_row(
    origin: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    places = [KEY, *(f"{KEY}/{name}" for name in ("b", "a", "d", "c"))]
    for key, new in pairwise(places):
        await origin.branch(key, new, at=2 if key == KEY else 1)
        await flush(worker)
    assert [_kept(psql, key) for key in places[1:]] == [["delta"]] * 4
    last = await origin.get(places[-1])
    assert last is not None
    group = await origin.get_group_at(KEY, position=last.position)
    assert {key: state.value[0] for key, state in group.items()} == dict.fromkeys(places, 2) | {KEY: 3}


async def test_while_somebody_removes_values_a_branch_keeps_its_own_and_nobody_waits(
    origin: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await origin.branch(KEY, NEW, at=2)
    with psql.transaction():
        psql.execute(TAKEN)
        await flush(worker)
    assert _kept(psql) == ["whole"]
    assert rows(psql, LINKS) == [(NEW, 1, KEY, 2)]


async def test_whoever_removes_values_waits_for_the_flush_that_builds_on_them(
    origin: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[bool] = []
    real = origins.linked

    async def linked(*given: Any) -> Any:
        found = await real(*given)
        try:
            psql.execute(TAKEN + " NOWAIT")
            waited.append(False)
        except psycopg.errors.LockNotAvailable:
            waited.append(True)
        return found

    monkeypatch.setattr("statecache_workers.batch_writing.linked", linked)
    await origin.branch(KEY, NEW, at=2)
    await flush(worker)
    assert waited == [True]
    assert _kept(psql) == ["delta"]
    psql.execute(TAKEN + " NOWAIT")


async def test_what_is_lost_of_the_origin_later_is_told_and_is_no_wrong_value(
    origin: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await origin.branch(KEY, NEW, at=2)
    await origin.set(NEW, [9, *LONG])
    await flush(worker)
    psql.execute("UPDATE change SET value = NULL, packed = NULL WHERE key = %s", [KEY])
    with pytest.raises(HistoryDamaged):
        await origin.get_at(NEW, version=1)
    state = await origin.get(NEW, read="fenced")
    assert state is not None
    assert state.value == [9, *LONG]


@pytest.fixture
async def branches(cache: AsyncStateCache, worker: Worker, psql: Psql) -> AsyncStateCache:
    """A client, and what branched in a row from the second version of a key, each kept as a delta; it has gone on."""
    for number in (1, 2, 3):
        await cache.set(KEY, [number, *HARD])
        await flush(worker)
    for key, new, at in ((KEY, NEW, 2), (NEW, LAST, 1)):
        await cache.branch(key, new, at=at)
        await flush(worker)
    for number in (8, 9):
        await cache.set(NEW, [number, *HARD])
        await flush(worker)
    assert [_kept(psql, key) for key in (KEY, NEW, LAST)] == [["whole", "delta", "delta"], ["delta"] * 3, ["delta"]]
    return cache


async def test_branches_are_read_whose_origin_is_damaged_in_nothing_but_its_digest(
    branches: AsyncStateCache, psql: Psql, settings: Settings
) -> None:
    psql.execute(OTHER_DIGEST)
    for key in (NEW, LAST):
        await _holds(branches, [2, *HARD], key)
    await _holds(branches, [9, *HARD], NEW, 3)
    await _holds(branches, [3, *HARD], KEY, 3)
    async with branches.changes(NEW, follow=False) as feed:
        assert [change.value async for change in feed] == [[number, *HARD] for number in (2, 8, 9)]
    with pytest.raises(HistoryDamaged, match=f"^Version 2 of '{KEY}' .* its hash does not fit"):
        await branches.get_at(KEY, version=2)
    _, faults = await verify(settings)
    assert {(one.key, one.version) for one in faults} == {(KEY, 2)}


async def test_versions_of_a_branch_are_let_go_whose_origin_is_damaged_in_nothing_but_its_digest(
    branches: AsyncStateCache, worker: Worker, psql: Psql, settings: Settings
) -> None:
    await branches.delete(LAST)
    await flush(worker)
    psql.execute("UPDATE change SET value = NULL, packed = NULL WHERE key = %s AND version = 1", [LAST])
    psql.execute(OTHER_DIGEST)
    psql.execute(
        "INSERT INTO retention (name, history, max_count, changed_by, changed_at)"
        " VALUES ('runs', 'full', 2, 'test', now() - interval '1 hour')"
    )
    await prune(settings, "runs", dry_run=False)
    assert _kept(psql) == ["not kept", "whole", "delta"]
    assert _kept(psql, KEY) == ["whole", "delta", "delta"], "what is damaged is left alone"
    for number in (8, 9):
        await _holds(branches, [number, *HARD], NEW, number - 6)


@pytest.mark.parametrize("also", ["", ", digest = sha256('another')"])
async def test_what_cannot_be_read_of_a_branch_names_what_it_is_made_from_where_that_is_damaged(
    branches: AsyncStateCache, psql: Psql, settings: Settings, also: str
) -> None:
    psql.execute(
        f"UPDATE change SET packed = set_byte(packed, 9, 7) {also} WHERE key = '{KEY}' AND version = 2".encode()
    )
    for key in (NEW, LAST):
        with pytest.raises(HistoryDamaged, match=DAMAGED.format(1, key)):
            await branches.get_at(key, version=1)
    _, faults = await verify(settings)
    assert {(one.key, one.version) for one in faults} >= {(KEY, 2), (NEW, 1), (LAST, 1)}


async def test_a_branch_without_a_digest_is_not_read_behind_an_origin_that_is_not_proven(
    branches: AsyncStateCache, psql: Psql
) -> None:
    psql.execute(OTHER_DIGEST)
    psql.execute("UPDATE change SET digest = NULL, hash = NULL WHERE key = %s", [NEW])
    for version in (1, 2, 3):
        with pytest.raises(HistoryDamaged, match=DAMAGED.format(version, NEW)):
            await branches.get_at(NEW, version=version)
        with pytest.raises(HistoryDamaged, match=DAMAGED.format(version, NEW)):
            assert [one async for one in branches.history(NEW, since=version, values=True)]
    await _holds(branches, [2, *HARD], LAST)


async def test_small_values_and_those_behind_a_parent_are_kept_as_ever(
    cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await cache.set(KEY, "small")
    async with flushing(worker):
        await cache.branch(KEY, NEW)
    await flush(worker)
    assert _kept(psql) == ["plain"]
    assert rows(psql, LINKS) == [(NEW, 1, KEY, 1)]


async def test_a_forked_branch_is_kept_whole_and_recorded_nowhere(
    origin: AsyncStateCache, worker: Worker, psql: Psql, agents: Agents
) -> None:
    await origin.set(NEW, "taken")
    await flush(worker)
    agents.raw.delete(agents.keys.state(NEW))
    value = agents.raw.hget(agents.keys.state(KEY), "value")
    agents.commit((NEW, value), reason=f"branch of {KEY}@3")  # it claims that there is nothing, and is wrong
    await flush(worker)
    assert rows(psql, LINKS) == []
    assert rows(psql, "SELECT key, value FROM conflict") == [(NEW, value)]
    assert _kept(psql) == ["plain"]


async def test_a_parked_branch_is_recorded_once_it_is_taken_in(
    origin: AsyncStateCache, worker: Worker, psql: Psql, settings: Settings
) -> None:
    psql.execute("ALTER TABLE change ADD CONSTRAINT no CHECK (key <> 'runs/43')")
    await origin.branch(KEY, NEW, at=2)
    await flush(worker)
    assert rows(psql, LINKS) == []
    assert rows(psql, "SELECT keys FROM quarantine") == [([NEW],)]
    psql.execute("ALTER TABLE change DROP CONSTRAINT no")
    (done,) = await quarantine_release.retry(settings, None)
    assert done.done
    assert rows(psql, LINKS) == [(NEW, 1, KEY, 2)]
    assert _kept(psql) == ["plain"]
    await _holds(origin, [2, *LONG])


async def test_poison_beside_a_branch_does_not_keep_it_from_its_reference(
    origin: AsyncStateCache, worker: Worker, psql: Psql, agents: Agents
) -> None:
    agents.commit(("runs/a", "1"), writer="a\0b")
    await origin.branch(KEY, NEW, at=2)
    agents.commit(("runs/b", "1"), writer="a\0b")
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(2,)]
    assert rows(psql, LINKS) == [(NEW, 1, KEY, 2)]
    assert _kept(psql) == ["delta"]
    await _holds(origin, [2, *LONG])


async def test_a_flush_that_is_repeated_records_it_once(
    origin: AsyncStateCache,
    worker: Worker,
    make_worker: MakeWorker,
    psql: Psql,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Died(BaseException):
        pass

    await origin.branch(KEY, NEW, at=2)

    async def dies(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(Flusher, "_acknowledge", dies)
        with pytest.raises(Died):
            await flush(worker)
    await worker.close()
    psql.execute("UPDATE shard SET owner = NULL, lease_until = NULL")
    await flush(make_worker())
    assert rows(psql, LINKS) == [(NEW, 1, KEY, 2)]
    assert rows(psql, "SELECT count(*) FROM change WHERE key = %s", NEW) == [(1,)]


async def test_a_users_own_words_are_nothing_to_the_flush(
    origin: AsyncStateCache, worker: Worker, psql: Psql, agents: Agents
) -> None:
    for reason in ("branch of the bank", "merge of two", f"branch of {KEY}@0"):
        agents.commit((f"runs/{len(reason)}", "1"), reason=reason)
    await flush(worker)
    assert rows(psql, LINKS) == []
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(0,)]


async def _group_branched(cache: AsyncStateCache, worker: Worker, psql: Psql, versions: str) -> None:
    """Branch a group, and have it flushed by a Postgres that has gone back and parks these versions of a key of it."""
    for number in (1, 2):
        await cache.set("base/1/part", {"step": number, "ours": 0, "theirs": 0})
        await flush(worker)
    await cache.branch("base/1", "copy/1", group=True)
    those = f"key = 'base/1/part' AND version IN ({versions})"
    psql.execute(f"CREATE TABLE parked AS SELECT * FROM change WHERE {those}".encode())
    psql.execute("CREATE TABLE whole AS SELECT * FROM state WHERE key = 'base/1/part'")
    psql.execute("UPDATE state SET op = 'quarantined', value = '' WHERE key = 'base/1/part'")
    psql.execute("DELETE FROM change c USING parked p WHERE (c.key, c.version) = (p.key, p.version)")
    await flush(worker)


def _taken_in(psql: Psql) -> None:
    psql.execute("INSERT INTO change SELECT * FROM parked")
    psql.execute("UPDATE state s SET op = w.op, value = w.value FROM whole w WHERE w.key = s.key")


@pytest.mark.parametrize(("versions", "found"), [("2", 1), ("1, 2", 0)])
async def test_a_groups_branch_that_is_flushed_before_its_origin_is_merged_once_that_is_there(
    cache: AsyncStateCache, worker: Worker, psql: Psql, settings: Settings, versions: str, found: int
) -> None:
    await _group_branched(cache, worker, psql, versions)
    assert rows(psql, LINKS) == [("copy/1/part", 1, "base/1/part", found)]
    (link,) = await cache.ancestry("copy/1/part")
    assert (link.origin, link.origin_version) == ("base/1/part", found)
    await cache.update("copy/1/part", lambda then: {**then, "theirs": 1})
    async with flushing(worker):
        with pytest.raises(VersionNotFound, match="missing") as caught:
            await cache.merge("copy/1/part", "base/1/part", timeout=5)
        assert caught.value.key == "base/1/part"
        _taken_in(psql)
        (link,) = await cache.ancestry("copy/1/part")
        (other,) = await cache.branches("base/1/part")
        assert link == other
        ((change_id,),) = rows(psql, "SELECT change_id FROM change WHERE key = 'base/1/part' AND version = 2")
        assert (link.origin_version, link.origin_change_id) == (2, change_id)
        assert (await verify(settings))[1] == []
        await cache.update("copy/1/part", lambda then: {**then, "step": 1})
        await cache.update("base/1/part", lambda then: {**then, "ours": 1})
        merged = await cache.merge("copy/1/part", "base/1/part")
        assert merged.value == {"step": 1, "ours": 1, "theirs": 1}, "step 2 is what both began with"
    psql.execute("DELETE FROM branch WHERE key = 'copy/1/part'")
    assert ("copy/1/part", 1, "branch") in {(one.key, one.version, one.what) for one in (await verify(settings))[1]}

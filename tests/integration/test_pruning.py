"""Values go as their namespace's policy says, and what stays is read as before, beside flushes and through kills."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from statecache import AsyncStateCache, Settings
from statecache.core.history.values import HistoryValues, VersionAt
from statecache.rules.pins import CHECKPOINT_SCHEMA
from statecache_workers import pruning
from statecache_workers.prune_by_hand import prune
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, rows
from tests.support.command_line import CommandLine
from tests.support.histories import Psql, Values, aged, conversation, policy, pruned, read, versions, whole

AGE = timedelta(days=30)


@pytest.fixture(params=[(1000, 400), (5, 2)], ids=["large lots", "small lots"])
def lots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and transactions that hold all, or a few values."""
    for name, value in zip(("ROWS", "VALUES"), request.param, strict=True):
        monkeypatch.setattr(pruning, name, value)
    if request.param[0] == 5:
        monkeypatch.setattr(pruning, "LAST_RUNS", 1)


async def test_values_that_were_replaced_before_the_age_go(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, lots: None
) -> None:
    await conversation(cache, "runs/1", times=12)
    await conversation(cache, "runs/2", times=3)
    await conversation(cache, "other/1", times=3)
    await flush(worker)
    aged(psql, "runs/1", lambda version: 100 - 10 * version if version < 10 else 0)
    aged(psql, "runs/2", lambda _: 400)
    aged(psql, "other/1", lambda _: 400)
    psql.execute("CREATE TABLE headers AS SELECT * FROM change")
    before = await read(cache, psql)
    policy(psql, age=AGE)
    would = await pruned(settings, dry_run=True)
    assert await read(cache, psql) == before
    done = await pruned(settings)
    assert done == would
    assert (done.values, done.pinned, done.damaged) == (8, 0, [])
    after = await whole(settings, cache, psql, before)
    assert versions(after, "runs/1") == [*range(7, 13)], "version 7 was replaced by one of 20 days ago"
    assert versions(after, "runs/2") == [3]
    assert versions(after, "other/1") == [1, 2, 3]
    stays = "key, version, change_id, parent_change_id, n, op, size, digest, hash, writer, actor, reason, at"
    assert rows(psql, f"SELECT {stays} FROM headers EXCEPT SELECT {stays} FROM change") == []
    bytes_of = "SELECT sum(octet_length(coalesce(packed, value)))::int FROM "
    ((earlier,),), ((now,),) = rows(psql, f"{bytes_of} headers"), rows(psql, f"{bytes_of} change")
    assert done.bytes == earlier - now
    assert (await pruned(settings)).values == 0
    changes = [change async for change in cache.changes("runs/1", follow=False)]
    assert [change.kept for change in changes] == [False] * 6 + [True] * 6
    assert rows(psql, "SELECT DISTINCT kept_after FROM shard") == [(0,)]


async def test_all_but_the_newest_so_many_go_and_what_either_bound_keeps_is_kept(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, lots: None
) -> None:
    for key in ("runs/1", "runs/2"):
        await conversation(cache, key, times=10)
    await cache.delete("runs/2")
    await flush(worker)
    aged(psql, "runs/1", lambda version: 100 - 10 * version)
    before = await read(cache, psql)
    policy(psql, count=8, age=AGE)
    assert (await pruned(settings)).values == 2, "of runs/2 nothing is old enough"
    after = await whole(settings, cache, psql, before)
    assert versions(after, "runs/1") == [*range(3, 11)]
    policy(psql, count=2, age=AGE)
    assert (await pruned(settings)).values == 4
    after = await whole(settings, cache, psql, before)
    assert versions(after, "runs/1") == [7, 8, 9, 10]
    policy(psql, count=2)
    await pruned(settings)
    after = await whole(settings, cache, psql, before)
    assert (versions(after, "runs/1"), versions(after, "runs/2")) == ([9, 10], [10])
    policy(psql, history="latest")
    await pruned(settings)
    after = await whole(settings, cache, psql, before)
    assert (versions(after, "runs/1"), versions(after, "runs/2")) == ([10], [])


def checkpoint(key: str, label: str, **record: Any) -> dict[str, Any]:
    """Return a checkpoint's part of a commit."""
    scope = "key" if "version" in record else "group"
    value = msgspec.json.encode({"label": label, "scope": scope, "key": key, **record})
    return {"key": f"{key}/checkpoints/{label}", "value": value.decode(), "schema": CHECKPOINT_SCHEMA}


async def test_what_live_checkpoints_name_stays(
    settings: Settings, cache: AsyncStateCache, agents: Agents, worker: Worker, psql: Psql, lots: None
) -> None:
    await conversation(cache, "runs/1/plan", times=4)
    agents.commit(checkpoint("runs/1/plan", "a", version=4))
    await conversation(cache, "runs/1", times=6)
    await conversation(cache, "runs/1/plan", times=3, first=4)
    agents.commit(checkpoint("runs/1", "b"))
    await conversation(cache, "runs/1", times=6, first=6)
    await conversation(cache, "runs/1/plan", times=3, first=7)
    await conversation(cache, "runs/2", times=5)
    await flush(worker)
    before = await read(cache, psql)
    policy(psql, count=1)
    assert (await pruned(settings)).pinned == 3
    after = await whole(settings, cache, psql, before)
    assert versions(after, "runs/1") == [6, 12]
    assert versions(after, "runs/1/plan") == [4, 7, 10]
    assert versions(after, "runs/2") == [5]
    await cache.delete("runs/1/checkpoints/b")
    await flush(worker)
    assert (await pruned(settings)).pinned == 1
    after = await whole(settings, cache, psql, before)
    assert (versions(after, "runs/1"), versions(after, "runs/1/plan")) == ([12], [4, 10])


async def test_what_a_branch_began_with_stays_for_as_long_as_it_is_read_from_there(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, lots: None
) -> None:
    await conversation(cache, "runs/1", times=8)
    await flush(worker)
    await cache.branch("runs/1", "other/branch", at=4)
    await conversation(cache, "other/branch", times=4, first=8)
    await flush(worker)
    before = await read(cache, psql)
    assert before["other/branch", 1] == before["runs/1", 4]
    policy(psql, count=1)
    assert (await pruned(settings)).pinned == 1
    after = await whole(settings, cache, psql, before)
    assert versions(after, "runs/1") == [4, 8]
    psql.execute("INSERT INTO retention (name, history, max_count, changed_by) VALUES ('other', 'full', 2, 'test')")
    first, second = await prune(settings, None, dry_run=False)
    assert (first.namespace, first.values, second.values) == ("other", 3, 1)
    after = await whole(settings, cache, psql, before)
    assert (versions(after, "runs/1"), versions(after, "other/branch")) == ([8], [4, 5])


async def test_a_damaged_history_is_left_alone_and_told_of(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, cli: CommandLine
) -> None:
    await conversation(cache, "runs/1", times=6)
    await conversation(cache, "runs/2", times=6)
    await flush(worker)
    psql.execute("UPDATE change SET digest = '\\x00' WHERE key = 'runs/1' AND version = 4")
    psql.execute("CREATE TABLE before AS SELECT * FROM change WHERE key = 'runs/1'")
    policy(psql, count=1)
    ended = await cli.beside("prune", "--yes")
    assert ended.status == 1
    assert ended.err.splitlines() == [
        "statecache: left alone: runs/1@1: the value of version 4 is not what its digest says"
    ]
    assert rows(psql, "SELECT * FROM before EXCEPT SELECT * FROM change") == []
    assert versions(await read_all_but(cache, psql, "runs/1"), "runs/2") == [6]


async def read_all_but(cache: AsyncStateCache, psql: Psql, key: str) -> Values:
    asked = [VersionAt(*row) for row in rows(psql, "SELECT key, version FROM change WHERE key <> %s", key)]
    found = await HistoryValues(cache._runtime.postgres.fetch).read(asked, seconds=30)
    return {(place.key, place.version): value for place, value in found.items() if value is not None}


async def test_the_command_says_what_would_go_and_asks(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, cli: CommandLine
) -> None:
    await conversation(cache, "runs/1", times=6)
    await flush(worker)
    nothing = await cli.beside("prune")
    assert (nothing.status, nothing.out.partition(":")[0]) == (0, "no policy lets values of any namespace go")
    assert (await cli.beside("prune", "other")).status == 1
    policy(psql, count=2)
    before = await read(cache, psql)
    asked = await cli.beside("prune", "runs")
    assert asked.status == 2
    assert "4 values of changes, " in asked.err
    assert "would go for good. Say --yes if that is meant." in asked.err
    assert asked.out.splitlines()[1].split("\t")[:3] == ["runs", "the newest 2 of each key", "4"]
    shown = await cli.beside("prune", "--dry-run", "--json")
    assert shown.json["dry_run"] is True
    assert shown.json["pruned"][0]["values"] == 4
    assert await read(cache, psql) == before
    done = await cli.beside("prune", "--yes", "--json")
    assert done.json == shown.json | {"dry_run": False}
    assert versions(await whole(settings, cache, psql, before), "runs/1") == [5, 6]
    again = await cli.beside("prune")
    assert (again.status, again.out.splitlines()[1].split("\t")[2]) == (0, "0")


async def test_a_role_that_may_not_prune_is_told_whose_to_use(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, cli: CommandLine
) -> None:
    await conversation(cache, "runs/1", times=3)
    await flush(worker)
    policy(psql, count=1)
    schema = settings.postgres_schema
    role = f"reader_{schema}"
    url = f"postgresql://{role}:secret@{settings.postgres_url.rpartition('@')[2]}"
    psql.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
    psql.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}".encode())
    try:
        shown = await cli.beside("prune", "--dry-run", "--json", "--postgres-url", url)
        refused = await cli.beside("prune", "--yes", "--postgres-url", url)
    finally:
        psql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
    assert shown.json["pruned"][0]["values"] == 2
    assert (refused.status, refused.err.count("\n")) == (3, 1)
    assert "Use a worker's role, or the schema owner's." in refused.err

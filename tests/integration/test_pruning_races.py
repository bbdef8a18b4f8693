"""Prunes beside flushes, through kills, and by workers: whatever stays is read as before."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from statecache import AsyncStateCache, Settings
from statecache.keys import KeySpace
from statecache.rules.prune_plan import Rewrite, rewritten
from statecache_workers import prune_passes, pruning
from statecache_workers.database import Database
from statecache_workers.prune_passes import PrunePasses
from statecache_workers.pruning import Pruner
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Log, MakeWorker, flush, flushing, rows
from tests.support.histories import Psql, conversation, growing, policy, pruned, read, versions, whole
from tests.support.polling import pause


async def test_prunes_race_with_a_flusher_that_writes_deltas_on_what_they_prune(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "LAST_RUNS", 1)
    policy(psql, count=2)
    over, prunes = False, 0

    async def prunes_go_on() -> None:
        nonlocal prunes
        while not over:
            prunes += (await pruned(settings)).values

    async with flushing(worker):
        work = asyncio.create_task(prunes_go_on())
        for number in range(250):
            await cache.set(f"runs/{number % 2}", growing(number % 90))
            if number % 5 == 0:
                await pause()
        over = True
        await work
    await flush(worker)
    assert prunes > 100
    assert rows(psql, "SELECT sum(moved_keyframes) > 5 FROM shard") == [(True,)]
    assert (await verify(settings))[1] == []
    await pruned(settings)
    assert (await verify(settings))[1] == []
    after = await read(cache, psql)
    assert [versions(after, f"runs/{n}") for n in range(2)] == [[124, 125]] * 2
    assert msgspec.json.decode(after["runs/1", 125]) == growing(249 % 90)
    for number in range(4):
        await cache.set("runs/0", growing(number))
    await flush(worker)
    assert (await verify(settings))[1] == []


@pytest.mark.parametrize("grows", ["before the lock", "behind the lock"])
async def test_a_delta_that_is_flushed_while_its_keyframe_moves_is_read_from_the_new_one(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch, grows: str
) -> None:
    """The flusher remembers the keyframe of the last run, and writes on it at the worst moments."""
    await conversation(cache, "runs/1", times=6)
    await flush(worker)
    policy(psql, count=2)
    exchange, at = Database.exchange, "moved_keyframes" if grows == "before the lock" else "FOR UPDATE OF c"
    struck: list[str] = []

    async def writes_first(database: Database, statements: list[Any]) -> list[Any]:
        if database is not worker._database and not struck and any(at in text for text, _ in statements):
            struck.append(at)
            await conversation(cache, "runs/1", times=2, first=6)
            await flush(worker)
        return await exchange(database, statements)

    monkeypatch.setattr(Database, "exchange", writes_first)
    await pruned(settings)
    assert struck
    assert rows(psql, "SELECT version FROM change WHERE keyframe IS NOT NULL AND version > 6 ORDER BY 1") == [
        (7,),
        (8,),
    ]
    assert (await verify(settings))[1] == []
    await conversation(cache, "runs/1", times=3, first=8)
    await flush(worker)
    assert (await verify(settings))[1] == []
    after = await read(cache, psql)
    assert msgspec.json.decode(after["runs/1", 11]) == growing(10)


async def test_a_prune_that_is_killed_at_any_moment_has_broken_nothing(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "VALUES", 3)
    monkeypatch.setattr(prune_passes, "LOOK_S", 3600.0)
    await flush(worker)  # it looks now, and lets nothing go by itself below
    policy(psql, count=2)
    moment, ended = 0, False
    while not ended:
        moment += 1
        key = f"runs/{moment}"
        await conversation(cache, key, times=8)
        await cache.delete(key)
        await conversation(cache, key, times=4)
        await flush(worker)
        before = await read(cache, psql)
        with monkeypatch.context() as patch:
            ended = await _killed(settings, moment, patch)
        await whole(settings, cache, psql, before)
        await conversation(cache, key, times=1, first=4)
        await flush(worker)
        await pruned(settings)
        assert (await verify(settings))[1] == []
        after = await read(cache, psql)
        assert versions(after, key) == [13, 14]
        assert after[key, 13] == before[key, 13]
    assert moment > 12


async def _killed(settings: Settings, moment: int, patch: pytest.MonkeyPatch) -> bool:
    """Let values go until that statement, or COMMIT, and return whether it came to its end before."""
    left, exchange, commit = moment, Database.exchange, Database.commit

    async def die(database: Database) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            await database.close()
            raise asyncio.CancelledError

    async def dies_before(database: Database, statements: list[Any]) -> list[Any]:
        await die(database)
        return await exchange(database, statements)

    async def dies_behind(database: Database, statements: Any = ()) -> None:
        await commit(database, statements)
        await die(database)

    patch.setattr(Database, "exchange", dies_before)
    patch.setattr(Database, "commit", dies_behind)
    try:
        await pruned(settings)
    except asyncio.CancelledError:
        return False
    return True


async def test_a_rewriting_that_is_wrong_is_not_committed(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await conversation(cache, "runs/1", times=6)
    await flush(worker)
    before = await read(cache, psql)
    policy(psql, count=2)

    def spoilt(*run: Any) -> list[Rewrite]:
        return [how if how.how != "alone" else how._replace(value=b"x", packed=None) for how in rewritten(*run)]

    monkeypatch.setattr(pruning, "rewritten", spoilt)
    done = await pruned(settings)
    assert (done.values, [key for key, _, _ in done.damaged]) == (0, ["runs/1"])
    assert await whole(settings, cache, psql, before) == before


async def test_two_prunes_at_once_let_go_what_one_would(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "VALUES", 3)
    monkeypatch.setattr(pruning, "LAST_RUNS", 1)
    for number in range(6):
        await conversation(cache, f"runs/{number}", times=9)
    await flush(worker)
    before = await read(cache, psql)
    policy(psql, count=2)
    done = await asyncio.gather(*(pruned(settings) for _ in range(3)))
    assert (sum(one.values for one in done), [one.damaged for one in done]) == (6 * 7, [[], [], []])
    after = await whole(settings, cache, psql, before)
    assert sorted(after) == [(f"runs/{number}", version) for number in range(6) for version in (8, 9)]


async def test_a_policy_that_is_replaced_meanwhile_counts_from_the_next_page_on(
    settings: Settings, cache: AsyncStateCache, keys: KeySpace, worker: Worker, psql: Psql,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(pruning, "ROWS", 6)
    monkeypatch.setattr(prune_passes, "REST", 0.0)
    for number in range(3):
        await conversation(cache, f"runs/{number}", times=5)
    await flush(worker)
    page, pages = Pruner.page, 0

    async def replaced_behind(pruner: Pruner, *args: Any) -> Any:
        nonlocal pages
        place = await page(pruner, *args)
        pages += 1
        if pages == 1:
            psql.execute("UPDATE retention SET max_count = 4")
        return place

    monkeypatch.setattr(Pruner, "page", replaced_behind)
    for by_hand in (True, False):
        pages = 0
        policy(psql, count=1)
        before = await read(cache, psql)
        if by_hand:
            await pruned(settings)
        else:
            passes = PrunePasses(settings, keys, by="test")
            passes.ask()
            async with asyncio.timeout(30):
                while not pages or not passes._task or not passes._task.done():
                    await pause()
            await passes.stop()
        after = await whole(settings, cache, psql, before)
        assert pages > 2
        assert versions(after, "runs/0") == [1, 2, 3, 4, 5], "what the first page let go had not gone yet"
        assert versions(after, "runs/1")[-4:] == versions(after, "runs/2")[-4:] == [2, 3, 4, 5]
    pages = 9
    await pruned(settings)
    after = await whole(settings, cache, psql, before)
    assert sorted(after) == [(f"runs/{number}", version) for number in range(3) for version in (2, 3, 4, 5)]


async def test_what_is_pinned_or_branched_from_while_a_prune_looks_stays(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are flushed between the page, which found that the values may go, and the transaction that lets them go."""
    for key in ("runs/1", "runs/2"):
        await conversation(cache, key, times=4)
    await flush(worker)
    policy(psql, count=1)
    before = await read(cache, psql)
    prune, struck = Pruner.prune, False

    async def made_first(pruner: Pruner, lot: Any) -> Any:
        nonlocal struck
        if not struck:
            struck = True
            await cache.branch("runs/1", "other/1", at=2)
            async with flushing(worker):
                await cache.checkpoint("runs/2", "kept")
                back = await cache.rollback("runs/2", 3)
                assert back is not None
            await flush(worker)
        return await prune(pruner, lot)

    monkeypatch.setattr(Pruner, "prune", made_first)
    await pruned(settings)
    monkeypatch.undo()
    after = await read(cache, psql)
    assert (await verify(settings))[1] == []
    assert versions(after, "runs/1") == [2, 4]
    assert versions(after, "runs/2") == [4, 5]
    assert after["other/1", 1] == before["runs/1", 2]
    assert after["runs/2", 5] == before["runs/2", 3]


async def test_nothing_goes_of_a_shard_that_is_still_being_packed(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await conversation(cache, "runs/1", times=6)
    await flush(worker)
    policy(psql, count=1)
    psql.execute("UPDATE shard SET hashed = hashed - 1 WHERE flushed > 0")
    assert (await pruned(settings)).values == 0
    psql.execute("UPDATE shard SET hashed = flushed")
    assert (await pruned(settings)).values == 5


async def test_workers_prune_by_themselves_one_at_a_time_and_go_on_where_one_died(
    settings: Settings, cache: AsyncStateCache, make_worker: MakeWorker, psql: Psql, log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(prune_passes, "LOOK_S", 0.05)
    monkeypatch.setattr(prune_passes, "REST", 0.0)
    monkeypatch.setattr(pruning, "ROWS", 4)
    policy(psql, count=2)
    one, other = make_worker(), make_worker()
    for key in ("runs/1", "runs/2", "runs/3"):
        await conversation(cache, key, times=6)
    await flush(one)
    await conversation(cache, "runs/9", times=6)
    async with flushing(one), flushing(other), asyncio.timeout(60):
        while not log.of("pruned"):
            await pause()
    (told,) = log.of("pruned")
    assert (told["namespace"], told["damaged"]) == ("runs", 0)
    assert rows(psql, "SELECT key, ended_at IS NOT NULL, values > 0, bytes > 0 FROM prune_pass") == [
        ("", True, True, True)
    ]  # fmt: skip
    assert one.janitor.prunes.pruned.values + other.janitor.prunes.pruned.values == told["values"]
    await conversation(cache, "runs/2", times=3, first=6)
    psql.execute("UPDATE prune_pass SET ended_at = NULL, key = 'runs/2', version = 0, values = 0, held_until = now()")
    async with flushing(one), flushing(other), asyncio.timeout(60):
        while rows(psql, "SELECT ended_at IS NULL FROM prune_pass") == [(True,)]:
            await pause()
    assert (await verify(settings))[1] == []
    psql.execute("UPDATE prune_pass SET ended_at = now() - interval '5 hours'")
    psql.execute("UPDATE prune_pass SET held_until = now() + interval '1 hour' WHERE name = 'runs'")
    prunes = one.janitor.prunes.pruned.values + other.janitor.prunes.pruned.values
    async with flushing(one), flushing(other):
        await conversation(cache, "runs/2", times=3, first=9)
        for _ in range(40):
            await pause()
    assert one.janitor.prunes.pruned.values + other.janitor.prunes.pruned.values == prunes, "somebody else is at it"

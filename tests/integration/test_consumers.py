"""Named readers of changes: where each stands is kept in Postgres, and one process at a time reads for it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, LeaseLost, Settings, StateCache, UsageError
from statecache.core.feed import consumers
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows
from tests.support.command_line import variables
from tests.support.polling import pause

Psql = psycopg.Connection[Any]
WAIT_S = 60.0
HANDLES = """
import sys
from statecache import StateCache
from statecache.core.feed import consumers
consumers.LEASE_S, consumers.STORE_S = 1.0, 0.0
with StateCache() as cache, cache.changes("runs/", consumer="indexer") as feed:
    for change in feed:
        print(change.value, flush=True)
        sys.stdin.readline()
"""
"""A process that handles a change once it is told to."""


async def _write(cache: AsyncStateCache, worker: Worker, *values: int) -> None:
    for value in values:
        await cache.set("runs/1", value)
    await flush(worker)


@pytest.mark.parametrize("waits", [True, False])
async def test_the_name_of_a_reader_that_failed_is_had_by_another_of_the_client(
    cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """Nothing keeps its feed, neither who waits for the name already nor who asks for it later."""
    monkeypatch.setattr(consumers, "LEASE_S", 1.0)
    monkeypatch.setattr(consumers, "_LOOK_S", 0.05)
    await _write(cache, worker, 1)
    taken: list[str] = []
    take = consumers.Consumers.take

    async def noted(held: consumers.Consumers, consumer: consumers.Consumer, *given: Any, **more: Any) -> str:
        taken.append(consumer.holder)
        return await take(held, consumer, *given, **more)

    monkeypatch.setattr(consumers.Consumers, "take", noted)
    reads, fails = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        feed = cache.changes("runs/", consumer="indexer")  # the traceback has it
        async for _ in feed:
            reads.set()
            await fails.wait()
            raise KeyError

    async def read() -> Any:
        return (await anext(cache.changes("runs/", consumer="indexer"))).value

    first = asyncio.create_task(fail())
    gc.collect()
    gc.disable()
    try:
        async with asyncio.timeout(WAIT_S):
            await reads.wait()
            second = asyncio.create_task(read()) if waits else None
            while waits and len(taken) < 2:
                await pause()
            fails.set()
            await asyncio.wait([first])
            assert isinstance(first.exception(), KeyError)
            del first
            assert await (second or asyncio.create_task(read())) == 1
    finally:
        gc.enable()


async def test_who_is_cancelled_leaves_the_name_to_others(
    cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "LEASE_S", WAIT_S * 10)
    await _write(cache, worker, 1)
    for _ in range(3):
        handling = asyncio.Event()

        async def read(handling: asyncio.Event = handling) -> None:
            async with cache.changes("runs/", consumer="indexer") as feed:
                async for _ in feed:
                    handling.set()

        task = asyncio.create_task(read())
        async with asyncio.timeout(WAIT_S):
            await handling.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with asyncio.timeout(WAIT_S), cache.changes("runs/", consumer="indexer", follow=False) as again:
        assert [change.value async for change in again] == [1]


async def test_ctrl_c_leaves_the_name_to_others(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "LEASE_S", WAIT_S * 10)
    await _write(cache, worker, 1)

    def read() -> None:
        with sync_cache.changes("runs/", consumer="indexer") as feed:
            for _ in feed:
                raise KeyboardInterrupt

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            read()

    for _ in range(2):
        async with asyncio.timeout(WAIT_S):
            await asyncio.to_thread(interrupted)


async def test_a_name_goes_on_where_its_reader_left_it(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker, psql: Psql
) -> None:
    await _write(cache, worker, 1, 2, 3)
    async with cache.changes("runs/", consumer="indexer") as feed:
        async for change in feed:
            if change.value == 2:
                break
    with sync_cache.changes("runs/", consumer="indexer", follow=False) as again:
        assert [change.value for change in again] == [3]
        assert rows(psql, "SELECT name, prefix FROM consumer") == [("indexer", "runs/")]
    await _write(cache, worker, 4)
    runs = cache.namespace("runs")
    async with runs.changes(consumer="indexer", follow=False) as more:
        assert [change.value async for change in more] == [4]
    with sync_cache.changes("runs/", consumer="another", follow=False) as whole:
        assert [change.value for change in whole] == [1, 2, 3, 4]
    with pytest.raises(UsageError, match="the consumer 'indexer' reads 'runs/'"):
        next(iter(sync_cache.changes("", consumer="indexer")))
    for wrong in ("", "a b", "x" * 65, 7):
        with pytest.raises(UsageError, match="is not a name"):
            cache.changes("runs/", consumer=wrong)  # type: ignore[arg-type]


async def test_who_comes_to_the_end_without_a_block_leaves_the_name_as_well(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker, psql: Psql
) -> None:
    """All that was given was handled, for more was asked for; nobody waits for the lease to end."""
    await _write(cache, worker, 1, 2)
    assert [change.value async for change in cache.changes("runs/", consumer="indexer", follow=False)] == [1, 2]
    assert rows(psql, "SELECT held_until <= now() FROM consumer") == [(True,)]
    assert list(sync_cache.changes("runs/", consumer="indexer", follow=False)) == []
    await _write(cache, worker, 3)
    feed = cache.changes("runs/", consumer="indexer", follow=False)
    assert [change.value async for change in feed] == [3]
    assert [change.value async for change in feed] == []


async def test_a_change_whose_handling_failed_is_given_again(cache: AsyncStateCache, worker: Worker) -> None:
    await _write(cache, worker, 1, 2, 3)
    feed = cache.changes("runs/", consumer="indexer")
    await feed.__aenter__()
    assert [(await anext(feed)).value for _ in range(2)] == [1, 2]
    await feed.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
    async with cache.changes("runs/", consumer="indexer", follow=False) as again:
        assert [change.value async for change in again] == [1, 2, 3]


async def test_a_new_name_may_begin_now(cache: AsyncStateCache, worker: Worker) -> None:
    """What it begins behind is stored at once: a reader that dies before its first change does not skip any."""
    await _write(cache, worker, 1)
    feed = cache.changes("runs/", since="now", consumer="indexer", follow=False)
    with pytest.raises(StopAsyncIteration):
        await anext(feed)
    await _write(cache, worker, 2)
    await feed.close()
    async with cache.changes("runs/", since="now", consumer="indexer", follow=False) as again:
        assert [change.value async for change in again] == [2]


async def test_who_comes_second_waits_until_the_first_has_ended(
    cache: AsyncStateCache, settings: Settings, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "_LOOK_S", 0.05)
    await _write(cache, worker, 1, 2, 3)
    async with AsyncStateCache(settings=settings) as other:
        first = cache.changes("runs/", consumer="indexer")
        assert (await anext(first)).value == 1
        waiting = asyncio.ensure_future(anext(other.changes("runs/", consumer="indexer")))
        assert (await anext(first)).value == 2
        assert not (await asyncio.wait([waiting], timeout=0.3))[0]
        await first.close()
        assert (await asyncio.wait_for(waiting, 20)).value == 3


async def test_a_second_feed_of_a_name_in_the_same_task_or_thread_is_refused_at_once(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker
) -> None:
    await _write(cache, worker, 1, 2, 3)
    async with cache.changes("runs/", consumer="indexer") as first:
        assert (await anext(first)).value == 1
        second = cache.changes("runs/", consumer="indexer")
        with pytest.raises(UsageError, match="'indexer' is read for already by this very task or thread"):
            await anext(second)
        async with cache.changes("runs/", consumer="another", follow=False) as another:
            assert [change.value async for change in another] == [1, 2, 3]
        assert (await anext(first)).value == 2
    assert (await anext(second)).value == 3
    await second.close()

    def read() -> None:
        with sync_cache.changes("runs/", consumer="third") as third:
            assert next(third).value == 1
            with pytest.raises(UsageError, match="by this very task or thread"):
                next(sync_cache.changes("runs/", consumer="third"))

    await asyncio.to_thread(read)


async def test_another_task_of_the_client_waits_for_a_name(
    cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "_LOOK_S", 0.05)
    await _write(cache, worker, 1, 2)
    first = cache.changes("runs/", consumer="indexer")
    assert (await anext(first)).value == 1
    waiting = asyncio.ensure_future(anext(cache.changes("runs/", consumer="indexer")))
    await cache.get("runs/1")
    await first.close()
    assert (await asyncio.wait_for(waiting, 20)).value == 2


async def test_who_lost_its_name_gives_no_more(
    cache: AsyncStateCache, settings: Settings, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own clock told it to ask, before the next change that the other one was given too."""
    await _write(cache, worker, 1, 2, 3)
    monkeypatch.setattr(consumers, "LEASE_S", 0.3)
    async with AsyncStateCache(settings=settings) as stopped:
        first = stopped.changes("runs/", consumer="indexer")
        assert (await anext(first)).value == 1
        monkeypatch.setattr(consumers.Consumers, "_all", lambda _: ())  # nothing runs in a process that is stopped
        psql.execute("UPDATE consumer SET held_until = now() - interval '1 second'")
        second = cache.changes("runs/", consumer="indexer")
        assert (await anext(second)).value == 1
        (held,) = (one for one in [first._consumer] if one is not None)
        held.until = 0.0
        with pytest.raises(LeaseLost, match=r"consumer indexer.*another process reads for it now"):
            await anext(first)
        assert (await anext(second)).value == 2
        await second.close()


@pytest.mark.parametrize("had_it", ["another reader", "nobody"])
async def test_a_name_that_a_restored_postgres_has_gone_back_with_is_told_so_and_goes_on_from_there(
    cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch, had_it: str
) -> None:
    """Nobody else reads: what came since the copy comes again."""
    monkeypatch.setattr(consumers, "STORE_S", 0.0)
    await _write(cache, worker, 1)
    if had_it == "another reader":
        assert [change.value async for change in cache.changes("runs/", consumer="indexer", follow=False)] == [1]
    psql.execute("CREATE TEMPORARY TABLE older AS SELECT * FROM consumer")
    await _write(cache, worker, 2, 3)
    expected = [2, 3] if had_it == "another reader" else [1, 2, 3]

    feed = cache.changes("runs/", consumer="indexer")
    assert [(await anext(feed)).value for _ in expected] == expected
    psql.execute("DELETE FROM consumer")
    psql.execute("INSERT INTO consumer SELECT * FROM older")
    with pytest.raises(LeaseLost) as lost:
        await anext(feed)
    assert "another process reads for it now, or Postgres was restored" in str(lost.value)
    assert "lock" not in str(lost.value)
    assert "Ask for its feed again" in lost.value.hint
    async with cache.changes("runs/", consumer="indexer", follow=False) as again:
        assert [change.value async for change in again] == expected


async def test_a_lease_is_renewed_while_a_change_is_handled(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "LEASE_S", 0.6)
    await _write(cache, worker, 1)
    renewed = "SELECT held_until FROM consumer WHERE name = %s"
    with sync_cache.changes("runs/", consumer="sync") as feed:
        async with cache.changes("runs/", consumer="async") as other:
            await anext(other)
            next(feed)
            for name in ("async", "sync"):
                before = rows(psql, renewed, name)
                async with asyncio.timeout(20):
                    while rows(psql, renewed, name) == before:
                        await pause()


async def test_a_killed_reader_leaves_its_name_to_the_next_and_no_change_is_missed(
    cache: AsyncStateCache, worker: Worker, settings: Settings
) -> None:
    """The change that it was handling is given again, and nothing before it."""
    await _write(cache, worker, *range(1, 6))
    environment = os.environ | variables(settings)
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", HANDLES, stdin=PIPE, stdout=PIPE, env=environment)
        for _ in range(2)
    ]
    try:
        reading = [asyncio.ensure_future(_line(process)) for process in started]
        done, _ = await asyncio.wait(reading, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        at = reading.index(next(iter(done)))
        handled = [await reading[at], await _told(started[at]), await _told(started[at])]
        started[at].kill()
        later = [await reading[1 - at]]
        while later[-1] != 5:
            later.append(await _told(started[1 - at]))
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    assert (handled, later) == ([1, 2, 3], [3, 4, 5])


async def _line(process: Process) -> int:
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        return int(await process.stdout.readline())


async def _told(process: Process) -> int:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    await process.stdin.drain()
    return await _line(process)

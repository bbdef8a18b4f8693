"""Threads share a client, a forked child starts afresh, and nobody's connections are anybody else's."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, LeaseLost, LockTimeout, Settings, StateCache, UsageError
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows
from tests.support.forking import in_a_child, status_of

WAIT_S = 60.0

Psql = psycopg.Connection[Any]


def _ran(program: str, settings: Settings) -> tuple[int, str]:
    """Return the status of a program that uses the deployment, and what it said on stderr."""
    variables = {"REDIS_URL": settings.redis_url, "POSTGRES_URL": settings.postgres_url, "PREFIX": settings.prefix}
    variables |= {"POSTGRES_SCHEMA": settings.postgres_schema, "SHARDS": str(settings.shards)}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program)],
        env=os.environ | {f"STATECACHE_{name}": value for name, value in variables.items()},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return done.returncode, done.stderr


def _backends(psql: Psql) -> set[Any]:
    """Return the pids of the clients' connections that Postgres knows."""
    return {row[0] for row in rows(psql, "SELECT pid FROM pg_stat_activity WHERE application_name = 'statecache'")}


def test_eight_threads_share_a_client(settings: Settings, psql: Psql) -> None:
    few = settings.model_copy(update={"redis_connections_max": 3})
    with StateCache(settings=few) as cache:

        def work(number: int) -> None:
            for turn in range(20):
                cache.update("runs/shared", lambda value: value + 1, default=0)
                cache.set(f"runs/{number}", turn)
                with cache.transaction(f"runs/{number}", f"runs/{number}/log") as tx:
                    tx.set(f"runs/{number}/log", turn)
                assert cache.get(f"runs/{number}").value == turn  # type: ignore[union-attr]

        with ThreadPoolExecutor(8) as threads:
            assert [*threads.map(work, range(8))] == [None] * 8
        state = cache.get("runs/shared")
        assert state is not None
        assert (state.value, state.version) == (160, 160)
        assert _backends(psql)


async def test_forty_tasks_share_a_client(settings: Settings, worker: Worker, psql: Psql) -> None:
    few = settings.model_copy(update={"redis_connections_max": 3})
    async with AsyncStateCache(settings=few) as cache:

        async def work(number: int) -> None:
            for turn in range(5):
                await cache.update("runs/shared", lambda value: value + 1, default=0)
                await cache.set(f"runs/{number}", turn)

        await asyncio.gather(*(work(number) for number in range(40)))
        state = await cache.get("runs/shared")
        assert state is not None
        assert (state.value, state.version) == (200, 200)
        assert cache._runtime.redis.pool.longest_wait_s < WAIT_S
    await flush(worker)
    assert rows(psql, "SELECT count(*), bool_or(gap) FROM change") == [(400, False)]


@pytest.mark.own_servers("it looks at all connections")
def test_a_forked_child_and_its_parent_both_work(settings: Settings, redis_raw: Any, psql: Psql) -> None:
    single = settings.model_copy(update={"redis_connections_max": 1, "postgres_connections_max": 1})
    with StateCache(settings=single) as cache:
        cache.set("runs/parent", 0)
        assert cache.get("runs/nobody") is None
        connections, backends = {one["id"] for one in redis_raw.client_list(_type="normal")}, _backends(psql)
        assert backends

        def work() -> None:
            for _ in range(50):
                cache.update("runs/both", lambda value: value + 1, default=0)
                assert cache.get("runs/child") is None
            assert cache.get("runs/nobody-in-the-child") is None
            cache.set("runs/child", "was here")
            cache.close()

        pid = in_a_child(work)
        for _ in range(50):
            cache.update("runs/both", lambda value: value + 1, default=0)
            assert cache.get("runs/parent").value == 0  # type: ignore[union-attr]
        assert status_of(pid) == 0
        assert cache.get("runs/child").value == "was here"  # type: ignore[union-attr]
        both = cache.get("runs/both")
        assert both is not None
        assert (both.value, both.version) == (100, 100)
        assert cache.get("runs/nobody-in-the-parent") is None
        assert connections <= {one["id"] for one in redis_raw.client_list(_type="normal")}
        assert backends <= _backends(psql)


def _sockets() -> list[str]:
    """Return the sockets that this process has open, once for each descriptor."""
    folder, found = Path("/proc/self/fd"), list[str]()
    for name in os.listdir(folder):
        with suppress(OSError):
            found.append(os.readlink(folder / name))
    return found


def test_a_forked_child_does_not_hold_its_parents_tracked_connection_open(settings: Settings) -> None:
    """A parent that is killed leaves the server no connection that seems to stand."""
    with StateCache(settings=settings) as cache:
        cache.set("runs/parent", 0)
        while not cache.near.hits:
            cache.get("runs/parent", read="local")
        link: Any = cache._runtime.tracked._link
        tracked = os.readlink(f"/proc/self/fd/{link._connection._sock.fileno()}")
        assert tracked in _sockets()

        def work() -> None:
            assert tracked not in _sockets()

        assert status_of(in_a_child(work)) == 0
        assert cache.get("runs/parent", read="local").value == 0  # type: ignore[union-attr]


CHILDREN, TURNS = 4, 15


def _work_as(cache: StateCache, who: str, threads: int) -> None:
    """Do one process's share: threads that read what they wrote, in every mode, beside a state that all update."""

    def work(thread: int) -> None:
        mine = f"runs/{who}-{thread}"
        for turn in range(TURNS):
            wrote = cache.set(mine, {"key": mine, "turn": turn})
            for read in ("local", "primary"):
                state = cache.get(mine, read=read)
                assert state == wrote, (state, wrote)
            assert cache.get(f"runs/nobody-{who}-{thread}-{turn}") is None
            assert cache.get("runs/preloaded").value == "by the parent"  # type: ignore[union-attr]
            cache.update("runs/all", lambda value: value + 1, default=0)

    if threads == 1:
        work(0)
        return
    with ThreadPoolExecutor(threads) as pool:
        assert [*pool.map(work, range(threads))] == [None] * threads


@pytest.mark.parametrize("threads", [1, 3])
def test_four_children_use_a_client_that_their_parent_has_used(threads: int, settings: Settings, psql: Psql) -> None:
    """As a server does that forks its workers once all is loaded; the parent goes on beside them, and after them."""
    few = settings.model_copy(update={"redis_connections_max": 2, "postgres_connections_max": 2, "writer": "preforked"})
    with StateCache(settings=few) as cache:
        cache.set("runs/preloaded", "by the parent")
        _work_as(cache, "before", threads)
        pids = [in_a_child(partial(_as_a_worker, cache, f"child{number}", threads)) for number in range(CHILDREN)]
        _work_as(cache, "parent", threads)
        assert [status_of(pid) for pid in pids] == [0] * CHILDREN
        _work_as(cache, "after", threads)
        assert not cache.unknown_outcomes()
        processes = CHILDREN + 3
        state = cache.get("runs/all", read="primary")
        assert state is not None
        assert (state.value, state.version) == (processes * threads * TURNS,) * 2
        for who in ("before", "parent", "after", *(f"child{number}" for number in range(CHILDREN))):
            for thread in range(threads):
                mine = cache.get(f"runs/{who}-{thread}", read="primary")
                assert mine is not None
                assert (mine.version, mine.value) == (TURNS, {"key": mine.key, "turn": TURNS - 1})


def _as_a_worker(cache: StateCache, who: str, threads: int) -> None:
    """Work in a forked child, which has none of its parent's calls and commits to wait for when it closes."""
    assert cache._runtime.in_flight.tails() == []
    _work_as(cache, who, threads)
    left = cache.close(drain=0)
    assert (left.under_way, left.leases) == (0, ())
    assert left.shards


async def test_four_children_use_an_asynchronous_client_that_their_parent_has_used(settings: Settings) -> None:
    few = settings.model_copy(update={"redis_connections_max": 2, "postgres_connections_max": 2})
    async with AsyncStateCache(settings=few) as cache:

        async def work(who: str) -> None:
            async def one(task: int) -> None:
                mine = f"runs/{who}-{task}"
                for turn in range(TURNS):
                    wrote = await cache.set(mine, {"key": mine, "turn": turn})
                    assert await cache.get(mine) == wrote
                    assert await cache.get(mine, read="primary") == wrote
                    await cache.update("runs/all", lambda value: value + 1, default=0)

            await asyncio.gather(*(one(task) for task in range(5)))

        async def work_and_close(who: str) -> None:
            await work(who)
            await cache.close()

        def run(who: str) -> None:
            asyncio.run(work_and_close(who))

        await work("before")
        pids = [in_a_child(partial(run, f"child{number}")) for number in range(CHILDREN)]
        await work("parent")
        statuses = await asyncio.gather(*(asyncio.to_thread(status_of, pid) for pid in pids))
        assert statuses == [0] * CHILDREN
        await work("after")
        state = await cache.get("runs/all", read="primary")
        assert state is not None
        assert (state.value, state.version) == ((CHILDREN + 3) * 5 * TURNS,) * 2


def test_a_transaction_that_a_child_inherits_is_the_parents(settings: Settings) -> None:
    single = settings.model_copy(update={"redis_connections_max": 1})
    with StateCache(settings=single) as cache:
        cache.set("runs/1", 1)

        def work(tx: Any) -> None:
            with pytest.raises(UsageError, match="another process"):
                tx.__exit__(None, None, None)
            cache.set("runs/child", 1)

        with cache.transaction("runs/1") as tx:
            tx.set("runs/1", 2)
            assert status_of(in_a_child(lambda: work(tx))) == 0
        assert tx.states["runs/1"].version == 2


def test_a_child_that_ends_as_programs_do_harms_nothing_of_its_parents(settings: Settings) -> None:
    """It runs finalizers, collects what it inherited, and its parent's connections answer all the same."""
    program = """
        import gc, os, sys
        from statecache import StateCache
        cache = StateCache(redis_connections_max=1, postgres_connections_max=1)
        cache.set("runs/1", 1)
        assert cache.get("runs/nobody") is None
        pid = os.fork()
        if pid == 0:
            cache.set("runs/2", 2)
            assert cache.get("runs/nobody-else") is None
            cache.close()
            del cache
            gc.collect()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert cache.set("runs/1", 3).version == 2
        assert cache.get("runs/not-yet-asked-for") is None
        cache.close()
    """
    assert _ran(program, settings) == (0, "")


def test_a_client_that_is_closed_while_threads_read_harms_none_of_them(settings: Settings) -> None:
    """What they are in the middle of ends in an error that says what was done; libpq's memory is still their own."""
    program = """
        import threading, time
        from statecache import StateCache, UsageError

        def read(cache, thread, begun):
            number = 0
            while True:
                cache.get(f"nobody/{thread}/{number}")
                begun.release()
                number += 1

        def closed(turn):
            cache, begun, ends = StateCache(), threading.Semaphore(0), []

            def work(thread):
                try:
                    read(cache, f"{turn}/{thread}", begun)
                except BaseException as error:
                    ends.append(error)

            threads = [threading.Thread(target=work, args=(thread,)) for thread in range(24)]
            for thread in threads:
                thread.start()
            for _ in range(3 * len(threads)):
                begun.acquire()
            cache.close()
            for thread in threads:
                thread.join()
            assert len(ends) == len(threads), ends
            assert {(type(end), "it is closed" in str(end)) for end in ends} == {(UsageError, True)}, ends

        for turn in range(10):
            closed(turn)
    """
    assert _ran(program, settings) == (0, "")


async def test_an_asynchronous_client_starts_afreshin_a_child(settings: Settings) -> None:
    async with AsyncStateCache(settings=settings.model_copy(update={"redis_connections_max": 1})) as cache:
        await cache.set("runs/1", 1)
        assert await cache.get("runs/nobody") is None

        async def work() -> None:
            assert (await cache.set("runs/1", 2)).version == 2
            assert await cache.get("runs/nobody-else") is None
            await cache.close()

        status = await asyncio.to_thread(status_of, in_a_child(lambda: asyncio.run(work())))
        assert status == 0
        assert (await cache.set("runs/1", 3)).version == 3
        assert await cache.get("runs/not-yet-asked-for") is None


def test_a_client_belongs_to_one_event_loop(settings: Settings) -> None:
    cache = AsyncStateCache(settings=settings)

    async def use() -> None:
        await cache.set("runs/1", 1)

    async def close() -> None:
        await cache.close()

    with asyncio.Runner() as first:
        first.run(use())
        refused: list[BaseException] = []

        def elsewhere() -> None:
            try:
                asyncio.run(use())
            except UsageError as error:
                refused.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(WAIT_S)
        first.run(close())
    assert "another event loop" in str(refused[0])
    assert "Make one client for each event loop" in str(refused[0])


def test_a_forked_child_holds_none_of_its_parents_locks(settings: Settings) -> None:
    with StateCache(settings=settings) as cache, (lock := cache.lock("runs/42", ttl=10)) as lease:

        def child() -> None:
            assert lease.lost
            assert cache._runtime.leases.held == ()
            with pytest.raises(LeaseLost, match="it belongs to the process that has forked") as lost:
                lease.set("runs/42", "the child's")
            assert "Others" not in str(lost.value)  # the parent has it, and goes on
            with pytest.raises(LeaseLost, match="it belongs to the process that has forked"):
                lock.__exit__(None, None, None)
            with pytest.raises(LockTimeout), cache.lock("runs/42", timeout=0):
                pass
            with cache.lock("runs/43") as own:
                own.set("runs/43", "the child's")
            cache.close()

        assert status_of(in_a_child(child)) == 0
        assert not lease.lost
        assert lease.set("runs/42", "the parent's").version == 1

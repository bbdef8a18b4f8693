"""Who commits: the writer that was named, or this process. A forked child is another one than its parent."""

from __future__ import annotations

import asyncio
import os
import socket

import psycopg
import pytest

from statecache import AsyncStateCache, LockTimeout, Settings, StateCache
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows
from tests.support.forking import in_a_child, status_of

KEY = "runs/1"
UNNAMED = f"{socket.gethostname()}:{{pid}}"
named_or_not = pytest.mark.parametrize("shown", ["agents", UNNAMED])


def _told(settings: Settings, shown: str) -> Settings:
    """Return these settings with the writer that is shown, or with none where it is to be the process."""
    writer = "" if shown == UNNAMED else shown
    return Settings(**settings.model_dump(exclude={"writer"}), writer=writer)


@named_or_not
def test_a_forked_child_writes_and_locks_by_its_own_name(shown: str, settings: Settings) -> None:
    with StateCache(settings=_told(settings, shown)) as cache:
        assert cache.set(KEY, 1).writer == shown.format(pid=os.getpid())

        def child() -> None:
            me = shown.format(pid=os.getpid())
            assert cache.set(KEY, 2).writer == me
            refused = pytest.raises(LockTimeout, match=f"{me} holds it")
            with cache.lock(KEY), StateCache(settings=settings) as other:
                other.get(KEY, read="primary")  # who has no time to wait has none to connect
                with refused, other.lock(KEY, timeout=0):
                    pass
            cache.set(KEY, 3)
            assert cache.close(drain=0).commits == (3 if shown == "agents" else 2)

        pid = in_a_child(child)
        assert status_of(pid) == 0
        state = cache.get(KEY, read="primary")
        assert state is not None
        assert (state.value, state.writer) == (3, shown.format(pid=pid))
        assert cache.set(KEY, 4).writer == shown.format(pid=os.getpid())


def test_settings_with_more_name_no_writer_either(settings: Settings) -> None:
    unnamed = _told(settings, UNNAMED)

    def child() -> None:
        for shown in (UNNAMED, "agents"):
            with StateCache(settings=_told(unnamed, shown), timeout_s=5.0) as cache:
                assert cache.set(KEY, 1).writer == shown.format(pid=os.getpid())

    with StateCache(settings=unnamed, timeout_s=5.0) as cache:
        assert status_of(in_a_child(child)) == 0
        assert status_of(in_a_child(lambda: _writes_as(cache, UNNAMED.format(pid=os.getpid())))) == 0


def _writes_as(cache: StateCache, name: str) -> None:
    assert cache.set(KEY, 2).writer == name


@named_or_not
async def test_history_names_the_process_that_wrote_each_version(
    shown: str, settings: Settings, worker: Worker, psql: psycopg.Connection
) -> None:
    async with AsyncStateCache(settings=_told(settings, shown)) as cache:
        await cache.set(KEY, "the parent's")

        async def child() -> None:
            await cache.update(KEY, lambda _: "the child's")
            await cache.close(drain=0)

        pid = in_a_child(lambda: asyncio.run(child()))
        assert await asyncio.to_thread(status_of, pid) == 0
        await cache.update(KEY, lambda _: "the parent's again")
        await flush(worker)
    found = rows(psql, "SELECT writer FROM change ORDER BY version")
    assert [name for (name,) in found] == [shown.format(pid=one) for one in (os.getpid(), pid, os.getpid())]

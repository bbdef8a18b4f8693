"""Erasures beside an operator who takes parked entries back in: what was erased is not written again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings
from statecache.core.history import erasing
from statecache_workers import quarantine_release
from statecache_workers.parked_entries import ParkedAt
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.histories import Psql
from tests.support.polling import pause
from tests.support.remains import SECRET, in_postgres

POISON = "ALTER TABLE change ADD CONSTRAINT temporary CHECK (position('poison' in reason) = 0)"
CURE = "ALTER TABLE change DROP CONSTRAINT temporary"
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%erase_history%%'"


def _stopping(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Have a function wait when it has been called; return what is set then, and what lets it go on."""
    came, go_on, real = asyncio.Event(), asyncio.Event(), getattr(module, name)

    async def stopped(*args: Any, **more: Any) -> Any:
        came.set()
        await go_on.wait()
        return await real(*args, **more)

    monkeypatch.setattr(module, name, stopped)
    return came, go_on


@pytest.mark.parametrize("reads_first", [True, False])
async def test_what_is_taken_in_while_it_is_erased_is_erased_too(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch,
    reads_first: bool,
) -> None:  # fmt: skip
    await cache.set("runs/1", {"n": 1})
    await flush(worker)
    psql.execute(POISON)
    await cache.set("runs/1", {"of": SECRET}, reason="poison")
    await flush(worker)
    psql.execute(CURE)
    place = ParkedAt(*rows(psql, "SELECT shard, epoch, n FROM quarantine")[0])
    at_blank, blank = _stopping(monkeypatch, erasing, "_blank")
    has_read, take = _stopping(monkeypatch, quarantine_release, "_spots")
    async with flushing(worker), quarantine_release.opened(settings) as quarantine:
        erasure = asyncio.create_task(cache.erase("runs/1", timeout=20))
        await at_blank.wait()
        if reads_first:
            taking = asyncio.create_task(quarantine.take_in(place))
            await has_read.wait()
            blank.set()
            async with asyncio.timeout(20):
                while not erasure.done() and rows(psql, _WAITING) == [(0,)]:
                    await pause()
            take.set()
        else:
            blank.set()
            await erasure
            take.set()
            taking = asyncio.create_task(quarantine.take_in(place))
        await asyncio.gather(erasure, taking)
        assert (await taking).done is reads_first
    assert in_postgres(psql) == set()

"""An event loop that has no time to listen: whoever asks on it is told of that, not of a server that is up."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from statecache import AsyncStateCache, OutcomeUnknown, Settings, Unavailable
from statecache.clock import monotonic
from statecache.concurrency import TASKS, THREADS, Concurrency, run
from statecache.core.postgres.connection import connect
from statecache.core.redis.connection import Link, dialer
from tests.fixtures.faults import through
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.counts_seconds

BUSY_S = 0.05
"""For how long the loop is kept from everything else, again and again, in seconds."""

_BUSY = r"for 0\.\d+ s of which this process was busy\. Whether the server is up is not known\."
_SILENT = r"no answer within [\d.]+ s\. Is the server up"


@asynccontextmanager
async def _busy(turn_s: float = BUSY_S) -> AsyncIterator[None]:
    """Keep the loop busy with something that does not await, as a great many tasks do."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def work() -> None:
        until = monotonic() + turn_s
        while monotonic() < until:
            pass
        if not ended.is_set():
            loop.call_soon(work)

    loop.call_soon(work)
    try:
        yield
    finally:
        ended.set()


async def _opened(which: str, settings: Settings, seconds: float = 0.5, io: Concurrency = TASKS) -> None:
    """Open a connection to a server in that time."""
    if which == "redis":
        link = await Link.open(dialer(settings, io=io), settings, seconds, io=io)
        await link.end()
    else:
        connection = await connect(settings, "test", seconds=seconds, io=io)
        connection.pgconn.finish()


@pytest.mark.parametrize("which", ["redis", "postgres"])
async def test_who_opens_a_connection_meanwhile_blames_no_server(
    settings: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy, which: str
) -> None:
    behind = through(settings, redis=proxy, postgres=postgres_proxy)
    await _opened(which, behind)
    proxy.silent = postgres_proxy.silent = True
    with pytest.raises(Unavailable, match=_SILENT) as caught:
        await _opened(which, behind)
    async with _busy():
        with pytest.raises(Unavailable, match=_BUSY) as busy:
            await _opened(which, behind)
    assert (caught.value.reason, busy.value.reason) == ("connect", "connect")
    async with _busy(turn_s=0.006):  # late each time, and yet an answer would have been seen long ago
        with pytest.raises(Unavailable, match=_SILENT):
            await _opened(which, behind, seconds=1.5)


@pytest.mark.parametrize("io", [TASKS, THREADS], ids=["tasks", "threads"])
@pytest.mark.parametrize("which", ["redis", "postgres"])
async def test_who_has_hardly_any_time_for_it_does_neither(
    settings: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy, which: str, io: Concurrency
) -> None:
    """What is left of a call's time once it has waited for its place can be too little to learn anything."""
    behind = through(settings, redis=proxy, postgres=postgres_proxy)
    proxy.silent = postgres_proxy.silent = True

    async def told(seconds: float) -> str:
        with pytest.raises(Unavailable) as caught:
            await (_opened(which, behind, seconds, io) if io is TASKS else asyncio.to_thread(_opened_here, seconds))
        return str(caught.value)

    def _opened_here(seconds: float) -> None:
        run(_opened(which, behind, seconds, io))

    assert re.search(r"no answer within 0\.\d+ s\b.*\. Whether the server is up is not known", await told(0.05))
    assert "Is the server up" in await told(0.3)


async def test_who_looks_late_for_an_answer_says_so(settings: Settings, proxy: FaultProxy) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as client:
        await client.set("runs/1", 1)
        proxy.arm("silence", at=b"the-second").then(lambda: setattr(proxy, "silent", True))
        async with _busy():
            with pytest.raises(OutcomeUnknown, match=r"within 0\.\d+ s, and this process was busy: it looked 0\.\d+ s"):
                await client.set("runs/1", 2, actor="the-second", timeout=0.3)
        proxy.silent = False

"""What ends a worker's rest, and what it looks at when it is woken."""

from __future__ import annotations

from statecache import Settings
from statecache.clock import monotonic
from tests.fault_proxy import FaultProxy
from tests.fix_faults import through
from tests.fix_flusher import Agents, MakeWorker, flush

GRACE_S = 1.5
"""What a rest may take beyond its time on a machine that has other things to do."""


async def test_a_connection_to_wait_on_that_falls_silent_holds_nothing_up(
    agents: Agents, make_worker: MakeWorker, settings: Settings, proxy: FaultProxy
) -> None:
    """The way that the wait takes swallows everything; the way that the flush takes is as it was."""
    worker = make_worker(through(settings, redis=proxy))
    await flush(worker)
    swallowed = proxy.arm("hold_request", at=b"XREAD")
    while not swallowed.struck:
        begun = monotonic()
        await worker.rest()
    assert monotonic() - begun < settings.lease_renew_s + GRACE_S
    agents.commit("runs/1")
    await flush(worker)
    swallowed.release()
    assert sum(holding.row.flushed for holding in worker.holdings.values()) == 1

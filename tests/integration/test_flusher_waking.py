"""What ends a worker's rest, and what it looks at when it is woken."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.clock import monotonic
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fault_proxy import FaultProxy
from tests.fix_faults import through
from tests.fix_flusher import Agents, MakeWorker, flush, flush_through, flushed, rows
from tests.fix_servers import every_redis

pytestmark = pytest.mark.counts_seconds

Psql = psycopg.Connection[Any]

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


async def _wake(worker: Worker, agents: Agents, *keys: str) -> None:
    """This commits to a worker at rest, and returns when it is up."""
    for key in keys:
        agents.commit(key)
    while not worker._woken:
        await worker.rest()


@every_redis
async def test_whom_a_commit_wakes_reads_heads_and_entries_in_one_exchange_heads_first(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await flush(worker)
    await _wake(worker, agents, agents.key_on(1))
    exchanges: list[list[str]] = []
    run = worker.flusher.streams.run

    async def noted(link: Any, commands: Any) -> Any:
        exchanges.append([command[0] for command in commands])
        return await run(link, commands)

    with monkeypatch.context() as patched:
        patched.setattr(worker.flusher.streams, "run", noted)
        assert await worker.turn(), "what else there is, is for the next turn"
    assert exchanges == [["EVALSHA", "XRANGE"], ["EVALSHA"]], "heads and entries; the acknowledgement"
    assert flushed(psql)[1] == 1


async def test_a_turn_for_one_shard_leaves_the_others_positions_known(agents: Agents, worker: Worker) -> None:
    agents.commit(agents.key_on(0))
    await flush(worker)
    await _wake(worker, agents, agents.key_on(1))
    await worker.turn()
    assert worker.positions() == {0: 1, 1: 1} | dict.fromkeys(range(2, agents.settings.shards), 0)


async def test_more_than_a_glance_takes_in_is_flushed_by_the_turns_behind_it(
    agents: Agents, worker: Worker, psql: Psql
) -> None:
    await flush(worker)
    await _wake(worker, agents, *([agents.key_on(0)] * 30), agents.key_on(1))
    await worker.turn()
    assert 0 < flushed(psql)[0] < 30
    await flush(worker)
    assert rows(psql, "SELECT count(*), bool_or(gap) FROM change") == [(31, False)]


async def test_a_glance_at_a_server_that_has_forgotten_its_scripts_takes_no_entry_that_was_read_too_early(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any
) -> None:
    await flush(worker)
    await _wake(worker, agents, agents.key_on(0))
    redis_raw.script_flush()
    link, _ = await worker.connect()
    holding = worker.holdings[0]
    heads, slices = await worker.flusher.streams.glance(link, [(holding, 1)])
    assert (list(heads.of), slices) == ([0], [])
    await worker.turn()
    assert flushed(psql)[0] == 1


async def test_what_a_glance_read_before_everything_was_wiped_is_not_flushed(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch, keys: KeySpace
) -> None:
    """The shard is opened anew behind the glance: what was read is not of the new epoch."""
    await flush(worker)
    key = agents.key_on(0)
    await _wake(worker, agents, key)
    glance = worker.flusher.streams.glance

    async def then_wiped(*args: Any) -> Any:
        found = await glance(*args)
        agents.raw.delete(keys.meta(0), keys.changes(0), keys.unflushed(0), keys.hydrating(0), keys.state(key))
        await worker.gatekeeper._opened([0])
        agents.commit(key, change_id="a" * 24)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(worker.flusher.streams, "glance", then_wiped)
        await worker.turn()
    assert rows(psql, "SELECT count(*) FROM change") == [(0,)]
    await flush_through(worker)
    assert rows(psql, "SELECT change_id, epoch, n FROM change") == [("a" * 24, 2, 1)]


async def _rung(worker: Worker) -> bool:
    """This says whether the bell ends the worker's rest, and not the time."""
    worker._nudge.clear()
    worker._next_tend = worker._monotonic() + 60
    worker.janitor._next_round = worker._monotonic() + 60
    worker.janitor._round.clear()
    async with asyncio.timeout(10):
        await worker.rest()
    return worker._next_tend <= worker._monotonic()


async def test_a_worker_that_joins_and_one_that_gives_ring_for_the_others(
    make_worker: MakeWorker, settings: Settings, psql: Psql
) -> None:
    first, second = make_worker(), make_worker()
    await flush(first)
    await second.turn()
    assert await _rung(first), "somebody has joined"
    assert not second.holdings
    await first.turn()
    assert len(first.holdings) == settings.shards // 2
    assert await _rung(second), "there is something to take"
    await second.turn()
    assert len(second.holdings) == settings.shards // 2
    await first.leave()
    assert await _rung(second), "there is more"
    await second.turn()
    assert len(second.holdings) == settings.shards


async def test_a_bell_that_is_something_else_keeps_nobody_awake(
    agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    redis_raw.set(keys.bell(), "another program's")
    await flush(worker)
    worker._nudge.clear()
    while worker.flusher.streams.listening:
        await worker.rest()
    await _wake(worker, agents, agents.key_on(1))
    assert worker._woken == [1]

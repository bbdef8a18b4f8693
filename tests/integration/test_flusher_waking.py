"""What ends a worker's rest, and what it looks at when it is woken."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.clock import monotonic
from statecache.concurrency import Concurrency, Tasks
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, MakeWorker, flush, flush_through, flushed, rows
from tests.fixtures.servers import every_redis
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.counts_seconds

Psql = psycopg.Connection[Any]

MANY = 12
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
    """Commit to a worker at rest, and wait until it has woken."""
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

    async def noted(link: Any, commands: Any, **more: Any) -> Any:
        exchanges.append([command[0] for command in commands])
        return await run(link, commands, **more)

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


@pytest.mark.own_servers("it makes the server forget its scripts")
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
    assert rows(psql, "SELECT change_id, epoch > 1, n FROM change") == [("a" * 24, True, 1)]


async def _rung(worker: Worker) -> bool:
    """Return whether the worker is woken by its signal, and not by the time."""
    worker._nudge.clear()
    worker._next_tend = worker._monotonic() + 60
    worker.janitor._next_round = worker._monotonic() + 60
    worker.janitor._round.clear()
    async with asyncio.timeout(60):
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


async def _many(worker: Worker, agents: Agents) -> list[str]:
    """Flush one large batch, and return the keys of the shards that were in it."""
    keys = [agents.key_on(at % agents.settings.shards, f"of-{at}") for at in range(MANY)]
    await flush(worker)
    for key in keys:
        agents.commit(key)
    assert await worker.turn()
    return keys


def _exchanges(patch: pytest.MonkeyPatch, worker: Worker) -> list[list[str]]:
    exchanges: list[list[str]] = []
    run = worker.flusher.streams.run

    async def noted(link: Any, commands: Any, **more: Any) -> Any:
        exchanges.append([command[0] for command in commands])
        return await run(link, commands, **more)

    patch.setattr(worker.flusher.streams, "run", noted)
    return exchanges


@every_redis
async def test_behind_a_large_batch_heads_and_entries_of_all_shards_come_in_one_exchange_heads_first(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await _many(worker, agents)
    for key in keys:
        agents.commit(key)
    with monkeypatch.context() as patched:
        exchanges = _exchanges(patched, worker)
        assert await worker.turn()
    assert exchanges[0] == ["EVALSHA", "XREAD"]
    assert [name for one in exchanges for name in one].count("XRANGE") == 0
    assert rows(psql, "SELECT count(*), bool_or(gap) FROM change") == [(2 * MANY, False)]


async def test_what_a_survey_read_before_everything_was_wiped_is_not_flushed(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch, keys: KeySpace
) -> None:
    await _many(worker, agents)
    now = monotonic()
    worker.flusher._lookout.pace.flushed(MANY, begun=now, ended=now)  # there is no pause, and so one survey
    key = agents.key_on(0, "late")
    agents.commit(key)
    survey = worker.flusher.streams.survey

    async def then_wiped(*args: Any) -> Any:
        found = await survey(*args)
        held = agents.raw.keys(f"{keys.state_stem(0)}*")
        agents.raw.delete(keys.meta(0), keys.changes(0), keys.unflushed(0), keys.hydrating(0), *held)
        await worker.gatekeeper._opened([0])
        agents.commit(key, change_id="a" * 24)
        return found

    before = rows(psql, "SELECT count(*) FROM change")
    with monkeypatch.context() as patched:
        patched.setattr(worker.flusher.streams, "survey", then_wiped)
        await worker.turn()
    assert rows(psql, "SELECT count(*) FROM change") == before
    await flush_through(worker)
    assert rows(psql, f"SELECT change_id, epoch > 1 FROM change WHERE key = '{key}'") == [("a" * 24, True)]


@pytest.mark.own_servers("it makes the server forget its scripts")
async def test_a_survey_of_a_server_that_has_forgotten_its_scripts_takes_no_entry_that_was_read_too_early(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any
) -> None:
    keys = await _many(worker, agents)
    agents.commit(keys[0])
    redis_raw.script_flush()
    link, _ = await worker.connect()
    heads, slices = await worker.flusher.streams.survey(link, list(worker.holdings.values()), 8)
    assert (len(heads.of), slices) == (agents.settings.shards, [])
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change") == [(MANY + 1,)]


async def test_a_stream_that_is_none_spoils_the_survey_and_not_the_flush(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    await _many(worker, agents)
    redis_raw.delete(keys.changes(0))
    redis_raw.set(keys.changes(0), "foreign")
    agents.commit(agents.key_on(1, "late"))
    await flush_through(worker)
    assert rows(psql, "SELECT count(*) FROM change WHERE shard = 1 AND version = 1 AND key LIKE 'late%'") == [(1,)]


async def test_more_than_a_survey_takes_in_is_read_by_the_heads(agents: Agents, worker: Worker, psql: Psql) -> None:
    await _many(worker, agents)
    for _ in range(30):
        agents.commit(agents.key_on(0, "late"))
    await worker.turn()
    query = "SELECT count(*), bool_or(gap) FROM change WHERE key LIKE 'late%'"
    assert rows(psql, query) == [(30, False)], "all of them in one batch"


async def test_the_first_who_comes_back_of_many_waits_a_moment_for_the_others(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others come in the pause, and are in the same batch; whoever is alone is flushed at once."""
    keys = await _many(worker, agents)
    pauses: list[float] = []

    async def they_come(_: Concurrency, seconds: float) -> None:
        if not seconds:
            return  # the loop only has its turn
        pauses.append(seconds)
        for key in keys[1:]:
            agents.commit(key)

    worker.flusher._lookout.pace.flushed(MANY, begun=monotonic() - 1, ended=monotonic() + 60)
    with monkeypatch.context() as patched:
        patched.setattr(Tasks, "sleep", they_come)
        await _wake(worker, agents, keys[0])
        await worker.turn()
        assert [0 < seconds < 0.1 for seconds in pauses] == [True]
        assert rows(psql, "SELECT count(*) FROM change WHERE version = 2") == [(MANY,)]
        await flush(worker)
        worker.flusher._lookout.pace.flushed(1, begun=monotonic() - 1, ended=monotonic() + 60)
        await _wake(worker, agents, keys[0])
        await worker.turn()
    assert len(pauses) == 1

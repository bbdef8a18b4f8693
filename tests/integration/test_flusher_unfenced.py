"""A Redis that does not show its replid comes back shorter: told by what it holds, and never flushed over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Forked, Settings, Unavailable
from statecache.cli.epochs import adopt
from statecache.commit_protocol import in_flight
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Log, flush, rows, turn_until
from tests.fixtures.servers import MakeSettings

Psql = psycopg.Connection[Any]
GROUP = "runs/42"


@pytest.fixture
def settings(make_settings: MakeSettings, request: pytest.FixtureRequest) -> Settings:
    """Settings of one shard, without a fence."""
    return make_settings(shards=1, fence=getattr(request, "param", "off"))


@pytest.fixture
async def agent(settings: Settings) -> AsyncIterator[AsyncStateCache]:
    """An agent."""
    async with AsyncStateCache(settings=settings) as client:
        yield client


class Snapshot:
    """What Redis held when this was made."""

    def __init__(self, raw: Any, keys: KeySpace) -> None:
        self._raw = raw
        self._names = f"{keys.prefix}:*"
        self._held = [(name, raw.dump(name)) for name in raw.keys(self._names)]

    def put_back(self) -> None:
        """Make Redis hold that, and nothing else, in one moment."""
        gone = self._raw.keys(self._names)
        with self._raw.pipeline(transaction=True) as together:
            together.unlink(*gone)
            for name, dumped in self._held:
                together.restore(name, 0, dumped)
            together.execute()


async def shortened(agent: AsyncStateCache, worker: Worker, raw: Any, keys: KeySpace) -> None:
    """Let Redis come back with five changes where Postgres holds eight: it was told of five."""
    await flush(worker)
    for number in range(5):
        await agent.set(f"{GROUP}/{number}", "both")
    await flush(worker)
    snapshot = Snapshot(raw, keys)
    for number in (4, 5, 6):
        await agent.set(f"{GROUP}/{number}", "durable")
    await flush(worker)
    snapshot.put_back()
    agent._runtime.near.drop()


@pytest.mark.parametrize("reconnected", [True, False])
async def test_a_redis_that_came_back_shorter_and_was_written_to_since_is_an_operators_to_judge(
    settings: Settings, keys: KeySpace, agent: AsyncStateCache, worker: Worker, redis_raw: Any, psql: Psql, log: Log,
    reconnected: bool,
) -> None:  # fmt: skip
    await shortened(agent, worker, redis_raw, keys)
    branch = [await agent.set(f"{GROUP}/{number}", "branch") for number in (0, 4, 7, 8)]
    assert branch[-1].position is not None
    assert branch[-1].position.n == 9, "beyond what Postgres holds"
    if reconnected:
        worker.forget()
    await turn_until(worker, log, "gate_closed")
    (line,) = log.of("gate_closed")
    assert "changes from 6 on that Postgres does not know" in line["detail"]
    assert "statecache epoch adopt all --from off" in line["detail"]
    assert rows(psql, "SELECT flushed FROM shard") == [(8,)]
    assert redis_raw.hget(keys.meta(0), "flushed") == b"5"
    with pytest.raises(Unavailable, match="Whether that is to be set aside is an operator's word"):
        await agent.set(f"{GROUP}/0", "would be set aside as well", timeout=0.5)

    (opened,) = await adopt(settings, [0], by="a person", given_up=["off"])
    assert (opened.start_n, opened.conflicts) == (8, 4)
    assert rows(psql, "SELECT change_id FROM conflict ORDER BY n") == [(state.change_id,) for state in branch]
    worker.refresh()
    await flush(worker)
    found = {number: await agent.get(f"{GROUP}/{number}", read="primary") for number in range(9)}
    assert [state and state.value for state in found.values()] == ["both"] * 4 + ["durable"] * 3 + [None] * 2
    after = await agent.set(f"{GROUP}/0", "after")
    await flush(worker)
    assert (after.version, after.position and after.position.n) == (2, 9)
    assert rows(psql, "SELECT change_id FROM change WHERE n = 9") == [(after.change_id,)]


async def test_what_an_operator_has_set_aside_is_forked_to_its_writer_wherever_it_stood(
    settings: Settings, keys: KeySpace, agent: AsyncStateCache, worker: Worker, redis_raw: Any, log: Log
) -> None:
    """At positions that Postgres holds otherwise, and beyond them."""
    await shortened(agent, worker, redis_raw, keys)
    branch = [await agent.set(f"{GROUP}/{number}", "branch") for number in (0, 4, 7, 8)]
    await turn_until(worker, log, "gate_closed")
    await adopt(settings, [0], by="a person", given_up=["off"])
    worker.refresh()
    await flush(worker)
    outcomes = [await agent.outcome(one.change_id, one.key) for one in branch]
    assert [(one.verdict, one.position) for one in outcomes] == [("forked", one.position) for one in branch]
    told = sorted(await agent.lost(), key=lambda one: one.position)
    assert [(one.change_id, one.kept) for one in told] == [(one.change_id, True) for one in branch]
    with pytest.raises(Forked):
        await agent.set(branch[0].key, "branch", change_id=branch[0].change_id)


async def replaced(agent: AsyncStateCache, worker: Worker, raw: Any, keys: KeySpace) -> set[str]:
    """Let Redis come back without three changes that Postgres had not yet, and have others written there, and flushed.

    Returns the change_ids of the three.
    """
    await flush(worker)
    await agent.set(GROUP, "both")
    await flush(worker)
    snapshot = Snapshot(raw, keys)
    gone = [await agent.set(f"{GROUP}/{number}", "gone") for number in range(3)]
    snapshot.put_back()
    agent._runtime.near.drop()
    others = [await agent.set(f"{GROUP}/{number}", "other") for number in range(4)]
    assert [one.position for one in others[:3]] == [one.position for one in gone], "given out again"
    await flush(worker)
    return {one.change_id for one in gone}


async def test_who_was_acknowledged_what_was_never_flushed_is_told_that_it_is_lost_when_it_closes(
    agent: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    """The others stand at the same positions, so by these nothing is missing."""
    gone = await replaced(agent, worker, redis_raw, keys)
    left = await agent.close(drain=5.0)
    assert left is not None
    assert ({one.change_id for one in left.lost}, left.shards, left.nothing) == (gone, (), False)


async def test_it_is_told_as_well_where_thousands_of_commits_come_behind_it(
    settings: Settings, worker: Worker, redis_raw: Any, keys: KeySpace, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(in_flight, "COMPARED_AT_ONCE", 8)
    monkeypatch.setattr(in_flight, "RECENT_MAX", 2)
    async with AsyncStateCache(settings=settings) as agent:
        gone = await replaced(agent, worker, redis_raw, keys)
        for number in range(4):
            await agent.set(f"{GROUP}/more", number)
            await agent.transact([GROUP], lambda tx: tx.set(GROUP, "next"))
        told = [line for line in caplog.messages if "that were acknowledged are lost" in line]
        assert [line.split()[0] for line in told] == ["3"]
        await flush(worker)
        left = await agent.close(drain=5.0)
    assert left is not None
    assert ({one.change_id for one in left.lost}, left.shards) == (gone, ())


async def test_what_could_not_be_compared_is_not_known_to_be_in_postgres(
    agent: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await flush(worker)
    await agent.set(GROUP, 1)
    await flush(worker)

    async def look(**_: object) -> None:
        raise Unavailable("connection")

    monkeypatch.setattr(agent._runtime.losses, "look", look)
    left = await agent.close(drain=1.0)
    assert left is not None
    assert left.shards == (0,)


@pytest.mark.parametrize("settings", ["off", "on"], indirect=True)
async def test_a_redis_that_came_back_shorter_and_was_left_alone_is_opened_anew(
    keys: KeySpace, agent: AsyncStateCache, worker: Worker, redis_raw: Any, psql: Psql, log: Log, settings: Settings
) -> None:
    """With a fence too, where its replid did not change with its data."""
    await shortened(agent, worker, redis_raw, keys)
    if settings.fence == "on":
        worker.forget()
    await turn_until(worker, log, "epoch_opened")
    await flush(worker)
    found = {number: await agent.get(f"{GROUP}/{number}", read="primary") for number in range(7)}
    assert [state and state.value for state in found.values()] == ["both"] * 4 + ["durable"] * 3
    after = await agent.set(f"{GROUP}/4", "after")
    await flush(worker)
    assert rows(psql, "SELECT epoch > 1, n FROM change WHERE change_id = %s", after.change_id) == [(True, 9)]
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_what_postgres_took_in_and_redis_was_not_told_of_is_no_other_branch(
    keys: KeySpace, agent: AsyncStateCache, worker: Worker, redis_raw: Any, psql: Psql
) -> None:
    """As after a worker that died between COMMIT and acknowledgement."""
    await flush(worker)
    for number in range(3):
        await agent.set(GROUP, number)
    await flush(worker)
    redis_raw.hset(keys.meta(0), mapping={"flushed": 1, "flushed_entries": 1})
    await agent.set(GROUP, "unflushed")
    worker.forget()
    await flush(worker)
    assert rows(psql, "SELECT epoch, version FROM change ORDER BY version") == [(1, n) for n in range(1, 5)]
    assert redis_raw.hget(keys.meta(0), "flushed") == b"4"
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]

"""A worker leaves connections that stand on an old primary that goes on, once its address leads to the new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from statecache import AsyncStateCache
from statecache.testing.valkey import Valkey
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Log, MakeWorker, flush
from tests.fixtures.servers import MakeSettings
from tests.support.failed_over import BOUND_S, QUICK, parted, until, working
from tests.support.fault_proxy import FaultProxy
from tests.support.gate_world import World, world

KEY = "runs/42"


@pytest.fixture
def shard(make_settings: MakeSettings, tmp_path: Path) -> Iterator[World]:
    """One shard, with Redis servers that the test starts and kills."""
    with world(make_settings, tmp_path) as made:
        yield made


class Story:
    """A worker, alone, that flushes from an old primary, and the new one, to which its address does not lead yet."""

    def __init__(self, shard: World, old: Valkey, new: Valkey, network: FaultProxy, worker: Worker) -> None:
        self.shard, self.old, self.new = shard, old, new
        self.network = network
        self.worker = worker

    async def begin_epoch(self) -> None:
        """Have a client write on the new primary, which begins an epoch there."""
        async with AsyncStateCache(settings=self.shard.on(self.new)) as agent:
            await agent.set("runs/43", "new")

    def move(self) -> None:
        """Lead new connections to the new primary; those to the old one stay."""
        self.network.retarget("127.0.0.1", self.new.port)

    async def is_flushed(self) -> None:
        """Write on the new primary, and wait until it is in Postgres."""
        async with AsyncStateCache(settings=self.shard.on(self.new)) as agent:
            await agent.set("runs/44", "new", durability="postgres", timeout=BOUND_S)

    def standing(self, server: Valkey) -> set[int]:
        """Return the worker's connections that stand on a server, by their ports."""
        listed = self.shard.raw(server).client_list()
        return {int(one["addr"].rpartition(":")[2]) for one in listed} & self.network.ports


@pytest.fixture
async def story(shard: World, make_worker: MakeWorker) -> AsyncIterator[Story]:
    """A worker that has connections to the old primary for all that it does, and has flushed from it."""
    async with _story(shard, make_worker) as made:
        yield made


@asynccontextmanager
async def _story(shard: World, make_worker: MakeWorker) -> AsyncIterator[Story]:
    old, new = parted(shard, KEY)
    async with FaultProxy("127.0.0.1", old.port) as network:
        worker = make_worker(through(shard.on(old, **QUICK), redis=network))
        await flush(worker)
        await until(lambda: not worker.expiry.busy)
        yield Story(shard, old, new, network, worker)
        await worker.close()


async def test_a_worker_alone_follows_its_address_to_the_new_primary(story: Story, log: Log) -> None:
    """Nobody ends its connections, and no other worker is there to which it could leave its shards."""
    await story.begin_epoch()
    async with working(story.worker):
        await until(lambda: log.of("split_brain"))
        story.move()
        await story.is_flushed()
        await until(lambda: not story.worker.trouble)
        await until(lambda: not story.standing(story.old))
    assert story.standing(story.new)
    assert len(log.of("address_moved")) == 1
    assert len(log.of("split_brain_over")) == 1


async def test_what_the_old_primary_has_taken_is_kept_before_it_is_left(story: Story) -> None:
    taken = story.shard.put(story.old, KEY, "taken")
    await story.begin_epoch()
    story.move()
    async with working(story.worker):
        await story.is_flushed()
        await until(lambda: not story.standing(story.old))
    assert story.shard.conflicts() == {taken.change_id}


async def test_a_worker_leaves_an_old_primary_that_has_nothing_any_more(story: Story, log: Log) -> None:
    """Nothing there is another branch: that its gate stays closed is all that the worker knows."""
    await story.begin_epoch()
    story.move()
    story.shard.raw(story.old).flushall()
    async with working(story.worker):
        await story.is_flushed()
        await until(lambda: not story.standing(story.old))
    assert not log.of("split_brain")


async def test_connections_by_which_ended_states_are_deleted_are_left_too(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle ones at once, and one that is in use once what is under way on it has ended."""
    expiry, ends = story.worker.expiry, asyncio.Event()
    assert expiry._runtime is not None
    pool = expiry._runtime.redis.pool
    lent, idle = await pool.take(BOUND_S), await pool.take(BOUND_S)
    pool.give(idle)

    async def under_way(*_: object, **__: object) -> int:
        await ends.wait()
        pool.give(lent)
        return 0

    monkeypatch.setattr("statecache_workers.expiry.delete_ended", under_way)
    expiry._next = 0.0
    expiry.ask([0])
    await story.begin_epoch()
    story.move()
    async with working(story.worker):
        await story.is_flushed()
        assert not idle.alive
        assert lent.alive
        ends.set()
        await until(lambda: not story.standing(story.old))
    assert not lent.alive


async def test_where_the_address_leads_to_the_old_primary_still_its_connections_stay(
    story: Story, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled, dial = [], story.worker.redial.dial

    async def noted() -> object:
        dialled.append(await dial())
        return dialled[-1]

    monkeypatch.setattr(story.worker.redial, "dial", noted)
    stood = story.standing(story.old)
    await story.begin_epoch()
    async with working(story.worker):
        await until(lambda: log.of("split_brain") and dialled)
        await until(lambda: not dialled[0].alive)
    assert stood
    assert stood <= story.standing(story.old)
    assert not log.of("address_moved")
    assert story.worker.holdings


async def test_a_worker_that_is_not_hindered_opens_no_connection(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(story.worker.redial, "ask", asked.append)
    for _ in range(3):
        story.worker.refresh()
        story.shard.put(story.old, KEY, "more")
        await flush(story.worker)
    assert not asked

"""A worker leaves connections that stand on an old primary that goes on, once its address leads to the new one."""

from __future__ import annotations

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
    expiry = story.worker.expiry
    assert expiry._runtime is not None
    pool = expiry._runtime.redis.pool
    pool.give(deleting := await pool.take(BOUND_S))
    await story.begin_epoch()
    async with working(story.worker):
        await until(lambda: log.of("split_brain"))
        story.move()
        await story.is_flushed()
        await until(lambda: not story.worker.trouble)
        await until(lambda: len(story.standing(story.old)) == 1)
        assert story.standing(story.new)
        assert not deleting.alive
        story.shard.raw(story.old).execute_command("REPLICAOF", "127.0.0.1", story.new.port)
        await until(lambda: not story.standing(story.old))
        await until(lambda: log.of("split_brain_over"))
    assert not story.worker.primary.left
    assert len(log.of("address_moved")) == 1
    assert len(log.of("split_brain")) == 1


async def test_a_worker_without_shards_follows_it_too(story: Story, log: Log) -> None:
    """It has none for others have taken them, and takes none while it sees another data set than these."""
    story.worker.taking = False
    await story.worker.leave()
    story.worker.holdings.clear()
    await story.begin_epoch()
    story.move()
    async with working(story.worker):
        await until(lambda: log.of("address_moved"))
    assert not story.worker.holdings


async def test_what_the_old_primary_takes_is_kept_also_once_it_was_left(story: Story, log: Log) -> None:
    """Agents' connections may stay on it too, and it acknowledges what they write."""
    shard, taken = story.shard, [story.shard.put(story.old, KEY, "before")]
    await story.begin_epoch()
    story.move()
    async with working(story.worker):
        await story.is_flushed()
        taken += [shard.put(story.old, f"runs/{number}", number) for number in range(50)]
        await until(lambda: shard.conflicts() == {one.change_id for one in taken})
        await story.is_flushed()
        taken.append(shard.put(story.old, KEY, "after"))
        await until(lambda: shard.conflicts() == {one.change_id for one in taken})
        await until(lambda: sum(line["changes"] for line in log.of("rescued")) == len(taken))
    assert story.worker.primary.rescued == len(taken)


async def test_an_old_primary_that_falls_silent_once_it_was_left_holds_up_nothing(story: Story, log: Log) -> None:
    await story.begin_epoch()
    story.move()
    async with working(story.worker):
        await story.is_flushed()
        story.network.freeze(story.standing(story.old))
        for _ in range(3):
            await story.is_flushed()
    assert not log.of("outage")


async def test_an_address_that_leads_back_and_forth_leaves_one_connection(story: Story, log: Log) -> None:
    await story.begin_epoch()
    story.move()
    async with working(story.worker):
        await story.is_flushed()
        for times in (2, 3):
            story.network.retarget("127.0.0.1", story.old.port)
            story.network.cut(story.standing(story.new))
            await until(lambda: story.worker.primary.told)
            story.move()
            await until(lambda times=times: len(log.of("address_moved")) == times)  # type: ignore[misc]
            await story.is_flushed()
        await until(lambda: len(story.standing(story.old)) == 1)
        taken = story.shard.put(story.old, KEY, "after")
        await until(lambda: taken.change_id in story.shard.conflicts())


async def test_a_worker_leaves_an_old_primary_that_has_nothing_any_more(story: Story, log: Log) -> None:
    """Nothing there is another branch: that its gate stays closed is all that the worker knows."""
    await story.begin_epoch()
    story.move()
    story.shard.raw(story.old).flushall()
    async with working(story.worker):
        await story.is_flushed()
        await until(lambda: len(story.standing(story.old)) == 1)
    assert not log.of("split_brain")


async def test_where_the_address_leads_to_the_old_primary_still_its_connections_stay(
    story: Story, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled, dial = [], story.worker.primary.redial.dial

    async def noted() -> object:
        dialled.append(await dial())
        return dialled[-1]

    monkeypatch.setattr(story.worker.primary.redial, "dial", noted)
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
    monkeypatch.setattr(story.worker.primary.redial, "ask", asked.append)
    for _ in range(3):
        story.worker.refresh()
        story.shard.put(story.old, KEY, "more")
        await flush(story.worker)
    assert not asked

"""A worker leaves connections that stand on an old primary that goes on, once its address leads to the new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from statecache import AsyncStateCache
from statecache.testing.valkey import Valkey
from statecache_workers.runner import DRAINED, LEFT, Runner
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Log, MakeWorker, flush
from tests.support.failed_over import BOUND_S, QUICK, parted, until, working
from tests.support.fault_proxy import FaultProxy
from tests.support.gate_world import World

pytestmark = pytest.mark.counts_seconds

KEY = "runs/42"
TIMEOUT_S, DRAIN_S = 1.0, 5.0


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

    async def give_shards_back(self) -> None:
        """Have the worker go on without shards."""
        self.worker.taking = False
        await self.worker.leave()
        self.worker.holdings.clear()

    def standing(self, server: Valkey) -> set[int]:
        """Return the worker's connections that stand on a server, by their ports."""
        listed = self.shard.raw(server).client_list()
        return {int(one["addr"].rpartition(":")[2]) for one in listed} & self.network.ports


class Told(NamedTuple):
    """A worker's process, and what it tells when it has ended."""

    story: Story
    runner: Runner
    task: asyncio.Task[int]


@pytest.fixture
async def story(shard: World, make_worker: MakeWorker) -> AsyncIterator[Story]:
    """A worker that has connections to the old primary for all that it does, and has flushed from it."""
    async with _story(shard, make_worker) as made:
        yield made


@asynccontextmanager
async def _story(shard: World, make_worker: MakeWorker) -> AsyncIterator[Story]:
    old, new = parted(shard, KEY)
    async with FaultProxy("127.0.0.1", old.port) as network:
        worker = make_worker(
            through(shard.on(old, timeout_s=TIMEOUT_S, hydrate_token_s=TIMEOUT_S, **QUICK), redis=network)
        )
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
    await story.give_shards_back()
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


async def test_an_old_primary_that_is_silent_for_long_is_kept_again_afterwards(story: Story, log: Log) -> None:
    """No other connection leads there: it is waited for, for longer than for a server that can be dialled."""
    await story.begin_epoch()
    story.move()
    async with working(story.worker):
        await story.is_flushed()
        story.network.freeze(story.standing(story.old))
        await story.network.passes(2 * story.worker.settings.timeout_s)
        story.network.thaw()
        taken = story.shard.put(story.old, KEY, "after")
        await until(lambda: taken.change_id in story.shard.conflicts())
    assert not log.of("not_rescued")


async def test_an_old_primary_that_is_not_reached_any_more_is_told_of(story: Story, log: Log) -> None:
    await story.begin_epoch()
    story.move()
    async with working(story.worker):
        await story.is_flushed()
        await until(lambda: log.of("split_brain"))
        story.network.cut(story.standing(story.old))
        await until(lambda: any(line.get("alarm") for line in log.of("not_rescued")))
    assert not log.of("split_brain_over")
    assert not story.worker.primary.left


@pytest.mark.parametrize("which", ["empty", "foreign"])
async def test_an_address_that_leads_to_no_primary_of_this_deployment_is_not_followed(
    story: Story, log: Log, which: str
) -> None:
    """What stands is of more use than a server that is empty, or another deployment's, to which the address errs."""
    shard, dialled, dial = story.shard, [], story.worker.primary.redial.dial
    third, password = shard.start("c"), urlsplit(story.old.url).password
    raw = shard.raw(third)
    raw.config_set("requirepass", password or "")
    if which == "foreign":
        meta = shard.meta(story.old) | {"cluster": "another", "replid": shard.replid(third)}
        raw.hset(shard.keys.meta(0), mapping=meta)

    async def noted() -> Any:
        dialled.append(await dial())
        return dialled[-1]

    story.worker.primary.redial.dial = noted  # type: ignore[method-assign]
    await story.give_shards_back()
    await story.begin_epoch()
    worker, cluster = story.worker, story.worker.redis.cluster
    async with working(worker):
        await until(lambda: log.of("split_brain") and dialled)
        story.network.retarget("127.0.0.1", third.port)
        dialled.clear()
        await until(lambda: len(dialled) >= 2 and not any(one.alive for one in dialled))
        assert story.standing(story.old)
        assert not log.of("address_moved")
        assert worker.redis.cluster == cluster
        assert not raw.xlen(shard.keys.changes(0))
        story.move()
        await until(lambda: log.of("address_moved"))


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


@pytest.fixture
async def runner(shard: World, log: Log) -> AsyncIterator[Told]:
    """A worker's process that has left an old primary for the new one."""
    old, new = parted(shard, KEY)
    async with FaultProxy("127.0.0.1", old.port) as network:
        settings = through(
            shard.on(old, timeout_s=TIMEOUT_S, hydrate_token_s=TIMEOUT_S, drain_s=DRAIN_S, **QUICK), redis=network
        )
        runner = Runner(settings)
        story = Story(shard, old, new, network, runner.worker)
        task = asyncio.create_task(runner.run())
        await until(lambda: runner.worker.ready)
        await story.begin_epoch()
        story.move()
        await until(lambda: log.of("address_moved"))
        await story.is_flushed()
        yield Told(story, runner, task)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


async def test_a_worker_that_is_told_to_stop_keeps_first_what_an_old_primary_has_taken(runner: Told) -> None:
    shard, story = runner.story.shard, runner.story
    taken = [shard.put(story.old, f"runs/{number}", number) for number in range(300)]
    runner.runner.signalled()
    assert await runner.task == DRAINED
    assert shard.conflicts() == {one.change_id for one in taken}


async def test_a_worker_that_is_told_to_stop_says_that_an_old_primary_was_not_reached(runner: Told, log: Log) -> None:
    story = runner.story
    story.network.freeze(story.standing(story.old))
    runner.runner.signalled()
    assert await runner.task == LEFT
    (stopped,) = log.of("stopped")
    assert stopped["left"] is None
    assert any(line.get("alarm") for line in log.of("not_rescued"))


async def test_a_worker_that_is_told_to_stop_looks_first_whether_its_primary_is_an_old_one(
    shard: World, log: Log
) -> None:
    """It looks now and then, and has not looked since the new one has begun an epoch."""
    old, new = parted(shard, KEY)
    runner = Runner(shard.on(old, lease_s=600.0, lease_renew_s=60.0, drain_s=BOUND_S))
    task = asyncio.create_task(runner.run())
    await until(lambda: runner.worker.ready and not runner.worker.expiry.busy)
    async with AsyncStateCache(settings=shard.on(new)) as agent:
        await agent.set("runs/43", "new")
    taken = [shard.put(old, f"runs/{number}", number) for number in range(20)]
    runner.signalled()
    assert await task == DRAINED
    assert shard.conflicts() == {one.change_id for one in taken}
    assert log.of("split_brain")


async def test_an_old_primary_that_becomes_a_replica_as_the_address_is_dialled_goes_on_no_more(
    story: Story, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address leads there still, so nothing else will tell."""
    await story.give_shards_back()
    await story.begin_epoch()
    async with working(story.worker):
        await until(lambda: log.of("split_brain"))
        monkeypatch.setattr(story.worker.primary._split_brain, "look", _nothing_more)
        story.shard.raw(story.old).execute_command("REPLICAOF", "127.0.0.1", story.new.port)
        await until(lambda: log.of("split_brain_over"))
    assert not story.worker.primary.told


async def _nothing_more(*_: object) -> bool:
    return False

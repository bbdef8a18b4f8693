"""Two failovers in a row: a replica that is promoted before it has received the opening on the server before it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from statecache import AsyncStateCache
from statecache.core.epoch import opener
from statecache.errors import Unavailable
from statecache.rules.epochs import Authority
from statecache.testing.valkey import Valkey
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Log
from tests.fixtures.servers import MakeSettings
from tests.support.failed_over import QUICK, working
from tests.support.fault_proxy import FaultProxy
from tests.support.gate_world import KINDS, World, once, world

KEY = "runs/42"


@pytest.fixture(params=KINDS)
def shard(make_settings: MakeSettings, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """One shard, with Redis servers that the test starts and kills."""
    with world(make_settings, tmp_path, kind=request.param) as made:
        yield made


def promoted_twice(shard: World) -> tuple[Valkey, Valkey]:
    """Have `b` take over from `a`, and `a` from `b`, which was opened meanwhile: `a` knows nothing of that."""
    a = shard.start("a")
    b = shard.replica(a, "b")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    shard.put(a, "runs/43", 1)
    shard.in_step(a)
    shard.promote(b)
    shard.demote(a, b)
    shard.promote(a)
    shard.open(b)
    return a, b


def die() -> None:
    """End a process in the middle of an opening."""
    raise KeyboardInterrupt


def refused(shard: World, server: Valkey, *authorities: Authority) -> None:
    row = shard.row()
    for authority in authorities:
        with pytest.raises(Unavailable, match="operator's word"):
            shard.open(server, authority)
    assert shard.row() == row


def test_a_worker_that_opened_the_server_before_opens_it(shard: World) -> None:
    a, b = promoted_twice(shard)
    shard.put(b, KEY, 2)
    shard.flush(b)
    shard.put(b, KEY, 3)
    b.kill()
    refused(shard, a, "client", "setup")
    with pytest.raises(Unavailable, match="operator's word"):
        shard.open(a, "worker", vouched=[])
    (opened,) = shard.open(a, "worker")
    assert (opened.conflicts, opened.start_n) == (0, 3)
    shard.check(a)
    assert shard.value(a, KEY) == 2
    assert shard.value(a, "runs/43") == 1


@pytest.mark.parametrize("moment", ["after begin_epoch", "before gate_open"])
def test_whoever_comes_next_finishes_what_a_worker_began(shard: World, moment: str) -> None:
    a, b = promoted_twice(shard)
    b.kill()
    with pytest.raises(KeyboardInterrupt):
        shard.open(a, "worker", tap=once(moment, die))
    shard.open(a, "client")
    shard.check(a)
    assert shard.value(a, "runs/43") == 1


def test_where_the_row_was_not_raised_yet_it_takes_another_worker_of_the_kind(shard: World) -> None:
    """The server that the row names may be at work again: the address led here for a moment."""
    a, b = promoted_twice(shard)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            shard.open(a, "worker", tap=once("after gate_reserve", die))
    shard.put(b, KEY, 2)
    refused(shard, a, "client", "setup")
    with pytest.raises(Unavailable, match="operator's word"):
        shard.open(a, "worker", vouched=[])
    shard.flush(b)
    shard.check(b)
    b.kill()
    shard.open(a, "worker")
    shard.check(a)
    assert shard.value(a, KEY) == 2


@pytest.mark.parametrize("restarts", [False, True])
def test_one_that_went_on_by_itself_since_is_an_old_primary(shard: World, restarts: bool) -> None:
    """It was a replica of the server that the row names, and then opened, and given up for that server again."""
    a, b = promoted_twice(shard)
    shard.open(a, "operator")
    shard.put(a, KEY, "alone")
    shard.open(b, "operator")
    if restarts:
        a.restart()
    refused(shard, a, "client", "worker", "setup")
    shard.put(b, KEY, "the lineage")
    shard.flush(b)
    shard.check(b)


def test_one_that_was_only_reserved_since_is_an_old_primary_too(shard: World) -> None:
    """A reservation does not tell whether the gate was open before it on that server."""
    a, b = promoted_twice(shard)
    with pytest.raises(KeyboardInterrupt):
        shard.open(a, "operator", tap=once("after gate_reserve", die))
    refused(shard, a, "client", "worker", "setup")
    shard.check(b)


@pytest.mark.counts_seconds
async def test_who_waits_for_the_worker_makes_no_connection_after_the_other(
    shard: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opener, "RENEWED_EVERY_S", 600.0)
    a, b = promoted_twice(shard)
    b.kill()
    async with AsyncStateCache(settings=shard.on(a)) as agent:
        made = []
        for _ in range(2):
            with pytest.raises(Unavailable, match="A worker that has flushed from that server"):
                await agent.set(KEY, 2, timeout=2)
            made.append(int(shard.raw(a).info("stats")["total_connections_received"]))
        assert made[1] - made[0] <= 3  # the second call meets the connections that the first one has left
        shard.open(a, "worker")
        assert (await agent.set(KEY, 2)).value == 2


@pytest.mark.counts_seconds
async def test_who_waits_finds_the_server_to_which_the_address_leads_meanwhile(shard: World) -> None:
    """Its connections stand on the one that was led to for a moment, and nobody ends them."""
    a, b = promoted_twice(shard)
    async with (
        FaultProxy("127.0.0.1", a.port) as network,
        AsyncStateCache(settings=through(shard.on(a), redis=network)) as agent,
    ):
        with pytest.raises(Unavailable, match="operator's word"):
            await agent.set(KEY, 2, timeout=0.5)
        writing = asyncio.ensure_future(agent.set(KEY, 2))
        await asyncio.wait([writing], timeout=0.3)
        network.retarget("127.0.0.1", b.port)
        assert (await writing).value == 2
    shard.flush(b)
    shard.check(b)


async def test_no_alarm_is_raised_over_what_the_worker_opens(
    make_settings: MakeSettings, tmp_path: Path, log: Log
) -> None:
    """It looks for an old primary beside the lineage, and this is none."""
    with world(partial(make_settings, **QUICK), tmp_path) as shard:
        a, b = promoted_twice(shard)
        async with FaultProxy("127.0.0.1", b.port) as network:
            settings = through(shard.on(b), redis=network)
            worker = Worker(settings)
            async with AsyncStateCache(settings=settings) as agent, working(worker):
                await agent.set(KEY, 2, durability="postgres")
                network.retarget("127.0.0.1", a.port)
                network.cut_all()
                b.kill()
                assert (await agent.set(KEY, 3, durability="postgres", timeout=20)).value == 3
            await worker.close()
    assert (log.of("split_brain"), len(log.of("epoch_opened"))) == ([], 1)

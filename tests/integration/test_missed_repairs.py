"""A replica is promoted that has missed an opening, and with it what that took out of Redis: another Postgres' states.

For a while another Postgres was served with this Redis: an older backup. Once the right one was back, whoever opened
the server that took over found the epoch of the other one, and dropped what was not ours. Its replica had not heard of
that when it was promoted in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from statecache.errors import Unavailable
from statecache.rules.epochs import Authority
from statecache.testing import servers
from statecache.testing.embedded import Servers
from statecache.testing.valkey import Valkey
from statecache_workers.worker import Worker
from tests.fixtures.servers import MakeSettings
from tests.support.failed_over import QUICK, until, working
from tests.support.gate_world import World, world
from tests.support.postgres_backup import Backup

KEY = "runs/42"


@pytest.fixture(scope="module")
def tiers() -> Iterator[Servers]:
    """A Postgres of which copies are put back."""
    with servers(workers=0, migrate=False, fsync=False) as started:
        yield started


@pytest.fixture
def shard(tiers: Servers, make_settings: MakeSettings, tmp_path: Path) -> Iterator[World]:
    """One shard, with Redis servers that the test starts and kills."""
    with world(partial(make_settings, postgres_url=tiers.postgres_url), tmp_path) as made:
        yield made


def loaded(tiers: Servers, shard: World, folder: Path) -> tuple[Valkey, Valkey, Backup]:
    """Have a reader load an older value from another Postgres, and give the primary, its replica and the right one."""
    p = shard.start("p")
    replica = shard.replica(p, "replica")
    shard.open(p)
    shard.put(p, KEY, 1)
    shard.flush(p)
    older = Backup(tiers, folder, "older")
    shard.put(p, KEY, 2)
    shard.put(p, "runs/43", 1)
    shard.flush(p)
    right = Backup(tiers, folder, "right")
    raw = shard.raw(p)  # long ago: the stream has let it go, and the state was evicted
    raw.xtrim(shard.keys.changes(0), maxlen=0)
    raw.delete(shard.keys.state(KEY))
    raw.zrem(shard.keys.unflushed(0), KEY, "runs/43")
    older.put_back()
    shard.open(p, "worker")
    assert shard.value(p, KEY) == 1
    return p, replica, right


def written(tiers: Servers, shard: World, folder: Path) -> tuple[Valkey, Valkey, Backup]:
    """Have a copy of Redis go on with an older Postgres, where writes are flushed, and give the same of that."""
    p = shard.start("p")
    q = shard.replica(p, "q")
    shard.open(p)
    shard.put(p, KEY, 1)
    shard.flush(p)
    shard.in_step(p)
    older = Backup(tiers, folder, "older")
    shard.promote(q)
    shard.put(p, KEY, 2)
    shard.put(p, KEY, 3)
    shard.flush(p)
    right = Backup(tiers, folder, "right")
    p.kill()
    older.put_back()
    replica = shard.replica(q, "replica")
    shard.open(q)
    shard.put(q, KEY, "2 of another")
    shard.put(q, KEY, "3 of another")
    return q, replica, right


def refused(shard: World, server: Valkey, told: str, *authorities: Authority) -> None:
    row = shard.row()
    for authority in authorities:
        with pytest.raises(Unavailable, match=told):
            shard.open(server, authority)
    assert shard.row() == row


def goes_on(shard: World, server: Valkey, value: int) -> None:
    """See that the shard's states are Postgres', and that what is written on top of them continues them."""
    shard.check(server)
    assert shard.value(server, KEY) == value
    shard.put(server, KEY, value + 1)
    shard.flush(server)
    shard.check(server)


def test_what_was_loaded_is_loaded_again_where_the_replica_of_the_one_that_was_opened_takes_over(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    p, r, right = loaded(tiers, shard, tmp_path)
    shard.in_step(p)
    right.put_back()
    shard.promote(r)
    p.kill()
    c = shard.replica(r, "c")
    shard.promote(c)
    shard.open(r, "worker")
    assert shard.value(r, KEY) == 2
    r.kill()
    refused(shard, c, "that server's replica", "client", "setup")
    (opened,) = shard.open(c, "worker")
    assert opened.dropped > 0
    goes_on(shard, c, 2)


def test_what_was_loaded_is_loaded_again_where_the_server_was_opened_in_place(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    p, c, right = loaded(tiers, shard, tmp_path)
    shard.in_step(p)
    right.put_back()
    shard.promote(c)
    shard.open(p, "worker")
    assert shard.value(p, KEY) == 2
    p.kill()
    refused(shard, c, "restored, or is a copy", "client", "setup")
    (opened,) = shard.open(c, "worker")
    assert opened.dropped > 0
    goes_on(shard, c, 2)


def test_what_was_set_aside_is_not_served_where_the_replica_of_the_one_that_was_opened_takes_over(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    q, r, right = written(tiers, shard, tmp_path)
    shard.in_step(q)
    shard.promote(r)
    q.kill()
    c = shard.replica(r, "c")
    shard.promote(c)
    right.put_back()
    refused(shard, r, "operator's word", "worker")
    (opened,) = shard.open(r, "operator")
    assert opened.conflicts == 2
    r.kill()
    refused(shard, c, "that server's replica", "client", "setup")
    refused(shard, c, "with another Postgres. .*operator's word", "worker")
    shard.open(c, "operator")
    goes_on(shard, c, 3)
    assert len(shard.conflicts()) == 2


def test_what_was_set_aside_is_not_served_where_the_server_was_opened_in_place(
    tiers: Servers, shard: World, tmp_path: Path
) -> None:
    q, c, right = written(tiers, shard, tmp_path)
    shard.in_step(q)
    shard.promote(c)
    right.put_back()
    refused(shard, q, "operator's word", "worker")
    (opened,) = shard.open(q, "operator")
    assert opened.conflicts == 2
    q.kill()
    refused(shard, c, "restored, or is a copy", "client", "setup")
    refused(shard, c, "with another Postgres. .*operator's word", "worker")
    shard.open(c, "operator")
    goes_on(shard, c, 3)
    assert len(shard.conflicts()) == 2


@pytest.mark.parametrize("trimmed", [False, True])
async def test_what_this_postgres_has_recorded_as_lost_parts_nothing(
    tiers: Servers, shard: World, tmp_path: Path, trimmed: bool
) -> None:
    """A standby of Postgres took over without an epoch, and a worker began the next one: there never was another."""
    a = shard.start("a")
    q = shard.replica(a, "q")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    shard.in_step(a)
    standby = Backup(tiers, tmp_path, "standby")
    shard.promote(q)
    a.kill()
    shard.open(q, "worker")
    r = shard.replica(q, "r")
    shard.put(q, KEY, 2)
    shard.put(q, "runs/43", 1)
    shard.flush(q)
    if trimmed:
        shard.raw(q).xtrim(shard.keys.changes(0), maxlen=0)
    shard.in_step(q)
    standby.put_back()
    shard.promote(r)
    worker = Worker(shard.on(q, **QUICK))
    async with working(worker):
        await until(lambda: shard.row().replid == shard.replid(q))
        await asyncio.to_thread(shard.put, q, KEY, 3)
        await until(lambda: shard.row().flushed == 4)
    await worker.close()
    q.kill()
    refused(shard, r, "restored, or is a copy", "client")
    await asyncio.to_thread(shard.open, r, "worker")
    assert await asyncio.to_thread(shard.value, r, KEY) == 3

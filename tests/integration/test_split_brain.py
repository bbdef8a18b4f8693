"""An old primary goes on beside the new one: a worker that reaches it keeps what it takes, whoever holds the shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Forked, Settings
from statecache.clock import monotonic
from statecache.testing.valkey import Valkey
from statecache_workers.runner import DRAINED, LEFT, Runner
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flushed, rows
from tests.fixtures.servers import MakeSettings, Site, plain_client
from tests.support.failed_over import BOUND_S, QUICK, failed_over, old_and_new, until, working
from tests.support.fault_proxy import FaultProxy

SHARDS = (0, 1, 2, 3)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Valkey, Valkey]]:
    """A primary and its replica."""
    with old_and_new(tmp_path) as servers:
        yield servers


class Parted:
    """Two primaries of one deployment: agents on the old one, the settings of either, and what Postgres holds."""

    def __init__(self, here: Settings, there: Settings, old: Any, worker: Worker, psql: Any) -> None:
        self.here = here
        self.there = there
        self.old = Agents(here, worker.keys, old)
        self._psql = psql
        self.taken: set[str] = set()

    def take(self, *shards: int) -> None:
        """Have the old primary acknowledge a commit in each of these shards."""
        for shard in shards:
            change_id = f"{len(self.taken):024x}"
            self.old.commit(self.old.key_on(shard), change_id=change_id)
            self.taken.add(change_id)

    def kept(self) -> set[str]:
        """Return the changes that stand in `conflict`, which holds each once."""
        found = [change_id for change_id, _ in rows(self._psql, "SELECT change_id, cause FROM conflict")]
        assert len(found) == len({*found})
        return {*found}

    def is_all_kept(self) -> bool:
        """Return whether all that the old primary took stands in `conflict`, and nothing else."""
        return self.kept() == self.taken

    def flushed(self) -> dict[int, int]:
        """Return the watermarks in Postgres."""
        return flushed(self._psql)

    def replids(self) -> set[str]:
        """Return the servers that the rows of the shards name."""
        return {replid for (replid,) in rows(self._psql, "SELECT DISTINCT replid FROM shard")}


@contextmanager
def _parted(
    make_settings: MakeSettings, make_worker: MakeWorker, pair: tuple[Valkey, Valkey], site: Site
) -> Iterator[Parted]:
    old, new = pair
    here = make_settings(redis_url=old.url, **QUICK)
    there = failed_over(here, old, new)
    path = f"-c search_path={here.postgres_schema}"
    with (
        plain_client(old.url) as raw,
        psycopg.connect(site.postgres_url, autocommit=True, options=path) as psql,
    ):
        yield Parted(here, there, raw, make_worker(here), psql)


@pytest.fixture
def parted(
    make_settings: MakeSettings, make_worker: MakeWorker, pair: tuple[Valkey, Valkey], site: Site
) -> Iterator[Parted]:
    """A deployment in whose shards the new primary has begun an epoch, while the old one still takes writes."""
    with _parted(make_settings, make_worker, pair, site) as made:
        yield made


def _told(log: Log) -> int:
    return sum(line["changes"] for line in log.of("rescued"))


async def test_what_an_old_primary_takes_is_kept_of_shards_that_another_worker_holds(
    parted: Parted, make_worker: MakeWorker, log: Log
) -> None:
    """It is kept for as long as the worker reaches that server: also once it has given its own shards up."""
    good, forgotten = make_worker(parted.there), make_worker(parted.here)
    await flush(good)
    parted.take(*SHARDS, *SHARDS)
    async with working(good, forgotten):
        await until(lambda: forgotten.holdings and good.holdings)
        await until(parted.is_all_kept)
        parted.take(*SHARDS)
        await until(parted.is_all_kept)
        await until(lambda: log.of("given_up") and len(good.holdings) == len(SHARDS))
        parted.take(*SHARDS)
        await until(parted.is_all_kept)
        await until(lambda: _told(log) == len(parted.taken))
    assert parted.flushed() == dict.fromkeys(SHARDS, 0)
    (told,) = log.of("split_brain")
    named = parted.replids() | {parted.old.meta(0)["replid"]}
    assert len(named) == 2
    assert all(replid in told["detail"] for replid in named)


async def test_a_worker_without_shards_keeps_what_an_old_primary_takes(
    parted: Parted, make_worker: MakeWorker, log: Log
) -> None:
    idle = make_worker(parted.here)
    idle.taking = False
    parted.take(*SHARDS)
    async with working(idle):
        await until(parted.is_all_kept)
        await until(lambda: "operator's word" in idle.trouble)
    assert not idle.holdings
    assert idle.primary.rescued == len(parted.taken)
    assert len(log.of("split_brain")) == 1


async def test_several_workers_keep_each_change_once(parted: Parted, make_worker: MakeWorker, log: Log) -> None:
    several = [make_worker(parted.here) for _ in range(3)]
    parted.take(*SHARDS * 10)
    async with working(*several):
        await until(parted.is_all_kept)
        parted.take(*SHARDS * 10)
        await until(parted.is_all_kept)
        await until(lambda: _told(log) >= len(parted.taken))
    assert _told(log) == len(parted.taken)


async def test_a_large_backlog_is_kept_in_pieces(
    parted: Parted, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one turn keeps is bounded, and a shard of which there is ever more holds up no other."""
    monkeypatch.setattr("statecache.core.epoch.rescue._PAGE", 3)
    monkeypatch.setattr("statecache.core.epoch.diverged_primary._PAGES_MAX", 2)
    idle = make_worker(parted.here)
    idle.taking = False
    parted.take(*[0] * 40, 1, 2, 3)
    kept, before = [0], 0
    for _ in range(100):
        await idle.turn()
        kept.append(len(parted.kept()))
        assert kept[-1] - kept[-2] <= 6
        others = [one for one in parted.kept() if int(one, 16) >= 40]
        before = before or (kept[-1] if len(others) == 3 else 0)
        if parted.is_all_kept():
            break
    assert 0 < before < len(parted.taken), "the short ones were kept first"
    assert parted.is_all_kept()


async def test_an_old_primary_that_became_a_replica_is_left_alone(
    parted: Parted, pair: tuple[Valkey, Valkey], make_worker: MakeWorker, log: Log
) -> None:
    old, new = pair
    worker = make_worker(parted.here)
    worker.taking = False
    parted.take(*SHARDS)
    async with working(worker):
        await until(parted.is_all_kept)
        with plain_client(old.url) as raw:
            raw.execute_command("REPLICAOF", "127.0.0.1", new.port)
            await until(lambda: raw.info("replication").get("master_link_status") == "up")
            await until(lambda: log.of("split_brain_over"))
    assert parted.is_all_kept()
    assert not worker.primary.told


@pytest.mark.counts_seconds
@pytest.mark.parametrize("how", ["set", "wait_durable"])
async def test_who_waits_at_an_old_primary_is_told_that_it_forked(
    parted: Parted, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The copy of the watermark there never moves: only Postgres knows."""
    monkeypatch.setattr("statecache.core.commit.durable._DOUBT_S", 0.1)
    idle = make_worker(parted.here)
    idle.taking = False
    async with working(idle), AsyncStateCache(settings=parted.here) as cache:
        written = await cache.set("runs/2", 1)
        waiting = {
            "set": lambda: cache.set("runs/1", 1, durability="postgres", timeout=BOUND_S),
            "wait_durable": lambda: cache.wait_durable(written, timeout=BOUND_S),
        }
        with pytest.raises(Forked):
            await waiting[how]()


@pytest.mark.counts_seconds
@pytest.mark.parametrize("kept", [False, True])
async def test_who_leaves_an_old_primary_is_told_what_was_lost_with_it(
    parted: Parted, make_worker: MakeWorker, kept: bool
) -> None:
    idle = make_worker(parted.here)
    idle.taking = False
    cache = AsyncStateCache(settings=parted.here)
    written = await cache.set("runs/1", 1)
    if kept:
        async with working(idle):
            await until(lambda: parted.kept() == {written.change_id})
    left = await cache.close(drain=5.0)
    assert left is not None
    assert [(one.change_id, one.kept) for one in left.lost] == [(written.change_id, kept)]


async def test_what_is_kept_is_told_now_and_then(
    parted: Parted, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    """Agents may write there for hours: the alarm that names both servers stays in sight."""
    monkeypatch.setattr("statecache.core.epoch.rescue._PAGE", 3)
    monkeypatch.setattr("statecache.core.epoch.diverged_primary._PAGES_MAX", 1)
    now = [0.0]
    idle = make_worker(parted.here, monotonic=lambda: now[0])
    idle.taking = False
    parted.take(*[0] * 40)
    for _ in range(100):
        await idle.turn()
        if parted.is_all_kept():
            break
    assert len(log.of("rescued")) == 1
    assert _told(log) < 40
    now[0] += 10
    await idle.turn()
    assert _told(log) == 40


@asynccontextmanager
async def _running(settings: Settings, *, taking: bool, drain_s: float) -> AsyncIterator[tuple[Runner, Any]]:
    """Have a worker's process at work in this one that has seen an old primary go on, with shards or without."""
    runner = Runner(settings.model_copy(update={"drain_s": drain_s}))
    runner.worker.taking = taking
    task = asyncio.create_task(runner.run())
    await until(lambda: runner.worker.primary.told and bool(runner.worker.holdings) is taking)
    yield runner, task
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("taking", [True, False])
async def test_a_worker_that_is_told_to_stop_on_an_old_primary_keeps_first_what_that_has_taken(
    parted: Parted, monkeypatch: pytest.MonkeyPatch, log: Log, taking: bool
) -> None:
    """What is kept is not left, whether the shards are its own or another worker's by then."""
    monkeypatch.setattr("statecache.core.epoch.rescue._PAGE", 3)
    monkeypatch.setattr("statecache.core.epoch.diverged_primary._PAGES_MAX", 2)
    async with _running(parted.here, taking=taking, drain_s=BOUND_S) as (runner, task):
        parted.take(*SHARDS * 20)
        runner.signalled()
        assert await task == DRAINED
    assert parted.is_all_kept()
    (stopped,) = log.of("stopped")
    assert stopped["left"] == 0
    assert stopped["seconds"] < BOUND_S
    assert not log.of("not_rescued")
    assert _told(log) == len(parted.taken)


@pytest.mark.counts_seconds
async def test_a_worker_that_is_told_to_stop_says_what_it_could_not_keep_of_an_old_primary(
    parted: Parted, pair: tuple[Valkey, Valkey], log: Log
) -> None:
    here = parted.here.model_copy(update={"timeout_s": 0.5, "hydrate_token_s": 0.5})
    async with (
        FaultProxy("127.0.0.1", pair[0].port) as network,
        _running(through(here, redis=network), taking=False, drain_s=0.5) as (runner, task),
    ):
        network.freeze()
        parted.take(*SHARDS)
        runner.signalled()
        assert await task == LEFT
    (stopped,) = log.of("stopped")
    assert stopped["left"] is None
    (told,) = log.of("not_rescued")
    assert told["alarm"]
    assert parted.old.meta(0)["replid"] in told["detail"]


async def test_that_all_is_kept_is_not_believed_of_another_connection(parted: Parted, make_worker: MakeWorker) -> None:
    """That may lead to another server, until a look has shown that it does not."""
    idle, since = make_worker(parted.here), monotonic()
    idle.taking = False
    parted.take(*SHARDS)
    await idle.turn()
    assert idle.primary.has_kept(since)
    assert idle.primary.link is not None
    await idle.primary.link.close()
    await idle.connect()
    assert not idle.primary.has_kept(since)
    await idle.turn()
    assert idle.primary.has_kept(since)

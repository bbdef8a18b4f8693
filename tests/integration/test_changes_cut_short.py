"""Readers of changes whose calls fail, are cancelled or interrupted by a signal: asked again, they lack nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import cycle
from math import inf
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Change, PostgresUnavailable, StateCache
from statecache._sync.feed import Following
from statecache.core.feed import feed as core
from statecache_workers import quarantine_release
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush

Psql = psycopg.Connection[Any]
WAIT_S = 20.0
POISON = "ALTER TABLE change ADD CONSTRAINT small CHECK (octet_length(value) < 10)"
CURE = "ALTER TABLE change DROP CONSTRAINT small"


class Interrupted(BaseException):
    """What a handler of a signal raises, as KeyboardInterrupt is."""


class Cuts:
    """A client whose readers are cut short in one way: `error`, `cancellation` (asynchronous) or `signal` (not so)."""

    def __init__(self, how: str, cache: AsyncStateCache, sync_cache: StateCache) -> None:
        kind, self.way = how.split()
        self.cache: Any = cache if kind == "async" else sync_cache
        self.count = 0

    async def cut(self) -> None:
        """Cut short the call in which this is awaited."""
        self.count += 1
        if self.way == "error":
            raise PostgresUnavailable("connection", detail="cut by hand")
        if self.way == "signal":
            raise Interrupted
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    def at(self, statement: str, which: Callable[[], bool]) -> None:
        """Cut short the calls that ask Postgres by this statement, those for which `which` says so."""
        postgres = self.cache._runtime.postgres
        fetch = postgres.fetch

        async def fetched(name: str, parameters: Any, *, seconds: float) -> Any:
            if name == statement and which():
                await self.cut()
            return await fetch(name, parameters, seconds=seconds)

        postgres.fetch = fetched

    async def next(self, feed: Any) -> Change[Any] | None:
        """Ask until a change is given, or the end is there: None."""
        async with asyncio.timeout(WAIT_S):
            while True:
                cut = self.count
                try:
                    if isinstance(feed, AsyncIterator):
                        return await asyncio.ensure_future(anext(feed, None))
                    return await asyncio.to_thread(next, feed, None)
                except (PostgresUnavailable, asyncio.CancelledError, Interrupted):
                    if cut == self.count:
                        raise

    async def all(self, feed: Any) -> list[Change[Any]]:
        """Ask until the end is there."""
        given = list[Change[Any]]()
        while (change := await self.next(feed)) is not None:
            given.append(change)
        return given


@pytest.fixture(params=["async error", "async cancellation", "sync error", "sync signal"])
def cuts(request: pytest.FixtureRequest, cache: AsyncStateCache, sync_cache: StateCache) -> Cuts:
    """A client whose readers are cut short."""
    return Cuts(request.param, cache, sync_cache)


def _every_other() -> Callable[[], bool]:
    turns = cycle((True, False))
    return lambda: next(turns)


def _once() -> Callable[[], bool]:
    turns = iter((True,))
    return lambda: next(turns, False)


def _places(changes: list[Change[Any]]) -> dict[int, list[tuple[int, str]]]:
    return {
        shard: [(change.position.n, change.key) for change in changes if change.shard == shard]
        for shard in {change.shard for change in changes}
    }


async def _written(agents: Agents, worker: Worker, shards: int) -> None:
    """Commit twenty changes to each shard, of which a read gives three."""
    for shard in range(shards):
        key = agents.key_on(shard)
        for number in range(20):
            agents.commit((key, str(number)))
    await flush(worker)


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "ROWS", 3)
    monkeypatch.setattr(core, "ROWS_MIN", 3)


@pytest.mark.usefixtures("_few")
async def test_each_read_may_be_cut_short_before_it_succeeds(cuts: Cuts, worker: Worker, agents: Agents) -> None:
    """Whoever does not follow comes to the end of every shard all the same, and so does the cursor."""
    shards = agents.keys.shards
    await _written(agents, worker, shards)
    whole = await cuts.all(cuts.cache.changes("runs/", follow=False))
    assert len(whole) == shards * 20
    cuts.at("feed_changes", _every_other())
    feed = cuts.cache.changes("runs/", follow=False)
    assert _places(await cuts.all(feed)) == _places(whole)
    assert cuts.count > shards * 6
    assert await cuts.all(cuts.cache.changes("runs/", since=feed.cursor, follow=False)) == []


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("function", ["beginning", "behind"])
async def test_a_signal_may_interrupt_what_is_made_of_a_batch(
    sync_cache: StateCache, cache: AsyncStateCache, worker: Worker, agents: Agents, monkeypatch: pytest.MonkeyPatch,
    function: str,
) -> None:  # fmt: skip
    cuts = Cuts("sync signal", cache, sync_cache)
    shards = agents.keys.shards
    await _written(agents, worker, shards)
    whole = await cuts.all(sync_cache.changes("runs/", follow=False))
    called, turns = getattr(core, function), _every_other()

    def interrupted(*args: Any) -> Any:
        if cuts.count < 5 * shards and turns():
            cuts.count += 1
            raise Interrupted
        return called(*args)

    monkeypatch.setattr(core, function, interrupted)
    assert _places(await cuts.all(sync_cache.changes("runs/", follow=False))) == _places(whole)
    assert cuts.count == 5 * shards


@pytest.mark.parametrize("why", ["moved", "due"])
async def test_a_follower_does_at_once_again_what_was_cut_short(
    cuts: Cuts, worker: Worker, agents: Agents, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Not only when all shards are looked at the next time, which is never here."""

    async def hear_nothing(_: core.Feed) -> None:
        """Have no events wake the reader."""

    monkeypatch.setattr(core.Feed, "_listen", hear_nothing)
    monkeypatch.setattr(core, "LOOK_S", 1e6)
    agents.commit(("runs/1", "1"))
    await flush(worker)
    feed = cuts.cache.changes("runs/")
    first = await cuts.next(feed)
    assert first is not None
    agents.commit(("runs/1", "2"))
    await flush(worker)
    cuts.at("feed_changes", _once())
    if why == "moved":
        feed._feed.moved(first.shard)
    else:
        feed._feed._looked_at = -inf
    try:
        second = await cuts.next(feed)
    finally:
        feed.stop()
    assert second is not None
    assert (second.value, cuts.count) == (2, 1)


async def test_the_look_at_a_late_change_may_be_cut_short(
    cuts: Cuts, worker: Worker, agents: Agents, psql: Psql
) -> None:
    """A page gets that change, and those that were read with it."""
    psql.execute(POISON)
    agents.commit(("runs/1/late", '"much too big"'))
    agents.commit("runs/1/before")
    await flush(worker)
    psql.execute(CURE)
    page = cuts.cache.watch("runs/")
    await asyncio.to_thread(page.__enter__) if isinstance(cuts.cache, StateCache) else await page.__aenter__()
    (done,) = await quarantine_release.retry(cuts.cache.settings, None)
    assert (done.done, done.taken) == (True, 1)
    names = ["b", "c", "d"]
    for name in names:
        agents.commit(f"runs/1/{name}")
    await flush(worker)
    cuts.at("feed_states", _every_other())
    try:
        given = [await cuts.next(page) for _ in range(4)]
    finally:
        page.stop()
    assert cuts.count == 1
    assert [(change.key, change.late) for change in given if change] == [
        ("runs/1/late", True), *((f"runs/1/{name}", False) for name in names),
    ]  # fmt: skip
    assert await cuts.all(page) == []


@pytest.mark.parametrize("verb", ["watch", "changes"])
async def test_a_signal_that_interrupts_the_decoding_of_a_change_does_not_pass_it(
    cache: AsyncStateCache, sync_cache: StateCache, worker: Worker, agents: Agents, monkeypatch: pytest.MonkeyPatch,
    verb: str,
) -> None:  # fmt: skip
    cuts, decoded, turns = Cuts("sync signal", cache, sync_cache), Following._decoded, _every_other()
    agents.commit(("runs/1", "1"), ("runs/1/a", "2"))
    await flush(worker)

    def interrupted(feed: Any, row: Any) -> Any:
        if turns():
            cuts.count += 1
            raise Interrupted
        return decoded(feed, row)

    monkeypatch.setattr(Following, "_decoded", interrupted)
    feed: Any = sync_cache.watch("runs/", initial=True) if verb == "watch" else sync_cache.changes("runs/")
    given = [await cuts.next(feed) for _ in range(2)]
    feed.stop()
    assert [change.value for change in given if change] == [1, 2]
    assert cuts.count == 2

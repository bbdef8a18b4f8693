"""Two deployments of one prefix in two databases of one Redis change places under live connections: SWAPDB.

Nobody is told of it by the server; what both hold is in epoch 1, opened on the same server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.errors import ConfigurationError, Unavailable
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import MakeWorker, flush, rows
from tests.fixtures.servers import MakeClient, MakeSettings, on_database, plain_client
from tests.support.local_reads import kept, until

pytestmark = pytest.mark.own_servers("it swaps two databases")
KEY = "runs/1"
OURS, THEIRS = 8, 9
Op = Callable[[AsyncStateCache], Awaitable[object]]


class Two(NamedTuple):
    """Two deployments that can change places."""

    ours: Settings
    theirs: Settings
    raw: Any

    def swap(self) -> None:
        """Have each take the place of the other."""
        self.raw.execute_command("SWAPDB", OURS, THEIRS)

    def moved(self) -> Settings:
        """Return the settings of the other deployment once it is in our place."""
        return self.theirs.model_copy(update={"redis_url": self.ours.redis_url})


@pytest.fixture
def two(make_settings: MakeSettings, settings: Settings) -> Iterator[Two]:
    """Two deployments, empty, and in their places again when the test is over."""
    urls = [on_database(settings.redis_url, number) for number in (OURS, THEIRS)]
    with plain_client(urls[0]) as raw, plain_client(urls[1]) as other:
        ours = make_settings(redis_url=urls[0], near_window_s=0.4)
        theirs = make_settings(redis_url=urls[1], prefix=ours.prefix)
        yield Two(ours, theirs, raw)
        raw.flushdb()
        other.flushdb()


@pytest.fixture
def psql(two: Two) -> Iterator[psycopg.Connection[Any]]:
    """A connection to our schema."""
    path = f"-c search_path={two.ours.postgres_schema}"
    with psycopg.connect(two.ours.postgres_url, autocommit=True, options=path) as connection:
        yield connection


async def _written(settings: Settings, *values: object) -> None:
    async with AsyncStateCache(settings=settings) as client:
        for value in values:
            await client.set(KEY, value)


async def _in_lock(client: AsyncStateCache) -> None:
    async with client.lock(KEY):
        pass


async def test_once_a_heartbeat_tells_it_no_connection_from_before_is_used(two: Two, make_client: MakeClient) -> None:
    """A lock asks for no cluster."""
    await _written(two.ours, "ours")
    client = make_client(two.ours, read="local")
    await asyncio.gather(*(client.get(f"{KEY}/{number}", read="primary") for number in range(4)))
    await kept(client)
    await _in_lock(client)
    two.swap()
    await until(lambda: "pinned to" in client.near.untrusted_reason)
    with pytest.raises(ConfigurationError, match=f"pinned to postgres_schema {two.theirs.postgres_schema}"):
        await _in_lock(client)
    with pytest.raises(ConfigurationError, match="pinned to"):
        await client.get(KEY)
    two.swap()
    await _in_lock(client)
    assert (await client.set(KEY, "ours again")).version == 2


async def _transacted(client: AsyncStateCache) -> None:
    async with client.transaction(KEY) as tx:
        await tx.get(KEY)


OPS: dict[str, Op] = {
    "set": lambda client: client.set(KEY, "misled"),
    "get": lambda client: client.get(KEY),
    "get fenced": lambda client: client.get(KEY, read="fenced"),
    "get_many": lambda client: client.get_many([KEY, f"{KEY}/2"]),
    "transaction": _transacted,
}


@pytest.mark.parametrize("name", OPS)
async def test_who_has_no_heartbeat_is_refused_by_what_he_asks(two: Two, make_client: MakeClient, name: str) -> None:
    await _written(two.ours, "ours")
    await _written(two.theirs, "theirs")
    client = make_client(two.ours)
    await client.set(KEY, "ours 2")
    await client.get(KEY)
    two.swap()
    with pytest.raises(ConfigurationError, match="pinned to"):
        await OPS[name](client)
    async with AsyncStateCache(settings=two.moved()) as other:
        state = await other.get(KEY)
        assert state is not None
        assert (state.value, state.version) == ("theirs", 1)
    two.swap()
    assert (await client.set(KEY, "ours 3")).version == 3


async def _turned(worker: Worker) -> None:
    for _ in range(5):
        with suppress(Unavailable):
            await worker.turn()
        worker.refresh()


async def test_a_worker_writes_nothing_of_another_deployment(
    two: Two, make_worker: MakeWorker, psql: psycopg.Connection[Any]
) -> None:
    await _written(two.ours, "ours")
    worker = make_worker(two.ours)
    await flush(worker)
    two.swap()
    await _written(two.moved(), "theirs", "theirs 2")
    await _turned(worker)
    shard = KeySpace(two.ours.prefix, two.ours.shards).shard(KEY)
    assert rows(psql, "SELECT version FROM change") == [(1,)]
    assert worker.holdings[shard].phase == "apart"
    assert "it is of another deployment, of cluster" in worker.trouble
    two.swap()
    await _written(two.ours, "ours 2")
    worker.refresh()
    await flush(worker)
    assert rows(psql, "SELECT version, convert_from(value, 'utf8') FROM change ORDER BY version")[1] == (2, '"ours 2"')
    assert not worker.trouble


async def test_nor_where_they_change_places_between_heads_and_entries(
    two: Two, make_worker: MakeWorker, psql: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await _written(two.ours, *range(3))
    await _written(two.theirs, "theirs", "theirs 2", "theirs 3")
    worker = make_worker(two.ours)
    streams, swaps = worker.flusher.streams, [two.swap]
    read = streams.read

    async def late(*asked: Any) -> Any:
        if swaps:
            swaps.pop()()
        return await read(*asked)

    monkeypatch.setattr(streams, "read", late)
    await _turned(worker)
    assert not swaps
    assert rows(psql, "SELECT version FROM change") == []


async def test_nor_is_its_watermark_told_to_another_deployment(
    two: Two, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _written(two.ours, *range(3))
    await _written(two.theirs, *range(3))
    keys = KeySpace(two.ours.prefix, two.ours.shards)
    worker = make_worker(two.ours)
    told, swaps = worker.flusher.acknowledgement.tell, [two.swap]

    async def late(link: Any, holdings: Any, forks: Any) -> list[int]:
        if swaps and any(holding.row.flushed for holding in holdings):
            swaps.pop()()
        return await told(link, holdings, forks)

    monkeypatch.setattr(worker.flusher.acknowledgement, "tell", late)
    await _turned(worker)
    assert not swaps
    assert two.raw.hget(keys.meta(keys.shard(KEY)), "flushed") == b"0"

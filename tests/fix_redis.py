"""A deployment on fakeredis: the real scripts on a Redis in this process, the fence off, every shard open.

There is no Postgres: what the client asks it for is absent, and `FakePostgres.asked` says how often it was asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import fakeredis
import pytest

from statecache import AsyncStateCache, Settings, StateCache
from statecache._async.postgres.tier import PostgresTier
from statecache._sync.postgres.tier import PostgresTier as SyncPostgresTier
from statecache.keys import HASH, KeySpace
from statecache.lua import script
from tests.awaited import awaited


class _SyncConnection(fakeredis.FakeRedisConnection):  # type: ignore[misc]
    """A connection of fakeredis whose socket has the timeout methods that it lacks."""

    def _connect(self) -> Any:
        socket = super()._connect()
        socket.gettimeout, socket.settimeout = lambda: None, lambda seconds: None
        return socket


class FakePostgres:
    """A stand-in for a Postgres that holds nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Note the statement's name and return no states; a listing begins with watermarks, a hydration with one."""
        self.asked.append(name)
        if name == "hydrate":
            return [(1, 0, *[None] * 13)]
        return [([],)] if name.startswith("list_") else []


class FakeDeployment:
    """A Redis in this process, with every shard open at epoch 1."""

    def __init__(self, server: fakeredis.FakeServer, settings: Settings) -> None:
        self.server = server
        self.settings = settings
        self.keys = KeySpace(settings.prefix, settings.shards)
        self.redis: Any = fakeredis.FakeRedis(server=server)
        for shard in range(settings.shards):
            self._open(shard)

    def _open(self, shard: int) -> None:
        keys, settings = self.keys, self.settings
        fixed = [keys.meta(shard), keys.changes(shard), keys.unflushed(shard), keys.hydrating(shard)]
        fixed += [keys.leases(shard), keys.waiters(shard)]
        self.redis.hset(keys.meta(shard), "claim", "token")
        numbers = [1, 0, 0, 0, 0, 0, 0, 0]
        pin = [settings.shards, HASH, settings.prefix, settings.postgres_schema, "a-cluster"]
        given = ["token", "off", "off", *numbers, *pin, "0"]
        assert self.redis.eval(script("gate_open").text, 6, *fixed, *given) == 1

    def dial(self) -> Any:
        """Make an asynchronous connection."""
        return fakeredis.FakeAsyncRedisConnection(server=self.server)

    def dial_sync(self) -> Any:
        """Make a synchronous connection."""
        return _SyncConnection(server=self.server)

    def state(self, key: str) -> dict[str, bytes]:
        """Return the hash of a state."""
        return {name.decode(): value for name, value in self.redis.hgetall(self.keys.state(key)).items()}


@pytest.fixture
def fake_postgres(monkeypatch: pytest.MonkeyPatch) -> FakePostgres:
    """A Postgres that holds nothing, in place of the real tier of every client of this test."""
    fake = FakePostgres()

    async def fetch(tier: object, name: str, parameters: Mapping[str, Any], *, seconds: float) -> list[tuple[Any, ...]]:
        return fake.rows(name)

    def sync_fetch(tier: object, name: str, parameters: Mapping[str, Any], *, seconds: float) -> list[tuple[Any, ...]]:
        return fake.rows(name)

    monkeypatch.setattr(PostgresTier, "fetch", fetch)
    monkeypatch.setattr(SyncPostgresTier, "fetch", sync_fetch)
    return fake


@pytest.fixture
def fake(fake_postgres: FakePostgres) -> FakeDeployment:
    """A deployment of the test's own on fakeredis."""
    settings = Settings(fence="off", shards=4, writer="the-test", timeout_s=5.0)
    return FakeDeployment(fakeredis.FakeServer(), settings)


@pytest.fixture(params=["async", "sync"])
async def fake_cache(request: pytest.FixtureRequest, fake: FakeDeployment) -> AsyncIterator[AsyncStateCache]:
    """A client on fakeredis: the asynchronous one, and again the synchronous one."""
    if request.param == "sync":
        client = awaited(StateCache(settings=fake.settings, dial=fake.dial_sync))
    else:
        client = AsyncStateCache(settings=fake.settings, dial=fake.dial)
    yield client
    await client.close()

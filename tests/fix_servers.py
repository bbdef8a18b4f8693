"""Real servers for the tests, one of each kind in every test process, and a deployment of its own for every test.

The kinds of Redis: `embedded` (the wheel's Valkey), `debian` (the `redis-server` found on PATH), `docker` (a Redis in
a container, where an engine answers), or only `given` (STATECACHE_TEST_REDIS_URL). Postgres is embedded, or
STATECACHE_TEST_POSTGRES_URL. The header of a run says which are there, and why others are not.

A test runs on one kind, the first, unless it is marked `every_redis`. Servers are shared, so each test works under a
prefix and a schema of its own, which `make_settings()` gives, migrated: `set_up` does at once what `migrate` does in
many steps, and a test compares the two. A test that kills starts its own servers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import redis
from redis.backoff import ConstantBackoff, NoBackoff
from redis.retry import Retry

from statecache import AsyncStateCache, Settings, StateCache
from statecache._sync.epoch.gate import Gate
from statecache._sync.postgres.migrate import migrate
from statecache._sync.redis.tier import RedisTier
from statecache.keys import GROUP_RULE, HASH, KeySpace
from statecache.sql import CODE, migrations, statement
from statecache.testing import servers
from statecache.testing.folders import Throwaway, ordinary_user
from statecache.testing.valkey import Valkey
from tests.awaited import awaited

SHARDS = 4
ENGINE_S = 10.0
CONTAINER_S = 60.0
REDIS_IMAGE = "redis:7.4-alpine"
GIVEN_REDIS = os.environ.get("STATECACHE_TEST_REDIS_URL", "")
GIVEN_POSTGRES = os.environ.get("STATECACHE_TEST_POSTGRES_URL", "")

MakeSettings = Callable[..., Settings]
_numbers = count(1)


class Found(NamedTuple):
    """The kinds of Redis that the tests run on, and a line for each kind, found or not."""

    kinds: tuple[str, ...]
    notes: tuple[str, ...]


@lru_cache
def found() -> Found:
    """Look for servers, once."""
    if GIVEN_REDIS:
        return Found(("given",), ("redis: the one that STATECACHE_TEST_REDIS_URL names and no other",))
    kinds, notes = ["embedded"], ["redis embedded: the wheel's Valkey"]
    program = shutil.which("redis-server")
    if program:
        kinds.append("debian")
    notes.append(f"redis debian: {program or 'NOT TESTED, there is no redis-server on PATH'}")
    silence = _why_no_container()
    if not silence:
        kinds.append("docker")
    notes.append(f"redis docker: {f'NOT TESTED, {silence}' if silence else REDIS_IMAGE}")
    return Found(tuple(kinds), tuple(notes))


def _why_no_container() -> str:
    """Return why no container can be had, or ''; asked in another process, to keep its warnings apart."""
    sockets = [Path("/var/run/docker.sock"), Path.home() / ".docker/run/docker.sock"]
    if not os.environ.get("DOCKER_HOST") and not any(path.exists() for path in sockets):
        return "there is no container engine"
    ask = [sys.executable, "-c", "import docker; docker.from_env(timeout=3).ping()"]
    try:
        done = subprocess.run(ask, capture_output=True, timeout=ENGINE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the container engine does not answer within {ENGINE_S:g} s"
    return "" if done.returncode == 0 else "the container engine does not answer"


def pytest_report_header() -> list[str]:
    """Return lines that say on which servers the tests run."""
    where = "the one that STATECACHE_TEST_POSTGRES_URL names" if GIVEN_POSTGRES else "embedded"
    return [*found().notes, f"postgres: {where}"]


every_redis = pytest.mark.parametrize("redis_kind", found().kinds, indirect=True)
"""The mark that runs a test on every kind of Redis that was found."""


class Site:
    """A test process's shared servers, started when they are first asked for."""

    def __init__(self) -> None:
        self._ending = ExitStack()
        self._urls: dict[str, str] = {"given": GIVEN_REDIS}
        self._postgres_url = GIVEN_POSTGRES
        self._postgres: psycopg.Connection[Any] | None = None

    def redis_url(self, kind: str) -> str:
        """Return the URL of the Redis of that kind."""
        if kind == "embedded":
            self._start_embedded()
        elif kind == "debian" and kind not in self._urls:
            self._urls[kind] = self._started_on_path()
        elif kind == "docker" and kind not in self._urls:
            self._urls[kind] = self._started_in_container()
        return self._urls[kind]

    @property
    def postgres_url(self) -> str:
        """The URL of the Postgres."""
        if not self._postgres_url:
            self._start_embedded()
        return self._postgres_url

    @property
    def postgres(self) -> psycopg.Connection[Any]:
        """A connection that lasts from test to test, a new one where the last one was broken."""
        if self._postgres is None or self._postgres.closed:
            self._postgres = psycopg.connect(self.postgres_url, autocommit=True, prepare_threshold=None)
        return self._postgres

    def close(self) -> None:
        """End what was started."""
        if self._postgres is not None:
            self._postgres.close()
        self._ending.close()

    def _start_embedded(self) -> None:
        if "embedded" not in self._urls:
            started = self._ending.enter_context(servers(workers=0, migrate=False, fsync=False))
            self._urls["embedded"] = started.redis_url
            self._postgres_url = self._postgres_url or started.postgres_url

    def _started_on_path(self) -> str:
        folder = Throwaway.create(ordinary_user())
        self._ending.callback(folder.remove)
        server = Valkey(folder.path, binary=Path(shutil.which("redis-server") or ""))
        self._ending.callback(server.discard)
        server.start()
        return server.url

    def _started_in_container(self) -> str:
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(REDIS_IMAGE).with_exposed_ports(6379)
        container.with_command("redis-server --appendonly yes --save ''")
        self._ending.enter_context(container)
        url = f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/0"
        wait_until_it_answers(url, seconds=CONTAINER_S)
        return url


def plain_client(url: str, **more: Any) -> Any:
    """Return a redis-py client without retries."""
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **more)


def wait_until_it_answers(url: str, *, seconds: float = 20.0) -> None:
    """Wait until the Redis answers a PING; redis-py retries."""
    again = Retry(ConstantBackoff(0.1), round(seconds * 10))
    with redis.Redis.from_url(url, retry=again, retry_on_error=[redis.ConnectionError]) as client:
        client.ping()


def set_up(settings: Settings, postgres: psycopg.Connection[Any]) -> None:
    """Do what `migrate` does for a deployment that does not exist yet: the same statements, all in one exchange."""
    schema, keys = settings.postgres_schema, KeySpace(settings.prefix, settings.shards)
    pin = {"shards": keys.shards, "hash": HASH, "group_rule": GROUP_RULE, "prefix": keys.prefix, "min_code": CODE}
    steps = migrations(schema)
    with psycopg.ClientCursor(postgres) as cursor:
        note, pinning = (statement(name, schema).encode() for name in ("migrate_note", "migrate_pin"))
        texts = [statement("migrate_begin", schema), *(step.text for step in steps)]
        texts += [cursor.mogrify(note, {"number": step.number, "name": step.name}) for step in steps]
        texts += [cursor.mogrify(pinning, pin), statement("migrate_shards", schema)]
        cursor.execute(";\n".join(texts).encode())
    link = RedisTier(settings, keys).link()
    try:
        Gate(settings, keys, by="migrate", authority="setup").open(link, postgres, range(keys.shards))
    finally:
        link.close()


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """The servers that the tests of this process share."""
    shared = Site()
    yield shared
    shared.close()


@pytest.fixture
def redis_kind(request: pytest.FixtureRequest) -> str:
    """The kind of Redis that this test runs on: the first that was found, unless the test is marked every_redis."""
    return str(getattr(request, "param", found().kinds[0]))


@pytest.fixture
def make_settings(site: Site, redis_kind: str) -> Iterator[MakeSettings]:
    """A maker of settings: a migrated deployment of the test's own, few shards, on the shared servers or on others.

    Its clients read the primary, so that a story of two clients has one order; those of the near cache say otherwise.
    """
    made: list[Settings] = []

    def make(*, migrated: bool = True, **more: Any) -> Settings:
        name = f"t{os.getpid()}_{next(_numbers)}"
        given = {"shards": SHARDS, "prefix": name, "postgres_schema": name, "timeout_s": 30.0, "read": "primary"} | more
        if "redis_url" not in given:
            given["redis_url"] = site.redis_url(redis_kind)
        if "postgres_url" not in given:
            given["postgres_url"] = site.postgres_url
        settings = Settings(**given)
        if migrated and settings.postgres_url == site.postgres_url:
            set_up(settings, site.postgres)
        elif migrated:
            migrate(settings)
        made.append(settings)
        return settings

    yield make
    for settings in made:
        if settings.redis_url == GIVEN_REDIS or settings.postgres_url == GIVEN_POSTGRES:
            _remove(settings)


def _remove(settings: Settings) -> None:
    """Remove the deployment's keys and schema from somebody else's servers."""
    with plain_client(settings.redis_url) as client:
        for name in client.scan_iter(f"{settings.prefix}:*", count=1000):
            client.unlink(name)
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{settings.postgres_schema}" CASCADE'.encode())


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """The settings of a deployment of the test's own."""
    return make_settings()


@pytest.fixture
def keys(settings: Settings) -> KeySpace:
    """The Redis keys of the test's deployment."""
    return KeySpace(settings.prefix, settings.shards)


@pytest.fixture
async def cache(settings: Settings) -> AsyncIterator[AsyncStateCache]:
    """An asynchronous client."""
    async with AsyncStateCache(settings=settings) as client:
        yield client


@pytest.fixture
def sync_cache(settings: Settings) -> Iterator[StateCache]:
    """A synchronous client."""
    with StateCache(settings=settings) as client:
        yield client


MakeClient = Callable[..., AsyncStateCache]


@pytest.fixture(params=["async", "sync"])
async def make_client(request: pytest.FixtureRequest) -> AsyncIterator[MakeClient]:
    """A maker of clients: the test runs with the asynchronous one, and again with the synchronous one."""
    made: list[AsyncStateCache] = []

    def make(settings: Settings, **more: Any) -> AsyncStateCache:
        if request.param == "sync":
            made.append(awaited(StateCache(settings=settings, **more)))
        else:
            made.append(AsyncStateCache(settings=settings, **more))
        return made[-1]

    yield make
    for client in made:
        await client.close()


@pytest.fixture
def client(make_client: MakeClient, settings: Settings) -> AsyncStateCache:
    """A client of the test's deployment: the asynchronous one, and again the synchronous one."""
    return make_client(settings)


@pytest.fixture
def redis_raw(settings: Settings) -> Iterator[Any]:
    """A plain redis-py client of the test's Redis."""
    with plain_client(settings.redis_url) as client:
        yield client


@pytest.fixture
def psql(settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's Postgres, in its schema."""
    path = f"-c search_path={settings.postgres_schema}"
    with psycopg.connect(settings.postgres_url, autocommit=True, options=path) as connection:
        yield connection

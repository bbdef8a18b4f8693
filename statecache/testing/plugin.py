"""pytest fixtures for the tests of those who use statecache; installed with the package.

    def test_it(statecache_settings):                # a deployment of the test's own, empty, on real servers
        with StateCache(settings=statecache_settings) as cache: …

    def test_it(statecache_memory):                  # a deployment in this process alone
        with statecache_memory as cache: …

The servers are started at the first use and shared by the session. To change how they are started, define a session
fixture `statecache_server_options` that gives the arguments of `servers()`; to use servers of your own, define session
fixtures `statecache_redis_url` and `statecache_postgres_url`.
This module is imported in every pytest run, so it imports nothing else until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from statecache.settings import Settings
    from statecache.testing.deployments import Deployments
    from statecache.testing.embedded import Servers
    from statecache.testing.in_memory import Memory


@pytest.fixture(scope="session")
def statecache_server_options() -> dict[str, Any]:
    """The arguments of `statecache.testing.servers()`: one worker. Override it to change them."""
    return {"workers": 1}


@pytest.fixture(scope="session")
def statecache_servers(statecache_server_options: dict[str, Any]) -> Iterator[Servers]:
    """A throwaway Valkey and Postgres, migrated, with a worker, for the whole session."""
    from statecache.testing import servers

    with servers(**statecache_server_options) as started:
        yield started


@pytest.fixture(scope="session")
def statecache_redis_url(statecache_servers: Servers) -> str:
    """The URL of the session's throwaway Valkey."""
    return statecache_servers.redis_url


@pytest.fixture(scope="session")
def statecache_postgres_url(statecache_servers: Servers) -> str:
    """The URL of the session's throwaway Postgres."""
    return statecache_servers.postgres_url


@pytest.fixture(scope="session")
def _statecache_deployments(statecache_redis_url: str, statecache_postgres_url: str) -> Iterator[Deployments]:
    from statecache.testing.deployments import Deployments

    made = Deployments(statecache_redis_url, statecache_postgres_url)
    yield made
    made.close()


@pytest.fixture
def statecache_settings(_statecache_deployments: Deployments) -> Iterator[Settings]:
    """The settings of a deployment of the test's own, which begins empty: a prefix, a schema and a worker."""
    with _statecache_deployments.fresh() as settings:
        yield settings


@pytest.fixture
def statecache_memory() -> Memory:
    """A deployment in memory of the test's own, whose block is a client: `statecache.testing.memory()`."""
    from statecache.testing import memory

    return memory()

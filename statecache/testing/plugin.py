"""pytest fixtures for the tests of those who use statecache; installed with the package.

    def test_it(statecache_redis_url, statecache_postgres_url): …

The servers are started at the first use and shared by the session; give every test keys of its own. To change how they
are started, define a session fixture `statecache_server_options` that gives the arguments of `servers()`.
This module is imported in every pytest run, so it imports nothing else until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from statecache.testing.embedded import Servers


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

"""A primary with a replica, for what is acknowledged by copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from statecache import Settings
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.fix_servers import MakeSettings, plain_client


@pytest.fixture(scope="module")
def pair() -> Iterator[Servers]:
    """A Valkey with a replica, and a Postgres."""
    with servers(workers=0, fsync=False, settings={"shards": "4"}) as started:
        name = started.start_replica()
        with plain_client(started.url(name)) as replica:
            while replica.info("replication")["master_link_status"] != "up":
                pass
        yield started


@pytest.fixture
def paired(make_settings: MakeSettings, pair: Servers) -> Settings:
    """Settings of a deployment on the pair."""
    return make_settings(redis_url=pair.redis_url, postgres_url=pair.postgres_url)


@pytest.fixture
def pair_raw(pair: Servers) -> Iterator[Any]:
    """A plain client of the pair's primary."""
    with plain_client(pair.redis_url) as client:
        yield client

"""A deployment on servers with the files of config/, set up by its own services once for a module of tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deployment_world import KINDS, SHARDS, Deployment, servers


@pytest.fixture(scope="module", params=KINDS)
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """A deployment that was set up by its own services, in their order."""
    with servers(request.param) as made:
        made.run("roles")
        made.run("migrate", STATECACHE_SHARDS=str(SHARDS))
        made.run("grants")
        yield made


@pytest.fixture
def raw(deployment: Deployment) -> Iterator[Any]:
    """The operator's plain client."""
    with deployment.raw() as client:
        yield client

"""The persistences that are tested, and the flows that nobody has: fixtures, which `test_crewai` loads as a plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis

from statecache import StateCache
from statecache.adapters.crewai import StateCacheFlowPersistence

CONFIGURATION = os.environ.get("CONFIGURATION", "normal")
_numbers = count(1)


class Both:
    """Persistence as flows see it: every call is made on the next of its clients, every load after what is done."""

    def __init__(self, clients: list[StateCache]) -> None:
        self.clients = clients
        durability: Any = "postgres" if CONFIGURATION == "cold" else None
        self._persistences = [StateCacheFlowPersistence(one, durability=durability) for one in clients]
        self._turn = count()

    def next(self) -> StateCacheFlowPersistence:
        """Return the persistence for the next call."""
        if CONFIGURATION == "cold":
            self.forget()
        return self._persistences[next(self._turn) % len(self._persistences)]

    def forget(self) -> None:
        """Take all states of flows from Redis, all of which are durable."""
        settings = self.clients[0].settings
        with redis.Redis.from_url(settings.redis_url) as raw:
            for name in raw.scan_iter(f"{settings.prefix}:*:state:crewai/*"):
                raw.delete(name)


@pytest.fixture(scope="module")
def clients() -> Iterator[list[StateCache]]:
    """The clients, which read their settings from the environment."""
    made = [StateCache() for _ in range(2 if CONFIGURATION == "two clients" else 1)]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def both(clients: list[StateCache]) -> Both:
    """Return persistence on the clients."""
    return Both(clients)


@pytest.fixture
def flow_id() -> str:
    """Return the id of a flow that nobody has."""
    return f"{CONFIGURATION.replace(' ', '-')}-{os.getpid()}-{next(_numbers)}"

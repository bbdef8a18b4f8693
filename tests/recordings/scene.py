"""A deployment to record: servers, workers that serve their metrics, and an agent that works."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import redis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from statecache import Settings, StateCache, StateCacheError
from statecache.adapters.prometheus import PrometheusObserver
from statecache.keys import KeySpace
from statecache.model import Durability
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.fixtures.flusher import Agents
from tests.support.probing import ask

SHARDS = 4
WORKERS = "statecache-workers"
CLIENTS = "statecache-clients"
KEYS = 8
BETWEEN_S = 0.25

Scrape = dict[str, float]
"""The samples of one moment, by series as Prometheus writes it."""


class Scene:
    """Two workers and one agent on servers of their own; use it as a context manager."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._ending = ExitStack()
        self._over = threading.Event()
        self._ports: dict[str, int] = {}
        self._registry = CollectorRegistry()
        self.durability: Durability = "memory"

    def __enter__(self) -> Scene:
        settings = {"health_port": "0", "shards": str(SHARDS), "timeout_s": "5"} | self._options.pop("settings", {})
        self.servers: Servers = self._ending.enter_context(servers(workers=2, settings=settings, **self._options))
        self.settings = Settings(
            redis_url=self.servers.redis_url, postgres_url=self.servers.postgres_url, shards=SHARDS, timeout_s=5
        )
        self.keys = KeySpace(shards=SHARDS)
        self.raw = redis.Redis.from_url(self.servers.redis_url, driver_info=None)
        self.agents = Agents(self.settings, self.keys, self.raw)
        observer = PrometheusObserver(self._registry)
        self.client = self._ending.enter_context(StateCache(settings=self.settings, observer=observer))
        observer.watches(self.client)
        for number in (1, 2):
            self._ports[f"worker-{number}"] = self._listens(f"worker-{number}")
        self._agent = threading.Thread(target=self._work, name="agent", daemon=True)
        self._agent.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(StateCacheError):
            self._ending.close()

    def _listens(self, name: str) -> int:
        for line in self.servers.log(name).splitlines():
            if '"listening"' in line:
                return int(json.loads(line)["port"])
        raise AssertionError(f"{name} does not listen")

    def scrape(self) -> Scrape:
        """Ask every target as Prometheus does, and return all samples, `up` of each target among them."""
        found: Scrape = {}
        for name, port in self._ports.items():
            try:
                page = ask(port, "/metrics", timeout_s=3.0).body
            except OSError:
                page = ""
            found |= series_of(page, job=WORKERS, instance=f"{name}:9464")
        return found | series_of(generate_latest(self._registry).decode(), job=CLIENTS, instance="agent-1:9465")

    def sql(self, *statements: str) -> None:
        """Run statements in the schema, as its owner."""
        with psycopg.connect(self.servers.postgres_url, autocommit=True) as connection:
            connection.execute("SET search_path = statecache")
            for statement in statements:
                connection.execute(statement.encode())

    def flood(self, key: str, count: int) -> None:
        """Commit so many changes of one key, as fast as it goes."""
        for number in range(count):
            self.agents.ask((key, str(number)))

    def frozen(self, *works: Callable[[], Any]) -> None:
        """Do something while no worker runs on."""
        for pid in self.servers.worker_pids:
            os.kill(pid, signal.SIGSTOP)
        for work in works:
            work()
        for pid in self.servers.worker_pids:
            os.kill(pid, signal.SIGCONT)

    def aside(self, work: Callable[[], Any]) -> None:
        """Do something in a thread of its own; errors of statecache are what was to be seen."""

        def run() -> None:
            with suppress(StateCacheError):
                work()

        threading.Thread(target=run, daemon=True).start()

    def _work(self) -> None:
        """Write and read a few keys all the time, whatever happens."""
        number = 0
        while not self._over.wait(BETWEEN_S):
            number += 1
            key = f"runs/{number % KEYS}"
            with suppress(StateCacheError):
                self.client.set(key, {"step": number}, durability=self.durability)
                self.client.get(key)


def series_of(page: str, *, job: str, instance: str) -> Scrape:
    """Return the samples of a page of metrics with the labels of its target, and `up`."""
    target = f'instance="{instance}",job="{job}"'
    found = {f"up{{{target}}}": 1.0 if page else 0.0}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = "".join(f'{name}="{value}",' for name, value in sorted(sample.labels.items()))
            if not sample.name.endswith("_created"):
                found[f"{sample.name}{{{labels}{target}}}"] = sample.value
    return found

"""Two deployments, and somebody who is pointed at the wrong servers: production must not notice.

    make chaos PROFILE=deployments

Production is what every chaos has: writers, workers, both servers. Beside it stand a second deployment, with servers of
its own under the same prefix and schema, an empty Redis, and a replica of production's Redis. Then come, one after the
other, from a kind of two words,

    readers    clients that read keys that are there, that left Redis, and that never were
    agents     the same, and they write
    workers    `statecache worker`, for some seconds
    migrate    `statecache migrate`

    …_wrong_redis      with production's Postgres and the other deployment's Redis
    …_wrong_postgres   with production's Redis and the other deployment's Postgres
    …_empty            with production's Postgres and the empty Redis
    …_prefix, _schema  with production's servers, and another prefix, or another schema
    readers_detached   with production's Postgres and a replica that was detached: it may be opened, but by no reader

After each of them the epochs of both deployments are the same as before, none of their changes was set aside, nothing
was acknowledged to the stranger and nobody was shown the other's values. What production acknowledged is judged as
in every chaos.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, cast

import redis

from statecache import AsyncStateCache, Settings
from statecache.errors import StateCacheError
from statecache.settings import process_environment
from statecache.testing import servers
from statecache.testing.binaries import valkey_server
from statecache.testing.embedded import Servers
from statecache.testing.process import spawn
from statecache.testing.valkey import Valkey
from tests.simulation.arena import ROOT, SETTINGS, Arena
from tests.simulation.faults import Faults
from tests.simulation.nemesis import Strike
from tests.simulation.writer import KEYS

WORKS_S = 3.5
ENDS_S = 15.0
TIMEOUT_S = 0.5
REFUSED_S = 10.0
"""The timeout of who is refused as soon as Postgres has answered, however busy the machine is."""
OTHERS = "other"
"""How the other deployment's values are marked."""
WHO = ("readers", "agents", "workers", "migrate")
WHERE = ("wrong_redis", "wrong_postgres", "empty", "prefix", "schema")
KINDS = {f"{who}_{where}": (1.0, 0.0, 0.0) for who in WHO for where in WHERE} | {"readers_detached": (2.0, 0.0, 0.0)}
_ROWS = "SELECT shard, epoch, replid FROM statecache.shard ORDER BY shard"
_ASIDE = "SELECT (SELECT count(*) FROM statecache.conflict) + (SELECT count(*) FROM statecache.quarantine)"
Method = Callable[["DeploymentsFaults", Strike], Awaitable[bool]]


class DeploymentsArena(Arena):
    """Production, and beside it what somebody may be pointed at by mistake."""

    other: Servers
    empty: Valkey
    replica = ""

    async def prepare(self, ending: AsyncExitStack) -> None:
        """Start the other deployment, the empty Redis and the replica."""
        self.other = servers(workers=1, fsync=False, settings=dict(SETTINGS))
        await asyncio.to_thread(self.other.start)
        ending.callback(self.other.close)
        self.empty = Valkey(self.own.folder, binary=valkey_server(), name="empty")
        await asyncio.to_thread(self.empty.start)
        ending.callback(self.empty.discard)
        self.replica = await asyncio.to_thread(self.own.start_replica)
        async with AsyncStateCache(settings=self.with_other(self.settings)) as cache:
            for key in KEYS:
                await cache.set(key, {"by": OTHERS}, durability="postgres")

    def with_other(self, settings: Settings) -> Settings:
        """Return the same settings with both servers of the other deployment."""
        urls = {"redis_url": self.other.redis_url, "postgres_url": self.other.postgres_url}
        return settings.model_copy(update=urls)


class DeploymentsFaults(Faults):
    """Strangers come, one after the other."""

    @property
    def _here(self) -> DeploymentsArena:
        return cast("DeploymentsArena", self._arena)

    async def _come(self, who: str, where: str) -> bool:
        """Let a stranger come, and compare both deployments with what they were before."""
        here = self._here
        await self._opened()
        before = await asyncio.to_thread(self._standing)
        told: dict[str, Any] = {
            "wrong_redis": {"redis_url": here.other.redis_url},
            "wrong_postgres": {"postgres_url": here.other.postgres_url},
            "empty": {"redis_url": here.empty.url},
            "detached": {"redis_url": here.own.url(here.replica)},
            "prefix": {"prefix": "another"},
            "schema": {"postgres_schema": "another"},
        }[where]
        timeout_s = REFUSED_S if where.startswith("wrong") else TIMEOUT_S
        timeouts = {"timeout_s": timeout_s, "connect_timeout_s": max(timeout_s, here.settings.connect_timeout_s)}
        settings = here.direct.model_copy(update=told | timeouts | {"writer": "a stranger"})
        await {"readers": self._readers, "agents": self._agents, "workers": self._workers, "migrate": self._migrates}[
            who
        ](settings, f"{who} with {where}")
        after = await asyncio.to_thread(self._standing)
        for name, was in before.items():
            if after[name] != was:
                changed = [f"{one} became {two}" for one, two in zip(was, after[name], strict=True) if one != two]
                self.findings.append(f"taken over: {who} with {where} changed {name}: {changed[:3]}")
        if after != before:  # else nothing else could be seen any more
            await here.adopt()
        with redis.Redis.from_url(here.empty.url) as raw:
            raw.flushall()
        return True

    async def _detached(self, strike: Strike) -> bool:
        here = self._here
        with redis.Redis.from_url(here.own.url(here.replica)) as raw:
            raw.execute_command("REPLICAOF", "NO", "ONE")
            try:
                return await self._come("readers", "detached")
            finally:
                raw.execute_command("REPLICAOF", "127.0.0.1", here.own.redis_url.rpartition(":")[2].partition("/")[0])

    def _standing(self) -> dict[str, list[Any]]:
        """Return the shards' epochs of both deployments, and how much was set aside."""
        found: dict[str, list[Any]] = {}
        for name, url in (("production", self._here.postgres_url), ("the other", self._here.other.postgres_url)):
            with self._arena.postgres(url) as connection:
                found[f"the epochs of {name}"] = [*connection.execute(_ROWS.encode())]
                found[f"what {name} set aside"] = [*connection.execute(_ASIDE.encode())]
        return found

    # Who comes.

    async def _readers(self, settings: Settings, what: str) -> None:
        async with AsyncStateCache(settings=settings) as cache:
            for key in (KEYS[0], f"{KEYS[0]}/never"):
                for mode in ("primary", "fenced"):
                    with suppress(StateCacheError):
                        state = await cache.get(key, read=cast("Any", mode))
                        self._shown(what, key, state)
            with suppress(StateCacheError):
                async for state in cache.list("runs/"):
                    self._shown(what, state.key, state)

    def _shown(self, what: str, key: str, state: Any) -> None:
        others = state is not None and isinstance(state.value, dict) and state.value.get("by") == OTHERS
        if others:
            self.findings.append(f"shown: {what} were shown the other deployment's value of {key}")

    async def _agents(self, settings: Settings, what: str) -> None:
        await self._readers(settings, what)
        async with AsyncStateCache(settings=settings) as cache:
            for key in KEYS[:2]:
                for level in ("memory", "postgres"):
                    with suppress(StateCacheError):
                        state = await cache.set(key, {"by": "a stranger"}, durability=cast("Any", level))
                        self.findings.append(f"acknowledged: {what}, {key} at {level} as {state.change_id}")
            with suppress(StateCacheError):
                state = await cache.create("new/of-a-stranger", {"by": "a stranger"}, assume_new=True)
                self.findings.append(f"acknowledged: {what}, {state.key} as {state.change_id}")

    async def _workers(self, settings: Settings, what: str) -> None:
        process = spawn(
            [sys.executable, "-m", "statecache", "worker"], name=what.replace(" ", "-"), folder=self._here.folder,
            environment=self._environment(settings), cwd=ROOT,
        )  # fmt: skip
        await self._wait(WORKS_S)
        process.send(signal.SIGTERM)
        if not await asyncio.to_thread(process.wait, ENDS_S):
            self.findings.append(f"stuck: {what} did not end {ENDS_S:g} s after SIGTERM")
            process.kill()

    async def _migrates(self, settings: Settings, what: str) -> None:
        process = spawn(
            [sys.executable, "-m", "statecache", "migrate"], name=what.replace(" ", "-"), folder=self._here.folder,
            environment=self._environment(settings), cwd=ROOT,
        )  # fmt: skip
        if not await asyncio.to_thread(process.wait, ENDS_S):
            process.kill()
        if process.returncode == 0:
            self.findings.append(f"migrated: {what} ended well: {process.tail()[-200:]}")

    def _environment(self, settings: Settings) -> dict[str, str]:
        urls = {name: getattr(settings, name) for name in ("redis_url", "postgres_url", "prefix", "postgres_schema")}
        named = {**self._here.given, **urls}
        return process_environment() | {f"STATECACHE_{name.upper()}": value for name, value in named.items()}


def _comes(who: str, where: str) -> Method:
    async def come(self: DeploymentsFaults, strike: Strike) -> bool:
        return await self._come(who, where)

    return come


for _who in WHO:
    for _where in WHERE:
        setattr(DeploymentsFaults, f"_{_who}_{_where}", _comes(_who, _where))
DeploymentsFaults._readers_detached = DeploymentsFaults._detached  # type: ignore[attr-defined]

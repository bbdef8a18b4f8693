"""Where servers change their roles: a primary and two replicas, and before them an address that moves.

    writer ──▶ proxy ─┐                  ┌─ proxy ◀── replica
                      ├─▶ the primary ◀──┤
    worker ──▶ proxy ─┘                  └─ proxy ◀── replica

A proxy leads new connections to where the address points; those that stand stay with their server, whatever has become
of it. Each server replicates through a proxy of its own. The two workers have proxies of their own, so that one of
them can be forgotten where the address moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import redis

from statecache.clock import monotonic
from statecache.testing.embedded import Servers
from statecache.testing.server import Server
from tests.simulation.arena import EXPECTED_ERRORS, LINES, SETTINGS, WORKER_LINE, WRITERS, Arena
from tests.simulation.roles_writer import NODES_FILE
from tests.support.fault_proxy import FaultProxy

NODES = ("redis", "replica-1", "replica-2")
SECOND_WORKER = "worker-2nd"
READER = "r0"
WINDOW_S = 1.0
IN_STEP_S = 10.0
LOOK_S = 0.02


class RolesArena(Arena):
    """The servers, who is the primary, and where each address points."""

    names = (*WRITERS, READER)
    lines = (*LINES, READER, SECOND_WORKER)
    given = SETTINGS | {"near_window_s": str(WINDOW_S)}
    writer = "tests.simulation.roles_writer"
    expected_errors = (*EXPECTED_ERRORS, "DurabilityRefused")
    behind = frozenset({"local", "primary"})

    def __init__(self, own: Servers, folder: Path, seed: int) -> None:
        super().__init__(own, folder, seed)
        self.primary = NODES[0]
        self.feeds: dict[str, FaultProxy] = {}
        self.forgotten: frozenset[str] = frozenset()
        """Whose address does not move any more, so that it points at `left_alone`."""
        self.left_alone = ""
        self._workers_behind: dict[str, str] = {}

    @property
    def primary_server(self) -> Server:
        """The Redis that is the primary."""
        return self.own._server(self.primary)

    @property
    def others(self) -> list[str]:
        """The servers that are no primary."""
        return [name for name in NODES if name != self.primary]

    def worker_line(self, name: str) -> str:
        """Return whose proxies the worker of that name uses: each has its own."""
        busy = [line for other, line in self._workers_behind.items() if other in self.workers]
        line = SECOND_WORKER if WORKER_LINE in busy else WORKER_LINE
        self._workers_behind[name] = line
        return line

    async def prepare(self, ending: AsyncExitStack) -> None:
        """Start the replicas, each behind its proxy."""
        for name in NODES:
            feed = FaultProxy("127.0.0.1", self.port(self.primary), keep=False)
            self.feeds[name] = await ending.enter_async_context(feed)
        for _ in NODES[1:]:
            name = await asyncio.to_thread(self.own.start_replica)
            self.own._server(name)._config.pop("replicaof")  # type: ignore[attr-defined]  # its role is not its file's
        (self.folder / NODES_FILE).write_text("\n".join(self.own.url(name) for name in NODES))
        for name in self.others:
            await self.follow(name)
        if not await self.in_step(self.others):
            raise RuntimeError("the replicas did not get what the primary has")

    def port(self, name: str) -> int:
        """Return the port of a server, past the proxies."""
        return int(self.own.url(name).rpartition(":")[2].partition("/")[0])

    # Asking and telling servers.

    async def ask(self, name: str, *command: Any, seconds: float = 2.0) -> Any:
        """Send a command to one server, past the proxies."""

        def run() -> Any:
            with redis.Redis.from_url(
                self.own.url(name), socket_timeout=seconds, socket_connect_timeout=seconds, retry=None
            ) as raw:
                return raw.execute_command(*command)

        return await asyncio.to_thread(run)

    async def offset(self, name: str) -> int:
        """Return how far a server has got in the primary's log."""
        told = await self.ask(name, "INFO", "replication")
        if told["role"] == "slave":
            return int(told["slave_repl_offset"]) if told["master_link_status"] == "up" else -1
        return int(told["master_repl_offset"])

    async def in_step(self, names: Iterable[str], *, seconds: float = IN_STEP_S) -> bool:
        """Wait until these servers have what the primary has now, and say whether that came about."""
        wanted, end = await self.offset(self.primary), monotonic() + seconds
        behind = set(names)
        while behind and monotonic() < end:
            for name in list(behind):
                try:
                    if await self.offset(name) >= wanted:
                        behind.discard(name)
                except redis.RedisError:  # it is loading what the primary has sent
                    continue
            await self.while_waiting(LOOK_S)
        return not behind

    # Roles and addresses.

    async def follow(self, name: str) -> None:
        """Make a server a replica of the primary, through its proxy."""
        feed = self.feeds[name]
        feed.thaw()
        feed.delay_s = 0.0
        feed.retarget("127.0.0.1", self.port(self.primary))
        feed.cut_all()
        await self.ask(name, "REPLICAOF", "127.0.0.1", feed.port)

    def move(self, lines: Iterable[str] | None = None, *, cut: bool = False) -> None:
        """Let the address of these processes, or of all, point at the primary; connections stay unless they are cut."""
        for line in {*(self.lines if lines is None else lines)} - self.forgotten:
            proxy = self.proxies[line, "redis"]
            proxy.retarget("127.0.0.1", self.port(self.primary))
            if cut:
                proxy.cut_all()

    async def promoted(self, name: str) -> None:
        """Make a replica the primary, as a person or a sentinel does."""
        await self.ask(name, "REPLICAOF", "NO", "ONE")
        self.primary = name

    async def heal_servers(self) -> None:
        """Let every server run: the primary alone is one, and all others follow it."""
        if self.own.pid("postgres") is None:
            await self.restart("postgres")
        self.own.resume("postgres")
        for name in (self.primary, *self.others):
            self.own.resume(name)
            if self.own.pid(name) is None:
                await self.restart(name)
        self.move()
        for name in self.others:
            if not self.forgotten or name != self.left_alone:
                await self.follow(name)

    def keep_logs(self) -> None:
        """Copy the servers' logs to where the journals are."""
        super().keep_logs()
        for name in NODES[1:]:
            (self.folder / f"{name}.log").write_text(self.own.log(name))

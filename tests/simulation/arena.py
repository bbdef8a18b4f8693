"""Where the chaos takes place: servers of its own, proxies in front of them, writer and worker processes.

    writer ──▶ proxy ──▶ Valkey (appendfsync always)      each writer, and the workers together, have a proxy of their
    worker ──▶ proxy ──▶ Postgres                         own before each of the two servers

Whatever the nemesis did is undone by `heal`. All processes end with this one, by their pids.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import psycopg
import redis

from statecache.keys import KeySpace
from statecache.settings import Settings, process_environment
from statecache.testing import servers
from statecache.testing.embedded import Servers
from statecache.testing.process import Process, spawn
from statecache.testing.server import Server
from tests.fixtures.faults import through
from tests.simulation.writer import KEYS
from tests.support.fault_proxy import FaultProxy

ROOT = Path(__file__).resolve().parents[2]
WRITERS = ("w0", "w1", "w2")
SYNC_WRITER = "w2"
WORKER_LINE = "worker"
LINES = (*WRITERS, WORKER_LINE)
"""Who has proxies of their own; the workers share theirs."""
EXPECTED_ERRORS = (
    "OutcomeUnknown", "DurabilityNotMet", "VersionConflict", "AlreadyExists", "NotFound", "Forked", "Unavailable",
    "RedisUnavailable", "PostgresUnavailable", "Backpressure", "CancelledError", "Lost", "AlreadyCurrent",
    "VersionNotFound", "HistoryIncomplete", "CheckpointExists",
)  # fmt: skip
"""What a writer may be told under faults; anything else says something false of them."""
SESSIONS = 4
WORKERS = 2
SHARDS = 8
END_S = 12.0
SETTINGS = {
    "shards": str(SHARDS),
    "lease_s": "2",
    "lease_renew_s": "0.5",
    "timeout_s": "4",
    "connect_timeout_s": "2",
    "hydrate_token_s": "0.3",
    "reservation_s": "1.5",
    "retention_s": "2",
    "redis_ttl_s": "600",
    "absent_ttl_s": "5",
    "drain_s": "5",
}


class Arena:
    """All parts of one run; `crashes` names the processes that ended by themselves."""

    names: tuple[str, ...] = WRITERS
    lines: tuple[str, ...] = LINES
    given: Mapping[str, str] = SETTINGS
    workers_max = WORKERS
    writer = "tests.simulation.writer"
    watched: tuple[str, ...] = KEYS
    expected_errors: tuple[str, ...] = EXPECTED_ERRORS
    behind: frozenset[str] = frozenset({"local"})
    """The modes of reads that may be older than what had returned before they began."""
    aside: tuple[str, ...] = ()
    """How keys begin that no journal has; they are judged by the profile."""
    redis_server: Path | None = None
    postgres_config: Mapping[str, str] = {}

    def __init__(self, own: Servers, folder: Path, seed: int) -> None:
        self.own = own
        self.folder = folder
        self.seed = seed
        self.settings = Settings(
            **{name: float(value) if "." in value else int(value) for name, value in self.given.items()},
            redis_url=own.redis_url, postgres_url=own.postgres_url,
        )  # fmt: skip
        self.keys = KeySpace(self.settings.prefix, self.settings.shards)
        self.proxies: dict[tuple[str, str], FaultProxy] = {}
        self.writers: dict[str, Process] = {}
        self.workers: dict[str, Process] = {}
        self.lives: dict[str, int] = {}
        self.ran: dict[str, Path] = {}
        self.crashes: list[str] = []
        self.redis_turn = asyncio.Lock()
        self.postgres_turn = asyncio.Lock()

    @classmethod
    def lacking(cls) -> str:
        """Return what this machine lacks for it; nothing where it has all."""
        return ""

    # Processes.

    def tree(self, name: str) -> Path:
        """Return the tree whose code a writer or worker runs."""
        return ROOT

    def environment(self, line: str, tree: Path = ROOT) -> dict[str, str]:
        """Return the environment of a process behind these proxies."""
        aimed = through(self.settings, redis=self.proxies[line, "redis"], postgres=self.proxies[line, "postgres"])
        named = {**self.given, "redis_url": aimed.redis_url, "postgres_url": aimed.postgres_url}
        code = {} if tree == ROOT else {"PYTHONPATH": f"{tree}:{tree / 'workers'}"}
        return process_environment() | code | {f"STATECACHE_{name.upper()}": value for name, value in named.items()}

    def start_writer(self, name: str) -> None:
        """Start the next life of a writer."""
        life = self.lives[name] = self.lives.get(name, -1) + 1
        called = f"{name}-{life}"
        tree = self.tree(name)
        self.writers[name] = spawn(
            self.command(name, called), name=called, folder=self.folder, environment=self.environment(name, tree),
            cwd=tree,
        )  # fmt: skip

    def command(self, name: str, called: str) -> list[str | Path]:
        """Return the command line of one life of a writer."""
        kind = "sync" if name == SYNC_WRITER else "async"
        return [
            sys.executable, "-m", self.writer, self.folder, called, str(self.seed), str(SESSIONS), kind,
        ]  # fmt: skip

    def journal(self, writer: Process) -> Path:
        """Return the path of a writer's journal; the writer handles signals once that file exists."""
        return self.folder / f"{writer.name}.jsonl"

    def start_worker(self) -> None:
        """Start one more worker."""
        number = self.lives["worker"] = self.lives.get("worker", 0) + 1
        name = f"worker-{number}"
        command = [sys.executable, "-m", "statecache", "worker"]
        tree = self.ran[name] = self.tree(name)
        environment = self.environment(self.worker_line(name), tree)
        self.workers[name] = spawn(command, name=name, folder=self.folder, environment=environment, cwd=tree)

    def worker_line(self, name: str) -> str:
        """Return whose proxies the worker of that name uses."""
        return WORKER_LINE

    def look_after(self) -> None:
        """Restart the processes that ended by themselves, and remember them as crashes."""
        for name, process in list(self.writers.items()):
            if not process.is_running():
                self.crashes.append(f"{process.name} ended with {process.returncode}: {_last(process)}")
                self.start_writer(name)
        for name, process in list(self.workers.items()):
            if not process.is_running():
                if not self.may_end(process):
                    self.crashes.append(f"{name} ended with {process.returncode}: {_last(process)}")
                del self.workers[name]
                self.start_worker()

    def may_end(self, worker: Process) -> bool:
        """Say whether a worker had to end by itself."""
        return False

    @property
    def all_are_ready(self) -> bool:
        """Whether every worker has said that it is ready."""
        return all(b'"ready"' in process.written() for process in self.workers.values())

    async def ready(self) -> None:
        """Wait until every worker has said that it is ready, restarting those that end."""
        async with asyncio.timeout(60):
            while not self.all_are_ready:
                self.look_after()
                await self.while_waiting(0.05)

    async def writing(self) -> None:
        """Wait until every writer has begun to write."""
        async with asyncio.timeout(60):
            while not all(_begun(self.journal(process)) for process in self.writers.values()):
                self.look_after()
                await self.while_waiting(0.05)

    async def while_waiting(self, seconds: float) -> None:
        """Let that many seconds pass; the proxies go on meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.Event().wait()

    # Servers, directly.

    def redis(self, *, seconds: float = 2.0) -> redis.Redis:
        """Connect to Valkey directly, past all proxies."""
        return redis.Redis.from_url(self.redis_url, socket_timeout=seconds, socket_connect_timeout=seconds, retry=None)

    @property
    def direct(self) -> Settings:
        """The settings of who asks the primary and Postgres past the proxies."""
        return self.settings.model_copy(update={"redis_url": self.redis_url, "postgres_url": self.postgres_url})

    @property
    def primary_server(self) -> Server:
        """The Redis that is the primary."""
        return self.own._server("redis")

    @property
    def redis_url(self) -> str:
        """The URL of the primary, past the proxies."""
        return self.primary_server.url

    @property
    def database(self) -> Server:
        """The Postgres that is the primary."""
        return self.own._server("postgres")

    @property
    def postgres_url(self) -> str:
        """The URL of the Postgres, past the proxies."""
        return self.database.url

    def postgres(self, url: str = "") -> psycopg.Connection[tuple[object, ...]]:
        """Connect to Postgres directly, past all proxies, or to the server at `url`."""
        return psycopg.connect(
            url or self.postgres_url, autocommit=True, connect_timeout=2, application_name="nemesis",
            client_encoding="utf8", options="-c default_transaction_read_only=off",
        )  # fmt: skip

    async def statecache(self, *command: str, **more: str) -> tuple[int | None, str]:
        """Run a command of the product, past the proxies, and return its exit status and what it said."""
        named = {**self.given, "redis_url": self.redis_url, "postgres_url": self.postgres_url, **more}
        environment = process_environment() | {f"STATECACHE_{name.upper()}": value for name, value in named.items()}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "statecache", *command, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await process.communicate()
        return process.returncode, said.decode(errors="replace")

    async def adopt(self) -> tuple[int | None, str]:
        """Give an operator's word that this Redis takes the place of whatever server the rows name."""

        def named() -> list[str]:
            query = f"SELECT DISTINCT replid FROM {self.settings.postgres_schema}.shard"
            with self.postgres() as connection:
                return [str(replid) for (replid,) in connection.execute(query.encode())]

        given_up = await asyncio.to_thread(named)
        return await self.statecache("epoch", "adopt", "all", *(f"--from={replid}" for replid in given_up))

    async def restart(self, name: str) -> None:
        """Start a killed server again, in a thread, so that the loop goes on."""
        await asyncio.to_thread(self.own.restart, name)

    # The end.

    async def heal(self) -> None:
        """Undo every fault that may still be in force."""
        for proxy in self.proxies.values():
            proxy.refusing = proxy.silent = proxy.trickle = False
            proxy.delay_s = 0.0
            proxy.thaw()
        for process in (*self.writers.values(), *self.workers.values()):
            process.resume()
        await self.heal_servers()
        with self.redis(seconds=10) as raw:
            raw.config_set("maxmemory", 0)
        self.look_after()

    async def heal_servers(self) -> None:
        """Let every server run, in its role."""
        for server in (self.own._server("redis"), self.database):
            if server.pid is None:
                await asyncio.to_thread(server.restart)
            server.resume()

    async def prepare(self, ending: AsyncExitStack) -> None:
        """Start what belongs to it beside the two servers; the proxies stand already."""

    async def end_writers(self) -> None:
        """End the writers after their current operations; one that does not end is killed and counts as a crash.

        A writer that has no journal yet does not handle signals: it is killed, and no crash.
        """
        for name, process in list(self.writers.items()):
            if not self.journal(process).exists():
                self.writers.pop(name).kill()
        await self._end(self.writers)

    async def end_workers(self) -> None:
        """Let the workers drain and sign off."""
        await self._end(self.workers)

    async def _end(self, processes: dict[str, Process]) -> None:
        for process in processes.values():
            process.send(signal.SIGTERM)
        for process in processes.values():
            if not await asyncio.to_thread(process.wait, END_S):
                self.crashes.append(f"{process.name} did not end: {_last(process)}")
                process.kill()
            elif process.returncode:
                self.crashes.append(f"{process.name} ended with {process.returncode}: {_last(process)}")
        processes.clear()

    def keep_logs(self) -> None:
        """Copy the servers' logs to the folder of the journals."""
        for name in ("redis", "postgres"):
            shutil.copy(self.own.folder / f"{name}.log", self.folder / f"{name}.log")


def _last(process: Process) -> str:
    return process.tail()[-1500:]


A = TypeVar("A", bound=Arena)


@asynccontextmanager
async def arena(folder: Path, seed: int, kind: type[A]) -> AsyncIterator[A]:
    """Start servers, proxies, writers and workers, and end them with the block."""
    own = servers(
        workers=0,
        appendfsync="always",
        settings=dict(kind.given),
        redis_server=kind.redis_server,
        redis_config={"enable-debug-command": "yes", "maxmemory-policy": "volatile-lru"},
        postgres_config=dict(kind.postgres_config),
    )
    async with AsyncExitStack() as ending:
        await asyncio.to_thread(own.start)
        ending.callback(own.close)
        here = kind(own, folder, seed)
        for line in here.lines:
            for name, url in (("redis", own.redis_url), ("postgres", own.postgres_url)):
                parts = urlsplit(url)
                proxy = FaultProxy(parts.hostname or "", parts.port or 0, keep=False)
                here.proxies[line, name] = await ending.enter_async_context(proxy)
        ending.callback(_kill_all, here)
        await here.prepare(ending)
        for _ in range(here.workers_max):
            here.start_worker()
        await here.ready()
        for name in here.names:
            here.start_writer(name)
        await here.writing()
        yield here


def _begun(journal: Path) -> bool:
    return journal.exists() and journal.stat().st_size > 0


def _kill_all(here: Arena) -> None:
    for process in (*here.writers.values(), *here.workers.values()):
        process.kill()

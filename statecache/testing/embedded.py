"""A Valkey, a Postgres and workers in a throwaway folder.

    <temporary>/statecache-xxxx/   redis.conf redis.log redis/    postgres.log postgres/data/    worker-1.log …

Whatever ends this process, the servers end with it: in the orderly way by `close`, at exit, and otherwise by the death
signals of `launch.py`; the folder of a killed process goes at the next start. They are started, and closed, by one
process only: a forked child may use the URLs and closes nothing.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import msgspec

from statecache.disk_space import full_disks_told
from statecache.errors import UsageError
from statecache.testing.binaries import postgres_install, valkey_server
from statecache.testing.folders import Throwaway, ordinary_user
from statecache.testing.postgres import Postgres
from statecache.testing.process import RunAs
from statecache.testing.server import Server
from statecache.testing.valkey import Valkey
from statecache.testing.workers import Workers, migrate

_PREFIX = "STATECACHE_"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `servers()`; see there."""

    workers: int = 1
    migrate: bool = True
    appendfsync: str = "everysec"
    fsync: bool = True
    redis_server: Path | None = None
    settings: Mapping[str, str] = {}
    redis_config: Mapping[str, str] = {}
    postgres_config: Mapping[str, str] = {}


class _Parts(msgspec.Struct, frozen=True):
    folder: Throwaway
    servers: dict[str, Server]
    redis: Valkey
    postgres: Postgres
    workers: Workers


class Servers:
    """The embedded servers: a context manager, also to be used by `start()` and `close()`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._owner = os.getpid()
        self._held: _Parts | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start Valkey and Postgres, migrate, start the workers, and return when all are ready."""
        if self._held is not None:
            raise UsageError("the servers have been started already")
        run_as = ordinary_user()
        folder = Throwaway.create(run_as)
        try:
            self._held = self._assembled(folder, run_as)
        except BaseException:  # an interrupt too must not leave the folder behind
            folder.remove()
            raise
        self._owner = os.getpid()
        atexit.register(self.close)
        try:
            with full_disks_told(folder.path):
                self._start_parts(self._held)
        except BaseException:  # an interrupt too must not leave servers behind
            self.close()
            raise

    def _start_parts(self, parts: _Parts) -> None:
        parts.redis.start()
        parts.postgres.start()
        if self.options.migrate:
            migrate(self.environment())
        parts.workers.start(self.options.workers)

    def close(self) -> None:
        """End all of it and remove the folder; repeated, or in a forked child, do nothing."""
        parts = self._held
        if parts is None or os.getpid() != self._owner:
            return
        self._held = None
        atexit.unregister(self.close)
        with ExitStack() as ending:  # the last one first, and all of them whatever happens
            ending.callback(parts.folder.remove)
            for server in parts.servers.values():
                ending.callback(server.discard)
            ending.callback(parts.workers.kill_all)

    @property
    def redis_url(self) -> str:
        """The URL of the Valkey."""
        return self._parts.redis.url

    @property
    def postgres_url(self) -> str:
        """The URL of the Postgres."""
        return self._parts.postgres.url

    @property
    def folder(self) -> Path:
        """The throwaway folder, with logs and data; it goes with `close()`."""
        return self._parts.folder.path

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The pids of the workers that run, oldest first."""
        return self._parts.workers.pids

    def environment(self) -> dict[str, str]:
        """Return the STATECACHE_* variables with which a child process finds these servers."""
        named = {"redis_url": self.redis_url, "postgres_url": self.postgres_url, **self.options.settings}
        return {_variable(name): value for name, value in named.items()}

    def start_workers(self, count: int = 1) -> None:
        """Start that many more workers, and return when all of them are ready."""
        self._parts.workers.start(count)

    def stop_workers(self) -> list[int]:
        """Stop all workers with SIGTERM, which lets them drain, and return their exit statuses."""
        return self._parts.workers.stop()

    def kill_worker(self, index: int = 0) -> int:
        """Kill one of the running workers with SIGKILL, the oldest by default, and return its pid."""
        return self._parts.workers.kill(index)

    def start_replica(self) -> str:
        """Start a replica of the Valkey, and return its name (`replica-1`), by which it can be killed as well."""
        parts = self._parts
        name = f"replica-{len(parts.servers) - 1}"
        replica = parts.servers[name] = parts.redis.replica(name)
        replica.start()
        return name

    def url(self, name: str) -> str:
        """Return the URL of `redis`, `postgres` or a replica."""
        return self._server(name).url

    def pid(self, name: str) -> int | None:
        """Return the pid of `redis`, `postgres` or a replica; None while it does not run."""
        return self._server(name).pid

    def stop(self, name: str) -> None:
        """Stop `redis`, `postgres` or a replica in the orderly way; its data stay."""
        self._server(name).stop()

    def kill(self, name: str) -> None:
        """Kill `redis`, `postgres` or a replica, all its processes at once, with SIGKILL."""
        self._server(name).kill()

    def restart(self, name: str) -> None:
        """Start `redis`, `postgres` or a replica again, after stopping it if it runs: same port, same data."""
        self._server(name).restart()

    def pause(self, name: str) -> None:
        """Freeze `redis`, `postgres` or a replica with SIGSTOP."""
        self._server(name).pause()

    def resume(self, name: str) -> None:
        """Let a frozen server go on."""
        self._server(name).resume()

    def log(self, name: str) -> str:
        """Return what `redis`, `postgres`, a replica or a worker (`worker-1`) has logged."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    @property
    def _parts(self) -> _Parts:
        if self._held is None:
            raise UsageError("the servers are not started", hint="Use them inside `with servers() as s:`.")
        return self._held

    def _server(self, name: str) -> Server:
        known = self._parts.servers
        if name not in known:
            raise UsageError(f"there is no server {name!r}", hint=f"There are: {', '.join(known)}.")
        return known[name]

    def _assembled(self, folder: Throwaway, run_as: RunAs | None) -> _Parts:
        options = self.options
        redis = Valkey(
            folder.path,
            binary=options.redis_server or valkey_server(),
            appendfsync=options.appendfsync,
            config=options.redis_config,
        )
        postgres = Postgres(
            folder.path,
            install=postgres_install(run_as, scratch=folder.path),
            run_as=run_as,
            scratch=folder.path,
            fsync=options.fsync,
            config=options.postgres_config,
        )
        workers = Workers(folder.path, self.environment)
        return _Parts(folder, {"redis": redis, "postgres": postgres}, redis, postgres, workers)


def _variable(name: str) -> str:
    upper = name.upper()
    return upper if upper.startswith(_PREFIX) else _PREFIX + upper

"""Where Postgres is what fails: it can be copied and put back, have a standby that is promoted, and run out of room.

The proxies before Postgres lead new connections to the one that is the primary; writers read its URL from a file when
they look past the product at what it holds.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, cast

import psycopg

from statecache.clock import monotonic
from statecache.testing.binaries import postgres_install, run_to_its_end
from statecache.testing.embedded import Servers
from statecache.testing.folders import give_to, ordinary_user
from statecache.testing.postgres import Postgres
from tests.simulation.arena import EXPECTED_ERRORS, SETTINGS, Arena
from tests.simulation.postgres_writer import EVERY_GROUP, URL_FILE
from tests.support.fault_proxy import FaultProxy

RETENTION_S = 10.0
BACKUP_S = 60.0
CAUGHT_UP_S = 10.0
LOOK_S = 0.05
SMALL = "small"
SMALL_MIB = 12
"""The size of the disk that gets full."""


class Standby(Postgres):
    """A Postgres that follows another one through a proxy until it is promoted."""

    def _is_ready(self) -> bool:
        with suppress(OSError, IndexError, ValueError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]) == self.pid and lines[7].strip() in ("ready", "standby")
        return False


class PostgresArena(Arena):
    """The Postgres that is the primary, its copies and its standby."""

    given = SETTINGS | {"retention_s": str(RETENTION_S), "timeout_s": "3"}
    writer = "tests.simulation.postgres_writer"
    watched = tuple(key for group in EVERY_GROUP.values() for key in group)
    expected_errors = (*EXPECTED_ERRORS, "Lost")

    def __init__(self, own: Servers, folder: Path, seed: int) -> None:
        super().__init__(own, folder, seed)
        self._database = cast("Postgres", own._server("postgres"))
        self._feed: FaultProxy | None = None
        self._ending: AsyncExitStack | None = None
        self._numbers = 0

    @property
    def database(self) -> Postgres:
        """The Postgres that is the primary."""
        return self._database

    async def prepare(self, ending: AsyncExitStack) -> None:
        """Write down where the primary is; standbys end with the run."""
        self._ending = ending
        ending.callback(self.remove_small_disk)
        self.lead()

    def lead(self) -> None:
        """Lead new connections, and who looks past the product, to the primary."""
        for line in self.lines:
            self.proxies[line, "postgres"].retarget("127.0.0.1", self.database.port)
        fresh = self.folder / f"{URL_FILE}.new"
        fresh.write_text(self.database.url)
        fresh.replace(self.folder / URL_FILE)

    # Copies of the data folder.

    async def copied(self, name: str) -> Path:
        """Kill the primary, copy what it holds, start it again, and return the copy: a backup of this moment."""
        copy = self.own.folder / name
        await asyncio.to_thread(self.database.kill)
        await asyncio.to_thread(_copy, self.database.data, copy)
        await asyncio.to_thread(self.database.restart)
        return copy

    async def put_back(self, copy: Path) -> None:
        """Kill the primary and start it with what the copy holds."""
        await asyncio.to_thread(self.database.kill)
        await asyncio.to_thread(shutil.rmtree, self.database.data)
        await asyncio.to_thread(_copy, copy, self.database.data)
        await asyncio.to_thread(self.database.restart)

    # Standbys.

    async def standby(self) -> Standby:
        """Start a standby of the primary, behind a proxy of its own, and return when it has everything."""
        assert self._ending is not None
        self._numbers += 1
        self._feed = await self._ending.enter_async_context(FaultProxy("127.0.0.1", self.database.port, keep=False))
        standby = await asyncio.to_thread(self._base_backup, f"standby-{self._numbers}", self._feed.port)
        self._ending.callback(standby.discard)
        await asyncio.to_thread(standby.start)
        if not await self.caught_up():
            raise RuntimeError("the standby did not get what the primary has")
        return standby

    def _base_backup(self, name: str, feed_port: int) -> Standby:
        run_as, folder = ordinary_user(), self.own.folder / name
        home = folder / "postgres"
        data = home / "data"
        for one in (folder, home, data):
            one.mkdir(mode=0o711)
        data.chmod(0o700)
        give_to(data, run_as)
        (home / "password").touch(mode=0o600)
        (home / "password").write_text(self.database.password)
        install = postgres_install(run_as, scratch=self.own.folder)
        command: list[str | Path] = [install.program("pg_basebackup"), "-D", data, "-X", "stream", "-c", "fast"]
        done = run_to_its_end([*command, "-d", self.database.url], run_as=run_as, timeout_s=BACKUP_S)
        if done.returncode:
            raise RuntimeError(f"pg_basebackup: {done.stderr}")
        (data / "standby.signal").touch()
        give_to(data, run_as)
        follows = f"host=127.0.0.1 port={feed_port} user=postgres password={self.database.password}"
        config = {"primary_conninfo": follows, "wal_retrieve_retry_interval": "100ms"}
        return Standby(folder, install=install, run_as=run_as, scratch=folder, config=config)

    async def caught_up(self) -> bool:
        """Wait until the standby has written what the primary has now, and say whether that came about."""
        end = monotonic() + CAUGHT_UP_S
        wanted = (await self.sql("SELECT pg_current_wal_flush_lsn()"))[0][0]
        query = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND flush_lsn >= %s"
        while monotonic() < end:
            if (await self.sql(query, wanted))[0][0]:
                return True
            await self.while_waiting(LOOK_S)
        return False

    def cut_off(self) -> None:
        """Let nothing reach the standby any more."""
        assert self._feed is not None
        self._feed.freeze()

    async def promoted(self, standby: Standby) -> None:
        """Let a standby succeed the primary, which dies."""
        before = self._database
        await asyncio.to_thread(before.kill)
        assert self._feed is not None
        self._feed.cut_all()
        self._database = standby
        await self.sql("SELECT pg_promote()")
        self.lead()

    # What an operator does.

    async def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement on the primary, past the proxies."""

        def run() -> list[tuple[Any, ...]]:
            with self.postgres() as connection:
                cursor = connection.execute(statement.encode(), parameters or None)
                return cursor.fetchall() if cursor.description else []

        return await asyncio.to_thread(run)

    def small_disk(self) -> Path | None:
        """Return a folder on a small disk of its own, or nothing where that may not be had."""
        folder = self.own.folder / SMALL
        folder.mkdir(mode=0o711, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_MIB}m,mode=0711", "tmpfs", str(folder)]
        if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
            return None
        space = folder / "space"
        space.mkdir(mode=0o700)
        give_to(space, ordinary_user())
        return space

    def remove_small_disk(self) -> None:
        """Take the small disk away."""
        subprocess.run(["umount", "-l", str(self.own.folder / SMALL)], check=False, capture_output=True)

    async def heal_servers(self) -> None:
        """Let both servers run, with no defaults but their own."""
        await super().heal_servers()
        with suppress(psycopg.Error):
            await self.sql("ALTER DATABASE postgres RESET ALL")
            await self.sql("ALTER SYSTEM RESET ALL")
            await self.sql("SELECT pg_reload_conf()")
            await self.sql("DROP TRIGGER IF EXISTS slow ON statecache.change")


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", source, target], check=True, capture_output=True)

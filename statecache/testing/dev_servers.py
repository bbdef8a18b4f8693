"""A Valkey, a Postgres and a worker that keep their data in a folder, for `statecache dev`.

    <folder>/  lock  kept.json  redis.conf redis.log redis/   postgres.log postgres/data/   worker-1.log

The lock is held while they run. Under it, what an earlier, crashed run left running is killed, and then nobody else can
be at work on these data. Sockets lie in a throwaway folder, for their paths must be short. Run by root, Postgres must
get at its data as an ordinary user; below a closed home it cannot, and `postgres` is a link to a folder of
/var/lib/statecache: the data belong to the folder with the link, not to its path, and stay when that is removed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import msgspec

from statecache.clock import monotonic, sleep
from statecache.disk_space import full_disks_told, is_full
from statecache.errors import ConfigurationError
from statecache.testing.binaries import PostgresInstall, postgres_install, valkey_server
from statecache.testing.folders import Throwaway, locked, ordinary_user, reachable, user_folder
from statecache.testing.leftovers import kill_recorded
from statecache.testing.ports import is_free, why_not_free
from statecache.testing.postgres import Postgres
from statecache.testing.process import RunAs
from statecache.testing.valkey import Valkey
from statecache.testing.workers import Workers, migrate

FIRST_REDIS_PORT = 16379
FIRST_POSTGRES_PORT = 15432
PORT_S = 2.0
PORT_RETRY_S = 0.1
SYSTEM_DATA = Path("/var/lib/statecache")


class Remembered(msgspec.Struct, frozen=True):
    """What the next run has to find as it was, so that noted URLs go on working."""

    redis_port: int = FIRST_REDIS_PORT
    postgres_port: int = FIRST_POSTGRES_PORT
    redis_password: str = ""


class Kept:
    """The pair with its worker, for a `with` block; the data stay when it ends."""

    redis: Valkey
    postgres: Postgres
    workers: Workers
    install: PostgresInstall

    def __init__(self, folder: Path | None, *, redis_port: int | None, postgres_port: int | None) -> None:
        self.folder = (folder or _default_folder()).absolute()
        self._ports = (redis_port, postgres_port)
        self._run_as = ordinary_user()
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        with full_disks_told(*self._homes()), ExitStack() as on_failure:
            on_failure.callback(self._ending.close)
            self._take_folder()
            scratch = Throwaway.create(self._run_as)
            self._ending.callback(scratch.remove)
            self._assemble(scratch.path)
            self._start()
            on_failure.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def environment(self) -> dict[str, str]:
        """Return the variables with which clients find these servers."""
        return {"STATECACHE_REDIS_URL": self.redis.url, "STATECACHE_POSTGRES_URL": self.postgres.url}

    @property
    def postgres_folder(self) -> Path:
        """The folder in which Postgres has its data, which root may have elsewhere."""
        home = self.folder / "postgres"
        return home.readlink() if home.is_symlink() else home

    def left_behind(self) -> list[tuple[Path, str]]:
        """Return folders of Postgres data to which no link leads any more, each with the folder that it belonged to."""
        if self._run_as is None:
            return []
        owners = [(home, home / "of") for home in sorted(SYSTEM_DATA.glob("dev-*"))]
        known = [(home, owner.read_text()) for home, owner in owners if owner.exists()]
        return [(home, of) for home, of in known if not _leads_to(Path(of) / "postgres", home)]

    def revive(self) -> list[str]:
        """Start again what has ended, and return the names."""
        ended = [server for server in (self.redis, self.postgres) if server.pid is None]
        names = [server.name for server in ended]
        with full_disks_told(*self._homes()):
            for server in ended:
                server.start()
            if not self.workers.pids:
                self.workers.start(1)
                names.append("worker")
        return names

    def _homes(self) -> list[Path]:
        """Return the folders of the data, which may lie on two disks."""
        return [self.folder, self.postgres_folder]

    def _take_folder(self) -> None:
        with _told_in_one_line(self.folder):
            self.folder.mkdir(mode=0o711 if self._run_as else 0o700, parents=True, exist_ok=True)
            is_ours = self._ending.enter_context(locked(self.folder / "lock", wait=False))
        if not is_ours:
            other = (self.folder / "lock").read_text().strip() or "?"
            raise ConfigurationError(
                f"`statecache dev` is already running in {self.folder} (process {other})",
                hint="Use that one, or give this one another folder.",
            )
        (self.folder / "lock").write_text(f"{os.getpid()}\n")
        kill_recorded(self.folder)
        self._ending.callback(kill_recorded, self.folder)  # and ours, where an interrupt came before we knew of one
        for log in self.folder.glob("*.log"):
            log.replace(log.with_suffix(".log.old"))

    def _assemble(self, scratch: Path) -> None:
        remembered = self._remembered()
        redis_port, postgres_port = self._ports
        for port in (redis_port, postgres_port):
            _insist_on(port)
        self.install = postgres_install(self._run_as, scratch=scratch)
        self.redis = Valkey(
            self.folder,
            binary=valkey_server(),
            sockets=scratch,
            port=redis_port or _if_free(remembered.redis_port),
            port_is_fixed=redis_port is not None,
            password=remembered.redis_password,
        )
        self.postgres = Postgres(
            self.folder,
            install=self.install,
            run_as=self._run_as,
            scratch=scratch,
            home=_postgres_home(self.folder, self._run_as),
            port=postgres_port or _if_free(remembered.postgres_port),
            port_is_fixed=postgres_port is not None,
        )
        self.workers = Workers(self.folder, self.environment)

    def _start(self) -> None:
        self._ending.callback(self.redis.stop)
        self.redis.start()
        is_new = not self.postgres.data.exists()
        self.postgres.prepare()
        if is_new:
            os.sync()  # the copied files were never flushed, and these data are meant to last
        self._ending.callback(self.postgres.stop)
        self.postgres.start()
        self._remember()
        migrate(self.environment())
        self._ending.callback(self.workers.stop)
        self.workers.start(1)

    def _remembered(self) -> Remembered:
        try:
            return msgspec.json.decode((self.folder / "kept.json").read_bytes(), type=Remembered)
        except (FileNotFoundError, msgspec.DecodeError):
            return Remembered()

    def _remember(self) -> None:
        remembered = Remembered(self.redis.port, self.postgres.port, self.redis.password)
        fresh = self.folder / "kept.json.new"
        fresh.touch(mode=0o600)
        fresh.write_bytes(msgspec.json.encode(remembered))
        fresh.replace(self.folder / "kept.json")


def _default_folder() -> Path:
    data = user_folder("data")
    if data is None:
        raise ConfigurationError("there is no home folder to keep the servers' data in", hint="Give a folder.")
    return data / "dev"


def _insist_on(port: int | None) -> None:
    """Wait a moment until a port is free that something just killed may hold; raise ConfigurationError if it stays."""
    end = monotonic() + PORT_S
    while port is not None and (reason := why_not_free(port)):
        if monotonic() > end:
            raise ConfigurationError(
                f"nothing can be started on port {port} of 127.0.0.1: {reason}",
                hint="Give another one, or none to have one chosen.",
            )
        sleep(PORT_RETRY_S)


def _if_free(port: int) -> int | None:
    return port if is_free(port) else None


@contextmanager
def _told_in_one_line(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise
        raise ConfigurationError(
            f"the data cannot be kept in {folder}: {error.strerror}", hint="Give another folder."
        ) from error


def _postgres_home(folder: Path, run_as: RunAs | None) -> Path:
    """Return where Postgres has its data for this folder: in it, or at the end of a link in it."""
    home = folder / "postgres"
    if run_as is None:
        return home
    if home.is_symlink() or not (home.exists() or reachable(folder, run_as)):
        with _told_in_one_line(folder):
            home = _linked_home(home)
    if not reachable(home, run_as):
        raise ConfigurationError(
            f"{home} is closed to the user that runs Postgres for root",
            hint="Give a folder that every user can pass into, or run this as an ordinary user.",
        )
    return home


def _linked_home(link: Path) -> Path:
    """Return what the link leads to; make the link where there is none, and its target anew where that is gone.

    The file `of` in the target names the folder that it belongs to: so a moved folder is told from a copied one.
    """
    SYSTEM_DATA.mkdir(mode=0o711, exist_ok=True)
    if SYSTEM_DATA.lstat().st_uid != os.geteuid():
        raise ConfigurationError(
            f"{SYSTEM_DATA} is another user's", hint="Give a folder that every user can pass into."
        )
    if not link.is_symlink():
        link.symlink_to(SYSTEM_DATA / f"dev-{secrets.token_hex(6)}")
    home = link.readlink()
    if home.parent != SYSTEM_DATA:
        raise ConfigurationError(f"{link} leads to {home}, not into {SYSTEM_DATA}", hint="Give another folder.")
    home.mkdir(mode=0o711, exist_ok=True)
    owner = home / "of"
    other = Path(owner.read_text()) if owner.exists() else link.parent
    if other != link.parent and _leads_to(other / link.name, home):
        raise ConfigurationError(
            f"{link.parent} is a copy of {other}, and leads to the same Postgres",
            hint=f"Remove {link} to begin with an empty one, or use {other}.",
        )
    owner.write_text(str(link.parent))
    return home


def _leads_to(link: Path, home: Path) -> bool:
    return link.is_symlink() and link.readlink() == home

"""An embedded Postgres.

It listens on loopback and on a socket file in a folder of its own, and asks for a password on both. As root it is run
by an ordinary user, who owns `<home>/data` and the socket's folder. Its dynamic shared memory lies in the data folder,
so that a killed server leaves nothing in /dev/shm.
"""

from __future__ import annotations

import secrets
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from statecache.errors import ConfigurationError, PostgresUnavailable
from statecache.testing.binaries import PostgresInstall, plain_environment
from statecache.testing.folders import give_to
from statecache.testing.process import Process, RunAs, spawn
from statecache.testing.server import STOP_S, Server
from statecache.testing.template import SUPERUSER, copy_template

CONNECTIONS_MAX = 200
_STATUS_LINE = 7


class Postgres(Server):
    """One Postgres; `stop` is its fast shutdown."""

    stop_signal = signal.SIGINT
    abort_signal = signal.SIGQUIT  # no checkpoint; it still gives its shared memory back

    def __init__(
        self,
        folder: Path,
        *,
        install: PostgresInstall,
        run_as: RunAs | None,
        scratch: Path,
        home: Path | None = None,
        port: int | None = None,
        port_is_fixed: bool = False,
        fsync: bool = True,
        config: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, name="postgres", port=port, port_is_fixed=port_is_fixed)
        self.password = ""
        self.socket_folder = scratch / "postgres-socket"
        self.data = (home or folder / "postgres") / "data"
        self._password_file = self.data.with_name("password")
        self._install = install
        self._run_as = run_as
        self._scratch = scratch
        self._config = {} if fsync else {"fsync": "off", "full_page_writes": "off"}
        self._config |= config or {}

    @property
    def url(self) -> str:
        """The server's URL, with its password."""
        return f"postgresql://{SUPERUSER}:{self.password}@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        """Make the data folder if there is none, and remove what a crashed run left in it."""
        if not self.data.exists():
            self._make_data()
        self.password = self._password_file.read_text()
        made_by = (self.data / "PG_VERSION").read_text().strip()
        if made_by != self._install.version.split(".")[0]:
            raise ConfigurationError(
                f"{self.data} was made by Postgres {made_by}, installed is {self._install.version}",
                hint="Install the version that made it, or choose another folder.",
            )
        if not self.socket_folder.exists():
            self.socket_folder.mkdir(mode=0o700)
            give_to(self.socket_folder, self._run_as)
        # Nobody else runs here: the folder is locked and the earlier run's programs are gone. The pid in this file
        # may meanwhile be anybody's, and Postgres would take that for a server at work.
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def discard(self) -> None:
        """End the server without a checkpoint, and its shared memory with it."""
        if self._process is not None and self._process.is_running():
            self._process.stop(self.abort_signal, timeout_s=STOP_S)

    def _make_data(self) -> None:
        home = self.data.parent
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._run_as is not None:
            home.chmod(0o711)
        for torn in home.glob("data.new-*"):  # of a start that was killed
            shutil.rmtree(torn, ignore_errors=True)
        fresh = home / f"data.new-{secrets.token_hex(4)}"
        try:
            password = copy_template(fresh, install=self._install, run_as=self._run_as, scratch=self._scratch)
        except BaseException:  # a full disk, an interrupt: what was copied only takes up room
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(password)
        fresh.rename(self.data)  # last: where there are data, there is their password

    def _spawn(self) -> Process:
        self.prepare()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": f'"{self.socket_folder}"',
            "unix_socket_permissions": "0700",
            "max_connections": str(CONNECTIONS_MAX),
            "dynamic_shared_memory_type": "mmap",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "lc_messages": "C",
        }
        command: list[str | Path] = [self._install.program("postgres"), "-D", self.data]
        for name, value in (settings | self._config).items():
            command += ["-c", f"{name}={value}"]
        return spawn(
            command,
            name=self.name,
            folder=self.folder,
            environment=plain_environment(),
            death_signal=self.abort_signal,
            run_as=self._run_as,
            cwd=Path("/"),
        )

    def _is_ready(self) -> bool:
        with suppress(OSError, IndexError, ValueError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]) == self.pid and lines[_STATUS_LINE].strip() == "ready"
        return False

    def _failed(self, detail: str) -> PostgresUnavailable:
        return PostgresUnavailable("start", detail=detail)

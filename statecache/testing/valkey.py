"""An embedded Valkey, or any other Redis server binary.

The append-only file is on, so that what a killed server had acknowledged is there again after its restart. It listens
on loopback and on a socket file, and asks for a password: other users of the machine can reach loopback too.
"""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from statecache.errors import RedisUnavailable
from statecache.testing.binaries import plain_environment
from statecache.testing.process import Process, spawn
from statecache.testing.server import Server

ANSWER_S = 1.0


class Valkey(Server):
    """One Valkey; `stop` sends SIGTERM, which writes the append-only file out.

    A server that has just become a replica refuses SIGTERM as long as it writes its first append-only file.
    """

    stop_signal = signal.SIGTERM

    def __init__(
        self,
        folder: Path,
        *,
        binary: Path,
        name: str = "redis",
        sockets: Path | None = None,
        port: int | None = None,
        port_is_fixed: bool = False,
        password: str = "",
        appendfsync: str = "everysec",
        config: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, name=name, port=port, port_is_fixed=port_is_fixed)
        self.password = password or secrets.token_urlsafe(18)
        self.socket = (sockets or folder) / f"{name}.sock"
        self._binary = binary
        self._data = folder / name
        self._config = {"appendfsync": appendfsync, **(config or {})}

    @property
    def url(self) -> str:
        """The server's URL, with its password. It names the user: redis-cli sends an empty one."""
        return f"redis://default:{self.password}@127.0.0.1:{self.port}/0"

    def replica(self, name: str) -> Valkey:
        """Return another server, not started yet, that will be a replica of this one."""
        config = self._config | {"replicaof": f"127.0.0.1 {self.port}"}
        sockets = self.socket.parent
        return Valkey(
            self.folder, binary=self._binary, name=name, sockets=sockets, password=self.password, config=config
        )

    @property
    def _credentials(self) -> str:
        """The arguments of AUTH."""
        return self.password

    def _spawn(self) -> Process:
        self._data.mkdir(mode=0o700, exist_ok=True)
        config_file = self.folder / f"{self.name}.conf"
        config_file.touch(mode=0o600)
        config_file.write_text(self._config_text())
        return spawn(
            [self._binary, config_file],
            name=self.name,
            folder=self.folder,
            environment=plain_environment(),
            cwd=Path("/"),
        )

    def _config_text(self) -> str:
        lines = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "unixsocket": _quoted(self.socket),
            "unixsocketperm": "600",
            "requirepass": self.password,
            "masterauth": self.password,
            "dir": _quoted(self._data),
            "daemonize": "no",
            "logfile": '""',
            "save": '""',
            "appendonly": "yes",
            "repl-diskless-sync-delay": "0",
        }
        return "".join(f"{name} {value}\n" for name, value in (lines | self._config).items())

    def _is_ready(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(ANSWER_S)
                connection.connect(str(self.socket))
                connection.sendall(f"AUTH {self._credentials}\r\nPING\r\n".encode())
                reply = b""
                while reply.count(b"\r\n") < 2 and (more := connection.recv(4096)):
                    reply += more
        except OSError:
            return False
        return reply == b"+OK\r\n+PONG\r\n"

    def _failed(self, detail: str) -> RedisUnavailable:
        return RedisUnavailable("start", detail=detail)


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'

"""Serving the inspector on loopback until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import uvicorn

from statecache.errors import ConfigurationError
from statecache.inspector.application import application
from statecache.inspector.guard import new_token
from statecache.inspector.source import Source

if TYPE_CHECKING:
    from statecache.settings import Settings

HOST = "127.0.0.1"
_LEAVE_S = 2
"""How long requests that are under way at the end may take, in seconds."""


def listening(port: int | None) -> socket.socket:
    """Return a socket that listens on loopback, at that port or at a free one; raise ConfigurationError."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port or 0))
        made.listen(64)
    except OSError as error:
        made.close()
        hint = "Give another --port, or none: then a free one is taken."
        raise ConfigurationError(f"{HOST}:{port} cannot be listened on: {error.strerror}", hint=hint) from error
    return made


class _Server(uvicorn.Server):
    """A server that says when it answers, and leaves signals to whoever runs it."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets=sockets)
        self._on_start()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals alone."""
        yield


async def serve(
    settings: Settings, *, port: int | None, write: bool, operator: str, told: Callable[[str], None]
) -> None:
    """Serve the inspector until SIGINT or SIGTERM; `told` is called with its URL once it answers."""
    token, loop = new_token(), asyncio.get_running_loop()
    source = Source(settings, write=write, operator=operator)
    config = uvicorn.Config(
        application(source, token=token), log_config=None, access_log=False, server_header=False, proxy_headers=False,
        ws="none", http="h11", loop="asyncio", lifespan="on", timeout_graceful_shutdown=_LEAVE_S,
    )  # fmt: skip
    with listening(port) as made:
        url = f"http://{HOST}:{made.getsockname()[1]}/{token}/"
        server = _Server(config, lambda: told(url))

        def stop() -> None:
            server.should_exit = True
            source.stopping.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(RuntimeError, ValueError):  # outside of the main thread there are no signals
                loop.add_signal_handler(number, stop)
        await server.serve([made])

"""A server that answers whatever it is sent with one error and hangs up, as a Redis in protected mode does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread

SAYS = "DENIED Redis is running in protected mode"


@contextmanager
def denying(says: str = SAYS) -> Iterator[str]:
    """Serve during the block; give the address, host and port."""

    class Denying(BaseRequestHandler):
        def handle(self) -> None:
            """Wait for a command, not for long, and refuse it."""
            self.request.settimeout(1.0)
            with suppress(OSError):
                self.request.recv(1)
                self.request.sendall(f"-{says}\r\n".encode())

    with ThreadingTCPServer(("127.0.0.1", 0), Denying) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()

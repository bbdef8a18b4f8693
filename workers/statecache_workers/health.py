"""Whether a worker lives, and whether it is ready: what probes ask, and how they are answered.

    /healthz   200 while the process works. 503 where its event loop stands still, or one turn goes on for ever: then a
               restart helps. An outage of Redis or Postgres is waited out and does not count, for no restart ends it
    /readyz    200 once the shards are in step with Redis and a turn came through lately. 503 while it starts,
               drains, or cannot reach a server, with the reason
    /metrics   Prometheus' text format, with the extra `metrics`; 501 without it

The port is served by a thread of its own, which only reads plain values that the worker replaces, so that a loop which
stands still is seen as such. Everything is bounded: connections at a time, their seconds, the request's size (by
http.server). It is no place for anything but probes: no state, no key, no address shows in an answer.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple

from statecache.clock import monotonic as real_monotonic
from statecache.concurrency import TASKS
from statecache.errors import ConfigurationError
from statecache_workers.logs import crash, whisper

BEAT_S = 1.0
LOOP_SILENT_MAX_S = 10.0
"""How long the event loop may stand still."""
TURN_SILENT_MIN_S = 60.0
TURN_TIMEOUTS_MAX = 15
"""How many exchanges at the limit of their time one turn may be made of before it counts as endless."""
CONNECTIONS_MAX = 16
CONNECTION_S = 5.0
POLL_S = 0.25
SERVERS = ("redis", "postgres", "other")
PLAIN = "text/plain; charset=utf-8"


class Pulse:
    """How a worker is, in plain values: its own task writes them, the port's thread reads them.

    All times are on one monotonic clock. `troubles` names the servers that could not be reached, with a code each.
    """

    def __init__(self, *, timeout_s: float, lease_s: float, monotonic: Callable[[], float] = real_monotonic) -> None:
        self._monotonic = monotonic
        self.beat = self.turned = self.began = monotonic()
        self.passed: float | None = None
        self.resynced = False
        self.draining = False
        self.troubles: Mapping[str, str] = MappingProxyType({})
        self.errors = dict.fromkeys(SERVERS, 0)
        self.turn_silent_max_s = max(TURN_SILENT_MIN_S, TURN_TIMEOUTS_MAX * timeout_s)
        self.pass_silent_max_s = 2 * lease_s

    async def keep(self) -> None:
        """Beat for as long as the event loop turns."""
        while True:
            self.beat = self._monotonic()
            await TASKS.sleep(BEAT_S)

    def turn_passed(self, *, resynced: bool) -> None:
        """Note that a turn came through, so both servers answer."""
        self.turned = self.passed = self._monotonic()
        self.resynced = resynced
        if self.troubles:
            self.troubles = MappingProxyType({})

    def turn_failed(self, server: str, reason: str) -> None:
        """Note that a turn ended for want of a server; the other one is as it was, as far as is known."""
        self.turned = self._monotonic()
        self.errors[server] = self.errors.get(server, 0) + 1
        self.lost(server, reason)

    def lost(self, server: str, reason: str) -> None:
        """Note that a server does not answer."""
        self.troubles = MappingProxyType({**self.troubles, server: reason})

    def reached(self, server: str) -> None:
        """Note that a server answers again."""
        if server in self.troubles:
            self.troubles = MappingProxyType({name: why for name, why in self.troubles.items() if name != server})

    def turn_age_s(self) -> float:
        """Return how many seconds ago the last turn ended, whether it came through or not."""
        return self._monotonic() - self.turned

    def unhealthy(self) -> str:
        """Return why a restart would help; '' where it would not."""
        silent, turning = self._monotonic() - self.beat, self.turn_age_s()
        if silent > LOOP_SILENT_MAX_S:
            return f"the event loop has stood still for {silent:.1f} s"
        if turning > self.turn_silent_max_s:
            return f"no turn has ended for {turning:.1f} s"
        return ""

    def unready(self) -> str:
        """Return why it is not at work; '' where it is."""
        if reason := self.unhealthy():
            return reason
        if self.draining:
            return "draining"
        if self.troubles:
            return "; ".join(f"{server} cannot be used ({why})" for server, why in sorted(self.troubles.items()))
        if self.passed is None:
            return "starting: no turn has come through"
        if not self.resynced:
            return "starting: the shards are not in step with Redis"
        silent = self._monotonic() - self.passed
        return f"no turn has come through for {silent:.1f} s" if silent > self.pass_silent_max_s else ""


class Page(NamedTuple):
    """An answer: status, body, type."""

    status: int
    body: bytes
    kind: str = PLAIN


Pages = Mapping[str, Callable[[], Page]]
"""What the port serves, by path."""


def verdict(reason: str) -> Page:
    """Return the answer to a probe: fine, or why not."""
    return Page(503, f"{reason}\n".encode()) if reason else Page(200, b"ok\n")


class HealthServer:
    """A server of pages on one port, in a daemon thread, until it is closed."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(family, address, pages)
        except OSError as error:
            raise ConfigurationError(
                f"the health port {host}:{port} cannot be served: {error.strerror or error}",
                hint="Set health_host and health_port (STATECACHE_HEALTH_PORT) to a free port of this machine; 0 takes"
                " any.",
            ) from error
        self.host = host
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="statecache-health", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Free the port, and return when it is free."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.end_all()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, family: int, address: Any, pages: Pages) -> None:
        self.address_family = family
        self.pages = pages
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind as HTTPServer does, but without asking a name server who we are."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; close the connection where too many are being answered already."""
        with self._lock:
            full = len(self._open) >= CONNECTIONS_MAX
            if not full:
                self._open[request] = real_monotonic()
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End one connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that take too long."""
        now = real_monotonic()
        with self._lock:
            late = [request for request, since in self._open.items() if now - since > CONNECTION_S]
        _shut(late)

    def end_all(self) -> None:
        """End every connection that is still open."""
        with self._lock:
            left = list(self._open)
        _shut(left)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log, for developers alone, a probe that hung up."""
        whisper("probe_failed")


class _Handler(BaseHTTPRequestHandler):
    timeout = CONNECTION_S
    server: _Server

    def do_GET(self) -> None:
        """Answer with a page."""
        page = self.server.pages.get(self.path.partition("?")[0])
        self._answer(_made(page) if page is not None else Page(404, b"not found\n"))

    do_HEAD = do_GET  # noqa: N815 http.server calls it so

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer what http.server refuses, in plain text; a method that is not ours is 405."""
        if code == 501:
            self._answer(Page(405, b"only GET and HEAD\n"))
        else:
            self._answer(Page(code, f"{message or 'refused'}\n".encode()))

    def _answer(self, page: Page) -> None:
        self.close_connection = True
        self.send_response(page.status)
        if page.status == 405:
            self.send_header("Allow", "GET, HEAD")
        for name, value in (("Content-Type", page.kind), ("Content-Length", str(len(page.body)))):
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def version_string(self) -> str:
        """Return the program's name, and no versions."""
        return "statecache"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the name is http.server's
        """Log no probes."""


def _made(page: Callable[[], Page]) -> Page:
    try:
        return page()
    except Exception as error:  # whatever is wrong with one page, the port goes on and says so
        crash("page_failed")
        return Page(500, f"{type(error).__name__}\n".encode())


def _shut(connections: list[socket.socket]) -> None:
    for one in connections:
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue

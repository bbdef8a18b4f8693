"""Where threads share a synchronous client: two processes of many threads each, one of them over TLS.

t0 ──▶ proxy ──────▶ Valkey
t1 ──▶ TLS proxy ──▶ Valkey      the proxy takes TLS off, so faults find their bytes here too
"""

from __future__ import annotations

import shutil
import ssl
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

from tests.fixtures.tls import certificates, tls_files
from tests.simulation.arena import ROOT, SETTINGS, WORKER_LINE, Arena
from tests.support.fault_proxy import FaultProxy

OVER_TLS = "t1"
SESSIONS = 10


class ThreadsArena(Arena):
    """Two processes of threads; each says itself what it left behind at its end, which is a crash here."""

    names = ("t0", OVER_TLS)
    lines = (*names, WORKER_LINE)
    given = SETTINGS | {"near_window_s": "1"}
    writer = "tests.simulation.threaded"
    workers_max = 1

    def command(self, name: str, called: str) -> list[str | Path]:
        """Return what a process runs."""
        return [sys.executable, "-m", self.writer, self.folder, called, str(self.seed), str(SESSIONS)]

    def environment(self, line: str, tree: Path = ROOT) -> dict[str, str]:
        """Return what the process behind these proxies is told."""
        told = super().environment(line, tree)
        if line == OVER_TLS and self._certificates.exists():
            told["STATECACHE_REDIS_URL"] = told["STATECACHE_REDIS_URL"].replace("redis://", "rediss://", 1)
            files = tls_files(self._certificates, client="")
            told |= {f"STATECACHE_{name.upper()}": path for name, path in files.items()}
        return told

    @property
    def _certificates(self) -> Path:
        return self.folder / "tls"

    async def prepare(self, ending: AsyncExitStack) -> None:
        """Put a proxy that speaks TLS in the place of one that does not, where openssl makes its certificate."""
        if shutil.which("openssl") is None:
            return
        self._certificates.mkdir()
        certificates(self._certificates)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificates / "server.pem", self._certificates / "server.key")
        parts = urlsplit(self.own.redis_url)
        proxy = FaultProxy(parts.hostname or "", parts.port or 0, keep=False, tls=context)
        self.proxies[OVER_TLS, "redis"] = await ending.enter_async_context(proxy)

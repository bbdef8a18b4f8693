"""Ports for servers that cannot be asked to pick one themselves.

A port is only probably free: the server may still find it taken, and then another one is tried (see `server.py`).
Ports come from below the range that the system hands out to outgoing connections. Inside that range a client that
keeps knocking at a killed server's port would sooner or later be given that very port, connect to itself, and keep
the server from coming back.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from pathlib import Path

from statecache.errors import ConfigurationError

LOWEST = 16384
HIGHEST = 32767
ATTEMPTS_MAX = 200

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a random port of the loopback address on which nobody listens right now."""
    highest = _highest()
    for _ in range(ATTEMPTS_MAX):
        port = LOWEST + secrets.randbelow(highest - LOWEST + 1)
        if is_free(port):
            return port
    raise ConfigurationError(f"no free port between {LOWEST} and {highest} was found in {ATTEMPTS_MAX} attempts")


def is_free(port: int) -> bool:
    """Return whether a server could listen on that port of the loopback address right now."""
    return not why_not_free(port)


def why_not_free(port: int) -> str:
    """Return why no server could listen on that port of the loopback address right now; empty if one could."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _highest() -> int:
    with suppress(OSError, ValueError):
        lowest_outgoing = int(_OUTGOING.read_text().split()[0])
        if lowest_outgoing > LOWEST + 1000:
            return min(HIGHEST, lowest_outgoing - 1)
    return HIGHEST

"""Which durability levels a server can really give: refused at the call with the reason, never degraded in silence.

`replica` and `disk` are refused where the primary keeps nothing over a restart: an empty primary that comes back
before anyone promotes a replica empties the replicas too. `disk` needs WAITAOF, an append-only file, and an fsync
policy. `postgres` needs the fence.

What a server can do is a fact of the server at the other end of one connection. So each connection is asked, by its
first commit at such a level, and again after a minute; what it said is gone with it, or once its shard's epoch is found
to be another server's. How many replicas are connected changes more often: each commit asks for that in its script.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from statecache.clock import monotonic
from statecache.commit_protocol.answers import too_few_replicas
from statecache.errors import DurabilityNotMet, DurabilityRefused, UsageError
from statecache.model import DURABILITIES
from statecache.redis_errors import code_of

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.settings import Settings

COPIED = ("replica", "disk")
"""The levels that count copies, on the connection of the commit."""
_ASK_AGAIN_S = 60.0
_WAIT_FOR_NONE = {"replica": ("WAIT", 0, 1), "disk": ("WAITAOF", 0, 0, 1)}
"""Each level's command, waiting for no copy: it shows whether the command exists and this user may run it."""


class DurabilitySupport:
    """The durability levels that settings and server allow, and the commands that wait for them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def check(self, level: str) -> None:
        """Raise DurabilityRefused with the reason where these settings cannot give the level, whatever the server."""
        if level not in DURABILITIES:
            raise UsageError(f"durability {level!r} is not one of {', '.join(DURABILITIES)}")
        if level == "postgres" and self._settings.fence != "on":
            raise DurabilityRefused(level, reason="the fence is off, so a lost Redis would go unnoticed")

    async def check_server(self, level: str, link: Link, *, end: float) -> None:
        """Raise DurabilityRefused with the reason where the connection's server cannot give the level."""
        now = monotonic()
        if level not in COPIED or now - link.support.get(level, -_ASK_AGAIN_S) < _ASK_AGAIN_S:
            return
        reason = await self._reason_against(level, link, max(end - now, 0.01))
        if reason:
            raise DurabilityRefused(level, reason=reason)
        link.support[level] = now

    async def _reason_against(self, level: str, link: Link, seconds: float) -> str:
        commands = [
            ("INFO", "persistence"),
            ("INFO", "replication"),
            ("CONFIG", "GET", "save"),
            ("CONFIG", "GET", "appendfsync"),
            _WAIT_FOR_NONE[level],
        ]
        kept, copies, save, fsync, waited = await link.run(commands, seconds=seconds)
        if isinstance(waited, Exception):
            return _without(commands[-1][0], waited)
        if isinstance(kept, Exception) or isinstance(copies, Exception):
            return "INFO is refused, so what the server keeps is not known; grant +info"
        append_only = b"aof_enabled:1" in kept
        if level == "disk":
            return _against_disk(append_only, _setting(fsync))
        return _against_replica(append_only, save, copies, self._settings.replicas)

    def replicas_of(self, level: str) -> int:
        """Return how many replicas must be connected for a commit at the level."""
        return self._settings.replicas if level == "replica" else 0

    def wait_command(self, level: str, wait_ms: int) -> tuple[Any, ...]:
        """Return the command that waits for a level, for `wait_ms` but at least 1 ms, for zero waits for ever."""
        if level == "disk":
            return ("WAITAOF", 1, 0, max(wait_ms, 1))
        return ("WAIT", self._settings.replicas, max(wait_ms, 1))

    def check_copies(self, change_id: str, level: str, reply: Any) -> None:
        """Raise DurabilityNotMet where the wait's reply counts fewer copies than the level needs."""
        wanted = 1 if level == "disk" else self._settings.replicas
        if isinstance(reply, Exception):
            raise DurabilityNotMet(change_id, level=level, reached=0, wanted=wanted, reason=str(reply))
        reached = reply[0] if isinstance(reply, list) else reply
        if reached < wanted:
            reason = "its append-only file was not synced in time, as with appendfsync no" if level == "disk" else ""
            raise DurabilityNotMet(change_id, level=level, reached=reached, wanted=wanted, reason=reason)


def _without(command: Any, error: Exception) -> str:
    """Return the reason why a level is refused where the server refuses its command."""
    if code_of(error) == "NOPERM":
        return f"this user may not run {command}; grant +{command.lower()}"
    if "unknown command" in str(error).lower():
        return f"this server has no {command} (Redis or Valkey 7.2 and newer have it)"
    return f"{command} is refused ({error})"


def _against_replica(append_only: bool, save: Any, copies: bytes, wanted: int) -> str:
    connected = re.search(rb"connected_slaves:(\d+)", copies)
    count = int(connected.group(1)) if connected else 0
    if count < wanted:
        return too_few_replicas(count, wanted)
    if append_only or _setting(save):
        return ""
    if isinstance(save, Exception):
        return f"no append-only file, and CONFIG GET save is refused ({save})"
    return "the primary keeps nothing over a restart (no append-only file, no snapshots)"


def _against_disk(append_only: bool, fsync: str | None) -> str:
    if not append_only:
        return "this server has no append-only file (appendonly no)"
    if fsync is None:
        return (
            "CONFIG GET appendfsync is refused, so it is not known whether the file is ever synced; grant +config|get"
        )
    if fsync == "no":
        return "this server never syncs its append-only file (appendfsync no)"
    return ""


def _setting(reply: Any) -> str | None:
    """Return the value of a CONFIG GET reply, or None where it was refused."""
    if isinstance(reply, Exception) or len(reply) < 2:
        return None
    return str(reply[1].decode())

"""What time it is for the Redis server, by which states end."""

from __future__ import annotations

from msgspec.structs import replace

from statecache.clock import boottime, wall
from statecache.expiry import PLAIN_MAX, until_of
from statecache.model import Record


class ServerClock:
    """The Redis server's clock as this process knows it: never ahead of it, and behind by one exchange at most.

    So who is not given a state any more can be sure that the server takes it for ended too. Before any server was heard
    it is this machine's. It is told by every new connection, heartbeat and read of one state on the primary, for it
    may be set.
    """

    __slots__ = ("_ahead_ms", "_heard")

    def __init__(self) -> None:
        self._ahead_ms = wall().timestamp() * 1000 - boottime() * 1000
        self._heard = False

    def heard(self, now_ms: bytes | str, sent: float) -> None:
        """Note the server's time in ms, told just now to a question that was sent at that moment of `boottime`.

        Nothing is noted where it is empty: this user may not ask for it.
        """
        if now_ms:
            least, most = int(now_ms) - boottime() * 1000, int(now_ms) + 1 - sent * 1000
            self._ahead_ms = max(self._ahead_ms, least) if self._heard and self._ahead_ms <= most else least
            self._heard = True

    def server_ms(self, at: float) -> float:
        """Return the server's time at a moment of `boottime` as far as it is known, in ms since 1970."""
        return at * 1000 + self._ahead_ms

    def now_ms(self) -> int:
        """Return the server's time as far as it is known, in ms since 1970."""
        return int(self.server_ms(boottime()))

    def lived(self, record: Record, at: float | None = None) -> Record:
        """Return the record, or, where its end has come, now or by a moment of `boottime`, as `expired`."""
        if len(record.encoding) <= PLAIN_MAX or record.op != "set":
            return record
        until = until_of(record.encoding)
        if until is None or self.server_ms(boottime() if at is None else at) < until:
            return record
        return replace(record, op="expired")

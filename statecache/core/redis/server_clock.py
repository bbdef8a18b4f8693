"""What time it is for the Redis server, by which states end."""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from statecache.clock import boottime, wall
from statecache.expiry import PLAIN_MAX, until_of
from statecache.model import Record


class ServerClock:
    """The Redis server's clock as this process knows it: never ahead of it, and behind by one exchange at most.

    So who is not given a state any more can be sure that the server takes it for ended too. Before any server was heard
    it is this machine's.
    """

    __slots__ = ("_ahead_ms", "_heard")

    def __init__(self) -> None:
        self._ahead_ms = wall().timestamp() * 1000 - boottime() * 1000
        self._heard = False

    def heard(self, now_ms: float, sent: float) -> None:
        """Note the server's time in ms, told just now to a question that was sent at that moment of `boottime`."""
        least, most = now_ms - boottime() * 1000, now_ms + 1 - sent * 1000
        self._ahead_ms = min(max(self._ahead_ms, least), most) if self._heard else least
        self._heard = True

    def now_ms(self) -> int:
        """Return the server's time as far as it is known, in ms since 1970."""
        return int(boottime() * 1000 + self._ahead_ms)

    def moment_of(self, encoding: str) -> float:
        """Return the moment of `boottime` at which a stored value ends; `inf` where it lasts."""
        until = until_of(encoding)
        return inf if until is None else (until - self._ahead_ms) / 1000

    def lived(self, record: Record, at: float | None = None) -> Record:
        """Return the record, or, where its end has come, now or by a moment of `boottime`, as `expired`."""
        if len(record.encoding) <= PLAIN_MAX or record.op != "set":
            return record
        if (boottime() if at is None else at) < self.moment_of(record.encoding):
            return record
        return replace(record, op="expired")

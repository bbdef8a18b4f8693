"""Who opens gates: on whose word, and what it has seen and kept while it tried."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from statecache.clock import monotonic
from statecache.core.epoch.diverged_primary import DivergedPrimary
from statecache.core.epoch.newest_epochs import NewestEpochs
from statecache.rules.epochs import Authority, Opening, Refusal, decide
from statecache.rules.looks import Look, Pin, ShardRow

if TYPE_CHECKING:
    from statecache.keys import KeySpace
    from statecache.settings import Settings


SERVERS_MAX = 100
"""How many servers are vouched for at once."""


class Vouched:
    """The replids of servers in whose place a process' Redis stands; the least recent go first."""

    def __init__(self, servers: Iterable[str] = ()) -> None:
        self._servers = dict.fromkeys(servers)

    def __contains__(self, server: object) -> bool:
        return server in self._servers

    def note(self, server: str) -> None:
        """Add a server that a row of this Postgres names: what takes its place at this URL may be adopted."""
        self._servers.pop(server, None)
        self._servers[server] = None
        if len(self._servers) > SERVERS_MAX:
            del self._servers[next(iter(self._servers))]


class Candidate:
    """A process that opens shards on the word of `authority`: a client, a worker, or an operator.

    `vouched` says in whose place its Redis stands (see `rules.epochs`), `met` which epochs it has met: a new one is
    above them, too. `beside` is what it has kept of an old primary that goes on by itself.
    """

    def __init__(
        self, settings: Settings, keys: KeySpace, *, by: str, authority: Authority, vouched: Vouched, met: NewestEpochs
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.by = by
        self.authority: Authority = authority
        self.vouched = vouched
        self.met = met
        self.diverged_primary = DivergedPrimary()
        self._standing: dict[int, tuple[str, float]] = {}
        self._shut_in: dict[int, int] = {}
        """The shards whose gates it has shut, with the epoch of the row in which it did."""

    def decide(self, row: ShardRow, look: Look, pin: Pin) -> Opening | Refusal | None:
        """Return how it may open a shard, or why not; None where it is open."""
        verdict = decide(row, look, self.authority, pin=pin, vouched=self.vouched)
        if not isinstance(verdict, Opening):
            return verdict
        return msgspec.structs.replace(verdict, seen=max(verdict.seen, self.met.highest(row.shard)))

    def raised(self, server: str) -> None:
        """Note that a row names the server by now, for this process has begun an epoch on it.

        A worker stands for it from then on, not only once it has flushed from it: the server may be gone before that,
        and nobody else could.
        """
        if self.authority == "worker":
            self.vouched.note(server)

    @property
    def shuts(self) -> bool:
        """Whether it shuts gates: an agent or a command may have the wrong URL, a worker takes epochs as well."""
        return self.authority == "worker"

    def has_shut(self, row: ShardRow) -> bool:
        """Return whether it has shut the shard's gate since the row came to its epoch."""
        return self._shut_in.get(row.shard) == row.epoch

    def note_shut(self, row: ShardRow) -> None:
        """Note that it has shut the shard's gate, with the row as it is."""
        self._shut_in[row.shard] = row.epoch

    def outlived(self, shard: int, look: Look) -> Look:
        """Return the look without a reservation that has stood its whole time by our clock: Redis' may be set back."""
        reservation = f"{look.reservation} {look.reserved_until}"
        now = monotonic()
        known, since = self._standing.get(shard, ("", now))
        if known != reservation:
            self._standing[shard] = (reservation, now)
        elif now - since > self.settings.reservation_s:
            return msgspec.structs.replace(look, reserved_left_ms=0)
        return look

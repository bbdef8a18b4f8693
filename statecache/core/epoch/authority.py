"""Who opens gates: on whose word, and what it has seen and kept while it tried."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from statecache.clock import monotonic
from statecache.core.epoch.beside import Beside
from statecache.rules.epochs import Authority, Look, Opening, Pin, Refusal, ShardRow, decide

if TYPE_CHECKING:
    from statecache.keys import KeySpace
    from statecache.settings import Settings


class Candidate:
    """A process that opens shards on the word of `authority`: a client, a worker, or an operator.

    `vouched` are the replids of servers in whose place its Redis stands (see `rules.epochs`). `beside` is what it has
    kept of an old primary that goes on by itself.
    """

    def __init__(
        self, settings: Settings, keys: KeySpace, *, by: str, authority: Authority, vouched: Collection[str]
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.by = by
        self.authority: Authority = authority
        self.vouched = vouched
        self.beside = Beside()
        self._standing: dict[int, tuple[str, float]] = {}

    def decide(self, row: ShardRow, look: Look, pin: Pin) -> Opening | Refusal | None:
        """Return how it may open a shard, or why not; None where it is open."""
        return decide(row, look, self.authority, pin=pin, vouched=self.vouched)

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

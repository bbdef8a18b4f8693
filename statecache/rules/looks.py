"""What whoever opens a shard's gate reads of it: its row in Postgres, and what its data set in Redis says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

CLAIM = "~"
"""Stands before a replid that a data set's meta does not name, where a worker's word is that it continues it."""


class Totals(NamedTuple):
    """A shard's entries and bytes up to some position."""

    entries: int
    bytes: int


class Pin(NamedTuple):
    """What a data set and its users must agree on; empty texts where nothing is pinned yet."""

    shards: str
    hash: str
    cluster: str


class ShardRow(msgspec.Struct, frozen=True, kw_only=True):
    """What opening a gate needs of a shard's row in Postgres, with the cluster that it belongs to.

    `now_s` is the time of Postgres' clock, in seconds since 1970. Each epoch but the first is above it: a replica and a
    standby that take over may both have forgotten epochs, of which no number may come again. `unknown_epoch` says that
    this Postgres has not begun the epoch in which the data set was last open.
    """

    shard: int
    epoch: int
    replid: str
    flushed: int = 0
    cluster: str = ""
    now_s: int = 0
    unknown_epoch: bool = False


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What a Redis server says of a shard: its meta, its stream's end, and its own replid.

    `epoch` is None where meta is missing or was never opened. `n` and `totals` are those of the newest commit: meta
    says so, or where it is missing, the stream's end. `last` is the stream's last generated (epoch, n); it survives
    trimming and restarts. `flushed` is meta's copy of the watermark, `excepted` the last n of which it knows that
    Postgres set a change aside: the states of later forks are still here. `former` is the replid that the server
    had before this one: where it was promoted, its primary's.
    """

    epoch: int | None
    replid: str
    continues: tuple[str, ...]
    reservation: str
    reserved_until: str
    reserved_left_ms: int
    last: tuple[int, int]
    n: int
    totals: Totals | None
    flushed: int
    excepted: int = 0
    pin: Pin
    server: str
    role: str
    former: str = ""

    @property
    def lineage(self) -> frozenset[str]:
        """The replids whose epoch this data set continues."""
        return frozenset(one for one in (self.replid, *self.continues) if one and not one.startswith(CLAIM))

    @property
    def claimed(self) -> frozenset[str]:
        """The replids whose epoch a worker has said that it continues, and died before it had opened it."""
        return frozenset(one.removeprefix(CLAIM) for one in self.continues if one.startswith(CLAIM))

    @property
    def was_opened_here(self) -> bool:
        """Whether somebody opened it on this server, or began to: a reservation does not tell which."""
        return self.server in self.lineage

    @property
    def own(self) -> int:
        """The epoch in which the data set was last open, by its meta or else by its stream's end."""
        return self.last[0] if self.epoch is None else self.epoch

    @property
    def is_bare(self) -> bool:
        """Whether neither meta nor stream says anything of the data set; its states may."""
        return self.epoch is None and self.last == (0, 0)

    def ending(self, end: tuple[int, int] | None) -> Look:
        """Return the look with `end`, the position of the newest state, for a bare data set; any other unchanged."""
        if end is None or not self.is_bare:
            return self
        return msgspec.structs.replace(self, last=end, n=end[1])

    @property
    def has_foreign_entries(self) -> bool:
        """Whether the stream goes on beyond the newest commit: another program adds to it."""
        return self.last > (self.own, self.n)


def look_of(parts: Sequence[str]) -> Look:
    """Read the answer of the script `gate_look`; raise ValueError where it is not ours."""
    epoch, replid, continues, token, until, left, last, n, entries, size, flushed, excepted, *rest = parts
    *pin, server, role, former = rest
    last_epoch, _, last_n = last.partition("-")
    return Look(
        epoch=int(epoch) if epoch else None,
        replid=replid,
        continues=tuple(continues.split()),
        reservation=token,
        reserved_until=until,
        reserved_left_ms=int(left),
        last=(int(last_epoch), int(last_n)),
        n=int(n or 0),
        totals=Totals(int(entries), int(size)) if entries and size else None,
        flushed=int(flushed or 0),
        excepted=int(excepted or 0),
        pin=Pin(*pin),
        server=server,
        role=role,
        former=former,
    )

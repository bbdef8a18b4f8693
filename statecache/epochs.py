"""Who may open a shard's epoch, and what of Redis is stale when it opens: decided from values alone.

An epoch is raised whenever a shard's Redis data set may have lost something. Until the new epoch is open the shard's
gate is closed: the commit script refuses, because `meta.replid` is not the server's. The states of a gate:

    open      meta.replid is the server's and meta.epoch the row's
    closed    anything else; somebody who may, claims it
    claimed   meta.replid is empty, meta.claim holds the claimer's token, meta.claimed the replids that this data set
              may continue: a claimer that dies leaves enough for the next one
    open      again, at a higher epoch, after the claimer's own bump of the row in Postgres and the validation

A data set **continues** the row when it names the row's replid: a restart, or a promoted replica. Redis loses a
suffix of one ordered log, so only keys that Postgres holds beyond the **common point** can be stale in it; and what a
returning old branch holds beyond the common point belongs to no lineage.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Authority = Literal["client", "worker", "operator"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """This is a shard's row in Postgres."""

    shard: int
    epoch: int
    replid: str
    flushed: int
    entries: int
    bytes: int


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """This is what a Redis server says of a shard: its meta, its stream's end, and its own replid.

    `epoch` is None where meta is missing or was never opened. `last` is the stream's last generated (epoch, n); it
    survives trimming and restarts.
    """

    epoch: int | None
    replid: str
    claimed: tuple[str, ...]
    claim: str
    claim_left_ms: int
    last: tuple[int, int]
    server: str
    role: str

    @property
    def lineage(self) -> frozenset[str]:
        """These are the replids whose epoch this data set continues."""
        return frozenset((self.replid, *self.claimed)) - {""}


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """This says that the shard may be opened: the new epoch is above `seen`, its changes come after `last`."""

    seen: int
    last: int


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """This says why the shard may not be opened by whoever asked; `wait` where another claim is under way."""

    why: str
    wait: bool = False


def decide(row: Row, look: Look, authority: Authority) -> Opening | Refusal | None:
    """This decides whether the shard may be opened; None means that it is open already."""
    if look.role != "master":
        return Refusal(why="this server is a replica", wait=True)
    if look.epoch == row.epoch and look.replid == look.server:
        return None
    if look.claim and look.claim_left_ms > 0:
        return Refusal(why="another process is opening it", wait=True)
    opening = Opening(seen=max(look.epoch or 0, look.last[0], row.epoch), last=look.last[1])
    if authority == "operator":
        return opening
    if look.epoch is None and not look.lineage:
        if authority == "worker":
            return opening
        return Refusal(
            why="this Redis holds no data set of ours; a worker or `statecache migrate` adopts it", wait=True
        )
    if row.replid in look.lineage and (look.epoch or 0) <= row.epoch:
        return opening
    return Refusal(
        why=f"this Redis holds epoch {look.epoch or 0} of {look.replid or '-'.join(look.claimed) or 'nobody'}, "
        f"Postgres says epoch {row.epoch} of {row.replid or 'nobody'}: whether this server is the primary is an "
        "operator's word (`statecache epoch claim`)"
    )


def common_point(look: Look, later_starts: list[int]) -> int | None:
    """This gives the n up to which this data set and Postgres hold the same log; None: nothing to compare.

    `later_starts` are the start_n of Postgres' epochs after the data set's own, in order.
    """
    if look.epoch is None and look.last == (0, 0):
        return None
    return min([look.last[1], *later_starts[:1]])

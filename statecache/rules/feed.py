"""How far a reader of changes has come, decided from values alone: cursors, and whether one can be gone on from.

A cursor holds a place for each shard: the n that is read next, how many changes of that commit were given already, how
many late changes were, and the epoch in whose lineage all before it was read. As text it is

    <first 8 digits of the cluster's id>/<shard>:<epoch>-<n>[+<changes of it>][~<late ones>],…/<prefix>

It serves every prefix that begins with its own. A later epoch of the shard that began before the place ended what was
read there: that cursor cannot be gone on from. Nor can one be where Postgres has deleted what would be read next. A
late change has a number that no restore of Postgres brings again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from statecache.errors import UsageError

_PLACE = re.compile(r"(\d{1,9}):(\d{1,18})-(\d{1,18})(?:\+(\d{1,9}))?(?:~(\d{1,18}))?")
_HINT = "Give what `cursor` of a feed said, unchanged."


class FeedPlace(NamedTuple):
    """How far a reader has come in a shard: what is read next, and in whose epoch all before it was read."""

    epoch: int = 0
    n: int = 1
    part: int = 0
    late: int = 0

    @property
    def touched(self) -> int:
        """The newest position of which changes were given or passed over."""
        return self.n if self.part else self.n - 1

    def __str__(self) -> str:
        more = (f"+{self.part}" if self.part else "") + (f"~{self.late}" if self.late else "")
        return f"{self.epoch}-{self.n}{more}"


class FeedHead(NamedTuple):
    """How a shard stands in Postgres, and how far its changes were looked at; see the statement `feed_changes`."""

    epoch: int
    flushed: int
    kept_after: int
    start_n: int | None
    cut_at: int | None
    newest_late: int
    looked_late: int | None

    @property
    def more(self) -> bool:
        """Whether there is more than was looked at."""
        return self.cut_at is not None or (self.looked_late is not None and self.looked_late < self.newest_late)


class Cursor(msgspec.Struct, frozen=True):
    """A reader's places in all shards of a prefix, of the deployment with that cluster id."""

    cluster: str
    prefix: str
    places: Mapping[int, FeedPlace]

    def __str__(self) -> str:
        places = ",".join(f"{shard}:{place}" for shard, place in sorted(self.places.items()))
        return f"{self.cluster[:8]}/{places}/{self.prefix}"

    def on(self, cluster: str, prefix: str, shards: Iterable[int]) -> dict[int, FeedPlace]:
        """Return the places of these shards; raise UsageError for another deployment, or more than was read."""
        if not cluster.startswith(self.cluster):
            raise UsageError(f"the cursor is of another deployment, of cluster {self.cluster}…")
        if not prefix.startswith(self.prefix):
            raise UsageError(f"the cursor tells of changes under {self.prefix!r}, not of all under {prefix!r}")
        return {shard: self.places.get(shard, FeedPlace()) for shard in shards}


def cursor_of(text: object) -> Cursor:
    """Read a cursor's text, or raise UsageError."""
    parts = text.split("/", 2) if isinstance(text, str) else []
    if len(parts) != 3 or not re.fullmatch(r"[0-9a-f]{8}", parts[0]):
        raise UsageError(f"since={text!r} is no cursor", hint=_HINT)
    places = dict[int, FeedPlace]()
    for one in filter(None, parts[1].split(",")):
        found = _PLACE.fullmatch(one)
        if found is None or int(found[3]) < 1:
            raise UsageError(f"since= holds {one!r}, which is no place in a shard", hint=_HINT)
        shard, *place = (int(part or 0) for part in found.groups())
        places[shard] = FeedPlace(*place)
    return Cursor(parts[0], parts[2], places)


def broken(place: FeedPlace, head: FeedHead) -> str:
    """Return why a reader cannot go on from its place, or ''.

    A Postgres that went back, to an epoch before the place's, gives nothing until a later one has begun: that tells.
    """
    if head.start_n is not None and head.start_n < place.touched:
        return f"a later epoch began at {head.start_n}, and it has come to {place.touched} in epoch {place.epoch}"
    if place.n <= head.kept_after and place != FeedPlace():
        return f"changes up to {head.kept_after} may have been deleted, and it has come to {place.touched}"
    return ""


def newest(head: FeedHead) -> FeedPlace:
    """Return the place behind all that a shard holds."""
    return FeedPlace(head.epoch, head.flushed + 1, 0, head.newest_late)


def anew(place: FeedPlace, head: FeedHead) -> FeedPlace:
    """Return where a reader can go on whose place is broken: where the later epoch began, behind what was deleted."""
    n = place.n if head.start_n is None else min(place.n, head.start_n + 1)
    return FeedPlace(head.epoch, max(n, head.kept_after + 1), 0, place.late)


def beginning(place: FeedPlace, head: FeedHead) -> FeedPlace:
    """Return where a reader begins: whoever wants all that there is, behind what may have been deleted."""
    return anew(place, head)._replace(late=head.newest_late) if place == FeedPlace() and head.kept_after else place


def behind(place: FeedPlace, head: FeedHead) -> FeedPlace:
    """Return the place behind all that was looked at."""
    if head.epoch < place.epoch:
        return place
    late = max(place.late, head.newest_late if head.looked_late is None else head.looked_late)
    if head.cut_at is not None:
        return FeedPlace(head.epoch, head.cut_at, 0, late)
    if head.flushed >= place.n:
        return FeedPlace(head.epoch, head.flushed + 1, 0, late)
    return FeedPlace(head.epoch, place.n, place.part, late)


def after(place: FeedPlace, row: Sequence[Any], epoch: int) -> FeedPlace:
    """Return the place behind one change that was given; `row` begins with shard, n, part and late."""
    _, n, part, late = row[:4]
    return place._replace(epoch=epoch, late=late) if late else FeedPlace(epoch, n, part, place.late)

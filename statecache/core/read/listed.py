"""What a listing is asked for, and what it finds on its way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from statecache.model import Record
from statecache.rules.filters import Filter, Selection

Order = Literal["key", "-key", "newest", "oldest"]
STATEMENTS: dict[Order, str] = {
    "key": "list_by_key", "-key": "list_by_key_down", "newest": "list_newest", "oldest": "list_oldest",
}  # fmt: skip
ORDERS = tuple(STATEMENTS)
"""The orders of a listing; each has a statement of its own, for each is that of an index."""
_EPOCH, _REPLID, _FLUSHED, _RETIRED = 0, 1, 5, 7
"""The indexes in a shard's part of the answer of the script `heads`."""
LIMIT_MAX = 2**63 - 1
"""The greatest limit that Postgres takes."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """What a listing is about, in which order, how much of it, and whether values are wanted."""

    selection: Selection
    order: Order = "key"
    limit: int | None = None
    values: bool = True

    @property
    def down(self) -> bool:
        """Whether what is greater, or newer, comes first."""
        return self.order in ("-key", "newest")

    @property
    def reads_values(self) -> bool:
        """Whether what Redis holds is read with its values, if only to compare them."""
        return self.values or bool(self.selection.filter)

    @property
    def light(self) -> Listed:
        """The same without values, not even such as are compared."""
        return replace(self, values=False, selection=replace(self.selection, filter=Filter()))


class Sight(msgspec.Struct, frozen=True):
    """A record as a listing saw it; `stored` says that Postgres holds it, `parked` that its change is in quarantine."""

    record: Record
    stored: bool = False
    parked: bool = False

    @property
    def is_listed(self) -> bool:
        """Whether there is a state, or was one that only quarantine holds."""
        return self.record.exists or self.record.op == "quarantined"

    @property
    def is_light(self) -> bool:
        """Whether its value may be yet to be read: it is empty, and Postgres does not hold the state."""
        return self.record.exists and not (self.stored or self.record.value)

    def holds(self, wanted: Filter) -> bool:
        """Return whether the value is as wanted; Postgres has settled that for what it holds."""
        return self.stored or not self.record.exists or wanted.holds(self.record)


class Watermark(NamedTuple):
    """How far Postgres holds a shard: of one epoch, and of all before it."""

    epoch: int
    flushed: int

    def reaches(self, other: Watermark) -> bool:
        """Return whether a Postgres holds no less than one that was there before.

        An epoch begins behind what is flushed. So one that is later, and of which less is flushed, began after Postgres
        went back.
        """
        return self.epoch >= other.epoch and self.flushed >= other.flushed

    def least(self, other: Watermark) -> Watermark:
        """Return what both hold."""
        return Watermark(min(self.epoch, other.epoch), min(self.flushed, other.flushed))


UNKNOWN = Watermark(0, 0)
"""How far a Postgres holds a shard that it does not know."""
BEHIND = "this Postgres holds less than was flushed: it is a copy, or went back, and a worker has to compare"
"""Why nothing is read from a Postgres, and why it proves nothing that it does not hold something."""


def watermarks_of(rows: Iterable[Sequence[Any]]) -> dict[int, Watermark]:
    """Return the watermarks by shard, of the rows of the statement `watermarks`."""
    return {shard: Watermark(epoch, flushed) for shard, epoch, flushed in rows}


def flushed_in(epoch: bytes | None, flushed: bytes | None, retired: bytes | None) -> Watermark:
    """Return how far Redis remembers that a shard is flushed, of fields of its meta.

    What was retired was flushed, though an epoch may have begun with a Postgres that holds it no more.
    """
    return Watermark(int(epoch or 0), max(int(flushed or 0), int(retired or 0)))


def remembered(head: Any) -> Watermark:
    """Return the same, of the shard's part in the answer of the script `heads`."""
    return flushed_in(head[_EPOCH], head[_FLUSHED], head[_RETIRED]) if isinstance(head, list) else UNKNOWN


def opened_by(head: Any) -> str:
    """Return the replid of the server on which the shard was opened, of the same part; '' for none."""
    return head[_REPLID].decode() if isinstance(head, list) and head[_EPOCH] else ""


class Overlay(msgspec.Struct, frozen=True):
    """What Redis holds that Postgres may not have, by key; and the watermarks of the open shards to go by.

    Where there is more than was read at once, it is all of it up to and with the key `up_to`. `gone` says that some of
    it had left Redis when it was read: Postgres holds that by then.
    """

    records: dict[str, Record]
    flushed: dict[int, Watermark]
    up_to: str | None = None
    gone: bool = False

    def follows(self, watermarks: Mapping[int, Watermark]) -> bool:
        """Return whether what Postgres held before, at these watermarks, shows with this all that there is."""
        return not (self.gone or self.lacking(watermarks))

    def lacking(self, watermarks: Mapping[int, Watermark]) -> bool:
        """Return whether Postgres, with these watermarks, lacks more than what is held here."""
        return any(not watermarks.get(shard, UNKNOWN).reaches(flushed) for shard, flushed in self.flushed.items())

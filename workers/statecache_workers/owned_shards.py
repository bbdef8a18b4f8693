"""A worker's shards: what Postgres' row and Redis' meta say of each, and how they stand to one another.

new      just taken, or something did not fit: the row is read again, its watermark acknowledged, the place in the
         stream found
open     row and meta agree: the shard is flushed
apart    they do not agree, or the shard cannot be read; others go on, and this one is tried again later
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from statecache.errors import InvalidKey
from statecache.keys import checked_key
from statecache.rules.replids import UNFENCED
from statecache_workers.logs import alarm
from statecache_workers.stream_places import StreamPlace
from statecache_workers.stream_retention import StreamRetention

if TYPE_CHECKING:
    from statecache.keys import KeySpace

Phase = Literal["new", "open", "apart"]
MISFITS_MAX = 3
BRIEF_S = 0.25
"""For how long another session may hold a shard's row before the shard is left for the next renewal of the leases."""


class OwnedRow(NamedTuple):
    """A shard's row in Postgres, as its owner read or wrote it under its lock."""

    epoch: int
    replid: str
    flushed: int
    entries: int
    bytes: int
    excepted: int


class Head(NamedTuple):
    """A shard's meta in Redis; `epoch` is None where it is missing."""

    epoch: int | None
    replid: str
    n: int
    entries: int
    bytes: int
    flushed: int
    excepted: int


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    """What one server said of shards at one moment: a head each, or the reason why it cannot be read.

    `now_ms` is that moment on the server's clock, `seen` on the monotonic clock of this process.
    """

    server: str
    now_ms: int
    seen: float
    of: dict[int, Head | str]

    def over(self, older: Heads | None) -> Heads:
        """Return these, filled in from older ones for shards of which these do not tell."""
        return self if older is None else msgspec.structs.replace(self, of=older.of | self.of)


class Holding:
    """One shard that the worker owns, from the worker's side.

    `after` is the stream id after which to read. `sure` says that the row was read since it last did not fit; `misfits`
    counts how often it has not fitted since something was flushed, or its epoch began. `reason` is why the shard stands
    apart, `held_since` since when another session was seen to hold its row. `retention` tells what may leave.
    """

    __slots__ = ("after", "held_since", "misfits", "phase", "reason", "retention", "row", "shard", "sure")

    def __init__(self, shard: int, row: OwnedRow, retention: StreamRetention | None = None) -> None:
        self.shard = shard
        self.row = row
        self.phase: Phase = "new"
        self.after = b""
        self.sure = True
        self.misfits = 0
        self.held_since: float | None = None
        self.reason = ""
        self.retention = retention or StreamRetention(0.0, 0)

    @property
    def place(self) -> StreamPlace:
        """The place up to which the shard is flushed."""
        return StreamPlace(self.after, self.row.flushed, self.row.entries, self.row.bytes)

    def move(self, place: StreamPlace, *, excepted: int) -> None:
        """Note that Postgres has committed up to there."""
        self.row = self.row._replace(
            flushed=place.n, entries=place.entries, bytes=place.bytes, excepted=max(self.row.excepted, excepted)
        )
        self.after, self.misfits = place.after, 0

    def reread(self, row: OwnedRow) -> None:
        """Take the row as Postgres has it now; a new epoch is a new beginning."""
        if row.epoch != self.row.epoch:
            self.misfits = 0
        self.row, self.phase, self.sure, self.held_since = row, "new", True, None
        self.retention.went_back(row.flushed)

    def hold_off(self, now: float) -> None:
        """Leave the shard for later: another session holds its row, so it may be somebody else's by now.

        It is looked at again at once where that has not gone on for long: whoever opens a gate holds it for a moment.
        """
        self.held_since = now if self.held_since is None else self.held_since
        self.phase, self.sure = "new" if now - self.held_since < BRIEF_S else "apart", False

    def look_again(self) -> None:
        """Forget what was believed of the shard."""
        self.phase, self.sure = "new", False

    def doubt(self) -> None:
        """Forget what was believed of the shard, and leave it for later if that goes on."""
        self.look_again()
        self.misfits += 1
        if self.misfits > MISFITS_MAX:
            set_apart(self, "unstable", "its row and its meta do not come to rest")


def set_apart(holding: Holding, event: str, reason: str) -> None:
    """Leave a shard for later, with an alarm where that is new."""
    holding.phase, holding.sure = "apart", False
    if holding.reason != reason:
        holding.reason = reason
        alarm(event, shard=holding.shard, reason=reason)


def agree(row: OwnedRow, head: Head, server: str) -> bool:
    """Return whether the gate is open on that server, and for the row's epoch.

    Without a fence, only its copy of the watermark shows that a data set is the one from before and lacks nothing.
    """
    same = head.epoch == row.epoch and head.replid == server and row.replid == server
    return same and (server != UNFENCED or head.flushed == row.flushed)


def misplaced(key: str, shard: int, keys: KeySpace) -> str:
    """Return why a key does not belong to that shard; '' where it does."""
    try:
        place = keys.shard(checked_key(key))
    except InvalidKey as error:
        return error.reason
    return "" if place == shard else f"its key belongs to shard {place}"


def head_of(reply: list[bytes] | bytes) -> Head | str:
    """Read one shard's part of the script's answer, or return why it cannot be read."""
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "replace")
    epoch, replid, *numbers = reply
    try:
        n, entries, size, flushed, excepted, *_ = (int(number or 0) for number in numbers)
        return Head(int(epoch) if epoch else None, replid.decode(), n, entries, size, flushed, excepted)
    except ValueError:
        return "its meta holds something else than numbers"


def shares(pending: dict[int, tuple[int, int]], entries_max: int, bytes_max: int, first: int) -> dict[int, int]:
    """Share a batch out: how many entries to read of which shard, given (entries, bytes) pending in each.

    Shards have their turns in a circle that starts at `first`. One takes at most a quarter of the batch while others
    wait, or one entry if that is larger, and what is left over when all had their turn. Few shards with many entries
    cost less than the reverse: every shard in a batch has its own read, row and acknowledgement.
    """
    counts: dict[int, int] = {}
    circle = _circle(pending, first)
    for most, size_most in ((max(1, entries_max // 4), bytes_max // 4), (entries_max, bytes_max)):
        for shard in circle:
            entries, size = pending[shard]
            had = counts.get(shard, 0)
            count = min(entries - had, max(0, most - had), entries_max)
            if count * size > size_most * entries:
                count = max(min(count, 1), size_most * entries // size)
            if count * size > bytes_max * entries:
                count = bytes_max * entries // size
            if not counts:
                count = max(count, 1)
            if count > 0:
                counts[shard] = had + count
                entries_max -= count
                bytes_max = max(0, bytes_max + -count * size // entries)
    return counts


def turn_after(pending: dict[int, tuple[int, int]], counts: dict[int, int], first: int) -> int:
    """Return the shard at which the next circle starts: the first that had no turn, so that none is passed over."""
    circle = _circle(pending, first)
    return next((shard for shard in circle if shard not in counts), circle[0] + 1)


def _circle(pending: dict[int, tuple[int, int]], first: int) -> list[int]:
    return sorted(pending, key=lambda shard: (shard < first, shard))

"""Slices of shards' streams: runs of entries, cut where they no longer continue the watermark.

What follows the watermark must be n + 1, for n is contiguous in every shard. A cut is why it does not go on:
    gap      entries between are gone although nobody flushed them: trimmed or deleted by hand
    newer    an entry of a newer release: only a newer worker knows what to do with it
    foreign  an entry that may be no commit's: another program adds to this stream
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from statecache.entries import ForeignEntry, NewerFormat, change_set, position_of
from statecache.model import ChangeSet, Position
from statecache_workers.owned_shards import Head, Holding
from statecache_workers.stream_places import Gap, StreamPlace

Cut = Literal["", "gap", "newer", "foreign", "beyond"]


class Entry(NamedTuple):
    """One stream entry at its place; `fault` says why it could not be read."""

    fields: Sequence[bytes]
    position: Position
    change_set: ChangeSet | None
    fault: str = ""


class Slice(msgspec.Struct, kw_only=True):
    """What one shard brings into a batch: entries in order, from one place in its stream to another.

    With the cut `gap` there are no entries but those that were rebuilt, and `gaps` says which are not;
    with `beyond` none that the head knows of: they were committed since it was read, or no commit wrote them.
    """

    holding: Holding
    head: Head
    start: StreamPlace
    end: StreamPlace
    entries: list[Entry] = []
    cut: Cut = ""
    reason: str = ""
    gaps: Sequence[Gap] = ()

    @property
    def shard(self) -> int:
        """The shard's number."""
        return self.holding.shard

    @property
    def plain(self) -> bool:
        """Whether there is nothing to see to but a run of entries."""
        return not self.cut and not any(entry.fault for entry in self.entries)

    def close(self) -> None:
        """Note where the entries end."""
        self.end = self.start
        if not self.entries:
            return
        last = self.entries[-1].position
        read = next((one.change_set for one in reversed(self.entries) if one.change_set is not None), None)
        totals = (read.entries, read.bytes) if read is not None else (self.start.entries, self.start.bytes)
        self.end = StreamPlace(str(last).encode(), last.n, *totals)

    def places(self, step_bytes: int) -> Iterator[StreamPlace]:
        """Yield places inside the slice, one in about so many bytes, and where it ends."""
        last = self.start.bytes
        for entry in self.entries[:-1] if self.end.bytes - last > step_bytes else ():
            found = entry.change_set
            if found is not None and found.bytes - last >= step_bytes:
                last = found.bytes
                yield StreamPlace(str(entry.position).encode(), entry.position.n, found.entries, found.bytes)
        yield self.end

    def keep(self, count: int) -> None:
        """Drop the entries behind the first so many; where these are none, all is left for later."""
        if count >= len(self.entries):
            return
        dropped = self.entries[count]
        del self.entries[count:]
        if not count:
            self.put_off()
        elif self.cut == "gap":
            self.stop_at(dropped.position.n - 1)
        else:
            self.cut = ""
            self.close()

    def put_off(self) -> None:
        """Leave all of it for later."""
        self.entries, self.gaps, self.end = [], (), self.start

    def stop_at(self, n: int) -> None:
        """End a gap at a position inside it, behind its entries: what comes then is a gap of its own.

        Where some of it is lost, nobody knows what the rest counts for: all is counted at once. So it is with bytes of
        which nobody knows where they are missing.
        """
        missing = 0 if all(gap.run for gap in self.gaps) else self.missing_bytes
        self.gaps = [gap.upto(n) for gap in self.gaps if gap.first <= n]
        known, size = self.known_bytes, self.end.bytes
        if known is not None and not any(gap.run for gap in self.gaps):
            size = min(size, self.start.bytes + known + missing)
        entries = max(self.start.entries, self.end.entries - (self.end.n - n))
        self.end = self.start._replace(n=n, entries=entries, bytes=size)

    @property
    def known_bytes(self) -> int | None:
        """What the entries count for in the shard's bytes; None where one of them cannot be read."""
        sizes = [weight(entry.change_set) for entry in self.entries if entry.change_set is not None]
        return sum(sizes) if len(sizes) == len(self.entries) else None

    @property
    def missing_bytes(self) -> int:
        """What a gap lacks in bytes, as far as that is known."""
        return 0 if (known := self.known_bytes) is None else max(0, self.end.bytes - self.start.bytes - known)

    def shorten(self, bytes_max: int) -> int:
        """Drop entries past that many bytes, but for the first, and return how many bytes are kept."""
        if self.end.bytes - self.start.bytes > bytes_max and len(self.entries) > 1:
            sizes = [one.change_set.bytes - self.start.bytes if one.change_set else 0 for one in self.entries]
            self.keep(max(1, bisect_right(sizes, bytes_max)))
        return max(self.end.bytes - self.start.bytes, 0)


def sliced(
    holding: Holding, start: StreamPlace, head: Head, replies: Sequence[tuple[bytes, Sequence[bytes]]], asked: int
) -> Slice:
    """Return a slice of what a stream gave (`asked` entries at most), up to the head, cut where it does not continue.

    A commit moves meta and stream at once. What stands beyond the head, which was read before, is left for later.
    """
    found = Slice(holding=holding, head=head, start=start, end=start)
    entries, expected, epoch = found.entries, start.n + 1, head.epoch or 0
    beyond: Entry | None = None
    exhausted = len(replies) < asked
    for entry_id, fields in replies:
        try:
            position = position_of(entry_id)
        except ForeignEntry:
            found.cut = "foreign"
            break
        if position.n > head.n:
            exhausted = True
            found.cut = "" if entries else "beyond"
            break
        if position.n != expected or position.epoch > epoch:
            found.cut = "gap" if position.n > expected and position.epoch <= epoch else "foreign"
            beyond = Entry(fields, position, None)
            with contextlib.suppress(NewerFormat):
                beyond = _entry(fields, position)
            break
        try:
            entry = _entry(fields, position)
        except NewerFormat as error:
            found.cut, found.reason = "newer", str(error)
            break
        entries.append(entry)
        expected += 1
    if exhausted and found.cut in ("", "beyond") and expected <= head.n:
        found.cut = "gap"
    found.close()
    if found.cut == "gap":
        _measure_gap(found, beyond)
    return found


def _entry(fields: Sequence[bytes], position: Position) -> Entry:
    """Read one entry, with a fault where it cannot be read; raise NewerFormat where only a newer release can."""
    try:
        return Entry(fields, position, change_set(b"", fields, position=position))
    except ForeignEntry as error:
        return Entry(fields, position, None, str(error))


def _measure_gap(found: Slice, beyond: Entry | None) -> None:
    """Find out how far a gap goes, or leave it for the next time where entries come before it."""
    start, head = found.start, found.head
    if found.entries:
        found.cut = ""
    elif beyond is None:
        found.end = StreamPlace(start.after, head.n, head.entries, head.bytes)
    elif (after := beyond.change_set) is not None:
        found.end = StreamPlace(start.after, beyond.position.n - 1, after.entries - 1, after.bytes - weight(after))
    else:
        found.end = start._replace(n=beyond.position.n - 1)


def weight(found: ChangeSet) -> int:
    """Return what a change-set counts for in its shard's bytes."""
    return sum(len(change.key.encode()) + len(change.value) + 200 for change in found.changes)

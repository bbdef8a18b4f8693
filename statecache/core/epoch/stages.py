"""What an attempt at opening shards knows of each, and what it came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from statecache.rules.epochs import Opening, Refusal, common_point
from statecache.rules.looks import Look, ShardRow, Totals


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """An opened shard: the new epoch, its start, stale states dropped, changes set aside as conflicts.

    `flushed` is the watermark in Postgres, `acknowledged` the data set's copy: where it is higher, Postgres went back.
    """

    shard: int
    epoch: int
    start_n: int
    dropped: int
    conflicts: int
    flushed: int
    acknowledged: int


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one attempt: the shards that it opened, and why others are still closed.

    `epochs` are those of the shards that are open.
    """

    opened: list[Opened]
    refused: dict[int, Refusal]
    epochs: dict[int, int] = {}


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a shard that may be opened.

    `later` is the lowest start of the lineage's epochs after the data set's own, `parted` the n after which the data
    set holds what Postgres does not know.
    """

    row: ShardRow
    look: Look
    verdict: Opening
    later: int | None = None
    parted: int | None = None

    @property
    def common(self) -> int | None:
        """The n up to which the data set and the lineage are the same; None where there is no data set."""
        return common_point(self.look, self.later, self.parted)

    def is_closed(self, flushed: int) -> bool:
        """Return whether the shard is still to be opened, given a watermark that was read after the look."""
        return self.verdict.acknowledged is None or self.verdict.acknowledged > flushed


class Raised(msgspec.Struct, frozen=True, kw_only=True):
    """A shard whose row was raised for us, with what the row says."""

    seen: Seen
    epoch: int
    start_n: int
    flushed: int
    totals: Totals
    excepted: int

    @property
    def shard(self) -> int:
        """The shard's number."""
        return self.seen.row.shard


def together(seen: Sequence[Seen], refused: Mapping[int, Refusal]) -> tuple[list[Seen], dict[int, Refusal]]:
    """Return what may be opened, and what may not: nothing of a data set of which one shard is another cluster's.

    A shard of which Postgres never had an epoch would be adopted beside others that are refused.
    """
    reason = next((one for one in refused.values() if one.unrelated), None)
    ours = [one for one in seen if reason is None or one.look.pin.cluster == one.row.cluster]
    kept = {one.row.shard for one in ours}
    withheld = {one.row.shard: reason for one in seen if reason is not None and one.row.shard not in kept}
    return ours, {**refused, **withheld}

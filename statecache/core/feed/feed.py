"""The feed: every change under a prefix that Postgres holds in the current lineage, once, and in order within a shard.

Only what is durable is given, from Postgres, which holds the changes in the order of their shard (index on shard, n)
with the watermark moved in the same transaction. So nothing that was given is ever taken back by a failover, a change
that forked, was lost or is in quarantine is never given, and no gap can be seen that is filled later, but for one: what
an operator takes out of quarantine comes in behind the watermark. Postgres counts these as `late`; a reader gets them
when it meets them, marked so. Across shards there is no order; a group is on one shard, and is in order as a whole.

    read      one statement, one moment: the shards' rows, late changes, and changes from the reader's places up to the
              watermarks, a bounded number of rows, those of other prefixes too, which it leaves out, and of bytes
    given     one by one; a place moves with each change, and behind what was left out when all before it was given
    compared  each change with its hash, and its value with its digest. One that does not fit is an error in its place,
              behind which the reader goes on
    behind    shards that have more are read in turn, one at a time, before all are looked at again
    waiting   for an event that a watermark moved: those shards are read. All are looked at every second, for an event
              may be lost, and Redis away: reading needs Postgres alone
    failing   a read that failed, was cancelled, or in which a signal handler raised, changes nothing: which shards have
              more, moved, or are to be looked at stays noted until they were read, so the next one does it again

A cursor (`rules.feed`) holds the places. Where one cannot be gone on from, CursorEnded says so, with one that can:
a restored Postgres went on without changes that were given, or some that were not are deleted. A Postgres that went
back behind a place, and is being flushed again, is waited for: the same changes come at the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from statecache.clock import monotonic
from statecache.core.history.hashes import unfit
from statecache.core.history.values import SuccessiveValues
from statecache.errors import CursorEnded, UsageError
from statecache.history import Stored
from statecache.history_errors import HistoryDamaged
from statecache.keys import beyond_prefix, checked_prefix_of_list
from statecache.model import Position
from statecache.rules.feed import Cursor, FeedHead, FeedPlace, after, anew, beginning, behind, broken, cursor_of, newest

if TYPE_CHECKING:
    from statecache.core.runtime import Runtime

Row = Sequence[Any]
Since = str | Literal["now"] | None

ROWS = 4000
"""How many changes are read at once at most, over all shards that are read together."""
ROWS_MIN = 300
"""How many are read of each shard at least: more than one commit can have."""
BYTES = 8 * 1024 * 1024
"""Values are read up to this many bytes, and the one that exceeds it."""
LATE, STATES = 10, 100
"""How many late changes, and states of a prefix, are read at once at most."""
LOOK_S = 1.0
"""How often all shards are looked at, in seconds."""
_SUBSCRIBE_S = 0.2
_N_MAX = 2**62
_in_order = itemgetter(0, 1, 2)


class _Batch:
    """The rows of one read: how many of them were given, and for how many of these the places were moved.

    `epochs` are the shards' epochs, `ends` their places behind all of it.
    """

    def __init__(self, rows: list[Row], epochs: dict[int, int], ends: dict[int, FeedPlace]) -> None:
        self.rows, self.epochs, self.ends = rows, epochs, ends
        self.given = self.folded = 0


class Feed:
    """One reader's way through the changes under a prefix: batches of rows, and how far they were given."""

    def __init__(self, runtime: Runtime, prefix: str, since: Since, *, follow: bool = True) -> None:
        shard = None if prefix == "" else checked_prefix_of_list(prefix, runtime.keys.shards)[1]
        self._shards = range(runtime.keys.shards) if shard is None else range(shard, shard + 1)
        self._runtime, self.prefix, self._since, self._follow = runtime, prefix, since, follow
        if since is not None and not self.begins_now:
            cursor_of(since)
        self._places: dict[int, FeedPlace] | None = None
        self._batch = _Batch([], {}, {})
        self._behind: Sequence[int] = ()
        self._moved: set[int] = set()
        self._due: set[int] = set()
        self._signal = runtime.io.signal()
        self._looked_at = self._listen_at = 0.0
        self._caught_up = False
        self._values = SuccessiveValues(runtime.history_values)
        self.stopped = False

    # How far the reader is.

    @property
    def begun(self) -> bool:
        """Whether it is known where the reader stands."""
        return self._places is not None

    @property
    def begins_now(self) -> bool:
        """Whether it begins behind all that there is."""
        return self._since == "now"

    @property
    def cursor(self) -> str:
        """The text of the cursor behind all that was given."""
        if self._places is None:
            if self._since is None or self.begins_now:
                raise UsageError("nothing was read yet, so there is no cursor", hint="Ask for it after a change.")
            return self._since
        self._fold()
        return str(Cursor(self._runtime.postgres.cluster, self.prefix, self._places))

    def _fold(self) -> None:
        """Move the places behind what was given."""
        places, batch = self._places or {}, self._batch
        if batch.given == len(batch.rows):
            places.update(batch.ends)
        else:
            for row in batch.rows[batch.folded : batch.given]:
                places[row[0]] = after(places[row[0]], row, batch.epochs[row[0]])
        batch.folded = batch.given

    def begin(self, since: Since) -> None:
        """Have the reader begin elsewhere, before anything was read."""
        self._since, self._places = since, None

    async def start(self, seconds: float) -> dict[int, FeedPlace]:
        """Find out where the reader begins, if it is not known, and return its places."""
        if self._places is None:
            self._places = await self._first(seconds)
        return self._places

    def stop(self) -> None:
        """Have the feed end instead of waiting; what was read before is given."""
        self.stopped = True
        self._signal.set()

    def peek(self) -> Row | None:
        """Return the next row of what was read, or None where there is no more of it."""
        batch = self._batch
        return None if batch.given == len(batch.rows) else batch.rows[batch.given]

    def take(self) -> None:
        """Count the next row as given."""
        self._batch.given += 1

    # Reading.

    @property
    def has_moved(self) -> bool:
        """Whether more is known to be there."""
        return bool(self._moved or self._due or self._behind)

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be read: it was stopped, or has come to the end and does not follow."""
        return self.stopped or (self._caught_up and not self._follow)

    async def read(self, seconds: float) -> None:
        """Read the next batch, once all of the one before was given; wait before, if nothing more is known to be there.

        `seconds` bounds each exchange with a server.
        """
        if self._follow and monotonic() >= self._listen_at:
            self._listen_at = monotonic() + LOOK_S  # though it may be cut short: Redis is not needed to read
            await self._listen()
        await self.start(seconds)
        self._fold()
        if self._caught_up and not self.has_moved:
            await self._signal.wait(max(0.0, self._looked_at + LOOK_S - monotonic()))
        if not self.stopped:
            await self._read(self._next_shards(), seconds)

    def _next_shards(self) -> Sequence[int]:
        """Return which shards to read: one that has more, or those that moved, or all."""
        self._signal = self._runtime.io.signal()
        if self._behind:
            return self._behind[:1]
        self._due.update(self._moved)
        self._moved.difference_update(self._due)  # not those of which another thread hears in between
        return sorted(self._due) if self._due and monotonic() < self._looked_at + LOOK_S else self._shards

    async def _first(self, seconds: float) -> dict[int, FeedPlace]:
        """Return where the reader begins."""
        if self.begins_now:
            heads, _ = await self._asked(dict.fromkeys(self._shards, FeedPlace(n=_N_MAX)), ROWS_MIN, seconds)
            return {shard: newest(head) for shard, head in heads.items()}
        if self._since is None:
            return dict.fromkeys(self._shards, FeedPlace())
        cursor = cursor_of(self._since)
        if not self._runtime.postgres.cluster:
            await self._asked({}, ROWS_MIN, seconds)
        return cursor.on(self._runtime.postgres.cluster, self.prefix, self._shards)

    async def _read(self, shards: Sequence[int], seconds: float) -> None:
        """Read the next batch of these shards; all that this changes is stored at the end, in one statement."""
        places, asked_at = self._places or {}, monotonic()
        rows_max = min(max(ROWS // max(len(shards), 1), ROWS_MIN), ROWS)
        heads, found = await self._asked({shard: places[shard] for shard in shards}, rows_max, seconds)
        self._refuse_broken(heads)
        skipped = {shard for shard, head in heads.items() if beginning(places[shard], head) != places[shard]}
        full = {row[0] for row in found if not row[17]}
        rows = [row for row in found if row[17] and row[0] not in skipped]
        epochs = {shard: head.epoch for shard, head in heads.items()}
        ends = {shard: behind(places[shard], head) for shard, head in heads.items()}
        ends |= {shard: beginning(places[shard], heads[shard]) for shard in skipped}
        if full:  # of these less was read than was looked at
            ends |= {shard: places[shard] for shard in full}
            for row in rows:
                if row[0] in full:
                    ends[row[0]] = after(ends[row[0]], row, epochs[row[0]])
        batch, due = _Batch(rows, epochs, ends), self._due.difference(shards)
        more = [shard for shard, head in heads.items() if head.more or shard in full | skipped]
        more = [*(shard for shard in self._behind if shard not in shards), *more]
        looked_at = asked_at if shards is self._shards else self._looked_at
        self._batch, self._behind, self._due, self._caught_up, self._looked_at = batch, more, due, not more, looked_at

    async def _asked(
        self, places: dict[int, FeedPlace], rows_max: int, seconds: float
    ) -> tuple[dict[int, FeedHead], list[Row]]:
        """Return how the shards stand, and what follows the places: late changes first, then in order."""
        columns = {
            "shards": [*places],
            "epochs": [place.epoch for place in places.values()],
            "ns": [place.n for place in places.values()],
            "parts": [place.part for place in places.values()],
            "lates": [place.late for place in places.values()],
        }
        bounds = {"prefix": self.prefix, "beyond": beyond_prefix(self.prefix), "rows": rows_max, "bytes": BYTES}
        end = monotonic() + seconds
        rows = await self._runtime.postgres.fetch("feed_changes", {**columns, **bounds, "late": LATE}, seconds=seconds)
        heads = {row[0]: FeedHead(*row[18]) for row in rows if row[18] is not None}
        late = sorted((row for row in rows if row[3]), key=itemgetter(0, 3))
        changes = [*late, *sorted((row for row in rows if row[3] == 0), key=_in_order)]
        return heads, await self._whole(changes, max(end - monotonic(), 0.001))

    async def _whole(self, rows: Sequence[Row], seconds: float) -> list[Row]:
        """Give the changes their values that are kept as what parts them from the ones before, and compare them all."""
        packed = [at for at, row in enumerate(rows) if row[17] and row[5] == "set"]
        whole = [*rows]
        if any(rows[at][6] is None for at in packed):
            values = await self._values.of([(rows[at][4], _stored(rows[at])) for at in packed], seconds=seconds)
            for at, value in zip(packed, values, strict=True):
                whole[at] = (*rows[at][:6], value, *rows[at][7:])
        return [_compared(row, "the value") if row[17] else row for row in whole]

    def _refuse_broken(self, heads: dict[int, FeedHead]) -> None:
        """Raise CursorEnded where a place cannot be gone on from."""
        places = self._places or {}
        why = {shard: reason for shard, head in heads.items() if (reason := broken(places[shard], head))}
        if not why:
            return
        shard, reason = next(iter(why.items()))
        fresh = places | {one: anew(places[one], heads[one]) for one in why}
        raise CursorEnded(
            shard, Position(places[shard].epoch, places[shard].touched), reason=reason,
            cursor=str(Cursor(self._runtime.postgres.cluster, self.prefix, fresh)),
        )  # fmt: skip

    async def states(self, after: str, seconds: float, *, key: str = "") -> list[Row]:
        """Return a page of what is there behind a key, as rows of newest changes; or that of one key, a delete too."""
        beyond = f"{key}\x01" if key else beyond_prefix(self.prefix)
        bounds = {"after": after, "prefix": key or self.prefix, "beyond": beyond, "rows": STATES,
                  "ops": ["set", "delete"] if key else ["set"]}  # fmt: skip
        rows = await self._runtime.postgres.fetch("feed_states", bounds, seconds=seconds)
        return [_compared(row, "the value in its state") for row in rows]

    # Waking.

    async def _listen(self) -> None:
        """Have the events of the shards' watermarks wake this reader; while Redis is away there are none."""
        durable = self._runtime.durable
        end = monotonic() + _SUBSCRIBE_S
        for shard in self._shards:
            if not await durable.listen(shard, self, end=end):
                return

    def moved(self, shard: int) -> None:
        """Take note that the watermark of a shard moved."""
        self._moved.add(shard)
        self._signal.set()


def _compared(row: Row, named: str) -> Row:
    """Return a row whose change fits its hash, and its value the digest; else why not stands in the value's place."""
    value, digest, hashed, before = row[6], *row[21:24]
    if isinstance(value, HistoryDamaged):
        return row
    said = (row[4], row[5], *row[9:16])
    why = unfit(said, (row[7], row[8], row[1]), digest, hashed, before)
    if not why and value is not None and digest is not None and sha256(value).digest() != digest:
        why = f"{named} is not what its digest says"
    return row if not why else (*row[:6], HistoryDamaged(row[4], row[7], reason=why), *row[7:])


def _stored(row: Row) -> Stored:
    """Return what is kept of a change's value; late ones, which come out of their order, begin with themselves."""
    value, packed, keyframe, digest = row[6], *row[19:22]
    return Stored(
        row[7],
        None if value is None else bytes(value),
        None if packed is None else bytes(packed),
        keyframe,
        None if digest is None else bytes(digest),
    )

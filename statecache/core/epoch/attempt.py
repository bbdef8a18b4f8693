"""One attempt at opening gates: look, reserve, raise the row, validate, open.

What is decided stands in `rules.epochs`; here it is carried out, for many shards at once. Each is safe to die after:
the reservation expires and keeps what the next opener needs, a raised row only makes the next epoch higher, what is set
aside is kept before it is taken out, and nothing of the new epoch is written to the shard before the last script.

    look      what the data set says of itself
    shut      closes the gate of what parted from the lineage and is refused; nothing else is done to it
    reserve   closes the gate where all is still as it was looked at, and tells where the data set ends from then on
    raise     the row in Postgres, by compare-and-set on what was read before reserving it: of several openers one wins
    validate  what Postgres holds beyond the common point is stale here; what this data set holds beyond it is kept
              in `conflict` and taken out, its states before its entries: whoever goes on must still find it; forks that
              were set aside, and of which it was not told, are deleted
    open      the reservation and the server must be the same, once more; only whoever's own bump succeeded opens

Rows are locked in shard order, each for one statement, free ones first: who is stuck holds up its own shards alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from psycopg import errors as pg
from redis.exceptions import NoPermissionError

from statecache.core.epoch.comparison import begun_elsewhere, continued, parted, states_parted
from statecache.core.epoch.deletion import ANY, Deletion
from statecache.core.epoch.evicted_meta import ends, held_states
from statecache.core.epoch.requests import Calls
from statecache.core.epoch.rescue import Branch, Rescue
from statecache.core.epoch.stages import AttemptResult, Opened, Raised, Seen, together
from statecache.errors import ConfigurationError
from statecache.keys import HASH
from statecache.rules.epochs import (
    Refusal,
    after_comparison,
    head_totals,
    is_strange,
    must_set_aside,
    pages,
    reopened,
    unproven,
)
from statecache.rules.looks import Look, Pin, ShardRow, Totals, look_of

if TYPE_CHECKING:
    from statecache.core.epoch.authority import Candidate
    from statecache.core.redis.connection import Link

_POSITIONS_PER_PAGE = 20_000
_MEANWHILE = Refusal(why="others are opening it, or hold its row in Postgres", wait=True)
_NO_ROW = Refusal(
    why="Postgres has no row for it: where that is being restored, wait; else run `statecache migrate`", wait=True
)


class Attempt:
    """One attempt, with what is the same in all of its steps."""

    def __init__(
        self, candidate: Candidate, link: Link, connection: psycopg.AsyncConnection[Any], *, token: str,
        seconds: float,
    ) -> None:  # fmt: skip
        self._candidate = candidate
        self._settings = candidate.settings
        self._keys = candidate.keys
        self._link = link
        self._connection = connection
        self._token = token
        self._seconds = seconds
        self._calls = Calls(link, connection, candidate.settings.postgres_schema, seconds=seconds)
        self._reserve_ms = round(candidate.settings.reservation_s * 1000)
        self._may_begin = False
        self._policies = "0 "
        self._looks: dict[int, Look] = {}
        self._ends: dict[int, tuple[int, int]] = {}
        """Where data sets without meta and stream end: at the newest of their states."""
        self._strange: dict[int, int] = {}
        """After which n states hold what Postgres does not know."""

    async def run(self, shards: Sequence[int]) -> AttemptResult:
        """Open those of the shards that may be opened, and return which, and why others are not."""
        rows = await self._rows(shards)
        seen, refused = await self._look(rows)
        refused |= dict.fromkeys(set(shards).difference(row.shard for row in rows), _NO_ROW)
        seen = await self._compare(await self._confirm(rows, seen, refused), refused)
        await self._rescue(refused)
        reserved = await self._reserve(seen)
        opened: list[Opened] = []
        for wait in (False, True):
            raised = await self._raise(reserved, wait=wait)
            opened += await self._validate_and_open(raised)
            ours = {one.shard for one in raised}
            reserved = [one for one in reserved if one.row.shard not in ours]
            if not reserved:
                break
        done = {one.shard for one in opened}
        refused |= {one.row.shard: _MEANWHILE for one in seen if one.row.shard not in done}
        epochs = {row.shard: row.epoch for row in rows} | {one.shard: one.epoch for one in opened}
        return AttemptResult(opened=opened, refused=refused, epochs=epochs)

    async def _rows(self, shards: Sequence[int]) -> list[ShardRow]:
        rows = await self._calls.fetch("shards", {"shards": list(shards)})
        self._may_begin = all(row[5] for row in rows)
        self._policies = rows[0][6] if rows else self._policies
        return [
            ShardRow(shard=row[0], epoch=row[1], replid=row[2], flushed=row[3], cluster=row[4], now_s=row[7])
            for row in rows
        ]

    async def _look(self, rows: Sequence[ShardRow]) -> tuple[list[Seen], dict[int, Refusal]]:
        seen, refused = together(*await self._decide(rows))
        return await self._find_ends(seen, refused), refused

    async def _decide(self, rows: Sequence[ShardRow]) -> tuple[list[Seen], dict[int, Refusal]]:
        replies = await self._calls.scripts(
            "gate_look", [(self._fixed(row.shard), [self._settings.fence]) for row in rows]
        )
        looked = [self._looked(row.shard, reply) for row, reply in zip(rows, replies, strict=True)]
        self._looks |= {row.shard: look for row, look in zip(rows, looked, strict=True) if isinstance(look, Look)}
        elsewhere = await begun_elsewhere(self._calls.fetch, rows, self._looks)
        seen: list[Seen] = []
        refused: dict[int, Refusal] = {}
        for given, look in zip(rows, looked, strict=True):
            row = msgspec.structs.replace(given, unknown_epoch=given.shard in elsewhere)
            pin = Pin(str(self._keys.shards), HASH, row.cluster)
            verdict = look if isinstance(look, Refusal) else self._candidate.decide(row, look, pin)
            if isinstance(verdict, Refusal):
                refused[row.shard] = verdict
            elif isinstance(look, Look) and verdict is not None:
                seen.append(Seen(row=row, look=look, verdict=verdict))
        return seen, refused

    async def _find_ends(self, seen: Sequence[Seen], refused: dict[int, Refusal]) -> list[Seen]:
        bare = [one.row.shard for one in seen if one.look.is_bare]
        if not bare:
            return list(seen)
        try:
            self._ends = await ends(self._link, self._keys, bare, seconds=self._seconds)
        except NoPermissionError:
            why = "its meta and its stream are gone, and to look for its states takes the right to run SCAN"
            refused |= dict.fromkeys(bare, Refusal(why=why, wait=self._candidate.authority == "client"))
        return [self._ended(one) for one in seen if one.row.shard not in refused]

    def _ended(self, one: Seen) -> Seen:
        look = one.look.ending(self._ends.get(one.row.shard))
        verdict = msgspec.structs.replace(one.verdict, seen=max(one.verdict.seen, look.last[0]))
        return msgspec.structs.replace(one, look=look, verdict=verdict)

    def _looked(self, shard: int, reply: Sequence[bytes]) -> Look | Refusal:
        look = self._parsed(shard, reply)
        if isinstance(look, Refusal) or not look.reservation:
            return look
        if look.reservation == self._token:
            return msgspec.structs.replace(look, reserved_left_ms=0)
        return self._candidate.outlived(shard, look)

    def _parsed(self, shard: int, reply: Sequence[bytes]) -> Look | Refusal:
        parts = [part.decode("utf-8", "replace") for part in reply]
        if parts[0] == "FOREIGN":
            return Refusal(why=parts[2], redis_key=parts[1])
        try:
            return look_of(parts).ending(self._ends.get(shard))
        except ValueError as error:
            return Refusal(why=str(error), redis_key=self._keys.meta(shard))

    async def _confirm(self, rows: Sequence[ShardRow], seen: Sequence[Seen], refused: dict[int, Refusal]) -> list[Seen]:
        """Return those whose rows did not change since they were read: others may just have opened, or flushed.

        What they opened after we read their row is no refusal, and to reserve it would close it again. Nor is what they
        flushed between the row and the look a Postgres that went back: the row that is read behind the look says.
        """
        before = {row.shard: row for row in rows}
        doubtful = [shard for shard, refusal in refused.items() if not refusal.wait]
        doubtful += [one.row.shard for one in seen]
        now = {row.shard: row for row in await self._rows(doubtful)} if doubtful else {}
        for shard in doubtful:
            row = now.get(shard)
            if row is None or (row.epoch, row.replid) != (before[shard].epoch, before[shard].replid):
                refused[shard] = _MEANWHILE
            elif shard in refused and shard in self._looks and row.flushed > before[shard].flushed:
                pin = Pin(str(self._keys.shards), HASH, row.cluster)
                verdict = self._candidate.decide(row, self._looks[shard], pin)
                if verdict is None:
                    del refused[shard]
                else:
                    refused[shard] = verdict if isinstance(verdict, Refusal) else _MEANWHILE
        return [one for one in seen if one.row.shard not in refused and one.is_closed(now[one.row.shard].flushed)]

    async def _compare(self, seen: Sequence[Seen], refused: dict[int, Refusal]) -> list[Seen]:
        """Return the shards to reserve, with what their common points follow from; refuse those beyond our rights.

        Rights are looked at before the reservation: a reservation that leads to nothing would hold up those who may.
        """
        if not seen:
            return []
        if not self._may_begin:
            hint = "Grant EXECUTE on begin_epoch to agents, beside SELECT on the tables."
            raise ConfigurationError("this Postgres role may not run begin_epoch", hint=hint)
        parameters = {"shards": [one.row.shard for one in seen], "epochs": [one.look.own for one in seen]}
        starts = dict(await self._calls.fetch("later_starts", parameters))
        compared: list[Seen] = []
        apart: list[Seen] = []
        flushed = {one.row.shard: one.row.flushed for one in seen if one.verdict.doubtful}
        continuing = await continued(self._link, self._calls.fetch, self._keys, flushed, seconds=self._seconds)
        await self._look_for_strange_states(seen)
        for each in seen:
            continues = not each.verdict.doubtful or each.row.shard in continuing
            parted_at = await self._parted(each)
            one = msgspec.structs.replace(each, later=starts.get(each.row.shard), parted=parted_at)
            refusal = after_comparison(
                one.row, one.look, self._candidate.authority, continues=continues, parted=parted_at, common=one.common
            )
            if refusal is not None:
                refused[one.row.shard] = refusal
                apart += [one] if parted_at is not None else []
            else:
                compared.append(one)
        await self._shut(apart, refused)
        return compared

    async def _shut(self, apart: Sequence[Seen], refused: dict[int, Refusal]) -> None:
        """Close the gates of data sets that have parted from the lineage, where this server takes them for open."""
        still_open = [one for one in apart if one.look.replid == one.look.server] if self._candidate.shuts else []
        again = [one.row.shard for one in still_open if self._candidate.has_shut(one.row)]
        refused |= {shard: reopened(refused[shard]) for shard in again}
        for one in await self._closed([one for one in still_open if one.row.shard not in again], ms=0):
            self._candidate.note_shut(one.row)

    async def rescue(self, shards: Sequence[int]) -> tuple[dict[int, Refusal], bool]:
        """Keep what this server takes beside the lineage, and open nothing; it may be the primary of other shards.

        Returns the shards in which it is another branch, and whether there is more to be kept.
        """
        rows = await self._rows(shards)
        _, refused = await self._decide(rows)
        await self._confirm(rows, [], refused)
        more = await self._rescue(refused)
        return {shard: refusal for shard, refusal in refused.items() if refusal.branch}, more

    async def _rescue(self, refused: dict[int, Refusal]) -> bool:
        """Keep what an old primary has taken by itself so far; it is gone once that server is made a replica."""
        old = [shard for shard, refusal in refused.items() if refusal.branch and self._candidate.authority == "worker"]
        if not old:
            return False
        looks = self._looks
        starts = await self._calls.fetch("later_starts", {"shards": old, "epochs": [looks[shard].own for shard in old]})
        rescue = Rescue(self._link, self._connection, self._settings, seconds=self._seconds)
        branches = {
            shard: (looks[shard], common)
            for shard, common in starts
            if looks[shard].n > common and looks[shard].pin.cluster
        }
        return await self._candidate.diverged_primary.keep(rescue, self._keys, branches)

    async def _look_for_strange_states(self, seen: Sequence[Seen]) -> None:
        """Look among the states for what has left the streams of an epoch that Postgres does not know."""
        strange = [one for one in seen if is_strange(one.row, one.look)]
        upto = {one.row.shard: min(one.look.n, one.row.flushed) for one in strange}
        if upto:
            fetch = self._calls.fetch
            self._strange = await states_parted(self._link, fetch, self._keys, upto, seconds=self._seconds)

    async def _forget_loaded(self, raised: Sequence[Raised], deletion: Deletion) -> None:
        """Delete what is flushed where readers may have loaded it from another Postgres; readers load it again."""
        strange = [one.seen for one in raised if is_strange(one.seen.row, one.seen.look)]
        upto = {one.row.shard: one.row.flushed for one in strange}  # no further than was compared
        if not upto:
            return
        async for page in held_states(self._link, self._keys, upto, seconds=self._seconds):
            found: dict[int, list[tuple[str, str]]] = {}
            for one in page:
                if one.key and one.position.n <= upto[one.shard]:
                    found.setdefault(one.shard, []).append((one.key, one.change_id))
            await deletion.delete([(shard, states, []) for shard, states in found.items()])

    async def _parted(self, one: Seen) -> int | None:
        span, shard = unproven(one.row, one.look), one.row.shard
        if span is None:
            return None
        changes, fetch = self._keys.changes(shard), self._calls.fetch
        found = await parted(self._link, fetch, shard, changes, one.look, span, seconds=self._seconds)
        return min((n for n in (found, self._strange.get(shard)) if n is not None), default=None)

    async def _reserve(self, seen: Sequence[Seen]) -> list[Seen]:
        return await self._closed(seen, ms=self._reserve_ms)

    async def _closed(self, seen: Sequence[Seen], *, ms: int) -> list[Seen]:
        """Reserve for so many milliseconds what is as it was looked at; with 0, nobody else has to wait for us."""
        calls = [(self._fixed(one.row.shard), self._reserving(one, ms)) for one in seen]
        reserved: list[Seen] = []
        for one, reply in zip(seen, await self._calls.scripts("gate_look", calls), strict=True):
            look = self._parsed(one.row.shard, reply)
            if isinstance(look, Look) and look.reservation == self._token and look.own == one.look.own:
                verdict = msgspec.structs.replace(one.verdict, seen=max(one.verdict.seen, look.last[0]))
                reserved.append(msgspec.structs.replace(one, look=look, verdict=verdict))
        return reserved

    def _reserving(self, one: Seen, ms: int) -> list[Any]:
        look, epoch = one.look, "" if one.look.epoch is None else one.look.epoch
        as_seen = [epoch, look.replid, look.reservation, look.server]
        return [self._settings.fence, self._token, ms, *as_seen, one.verdict.claims]

    async def _raise(self, reserved: Sequence[Seen], *, wait: bool) -> list[Raised]:
        """Raise the epochs of rows that are as they were read; with `wait`, also of those that somebody has locked."""
        raised: list[Raised] = []
        for server in sorted({one.look.server for one in reserved}):
            group = {one.row.shard: one for one in reserved if one.look.server == server}
            parameters = {
                "shards": list(group),
                "epochs": [one.row.epoch for one in group.values()],
                "replids": [one.row.replid for one in group.values()],
                "seen": [one.verdict.seen for one in group.values()],
                "last": [one.common or 0 for one in group.values()],
                "replid": server,
                "by": self._candidate.by,
                "wait": wait,
            }
            try:
                rows = await self._calls.fetch("begin_epoch", parameters)
            except (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure, pg.QueryCanceled):
                continue
            if rows:
                self._candidate.raised(server)
            for shard, epoch, start_n, flushed, entries, size, excepted in rows:
                totals = Totals(entries, size)
                raised.append(Raised(
                    seen=group[shard], epoch=epoch, start_n=start_n, flushed=flushed, totals=totals, excepted=excepted,
                ))  # fmt: skip
        return raised

    async def _validate_and_open(self, raised: Sequence[Raised]) -> list[Opened]:
        branches = {one.shard: await self._set_aside(one) for one in raised}
        deletion = Deletion(self._calls, self._keys, branches, token=self._token, reserve_ms=self._reserve_ms)
        spans = [
            (one.shard, one.seen.common, one.flushed)
            for one in raised
            if one.seen.common is not None and one.seen.common < one.flushed
        ]
        for page in pages(spans, _POSITIONS_PER_PAGE):
            shards, after, upto = zip(*page, strict=True)
            parameters = {"shards": list(shards), "after": list(after), "upto": list(upto)}
            stale: dict[int, list[str]] = {}
            for shard, key in await self._calls.fetch("keys_beyond", parameters):
                stale.setdefault(shard, []).append(key)
            await deletion.delete([(shard, [(key, ANY) for key in keys], []) for shard, keys in stale.items()])
        await self._forget_loaded(raised, deletion)
        for one in raised:
            await deletion.delete_forks(one.shard, one.seen.look.excepted, one.excepted, upto=one.flushed)
        for shard, branch in branches.items():
            if not (branch.keys or branch.entry_ids):
                continue
            await deletion.delete([(shard, [(key, ANY) for key in sorted(branch.keys)], [])])
            await deletion.delete([(shard, [], branch.entry_ids)])
        dropped = deletion.counts
        ready = [one for one in raised if dropped[one.shard] >= 0]
        replies = await self._calls.scripts("gate_open", [self._opening_of(one, branches[one.shard]) for one in ready])
        return [
            Opened(
                shard=one.shard, epoch=one.epoch, start_n=one.start_n, dropped=dropped[one.shard],
                conflicts=branches[one.shard].conflicts, flushed=one.flushed, acknowledged=one.seen.look.flushed,
            )
            for one, reply in zip(ready, replies, strict=True)
            if reply == 1
        ]  # fmt: skip

    async def _set_aside(self, one: Raised) -> Branch:
        """Go through the stream where it holds what is no lineage's, or Postgres has gone back; else through states."""
        look, common = one.seen.look, one.seen.common
        rescue = Rescue(self._link, self._connection, self._settings, seconds=self._seconds)
        if common is not None and one.shard in self._ends:
            return await rescue.set_aside_states(self._keys, one.shard, look, common=common, flushed=one.flushed)
        if common is None or not (must_set_aside(look, common) or look.flushed > one.flushed):
            return Branch()
        return await rescue.set_aside(
            one.shard, self._keys, look, common=common, flushed=one.flushed,
            states_too=one.shard in self._strange or look.flushed > common,
        )  # fmt: skip

    def _opening_of(self, one: Raised, branch: Branch) -> tuple[list[str], list[Any]]:
        look, keys = one.seen.look, self._keys
        common = one.seen.common or 0
        gone_through = branch.head if look.n > common else look.totals
        head = head_totals(one.totals, gone_through, behind=common > one.flushed)
        numbers = [one.epoch, one.start_n, *head, one.flushed, *one.totals, one.excepted]
        pin = [keys.shards, HASH, keys.prefix, self._settings.postgres_schema, one.seen.row.cluster]
        dirty = [part for pair in branch.dirty.items() for part in pair]
        redis_keys = [*self._fixed(one.shard), keys.leases(one.shard), keys.waiters(one.shard)]
        return redis_keys, [self._token, look.server, self._settings.fence, *numbers, *pin, self._policies, *dirty]

    def _fixed(self, shard: int) -> list[str]:
        keys = self._keys
        return [keys.meta(shard), keys.changes(shard), keys.unflushed(shard), keys.hydrating(shard)]

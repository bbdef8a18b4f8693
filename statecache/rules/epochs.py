"""Who may open a shard's epoch, and what of Redis is stale when it opens: decided from values alone.

An epoch is raised whenever a shard's Redis data set may have lost something. Until the new epoch is open the shard's
gate is closed: the commit script refuses, because `meta.replid` is not the server's. The states of a gate:

    open      meta.replid is the server's and the row's, meta.epoch the row's, meta.flushed not above the row's
              watermark and meta.n not below it
    closed    anything else; somebody who may, reserves it
    reserved  meta.replid is empty, meta.reservation holds the opener's token, meta.continues the replids that this data
              set may continue, the server's own last: an opener that dies leaves enough for the next one
    open      again, at a higher epoch, after the opener's own bump of the row in Postgres and the validation

A data set **continues** the row when it names the row's replid: a restart, or a promoted replica. It is then a prefix
of the lineage's one ordered log, so only keys that Postgres holds beyond its end can be stale in it. Anything else is
another **branch**, an old primary that went on by itself, and opens on an operator's word alone.

A replica that is promoted before it has received the opening of the row's epoch names the server before that one, as
an old primary does. But Redis itself tells whose replica it was, as `master_replid2`: it holds what that server held
then, and while nobody has opened it since, it is a **prefix** of that server's log. It is no branch, but that server
may still be at work, and this a forgotten replica of it, which has missed all of the epoch. So it is opened on the word
on which an empty Redis would be: a worker's that knows that it stands in that server's place, or an operator's. The
reservation keeps whose place that is (`CLAIM`): where that worker dies before the row is raised, the next one of the
kind goes on, and where it dies later, anybody may.

A worker **shuts** a gate that Redis takes for open, where what both hold says that the data set has parted from the
lineage: what it took from then on would be set aside. It keeps all that a reservation keeps, so whoever may open it
finds it as it was. Once for each epoch of the row: where it is open again since, another Postgres is in use with this
Redis, and the two would take turns.

A Redis that holds **no data set** of ours (a new disk, a FLUSHALL, the wrong URL) is adopted in a shard's first epoch
by whoever sets the deployment up, and later only where it is known to stand in the place of the server that the row
names: a worker that flushed from that server in this process' life, or began an epoch on it, finds it at the same URL,
or an operator says so and names that server. Nobody else, for who points at the wrong Redis must not take production's
epoch; that the server itself is the same proves nothing, it has other databases. What one of these began, anybody may
finish.

A Postgres that **went back** (restored, or an asynchronous standby took over) shows as a watermark lower than its copy
in the data set. A worker begins a new epoch then, too: whoever waits for what was flushed before asks Postgres, and all
that it holds no more is dirty again. Nobody else believes it: it may be a copy, restored to be looked into.

Where a data set was opened at a higher epoch than the row's, Postgres went back to before that, or another one was
served meanwhile. The row may name a server of then, which the data set has forgotten; what both hold tells whether it
continues the row all the same: the newest changes that Postgres has of the shard stand in the states' `recent`, at the
same versions and positions, or in the stream. A worker looks. Of a Redis that went back behind an epoch, as by two
restarts from one snapshot, nothing of the kind can be told: it looks like an old primary that comes back, and the
server that was opened last may live elsewhere. What is said of a higher epoch is true of any that this Postgres has not
begun: the row may have been raised above it meanwhile, on a server whose former replica this is.

**No number is issued twice.** A new epoch is above all that row, meta and stream name. But a replica and a standby that
take over may both lack the last epoch, as may tiers that were put back: a client may remember an epoch of the next
number, in which it was acknowledged what nobody holds any more. So each but the first is also above the time in
seconds, which no number that was issued earlier has come to, and above all that whoever opens it has met, for a clock
may have been ahead. The client finds its positions dead by that.

Where the **fence is off** no replid tells that a data set came back without its end. Its copy of the watermark does,
where Postgres holds some of that end: the shard is open only where that is the row's. An end that was not flushed is
missed here by nobody; the clients that were acknowledged find it out (see `lost`). What it holds between the two must
be what Postgres holds there, entry by entry; an entry that Postgres does not know parts it from the lineage, and it is
a branch from there on.

Where **meta and stream are both gone** and states stay, as on a server that evicts any key, the data set ends at the
newest position that one of its states names. What lies beyond the watermark is dirty, and is flushed from the hashes.

Either way data set and lineage hold the same log up to the **common point**: the end of the data set, or the lowest
start of any epoch after its own, whichever is lower. An epoch that starts at n says: the lineage's log before me is
what it was up to n, and nothing else. So what a data set holds beyond the common point belongs to no lineage, and what
Postgres holds beyond it the data set has not.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Literal

import msgspec

from statecache.rules.clusters import is_unrelated, unrelated
from statecache.rules.looks import CLAIM, Look, Pin, ShardRow, Totals
from statecache.rules.replids import UNFENCED, adopt_options

Authority = Literal["client", "setup", "worker", "operator"]
"""On whose word a shard is opened; `setup` is `statecache migrate`."""
BRANCH = "branch"
"""The cause of a conflict that stood beyond the point where its Redis and the lineage part."""
_COPY = "it was restored, or is a copy. If it is to be used, a worker begins a new epoch, or says what hinders it"
_WITNESS = "worker that has flushed from that server, or opened it, and still runs"
EPOCH_MAX = 2**63 - 2
"""The last epoch that Postgres can count beyond."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The decision that the shard may be opened; the new epoch is above `seen`.

    `acknowledged` is the data set's copy of the watermark, where that being higher is the reason: a row that is read
    later may have come up to it, and the shard is open. With `doubtful`, it may only if what both hold says so.
    `claims` is what its reservation keeps: the replid that it continues though its meta does not name it.
    """

    seen: int
    acknowledged: int | None = None
    doubtful: bool = False
    claims: str = ""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The decision that the shard may not be opened by whoever asked; `wait` where that may change by itself.

    `redis_key` names a key of another type, if that is the reason. `branch` says that the data set is another branch,
    `unrelated` that it is another cluster's (see `rules.clusters`): then no other shard of it is adopted either.
    """

    why: str
    wait: bool = False
    redis_key: str = ""
    branch: bool = False
    unrelated: bool = False


def decide(
    row: ShardRow, look: Look, authority: Authority, *, pin: Pin, vouched: Container[str] = ()
) -> Opening | Refusal | None:
    """Decide whether the shard may be opened; None means that it is open already.

    `vouched` are the replids of servers in whose place this Redis stands: a worker flushed from them in this process'
    life, or began an epoch on them, an operator names them.
    """
    if look.role != "master":
        return Refusal(why="this server is a replica", wait=True)
    foreign = _another_pin(row, look, authority, pin)
    if foreign is not None:
        return foreign
    if _is_open(row, look):
        return None
    if look.reservation and look.reserved_left_ms > 0:
        return Refusal(why="another process is opening it", wait=True)
    seen = max(look.epoch or 0, look.last[0], row.epoch, row.now_s if row.epoch or not look.is_bare else 0)
    if seen > EPOCH_MAX:
        return Refusal(why=f"its stream has come to the id {look.last[0]}-{look.last[1]}; an operator must replace it")
    went_back = _is_named(row, look) and look.flushed > row.flushed
    if authority in ("client", "setup") and (went_back or _is_later(row, look)):
        return _copy_refusal(row, look, authority)
    if went_back:
        return Opening(seen=seen, acknowledged=look.flushed)
    if authority == "operator":
        return _on_a_word(row, look, vouched, seen)
    if row.replid and (row.replid == UNFENCED) != (look.server == UNFENCED):
        return Refusal(
            why=f"the fence is {'off' if look.server == UNFENCED else 'on'} in these settings and was "
            f"{'off' if row.replid == UNFENCED else 'on'} when its epoch began: whether to change it is "
            f"{_word(row, look)}"
        )
    if look.epoch is None:
        return _adopt(row, look, authority, vouched, seen)
    if row.replid in look.lineage:
        is_compared = row.unknown_epoch and authority in ("client", "setup")
        return _copy_refusal(row, look, authority) if is_compared else Opening(seen=seen)
    if _is_prefix(row, look):
        if authority == "worker" and row.replid in vouched:
            return Opening(seen=seen, claims="" if row.replid in look.claimed else CLAIM + row.replid)
        return _prefix_refusal(row, look, authority)
    if _is_later(row, look) and look.pin.cluster == pin.cluster:
        return Opening(seen=seen, doubtful=True)
    return branch_refusal(row, look)


def _is_later(row: ShardRow, look: Look) -> bool:
    return look.epoch is not None and look.epoch > row.epoch


def _copy_refusal(row: ShardRow, look: Look, authority: Authority) -> Refusal:
    told = f"flushed up to {row.flushed} where Redis was told {look.flushed}"
    return Refusal(why=f"{_sides(row, look)}, {told}: {_COPY}", wait=authority == "client")


def _is_prefix(row: ShardRow, look: Look) -> bool:
    """Return whether a data set is that of a former replica of the row's server, which missed the opening there."""
    missed = look.epoch is not None and look.epoch < row.epoch
    unopened = not look.was_opened_here or row.replid in look.claimed
    return missed and look.former == row.replid != "" and unopened and UNFENCED not in look.lineage


def _prefix_refusal(row: ShardRow, look: Look, authority: Authority) -> Refusal:
    return Refusal(
        why=f"{_sides(row, look)}: it was that server's replica, and was promoted before it had received this epoch. A "
        f"{_WITNESS} opens it; if none does, whether this server is the primary is {_word(row, look)}",
        wait=authority == "client",
        branch=True,
    )


def branch_refusal(row: ShardRow, look: Look) -> Refusal:
    """Return the refusal of a data set that does not name the row's server."""
    return Refusal(why=f"{_sides(row, look)}: whether this server is the primary is {_word(row, look)}", branch=True)


def _is_named(row: ShardRow, look: Look) -> bool:
    return look.epoch == row.epoch and look.replid == look.server == row.replid


def _is_open(row: ShardRow, look: Look) -> bool:
    told = look.flushed == row.flushed or (look.flushed < row.flushed and look.server != UNFENCED)
    return _is_named(row, look) and told and look.n >= row.flushed


def _on_a_word(row: ShardRow, look: Look, vouched: Container[str], seen: int) -> Opening | Refusal:
    """Decide for an operator, who has to name the server that is given up."""
    if not row.epoch or row.replid in vouched:
        return Opening(seen=seen)
    return Refusal(
        why=f"Postgres says epoch {row.epoch} of {row.replid or 'nobody'}: if that server is given up for this one, "
        f"say `{adopt_options([row.replid], look.server)}`"
    )


def _adopt(row: ShardRow, look: Look, authority: Authority, vouched: Container[str], seen: int) -> Opening | Refusal:
    """Decide about a Redis that holds no data set of ours, but maybe the reservation of whoever began to adopt it."""
    begun = row.epoch > 0 and row.replid in look.lineage
    if begun or (authority in ("setup", "worker") and (not row.epoch or row.replid in vouched)):
        return Opening(seen=seen)
    if not row.epoch:
        return Refusal(
            why="this Redis holds no data set of ours yet: `statecache migrate` adopts it, or a worker", wait=True
        )
    emptied = " The URL names another database number of that server, or it was emptied."
    return Refusal(
        why=f"this Redis ({look.server}) holds no data set of ours, Postgres says epoch {row.epoch} of {row.replid}: a "
        f"{_WITNESS} adopts it; if none does, whether this server takes its place is {_word(row, look)}."
        f"{emptied if look.server == row.replid else ''}",
        wait=authority == "client",
    )


def _sides(row: ShardRow, look: Look) -> str:
    ours = f"this Redis ({look.server}) holds epoch {look.own} of {' or '.join(sorted(look.lineage)) or 'nobody'}"
    return f"{ours}, Postgres says epoch {row.epoch} of {row.replid or 'nobody'}"


def _word(row: ShardRow, look: Look) -> str:
    return (
        f"an operator's word (`statecache epoch adopt all {adopt_options([row.replid or look.server], look.server)}`)"
    )


def _another_pin(row: ShardRow, look: Look, authority: Authority, ours: Pin) -> Refusal | None:
    found = look.pin
    if found.shards and (found.shards, found.hash) != (ours.shards, ours.hash):
        held = f"this Redis holds {found.shards} shards by {found.hash}"
        return Refusal(why=f"{held}, ours are {ours.shards} by {ours.hash}")
    if is_unrelated(row, look, ours.cluster):
        return Refusal(why=unrelated(found.cluster, ours.cluster), unrelated=True)
    if found.cluster not in ("", ours.cluster) and authority != "operator":
        apart = f"this Redis belongs to cluster {found.cluster}, Postgres is {ours.cluster}"
        return Refusal(why=f"{apart}: whether they belong together is {_word(row, look)}")
    return None


def is_strange(row: ShardRow, look: Look) -> bool:
    """Return whether a data set is of an epoch that Postgres does not know: it went back, or another was served."""
    return _is_later(row, look) or (look.epoch is not None and row.unknown_epoch)


def unproven(row: ShardRow, look: Look) -> tuple[int, int] | None:
    """Return the positions (after, up to) at which nothing but a comparison shows that both hold the same."""
    if is_strange(row, look):
        return (0, min(look.n, row.flushed)) if min(look.n, row.flushed) else None
    if look.epoch is None or not (look.server == UNFENCED or _is_named(row, look)):
        return None
    after, upto = look.flushed, min(look.n, row.flushed)
    return (after, upto) if after < upto else None


def parted_refusal(row: ShardRow, look: Look, parted: int) -> Refusal:
    """Return the refusal of a data set that has parted from the lineage."""
    how = "this Redis came back without its end, and was written to since"
    if is_strange(row, look):
        how = f"this Redis was written to in epoch {look.epoch}, with another Postgres, or before this one went back"
    return Refusal(
        why=f"this Redis holds changes from {parted + 1} on that Postgres does not know, and Postgres holds others "
        f"there, up to {row.flushed}: {how}. Whether that is to be set aside is {_word(row, look)}"
    )


def reopened(refusal: Refusal) -> Refusal:
    """Return the refusal of a data set that is open again though a worker had shut it for that very reason."""
    why = "its gate was closed for that and is open again, so another Postgres is in use with this Redis: stop the "
    return msgspec.structs.replace(refusal, why=f"{refusal.why}. And {why}agents and workers that have it")


def common_point(look: Look, later_start: int | None, parted: int | None = None) -> int | None:
    """Return the n up to which this data set and the lineage hold the same log; None: nothing to compare.

    `later_start` is the lowest start of the lineage's epochs after the data set's own. Not the next one's: a later
    epoch that began on a data set with a lost tail starts lower. `parted` is where a comparison found them to part.
    """
    if look.epoch is None and look.last == (0, 0):
        return None
    return min(n for n in (look.n, later_start, parted) if n is not None)


def must_set_aside(look: Look, common: int | None) -> str:
    """Name what the data set holds that belongs to no lineage and has to be set aside; empty for nothing."""
    if common is not None and look.n > common:
        return "changes of another branch"
    return "entries of another program" if look.has_foreign_entries else ""


def after_comparison(
    row: ShardRow, look: Look, authority: Authority, *, continues: bool, parted: int | None, common: int | None
) -> Refusal | None:
    """Return why a data set that was compared with what Postgres holds may not be opened; None where it may.

    `continues` says whether what both hold says that it continues the row, where that was in doubt.
    """
    if not continues:
        return branch_refusal(row, look)
    if parted is not None and authority != "operator":
        return parted_refusal(row, look, parted)
    aside = must_set_aside(look, common)
    if aside and authority == "client":
        return Refusal(why=f"it holds {aside}, which a worker has to set aside", wait=True)
    return None


def head_totals(flushed: Totals, head: Totals | None, *, behind: bool) -> Totals:
    """Return the totals to go on with: the head's where changes are still to be flushed, never below the row's."""
    if head is None or not behind:
        return flushed
    return Totals(max(head.entries, flushed.entries), max(head.bytes, flushed.bytes))


def pages(spans: Iterable[tuple[int, int, int]], most: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield spans (shard, after, up to) cut into pages of at most that many positions."""
    page: list[tuple[int, int, int]] = []
    room = most
    for shard, start, end in spans:
        after = start
        while after < end:
            upto = min(end, after + room)
            page.append((shard, after, upto))
            after, room = upto, room - (upto - after)
            if not room:
                yield page
                page, room = [], most
    if page:
        yield page

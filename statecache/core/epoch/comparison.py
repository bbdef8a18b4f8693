"""What a data set holds, compared with what Postgres holds at the same positions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.core.epoch.evicted_meta import held_states
from statecache.entries import INTEGER_MAX, salvaged
from statecache.rules.comparison import HeldChange, continues, parting
from statecache.rules.looks import Look, ShardRow

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace

NEWEST_MAX = 32
"""How many of a shard's newest changes are looked for in Redis."""
_PAGE = 100


class _Entry(NamedTuple):
    epoch: int
    n: int
    change_id: str

    @classmethod
    def of(cls, entry_id: bytes, fields: Sequence[bytes]) -> _Entry:
        epoch, _, n = entry_id.partition(b"-")
        return cls(int(epoch), int(n), salvaged(fields)[0])


Fetch = Callable[[str, dict[str, Any]], Awaitable[Sequence[tuple[Any, ...]]]]
"""A function that runs a named statement and returns its rows."""


async def parted(
    link: Link, fetch: Fetch, shard: int, changes: str, look: Look, span: tuple[int, int], *, seconds: float
) -> int | None:
    """Return the n after which the stream holds entries that Postgres does not know; None where it knows all.

    The stream is read from its newest commit down to the first position of the span, page by page.
    """
    after, upto = span
    lowest: int | None = None
    end = b"%d-%d" % (look.own, look.n)
    while True:
        (reply,) = await link.run([("XREVRANGE", changes, end, b"-", "COUNT", _PAGE)], seconds=seconds)
        if isinstance(reply, Exception):
            raise reply
        found = [_Entry.of(entry_id, fields) for entry_id, fields in reply]
        asked = [one for one in found if after < one.n <= upto]
        known = {n for (n,) in await fetch("entries_known", _columns(shard, asked))} if asked else set()
        here = parting([one.n for one in asked], known)
        lowest = here if here is not None else lowest
        if len(reply) < _PAGE or found[-1].n <= after:
            return lowest
        end = b"(" + reply[-1][0]


async def begun_elsewhere(fetch: Fetch, rows: Sequence[ShardRow], looks: Mapping[int, Look]) -> set[int]:
    """Return the shards whose data set was last open in an epoch that this Postgres has not begun."""
    found = [(row, looks[row.shard]) for row in rows if row.shard in looks]
    asked = [(row.shard, look) for row, look in found if not _is_begun(row, look)]
    if not asked:
        return set()
    parameters = {
        "shards": [shard for shard, _ in asked],
        "epochs": [look.epoch for _, look in asked],
        "lineages": [" ".join(look.lineage) for _, look in asked],
    }
    return {shard for (shard,) in await fetch("epochs_unknown", parameters)}


def _is_begun(row: ShardRow, look: Look) -> bool:
    return not look.epoch or (look.epoch == row.epoch and row.replid in look.lineage)


async def states_parted(
    link: Link, fetch: Fetch, keys: KeySpace, upto: Mapping[int, int], *, seconds: float
) -> dict[int, int]:
    """Return the n after which states hold changes that Postgres does not know, of shards where there are such.

    `upto` gives for each shard the last position that is looked at. Raises the error with which Redis refuses to name
    its keys.
    """
    found: dict[int, int] = {}
    async for page in held_states(link, keys, upto, seconds=seconds):
        for shard in {one.shard for one in page}:
            held = [_Entry(*one.position, one.change_id) for one in page if one.shard == shard]
            asked = [one for one in held if 0 < one.n <= upto[shard]]
            known = {n for (n,) in await fetch("entries_known", _columns(shard, asked))} if asked else set()
            here = parting([one.n for one in asked], known)
            if here is not None:
                found[shard] = min(here, found.get(shard, here))
    return found


async def continued(
    link: Link, fetch: Fetch, keys: KeySpace, flushed: Mapping[int, int], *, seconds: float
) -> set[int]:
    """Return those of the shards, given with their watermarks, whose data set is known to hold what Postgres holds."""
    if not flushed:
        return set()
    newest: dict[int, list[HeldChange]] = {shard: [] for shard in flushed}
    for shard, *facts in await fetch("newest_changes", {"shards": list(flushed), "most": NEWEST_MAX}):
        newest[shard].append(HeldChange(*facts))
    names = list(dict.fromkeys(one.key for some in newest.values() for one in some))
    replies = await link.run([("HMGET", keys.state(key), "version", "recent") for key in names], seconds=seconds)
    recent = {
        key: (int(reply[0]), reply[1].decode().split())
        for key, reply in zip(names, replies, strict=True)
        if isinstance(reply, list) and None not in reply and reply[0].isdigit()
    }
    held = await _standing(link, keys, newest, seconds=seconds)
    return {
        shard for shard, some in newest.items() if continues(some, recent, held[shard]) or not (some or flushed[shard])
    }


async def _standing(
    link: Link, keys: KeySpace, newest: Mapping[int, Sequence[HeldChange]], *, seconds: float
) -> dict[int, dict[tuple[int, int], str]]:
    """Return which change_ids the streams still hold at the epochs and positions of these changes, by shard."""
    asked = [(shard, one) for shard, some in newest.items() for one in some]
    ids = [f"{one.epoch}-{one.n}" for _, one in asked]
    replies = await link.run(
        [("XRANGE", keys.changes(shard), at, at) for (shard, _), at in zip(asked, ids, strict=True)], seconds=seconds
    )
    held: dict[int, dict[tuple[int, int], str]] = {shard: {} for shard in newest}
    for (shard, one), reply in zip(asked, replies, strict=True):
        for _, fields in reply if isinstance(reply, list) else ():
            held[shard][one.epoch, one.n] = salvaged(fields)[0]
    return held


def _columns(shard: int, entries: Sequence[_Entry]) -> dict[str, Any]:
    epochs, ns, change_ids = (list(column) for column in zip(*entries, strict=True))
    return {"shard": shard, "epochs": [min(epoch, INTEGER_MAX) for epoch in epochs], "ns": ns, "change_ids": change_ids}

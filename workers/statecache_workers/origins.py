"""Where branches begin, and what was merged: what the flush records of changes that were made from another key's.

Such a change says so in its reason. Its origin was in Postgres before it was made, in whatever shard, and never
changes: so it is read without its shard's row. The table `branch` names it. Where its value is kept and is the same,
the branch begins as a delta to it, some tens of bytes long. Its row is locked for that, so that whoever lets values go
waits for the flush, and then sees what builds on them. Where somebody is at that now, the branch keeps its value
itself. So does one whose origin is kept as a delta to so many origins in a row that reading on would take long, and one
whose origin is no longer kept, or holds something else.

An origin that is not there, for Postgres has gone back and has yet to take it in again, or for it is in quarantine, is
named by its version alone. Where a group's branch names a position, and it is not certain that nothing of the origin
is missing up to there, what is found is recorded, or version 0, without a change_id: whoever reads that looks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from statecache.history import PLAIN_BYTES_MAX, Kept, delta, is_delta
from statecache.rules.provenance import Provenance, provenance_of
from statecache_workers.database import Call, Transaction
from statecache_workers.postgres_arrays import integers, texts, times

if TYPE_CHECKING:
    from statecache.model import ChangeRecord, ChangeSet
    from statecache.rules.reconcile import Applied
    from statecache_workers.history_writing import KeptChange

DEPTH_MAX = 16
"""To how many origins in a row a branch is kept as a delta at most."""
_ANY = 2**63 - 1
_WORDS = ("branch of ", "merge of ")


class Link(NamedTuple):
    """A row of the table `branch`."""

    key: str
    version: int
    origin: str
    origin_version: int
    origin_change_id: str
    at: datetime


class _Made(NamedTuple):
    """A change that was made from another key's, its place in the batch, and what its reason says."""

    at: int
    change_set: ChangeSet
    change: ChangeRecord
    said: Provenance

    @property
    def origin(self) -> str:
        return self.said.origin_of(self.change.key)


class _Origin(NamedTuple):
    """A change from which another was made; `is_kept` where its value stays meanwhile."""

    version: int
    change_id: str
    digest: bytes | None
    is_kept: bool
    depth: int
    is_certain: bool


async def linked(transaction: Transaction, applied: Sequence[Applied], kept: list[KeptChange]) -> list[Link]:
    """Return what the changes that are taken were made from; of branches that begin like their origins, keep a delta.

    `kept` has how each of them is kept, and is changed.
    """
    made = _made((one.change_set, one.change) for one in applied)
    origins = await _origins(transaction, made)
    for one in made:
        origin, how = origins.get(one.at), kept[one.at].kept if kept and kept[one.at].stored else None
        if origin is None or how is None or one.said.kind != "branch" or origin.depth >= DEPTH_MAX:
            continue
        if origin.is_kept and origin.digest is not None and bytes(origin.digest) == how.digest:
            kept[one.at] = kept[one.at]._replace(kept=_as_its_origin(one.change, how))
    return _links(made, origins)


async def links_of(transaction: Transaction, changes: Sequence[tuple[ChangeSet, ChangeRecord]]) -> list[Link]:
    """Return what these changes were made from."""
    made = _made(changes)
    return _links(made, await _origins(transaction, made))


def _made(changes: Iterable[tuple[ChangeSet, ChangeRecord]]) -> list[_Made]:
    return [
        _Made(at, change_set, change, said)
        for at, (change_set, change) in enumerate(changes)
        if (said := made_from(change_set.reason)) is not None
    ]


def made_from(reason: str) -> Provenance | None:
    """Read the reason of a change that was made from another key's; return None for any other."""
    return provenance_of(reason) if reason.startswith(_WORDS) else None


def _links(made: Sequence[_Made], origins: Mapping[int, _Origin]) -> list[Link]:
    """Return the rows for what was made; of an origin that is not known to be there, what the reason says of it."""
    links: list[Link] = []
    for one in made:
        key, version, origin, at = one.change.key, one.change.version, origins.get(one.at), one.change_set.at
        if origin is None:
            links.append(Link(key, version, one.origin, one.said.version or 0, "", at))
        else:
            known = origin.change_id if one.said.version is not None or origin.is_certain else ""
            links.append(Link(key, version, one.origin, origin.version, known, at))
    return links


async def _origins(transaction: Transaction, made: Sequence[_Made]) -> dict[int, _Origin]:
    """Return from which changes others were made, by the places of these in the batch, as far as they are there."""
    if not made:
        return {}
    (rows,) = await transaction.run(Call("flush_origins", {
        "keys": texts([one.origin for one in made]),
        "versions": integers([one.said.version or _ANY for one in made]),
        "ns": integers([_ANY if one.said.position is None else one.said.position.n for one in made]),
        "depth": DEPTH_MAX,
    }))  # fmt: skip
    found = ((made[at - 1], _Origin(*origin)) for at, *origin in rows)
    return {one.at: origin for one, origin in found if one.said.version in (None, origin.version)}


def _as_its_origin(change: ChangeRecord, how: Kept) -> Kept:
    """Return how a change is kept whose value is that of its origin."""
    if len(change.value) <= PLAIN_BYTES_MAX or is_delta(how.packed):
        return how
    packed = delta(change.value, change.value, origin=True)
    return Kept(packed, None, how.digest) if len(packed) < len(how.packed or change.value) else how


def link_call(links: Sequence[Link]) -> Call:
    """Return the call that records them."""
    return Call("flush_branches", {
        "key": texts([one.key for one in links]),
        "version": integers([one.version for one in links]),
        "origin": texts([one.origin for one in links]),
        "origin_version": integers([one.origin_version for one in links]),
        "origin_change_id": texts([one.origin_change_id for one in links]),
        "at": times([one.at for one in links]),
    })  # fmt: skip

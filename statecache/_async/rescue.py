"""What a returning old branch holds beyond the common point: kept as conflicts, never silently dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import psycopg

from statecache.entries import ForeignEntry, NewerFormat, change_set, position_of
from statecache.model import Change, ChangeSet
from statecache.sql import statement

if TYPE_CHECKING:
    from statecache._async.connect import AsyncLink
    from statecache.keys import KeySpace

_PAGE = 500


class Branch(msgspec.Struct):
    """This is a stream read against the common point.

    `changes` and `entry_ids` are what lies beyond it; `unflushed` are pairs (key, n) of what lies before it and is
    still to be flushed; `head` is (n, entries, bytes) of the last entry before it.
    """

    found: bool = False
    changes: list[tuple[ChangeSet, Change]] = []
    entry_ids: list[bytes] = []
    unflushed: list[Any] = []
    head: tuple[int, int, int] | None = None

    @property
    def keys(self) -> set[str]:
        """These are the keys whose states belong to no lineage."""
        return {change.key for _, change in self.changes}


async def read_branch(
    link: AsyncLink, keys: KeySpace, shard: int, common: int, flushed: int, *, seconds: float
) -> Branch:
    """This reads a shard's stream and sorts it at the common point; entries of other programs stay where they are."""
    branch, start, newest = Branch(found=True), b"-", dict[str, int]()
    while True:
        reply = (await link.run([("XRANGE", keys.changes(shard), start, b"+", "COUNT", _PAGE)], seconds=seconds))[0]
        if isinstance(reply, Exception):
            raise reply
        for entry_id, fields in reply:
            try:
                entry = change_set(entry_id, fields)
            except (ForeignEntry, NewerFormat):
                if position_of(entry_id).n > common:
                    branch.entry_ids.append(entry_id)
                continue
            if entry.position.n > common:
                branch.entry_ids.append(entry_id)
                branch.changes += [(entry, change) for change in entry.changes]
            else:
                branch.head = (entry.position.n, entry.entries, entry.bytes)
                newest.update({change.key: entry.position.n for change in entry.changes if entry.position.n > flushed})
        if len(reply) < _PAGE:
            break
        start = b"(" + reply[-1][0]
    branch.unflushed = [part for pair in newest.items() for part in pair]
    return branch


async def record_branch(connection: psycopg.AsyncConnection[Any], schema: str, shard: int, branch: Branch) -> None:
    """This writes the changes beyond the common point into `conflict`; again is the same."""
    for at in range(0, len(branch.changes), _PAGE):
        some = branch.changes[at : at + _PAGE]
        parameters = {
            "shard": shard,
            "cause": "it stands beyond the point where this Redis and the current lineage part",
            "change_id": [change.change_id for _, change in some],
            "key": [change.key for _, change in some],
            "epoch": [entry.position.epoch for entry, _ in some],
            "n": [entry.position.n for entry, _ in some],
            "op": [change.op for _, change in some],
            "version": [change.version for _, change in some],
            "parent_change_id": [change.parent_change_id for _, change in some],
            "value": [change.value for _, change in some],
            "encoding": [change.encoding for _, change in some],
            "schema": [change.schema for _, change in some],
            "writer": [entry.writer for entry, _ in some],
            "actor": [entry.actor for entry, _ in some],
            "reason": [entry.reason for entry, _ in some],
            "at": [entry.at for entry, _ in some],
        }
        async with connection.transaction():
            await connection.execute(statement("record_conflicts", schema), parameters)

"""How changes that an earlier release kept whole are kept from now on, decided from a page of them.

A shard's changes are gone through in the order of n, so that the one before each in its chain was reckoned before it:
the place up to which that is done is the shard's `hashed`. Of each that has no hash yet

    its value is packed as the flusher would have, where it has no digest yet: as a delta to the value before it, where
    that was packed just now, for its bytes are at hand; else compressed, or plain
    its hash is reckoned from the hash before it

What was written since keeps its form, for later deltas of the flusher build on that, and only gets its hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from statecache.history import Damage, Kept, Parent, begins_anew, keep, link, unpacked
from statecache.model import ChangeRecord, ChangeSet


class Unpacked(NamedTuple):
    """A change without a hash; `digest` is None where its value is as an earlier release kept it, in `change`.

    `before_id` and `before_hash` are of the version before it, None where that is not in the chain.
    """

    change_set: ChangeSet
    change: ChangeRecord
    gap: bool
    digest: bytes | None
    before_id: str | None
    before_hash: bytes | None


class Packed(NamedTuple):
    """How a change is kept now; `kept` is None where only its hash is new."""

    row: Unpacked
    kept: Kept | None
    hash: bytes

    @property
    def digest(self) -> bytes:
        """The digest of its value."""
        return self.row.digest or b"" if self.kept is None else self.kept.digest


def pack(rows: Iterable[Unpacked], parent_of: Callable[[str], Parent | None]) -> tuple[list[Packed], dict[str, Parent]]:
    """Decide on rows in the order of n; return also the newest values that were packed, by key."""
    packed: list[Packed] = []
    parents: dict[str, Parent] = {}
    reckoned: dict[tuple[str, int], tuple[str, bytes]] = {}
    for row in rows:
        change = row.change
        before = reckoned.get((change.key, change.version - 1)) or (row.before_id, row.before_hash)
        first = row.gap or begins_anew(row.change_set, change) or before[0] != change.parent_change_id
        kept: Kept | None = None
        digest = row.digest
        if digest is None:
            parent = None if first else parents.get(change.key) or parent_of(change.key)
            kept, parents[change.key] = keep(change, parent)
            _prove(change, kept, parent)
            digest = kept.digest
        else:
            parents.pop(change.key, None)
        its_hash = link(b"" if first else before[1] or b"", change, row.change_set, digest)
        reckoned[change.key, change.version] = change.change_id, its_hash
        packed.append(Packed(row, kept, its_hash))
    return packed, parents


def _prove(change: ChangeRecord, kept: Kept, parent: Parent | None) -> None:
    """Raise Damage unless what is to be kept gives the value, which is to be deleted."""
    if kept.packed is not None and unpacked(kept.packed, None if parent is None else parent.value) != change.value:
        raise Damage(f"version {change.version} of {change.key!r} does not come back from how it is packed")

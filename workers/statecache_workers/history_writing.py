"""How the values of a batch are kept, decided in a thread beside the flush, for that is most of the work.

As soon as entries are read, also ahead of their turn, their values are made into deltas, each to the one before it:
that of an entry before, or the newest that is remembered of the key. Whether the flush takes a change, and whether that
parent is in the chain, is settled later, under the shard's row. So each decision says which parent it builds on, and
counts only where that is the one that the flush has; otherwise it is made anew. Small batches are not worth a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from statecache.history import Kept, Parent, begins_anew, keep, link
from statecache.rules.pins import Pin, pin_of
from statecache.rules.reconcile import Judgement, Tip

if TYPE_CHECKING:
    from statecache_workers.streams import Slice

BYTES_MIN = 128 * 1024
"""From how many bytes of entries on a batch is worth a thread."""

ParentOf = Callable[[int, str], Parent | None]
"""What gives the newest value of a shard's key, where it is remembered."""


class Decision(NamedTuple):
    """How a change is kept if it continues that parent, and what the next one may build on."""

    parent: Parent | None
    kept: Kept
    after: Parent


Decisions = Mapping[tuple[int, str], Decision]
"""The decisions for changes of a shard, by n and key."""


class KeptChange(NamedTuple):
    """How a change is kept, and its hash, None where that of the change before it is not reckoned.

    Where it is not `stored`, its value stands in its key's state alone, for as long as it is the newest.
    """

    kept: Kept
    hash: bytes | None
    stored: bool = True


class HistoryWriting:
    """The decisions for the batches of one flusher, made in their order."""

    def __init__(self, parent_of: ParentOf) -> None:
        self._parent_of = parent_of
        self._newest: dict[str, Parent] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="statecache-history")

    def begin(self, slices: Sequence[Slice]) -> None:
        """Begin to decide for entries that were just read and come behind those for which it was begun before."""
        if sum(max(0, one.end.bytes - one.start.bytes) for one in slices) < BYTES_MIN:
            return
        deciding = asyncio.get_running_loop().run_in_executor(self._thread, self._decide, list(slices))
        for one in slices:
            one.deciding = deciding

    async def decided(self, slices: Sequence[Slice]) -> dict[int, Decisions]:
        """Return what was decided for these, once that is done, by shard."""
        found: dict[int, Decisions] = {}
        for one in slices:
            if one.deciding is not None:
                found[one.shard] = (await asyncio.shield(one.deciding)).get(one.shard, {})
        return found

    def _decide(self, slices: Sequence[Slice]) -> dict[int, Decisions]:
        newest: dict[str, Parent] = {}
        found: dict[int, Decisions] = {}
        for one in slices:
            decisions: dict[tuple[int, str], Decision] = {}
            for entry in one.entries:
                for change in entry.change_set.changes if entry.change_set is not None else ():
                    key = change.key
                    parent = newest.get(key) or self._newest.get(key)
                    if parent is None or parent.change_id != change.parent_change_id:
                        parent = self._parent_of(one.shard, key)
                    kept, newest[key] = keep(change, parent)
                    decisions[entry.position.n, key] = Decision(parent, kept, newest[key])
            found[one.shard] = decisions
        self._newest = newest
        return found


def kept_changes(
    shard: int,
    judgement: Judgement,
    tips: Mapping[str, Tip],
    parent_of: ParentOf,
    decisions: Decisions,
    latest: Collection[str],
) -> tuple[list[KeptChange], dict[str, Parent], list[Pin]]:
    """Settle how the applied changes are kept, and give their keys' tips the hashes.

    Return also the newest values of their keys, and the pins of checkpoints that may name values which stand in states
    alone.
    """
    hashes: dict[str, bytes | None] = {}
    parents: dict[str, Parent] = {}
    rows: list[KeptChange] = []
    pins: list[Pin] = []
    unstored: dict[str, int] = {}
    for change_set, change, gap in judgement.applied:
        key = change.key
        before: bytes | None = b""
        parent: Parent | None = None
        if not gap and not begins_anew(change_set, change):
            before = hashes[key] if key in hashes else tips[key].hash
            parent = parents.get(key) or parent_of(shard, key)
        stored = not latest or change.op != "set" or key.partition("/")[0] not in latest
        decided = decisions.get((change_set.position.n, key))
        if not stored:
            kept, unstored[key] = Kept(None, None, sha256(change.value).digest()), len(rows)
            parents.pop(key, None)
            pin = pin_of(key, change.op, change.schema, change.value, change_set.position.n)
            if pin is not None:
                pins.append(pin)
                _store(pin, rows, unstored, judgement)
        elif decided is not None and decided.parent is parent:
            kept, parents[key] = decided.kept, decided.after
        else:
            kept, parents[key] = keep(change, parent)
        hashes[key] = None if before is None else link(before, change, change_set, kept.digest)
        rows.append(KeptChange(kept, hashes[key], stored))
    judgement.tips.update((key, tip._replace(hash=hashes[key])) for key, tip in judgement.tips.items())
    return rows, parents, pins


def _store(pin: Pin, rows: list[KeptChange], unstored: dict[str, int], judgement: Judgement) -> None:
    """Have the values stored that a checkpoint names, of changes before it in the batch."""
    below = f"{pin.key}/"
    for key, at in unstored.items():
        if at < len(rows) and (key == pin.key or (pin.whole and key.startswith(below))):
            kept, _ = keep(judgement.applied[at].change, None)
            rows[at] = KeptChange(kept, rows[at].hash)

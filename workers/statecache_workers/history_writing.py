"""How the values of a batch are kept: as deltas to those before them, where these are remembered and in the chain."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, Protocol

from statecache.history import Kept, Parent, begins_anew, keep, link
from statecache.rules.pins import Pin, pin_of
from statecache.rules.reconcile import Judgement, Tip

if TYPE_CHECKING:
    from statecache.model import ChangeRecord


class Values(Protocol):
    """What is remembered of values, and decides how the next ones are kept."""

    def parent(self, shard: int, key: str) -> Parent | None:
        """Return the newest value of a shard's key, where it is remembered."""

    def keep(self, change: ChangeRecord, parent: Parent | None) -> tuple[Kept, Parent]:
        """Return how a change is kept behind a value, and what the next change may build on."""


class NoValues:
    """Values of which none is remembered."""

    def parent(self, _: int, __: str) -> Parent | None:
        """Return None."""
        return None

    def keep(self, change: ChangeRecord, parent: Parent | None) -> tuple[Kept, Parent]:
        """Return how a change is kept behind a value, and what the next change may build on."""
        return keep(change, parent)


class KeptChange(NamedTuple):
    """How a change is kept, and its hash, None where that of the change before it is not reckoned.

    Where it is not `stored`, its value stands in its key's state alone, for as long as it is the newest.
    """

    kept: Kept
    hash: bytes | None
    stored: bool = True


def kept_changes(
    shard: int,
    judgement: Judgement,
    tips: Mapping[str, Tip],
    values: Values,
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
            parent = parents.get(key) or values.parent(shard, key)
        stored = not latest or change.op != "set" or key.partition("/")[0] not in latest
        if not stored:
            kept, unstored[key] = Kept(None, None, sha256(change.value).digest()), len(rows)
            parents.pop(key, None)
            pin = pin_of(key, change.op, change.schema, change.value, change_set.position.n)
            if pin is not None:
                pins.append(pin)
                _store(pin, rows, unstored, judgement)
        else:
            kept, parents[key] = values.keep(change, parent)
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

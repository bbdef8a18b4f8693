"""What of a data set and of Postgres is the same: their newest changes, and the entries of a stream."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple


class HeldChange(NamedTuple):
    """A change as Postgres holds it."""

    key: str
    version: int
    change_id: str
    epoch: int
    n: int


def continues(
    newest: Sequence[HeldChange],
    recent: Mapping[str, tuple[int, Sequence[str]]],
    entries: Mapping[tuple[int, int], str],
) -> bool:
    """Return whether a data set is known to hold what Postgres holds: one of these changes, and nothing against any.

    `newest` are Postgres' newest changes of the shard, `recent` gives for the keys that Redis holds the version and
    the last change_ids with their positions, the newest first, `entries` the change_ids that stand in the stream at
    these changes' epochs and positions. What Redis holds no more says nothing.
    """
    found = False
    for change in newest:
        stands = entries.get((change.epoch, change.n), "")
        if stands not in ("", change.change_id):
            return False
        found = found or bool(stands)
        version, ids = recent.get(change.key, (change.version, ()))
        age = version - change.version
        if age < 0:
            return False
        if age < len(ids):
            if ids[age] != f"{change.change_id}@{change.epoch}-{change.n}":
                return False
            found = True
    return found


def parting(positions: Iterable[int], known: Collection[int]) -> int | None:
    """Return the n up to which these entries of a data set are Postgres' own; None where all of them are."""
    unknown = [n for n in positions if n not in known]
    return min(unknown) - 1 if unknown else None

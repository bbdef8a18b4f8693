"""A Redis that belongs to another Postgres' cluster, and which Postgres it may be adopted by all the same.

Epochs and positions are counted within a cluster, from 1 in each. Of two clusters they say nothing of each other: what
either holds would pass for what the other holds at the same position, and serve one deployment's states in another's.
So a shard that has had an epoch in this Postgres takes the data set of no other cluster, on nobody's word.

A shard that has had none, as in a database that was made anew, has nothing that it could be mistaken for: the data set
is all that there is of it, and an operator's word is enough. Where that adoption is interrupted, the row is raised and
the data set still names the cluster before. It may be repeated: the data set is reserved for the row's own server, and
nothing was flushed yet.
"""

from __future__ import annotations

from statecache.rules.looks import Look, ShardRow

APART = (
    "Name the Postgres of this Redis, or an empty database in the place of one that is lost; or name the Redis of this "
    "Postgres, or an empty one: another database number, or this one after FLUSHDB, if what it holds is given up"
)
"""What to do with two tiers that are not related."""


def is_unrelated(row: ShardRow, look: Look, cluster: str) -> bool:
    """Return whether a data set is of another cluster than this one, in which the shard has had an epoch."""
    return look.pin.cluster not in ("", cluster) and row.epoch > 0 and not _is_half_adopted(row, look)


def _is_half_adopted(row: ShardRow, look: Look) -> bool:
    begun = bool(look.reservation) and not look.replid and row.replid in look.lineage
    return begun and not row.flushed and row.epoch > look.own


def unrelated(theirs: str, ours: str) -> str:
    """Return why a data set of another cluster is not adopted."""
    return (
        f"this Redis belongs to cluster {theirs} and not to {ours}, this Postgres, which has had epochs of its own: "
        f"they count different logs, and are never joined. {APART}"
    )

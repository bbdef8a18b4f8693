"""Which faults strike when: drawn from a seed before anything runs, so that a run can be read before it is run. Pure.

Every kind comes at least once where there is room, in a random order; after that kinds are drawn by weight. Faults
begin at random gaps and may overlap, but for those that need quiet: they wait until the others are over, and others
wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

KINDS: dict[str, tuple[float, float, float]] = {
    "writer_kill": (4, 0.1, 1.0),
    "writer_pause": (2, 0.5, 3.0),
    "worker_kill": (4, 0.1, 1.0),
    "worker_pause": (3, 0.5, 4.0),
    "redis_kill": (4, 0.05, 1.0),
    "redis_pause": (2, 0.3, 2.0),
    "redis_sleep": (1, 0.3, 1.5),
    "postgres_kill": (3, 0.05, 1.0),
    "backend_pause": (4, 0.5, 3.0),
    "backend_terminate": (3, 0, 0),
    "backend_cancel": (3, 0, 0),
    "table_lock": (1, 0.3, 1.5),
    "client_kill": (2, 0, 0),
    "script_flush": (2, 0, 0),
    "memory_squeeze": (2, 0.5, 2.0),
    "evict": (5, 0.5, 4.0),
    "redis_refusing": (1, 0.2, 1.5),
    "redis_freeze": (2, 0.3, 3.0),
    "redis_delay": (1, 0.5, 2.0),
    "redis_trickle": (1, 0.3, 1.0),
    "redis_reset": (2, 0, 0),
    "redis_drop_request": (3, 1.0, 1.0),
    "redis_drop_reply": (4, 1.0, 1.0),
    "redis_cut": (2, 1.0, 1.0),
    "redis_hold": (4, 1.0, 4.0),
    "exec_drop_reply": (4, 2.0, 2.0),
    "postgres_freeze": (2, 0.3, 3.0),
    "hydrate_hold": (4, 0.5, 2.0),
    "postgres_delay": (2, 0.5, 3.0),
    "postgres_reset": (2, 0, 0),
    "commit_drop_request": (3, 2.0, 2.0),
    "commit_drop_reply": (4, 2.0, 2.0),
    "flushall": (2, 0, 0),
    "lost_tail": (3, 0.3, 1.5),
}
"""Of each kind its weight, and from how many to how many seconds it lasts."""

ALONE = frozenset({"flushall", "lost_tail"})
"""Kinds that strike only while no other fault is under way."""
GAP_S = (0.2, 2.2)

_BESIDE = (
    "writer_kill", "writer_pause", "worker_kill", "worker_pause", "redis_reset", "redis_drop_reply", "redis_hold",
    "redis_delay", "client_kill", "evict", "hydrate_hold", "backend_terminate", "postgres_kill", "commit_drop_reply",
)  # fmt: skip
"""What goes on beside the faults of other profiles."""
ROLES: dict[str, tuple[float, float, float]] = {
    "failover_kept": (5, 1.0, 2.0),
    "failover_back": (3, 0.5, 2.0),
    "failover_stale": (5, 2.0, 5.0),
    "failover_late": (3, 0.5, 2.0),
    "replica_freeze": (4, 0.5, 5.0),
    "replica_freeze_reset": (5, 1.5, 3.0),
    "replica_slow": (3, 1.0, 3.0),
    "replica_cut": (2, 0.5, 3.0),
    "primary_restart": (2, 0.05, 1.0),
    "primary_killed": (4, 0.1, 1.0),
    "promoted_behind": (4, 0.3, 1.5),
    "promoted_beside": (4, 1.0, 4.0),
    "promoted_unseen": (3, 2.0, 4.0),
    "old_primary_returns": (2, 0.5, 2.0),
    "fork_restarted": (2, 0.05, 0.5),
    "left_kept": (0, 0, 0),
    "left_forgotten": (0, 0, 0),
} | {kind: KINDS[kind] for kind in _BESIDE}
"""A kind of weight 0 is none that strikes at a moment: `left_…` does when all others are over, and is not healed before
the service has to be whole; others are habits of the sessions."""
THREADS = {
    kind: KINDS[kind]
    for kind in (
        "writer_pause", "worker_kill", "redis_kill", "redis_pause", "client_kill", "script_flush", "evict",
        "redis_refusing", "redis_freeze", "redis_delay", "redis_trickle", "redis_reset", "redis_drop_request",
        "redis_drop_reply", "redis_cut", "redis_hold", "exec_drop_reply", "postgres_freeze", "postgres_reset",
        "backend_terminate", "hydrate_hold", "commit_drop_reply",
    )
}  # fmt: skip
"""What threads that share a client meet from outside: whatever leaves their process alive."""
POSTGRES: dict[str, tuple[float, float, float]] = {
    "restored": (4, 0.3, 1.0),
    "restored_old": (4, 0, 0),
    "restored_behind": (2, 0.1, 0.5),
    "standby_promoted": (3, 0.3, 1.5),
    "commit_cancelled": (3, 0.5, 2.0),
    "commit_unsynced": (2, 0.5, 2.0),
    "default_encoding": (3, 0.5, 3.0),
    "default_path": (1, 0.5, 2.0),
    "default_read_only": (2, 0.5, 3.0),
    "read_only": (2, 0.5, 3.0),
    "row_locked": (3, 4.0, 7.0),
    "batch_slow": (2, 0, 0),
    "disk_full": (2, 1.0, 4.0),
    "flush_silent": (3, 2.0, 5.0),
    "encoding_refused": (1, 0, 0),
    "left_silent": (0, 0, 0),
    "left_clean": (0, 0, 0),
    **{
        kind: KINDS[kind]
        for kind in (
            "writer_kill", "worker_kill", "worker_pause", "redis_kill", "redis_reset", "redis_drop_reply",
            "postgres_kill", "postgres_freeze", "postgres_reset", "backend_pause", "backend_terminate",
            "backend_cancel", "table_lock", "commit_drop_request", "commit_drop_reply",
        )
    },
}  # fmt: skip
LOCKS: dict[str, tuple[float, float, float]] = {
    "outage_long": (5, 1.3, 2.5),
    "tracked_late": (4, 1.0, 4.0),
    "step_blocked": (0, 0, 0),
    "step_leased": (0, 0, 0),
    "left_clean": (0, 0, 0),
    **{
        kind: KINDS[kind]
        for kind in (
            "writer_kill", "writer_pause", "worker_kill", "redis_kill", "redis_pause", "redis_sleep", "redis_refusing",
            "redis_freeze", "redis_reset", "redis_drop_request", "redis_drop_reply", "redis_hold", "client_kill",
            "script_flush", "memory_squeeze", "evict", "postgres_kill", "postgres_freeze", "commit_drop_reply",
        )
    },
}  # fmt: skip
RIGHTS: dict[str, tuple[float, float, float]] = {
    "rights_lost": (10, 0.2, 2.0),
    **{kind: KINDS[kind] for kind in ("worker_kill", "writer_kill", "client_kill", "script_flush", "evict")},
}
LOCKS_ALONE = frozenset({"outage_long"})
POSTGRES_ALONE = frozenset(POSTGRES) - frozenset(KINDS) - {"flush_silent", "read_only", "default_read_only"}
ROLES_ALONE = frozenset({"failover_kept", "fork_restarted", "old_primary_returns"})
FIRST_S = 0.5


class Strike(msgspec.Struct, frozen=True, kw_only=True):
    """One intended fault: its kind, its start and its duration in seconds, and the victim as a number in [0, 1)."""

    kind: str
    at_s: float
    lasts_s: float
    pick: float

    def __str__(self) -> str:
        return f"{self.at_s:6.2f} s  {self.kind:<20} {self.lasts_s:4.2f} s  pick {self.pick:.3f}"


def schedule(
    seed: int,
    seconds: float,
    kinds: Sequence[str] = tuple(KINDS),
    table: Mapping[str, tuple[float, float, float]] = KINDS,
) -> list[Strike]:
    """Return the faults in their order, of these kinds of the table."""
    rng = Random(seed)
    waiting = rng.sample(kinds, len(kinds))
    weights = [table[kind][0] for kind in kinds]
    strikes: list[Strike] = []
    at = FIRST_S
    while at < seconds and kinds:
        # In two of three places stands one that has not been there yet, as long as there are such.
        kind = waiting.pop() if waiting and rng.random() < 0.67 else rng.choices(kinds, weights=weights)[0]
        _, least, most = table[kind]
        strikes.append(Strike(kind=kind, at_s=at, lasts_s=rng.uniform(least, most), pick=rng.random()))
        at += rng.uniform(*GAP_S)
    return strikes

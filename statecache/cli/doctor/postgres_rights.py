"""Which rights in Postgres an agent and a worker need, and what lacks of them: what `config/roles.sql` grants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from statecache.cli.doctor.findings import Finding, Severity, error, note

Refused = Mapping[str, Mapping[str, Sequence[str]]]
"""Of each table, which columns are refused for SELECT, INSERT and UPDATE.

For DELETE, and for ROWS, which row-level security hides, the table's name where it is. For OWNERS, of functions, those
from whom it hides rows.
"""

AGENT_READS = (
    "state", "change", "branch", "late_change", "conflict", "quarantine", "lost", "lost_change", "shard", "epoch",
    "cluster", "namespace", "retention", "vector_pending",
)  # fmt: skip
WORKER_READS = (
    "state", "change", "branch", "conflict", "quarantine", "lost", "lost_change", "shard", "epoch", "cluster", "worker",
    "lock_token", "namespace", "retention", "prune_pass", "vector_index", "erasure",
)  # fmt: skip
ALL = ("*",)
WORKER_WRITES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "state": {
        "INSERT": ALL,
        "UPDATE": (
            "op", "value", "version", "epoch", "n", "change_id", "parent_change_id", "encoding", "schema", "writer",
            "updated_at",
        ),
    },
    "change": {"INSERT": ALL, "UPDATE": ("value", "packed", "keyframe", "size", "digest", "hash")},
    "branch": {"INSERT": ALL},
    "conflict": {"INSERT": ALL},
    "quarantine": {"INSERT": ALL},
    "lost": {"INSERT": ALL},
    "lock_token": {"INSERT": ALL, "UPDATE": ("epoch", "count")},
    "prune_pass": {"INSERT": ALL, "UPDATE": ALL},
    "shard": {
        "UPDATE": (
            "flushed", "entries", "bytes", "excepted", "flushed_at", "owner", "lease_until", "hashed",
            "moved_keyframes",
        ),
    },
    "worker": {"INSERT": ALL, "UPDATE": ("beat_until", "avoids", "trouble"), "DELETE": ALL},
}  # fmt: skip
"""What workers write, by right and column; `*` for every column."""


class Functions(NamedTuple):
    """Functions that belong together, and what it costs where a role may not run them; None is who needs none of it."""

    names: Sequence[str]
    costs: str
    of_agents: Severity | None
    of_workers: Severity


FUNCTIONS = (
    Functions(("begin_epoch",), "after a failover of Redis it can open no gate", "error", "error"),
    Functions(("report_lost",), "after a failover of Redis it cannot record what was lost", "warning", "warning"),
    Functions(("set_locking",), "it cannot record that a namespace's locks are enforced: who writes there with "
              'locking="enforced" is refused', "warning", "error"),
    Functions(("take_consumer", "keep_consumer"), "it reads no changes as a named consumer", "warning", "note"),
    Functions(("declare_history",), "it cannot declare what is kept of a namespace's history: operators do, by "
              "`statecache policy`", "note", "note"),
    Functions(("nearest_keys", "vector_tables"), "searches by nearness are refused", "warning", "note"),
    Functions(("index_vectors",), "no worker that runs as it indexes vectors", None, "error"),
    Functions(("set_history", "erase_history", "detach_branch"),
              "nobody sets retention or erases by hand as it", None, "warning"),
)  # fmt: skip


def findings(role: str, tables: Refused, functions: Mapping[str, bool], *, worker: bool) -> Iterator[Finding]:
    """Yield what a role lacks. What is not there at all is no right that lacks. Pure."""
    remedy = (
        f"apply config/roles.sql again, as after every `statecache migrate`; for a role of your own: GRANT … TO {role}"
    )
    if hidden := hidden_of(tables):
        yield error(
            "postgres",
            f"row-level security is on for the role {role} and {', '.join(hidden)}",
            "whatever reads such a table is refused: what it hid would count as not there",
            f"ALTER TABLE … DISABLE ROW LEVEL SECURITY, or let the role see all: ALTER ROLE {role} BYPASSRLS",
        )
    for owner in sorted({name for refused in tables.values() for name in refused.get("OWNERS", ())} - {role}):
        hidden = sorted(name for name, refused in tables.items() if owner in refused.get("OWNERS", ()))
        yield error(
            "postgres",
            f"row-level security is on for {owner}, as which the schema's functions run, and {', '.join(hidden)}",
            "after a failover of Redis no gate is opened; policies and named consumers are refused",
            f"ALTER ROLE {owner} BYPASSRLS; or for each table: ALTER TABLE … NO FORCE ROW LEVEL SECURITY",
        )
    if not worker and (lacking := lacking_of(tables, {name: {"SELECT": ALL} for name in AGENT_READS})):
        yield error("postgres", f"the role {role} lacks {lacking}", "clients are refused what they ask", remedy)
    for some in FUNCTIONS:
        severity = some.of_workers if worker else some.of_agents
        if severity and (refused := [name for name in some.names if functions.get(name) is False]):
            what = f"the role {role} may not run {', '.join(refused)}"
            yield Finding(severity=severity, where="postgres", what=what, costs=some.costs, remedy=remedy)
    needed = {
        name: ({"SELECT": ALL} if name in WORKER_READS else {}) | dict(WORKER_WRITES.get(name, {}))
        for name in dict.fromkeys([*WORKER_READS, *WORKER_WRITES])
    }
    if lacking := lacking_of(tables, needed):
        what = f"the role {role} lacks {lacking}"
        if worker:
            yield error("postgres", what, "a worker that runs as it fails there, or cannot start", remedy)
        else:
            yield note("postgres", what, "it cannot be a worker's; an agent needs none of it")


def hidden_of(tables: Refused) -> list[str]:
    """Return the names of the tables of which row-level security hides rows."""
    return sorted(name for name, refused in tables.items() if refused.get("ROWS"))


def may_read(refused: Mapping[str, Sequence[str]] | None) -> bool:
    """Return whether a table is there, and all columns and rows of it may be read."""
    return refused is not None and not refused["SELECT"] and not refused.get("ROWS")


def lacking_of(tables: Refused, needed: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """Return in words which of the needed rights are refused, with the columns where it is not all of them; or ''."""
    parts = []
    for name, rights in needed.items():
        for right, columns in rights.items():
            refused = [one for one in tables.get(name, {}).get(right, ()) if columns == ALL or one in columns]
            if refused:
                some = "" if columns == ALL or len(refused) == len(columns) else f" ({', '.join(refused)})"
                parts.append(f"{right}{some} on {name}")
    return ", ".join(parts)

"""What calls for a person, and what to do about it: one line a reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.cli.screen import counted
from statecache.rules.backlog import NEARLY_FULL

if TYPE_CHECKING:
    from statecache.cli.status.sample import HeldRow, Sample, Server, Shard, WorkerSeen

NEW = "24 hours"
"""What happened longer ago calls for nobody."""
_NAMED = 3
NO_WORKER = (
    "start one with `statecache worker`; where one runs, its log says what hinders it, and `statecache doctor "
    "--worker` with its URLs which rights it lacks"
)
GATES = (
    "if it stays so, see which Redis is the primary, and with its URL: `statecache epoch adopt all`, which says what "
    "to name with --from and --to"
)

WENT_BACK = (
    "if it stays so, this Postgres went back, or is an old primary or a copy: see which Postgres is the primary, and "
    "name that in postgres_url; if it is this one, a worker goes on with it, or says in its log what to do"
)


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What `status` shows; `attention` are the reasons why a person should look."""

    attention: list[str]
    redis: Server
    postgres: Server
    shards: dict[str, int | None]
    lag: dict[str, Any]
    backlog: dict[str, Any]
    epoch: int | None
    openings: list[dict[str, Any]] | None
    workers: list[Any] | None
    quarantined: int | None
    conflicts: int | None
    new_conflicts: int | None
    lost: int | None
    new_lost: int | None
    at_least: list[str] = []
    """Names of the counts that are at least so high: it was not counted on."""


def attention_of(found: Overview, sample: Sample, history: Mapping[str, Any]) -> list[str]:
    """Return the reasons why a person should look, worst first."""
    reasons = [
        *_servers(found),
        *_gates(found, sample.shards),
        *_went_back(sample.shards),
        *_beyond(history.get("foreign_entries", {})),
    ]
    reasons += [*_held(sample.held), *(lock.told for lock in sample.locks), *_hindered(sample.workers or ())]
    if found.shards["unowned"]:
        unowned, count = found.shards["unowned"], found.shards["count"]
        reasons.append(f"{unowned} of {count} shards have no worker: {NO_WORKER}")
    if found.backlog["over"]:
        reasons.append(f"the backlog of {_shards(found.backlog['over'])} is above {NEARLY_FULL:.0%} of its limit")
    return [*reasons, *_lost(history), *_aside(found)]


def _servers(found: Overview) -> Iterator[str]:
    for name, server in (("Redis", found.redis), ("Postgres", found.postgres)):
        if not server.reachable:
            yield f"{name} does not answer: {server.trouble}"
    if found.redis.role.startswith("replica"):
        yield "Redis is a replica: it takes no writes"
    if found.postgres.role == "standby":
        yield "Postgres is a standby: nothing can be flushed into it"
    yield from found.redis.problems
    yield from found.postgres.problems


def _gates(found: Overview, shards: Sequence[Shard]) -> Iterator[str]:
    if found.epoch == 0 and found.shards["closed"]:
        yield "no shard was ever opened: `statecache migrate` adopts this Redis, or a worker, if it is the right one"
        return
    some = [one for one in shards if one.open is False][:_NAMED]
    for one in some:
        remedy = WENT_BACK if one.postgres_behind else GATES
        yield f"the gate of shard {one.shard} is closed: {one.closed_because}; {remedy}"
    if (closed := found.shards["closed"] or 0) > _NAMED:
        left = closed - _NAMED
        yield f"{'the gate of 1 more shard is' if left == 1 else f'the gates of {left} more shards are'} closed"


def _went_back(shards: Sequence[Shard]) -> Iterator[str]:
    """Yield which shards Postgres is behind in; one that has a worker may have been flushed between both answers."""
    if behind := [one.shard for one in shards if one.postgres_behind and one.open and one.owned is False]:
        yield f"Redis was told that more of {_shards(behind)} is flushed than this Postgres holds: {WENT_BACK}"


def _beyond(foreign_entries: Mapping[int, str]) -> Iterator[str]:
    for shard, entry_id in [*foreign_entries.items()][:_NAMED]:
        yield (
            f"shard {shard} takes no commits: its stream goes on to {entry_id}, which no commit has written; "
            "its worker takes that out, and where it cannot, its log says why"
        )


def _held(held: Sequence[HeldRow]) -> Iterator[str]:
    if waiting := sorted({one.shard: one for one in held if one.standbys and one.waits}.items()):
        (_, first), shards = waiting[0], [shard for shard, _ in waiting]
        yield (
            f"{_shards(shards)} can be taken by no worker: COMMIT waits in Postgres for a synchronous standby "
            f"(synchronous_standby_names = '{first.standbys}'): bring it back; or, if it is lost, take it off that "
            "list: ALTER SYSTEM SET synchronous_standby_names = …; SELECT pg_reload_conf()"
        )
    others = [one for one in held if not (one.standbys and one.waits)]
    for pid in dict.fromkeys(one.pid for one in others):
        rows = [one for one in others if one.pid == pid]
        taken = f"{_shards([one.shard for one in rows])} can be taken by no worker: "
        if pid is None:
            yield f"{taken}a prepared transaction has locked the row in Postgres: see pg_prepared_xacts"
            continue
        who = f"{rows[0].user} with {rows[0].application or 'no application_name'}"
        yield (
            f"{taken}the row in Postgres is held by pid {pid} ({who}); {_unseen(rows[0])}let it end, "
            f"or: SELECT pg_terminate_backend({pid})"
        )


def _unseen(row: HeldRow) -> str:
    """Return what to look at before a session is ended that waits for a standby, as far as this role can tell."""
    if row.waits is not None or not row.standbys:
        return ""
    return (
        f"see first that a synchronous standby is there (synchronous_standby_names = '{row.standbys}'), which its "
        "COMMIT may wait for; then "
    )


def _hindered(workers: Sequence[WorkerSeen]) -> Iterator[str]:
    for worker in workers:
        left = f", and leaves {counted(worker.avoids, 'shard')} to others" if worker.avoids else ""
        if worker.trouble or left:
            yield (
                f"worker {worker.id} cannot serve{left}: {worker.trouble or 'it does not say why'}; remove the cause, "
                "point it at the primary, or stop it"
            )


def _lost(history: Mapping[str, Any]) -> Iterator[str]:
    if lost := history.get("new_lost"):
        which = _shards(sorted(history["lost_of"]))
        yield (
            f"{counted(lost, 'position')} of {which} {_be(lost, 'was', 'were')} lost within {NEW}: a Redis came back "
            "without its newest commits, Postgres went back, or a stream was trimmed; `statecache lost` tells which, "
            "write anew what is missed"
        )


def _aside(found: Overview) -> Iterator[str]:
    if found.quarantined:
        uncounted = "quarantined" in found.at_least
        parked = (
            f"{count_text(found, 'quarantined')} entries"
            if uncounted
            else counted(found.quarantined, "entry", "entries")
        )
        yield f"{parked} {_be(found.quarantined)} in quarantine: `statecache quarantine list`"
    if found.new_conflicts:
        changes, were = counted(found.new_conflicts, "change"), _be(found.new_conflicts, "was", "were")
        yield f"{changes} {were} set aside in `conflict` within {NEW}: see there what should count, and write it anew"


def count_text(found: Overview, name: str) -> str:
    """Return a count in words; of one that was not counted on, more than what was counted before the last one."""
    count: int = getattr(found, name)
    return f"more than {count - 1:,}" if name in found.at_least else f"{count:,}"


def _be(count: int, one: str = "is", several: str = "are") -> str:
    return one if count == 1 else several


def _shards(shards: Sequence[int]) -> str:
    some = ", ".join(map(str, shards[:8])) + ("…" if len(shards) > 8 else "")
    return f"shard{'' if len(shards) == 1 else 's'} {some}"

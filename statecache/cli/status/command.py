"""`status`: how a deployment stands, on one screen, and whether a person should look."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.cli.error_text import origin_told
from statecache.cli.exits import FINDING, OK, UNREACHABLE
from statecache.cli.options import AsJson, PostgresUrl, RedisUrl, settings_of
from statecache.cli.screen import counted, print_json, print_labelled, size_text, time_text
from statecache.cli.status.attention import NEW, Overview, attention_of, count_text
from statecache.rules.backlog import NEARLY_FULL, backlog_used

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from statecache.cli.status.sample import Sample, Server, Shard
    from statecache.settings import Settings

OPENINGS_MAX = 5
WORST_MAX = 5
PATIENCE_S = 3.0
"""How long a server may take to answer, in seconds."""
_LABEL = 12


def status(redis_url: RedisUrl = None, postgres_url: PostgresUrl = None, as_json: AsJson = False) -> int:
    """Show how a deployment stands: servers, shards, lag, workers, epochs, and what was set aside.

    Exit status 1 when a person should look, with what to do: something is in quarantine, changes were set aside as
    conflicts or lost within the last 24 hours, a shard has no worker or takes no commits, a gate is closed, a worker
    cannot serve, a server refuses writes, a shard's backlog has used more than 80 % of its limit, or an index of
    vectors takes nothing in or has refused states.
    Exit status 4 when a server does not answer; what the other one says is shown all the same.
    With --json, `at_least` names the counts that are as high as it counts: there may be more.

    \b
    Examples:
      statecache status
      statecache status --json | jq .attention
    """
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    found = asyncio.run(_overview(settings))
    if as_json:
        print_json(found)
    else:
        _show(found, given=settings.model_fields_set)
    if not (found.redis.reachable and found.postgres.reachable):
        return UNREACHABLE
    return FINDING if found.attention else OK


async def _overview(settings: Settings) -> Overview:
    from statecache.cli.status.sample import Sampler
    from statecache.errors import PostgresUnavailable, StateCacheError

    sampler = Sampler(settings, patience_s=min(PATIENCE_S, settings.timeout_s))
    try:
        sample = await sampler.take(strict=True)
        history: dict[str, Any] = {}
        foreign_entries: dict[int, str] = {}
        if sample.redis.reachable:
            with contextlib.suppress(StateCacheError, TimeoutError):
                foreign_entries = await sampler.foreign_entries()
        if sample.postgres.reachable:
            try:
                history = await sampler.history(new=NEW, openings=OPENINGS_MAX)
            except PostgresUnavailable:
                history = {}
        return overview_of(settings, sample, history | {"foreign_entries": foreign_entries})
    finally:
        await sampler.close()


def overview_of(settings: Settings, sample: Sample, history: dict[str, Any]) -> Overview:
    """Return what `status` shows, from one look and the history, with the reasons why a person should look. Pure."""
    shards = sample.shards
    openings = [
        {"age_s": age, "shards": count, "epoch": epoch, "opened_by": by}
        for age, count, epoch, by in history.get("openings", ())
    ]
    found = Overview(
        attention=[],
        redis=sample.redis,
        postgres=sample.postgres,
        shards=counts_of(sample),
        lag=lag_of(shards),
        backlog=backlog_of(settings, shards),
        epoch=max((one.epoch for one in shards if one.epoch is not None), default=None),
        openings=openings if "openings" in history else None,
        workers=sample.workers,
        quarantined=sample.quarantined,
        conflicts=history.get("conflicts", sample.conflicts),
        new_conflicts=history.get("new_conflicts"),
        lost=history.get("lost"),
        new_lost=history.get("new_lost"),
        at_least=[name for name in uncounted(sample) if name not in history],
    )
    return msgspec.structs.replace(found, attention=attention_of(found, sample, history))


def uncounted(sample: Sample) -> list[str]:
    """Return which counts of a look have come to where it counts no further: there are at least so many."""
    from statecache.cli.status.postgres import COUNTED_MAX

    return [name for name in ("quarantined", "conflicts") if (getattr(sample, name) or 0) > COUNTED_MAX]


def counts_of(sample: Sample) -> dict[str, int | None]:
    """Count the shards: None where the side that knows is away."""
    shards = sample.shards
    redis, postgres = sample.redis.reachable, sample.postgres.reachable
    return {
        "count": len(shards),
        "open": sum(bool(one.open) for one in shards) if redis else None,
        "closed": sum(not one.open for one in shards) if redis else None,
        "unowned": sum(not one.owned for one in shards) if postgres else None,
    }


def lag_of(shards: Sequence[Shard], *, most: int = WORST_MAX) -> dict[str, Any]:
    """Return the shards' lag in sum; the oldest entry's age is None where it was not read, or nothing is known."""
    known = [one for one in shards if one.lag_entries is not None]
    worst = sorted((one for one in known if one.lag_entries), key=lambda one: (-(one.lag_entries or 0), one.shard))
    ages = [one.lag_s for one in known if one.lag_s is not None]
    return {
        "entries": sum(one.lag_entries or 0 for one in known) if known else None,
        "bytes": sum(one.lag_bytes or 0 for one in known) if known else None,
        "seconds": max(ages, default=None),
        "worst": worst[:most],
    }


def backlog_of(settings: Settings, shards: Sequence[Shard]) -> dict[str, Any]:
    """Return which shard is nearest to its backlog limit, what part of it is used, and which are over NEARLY_FULL."""
    limits = {"entries_max": settings.backlog_entries_max, "bytes_max": settings.backlog_bytes_max}
    used = [
        (backlog_used(one.lag_entries, one.lag_bytes or 0, **limits), one.shard)
        for one in shards
        if one.lag_entries is not None
    ]
    part, shard = max(used, default=(None, None), key=lambda one: (one[0], -one[1]))
    return {
        "used": part, "shard": shard, "over": sorted(one for part, one in used if part > NEARLY_FULL), **limits,
    }  # fmt: skip


def _show(found: Overview, *, given: Collection[str]) -> None:
    def line(label: str, text: str, style: str = "") -> None:
        print_labelled(label, text, width=_LABEL, style=style)

    for name, server in (("Redis", found.redis), ("Postgres", found.postgres)):
        line(name, server_text(server), "" if server.reachable else "error")
        line("", origin_told(server.url, given=given), "note")
    line("Shards", shards_text(found.shards), "warning" if found.shards["closed"] or found.shards["unowned"] else "")
    line("Lag", lag_text(found.lag))
    for one in found.lag["worst"]:
        entries = counted(one.lag_entries, "entry", "entries")
        line("", f"shard {one.shard}: {entries}, {size_text(one.lag_bytes)}, {_seconds(one.lag_s)}")
    line("Backlog", backlog_text(found.backlog), "warning" if found.backlog["over"] else "")
    line("Workers", "not known" if found.workers is None else str(len(found.workers)))
    for worker in found.workers or ():
        line("", f"{worker.id}: {counted(worker.shards, 'shard')}, heartbeat {time_text(worker.heartbeat_s)} ago")
    line("Epoch", "not known" if found.epoch is None else f"{found.epoch} at most")
    for opening in found.openings or ():
        line("", f"{time_text(opening['age_s'])} ago: {counted(opening['shards'], 'shard')}, up to {opening['epoch']}, "
                 f"by {opening['opened_by']}")  # fmt: skip
    line("Set aside", aside_text(found))
    for reason in found.attention:
        line("Look", reason, "error")
    if not found.attention:
        line("", "Nothing needs a person.", "ok")


def server_text(server: Server) -> str:
    """Return in one line how a server stands."""
    if not server.reachable:
        return f"does not answer: {server.trouble}"
    memory = f"{size_text(server.memory)} of {size_text(server.memory_max) if server.memory_max else 'no limit'}"
    parts = [server.version or "version not told", server.role or "role not told", server.keeps]
    return ", ".join([*filter(None, parts), *([memory] if server.memory else [])])


def shards_text(shards: dict[str, int | None]) -> str:
    """Return the counts of shards in words."""
    names = [(name, shards[name]) for name in ("open", "closed", "unowned")]
    return f"{shards['count']}: " + ", ".join(f"{'?' if count is None else count} {name}" for name, count in names)


def lag_text(lag: dict[str, Any]) -> str:
    """Return the lag in words."""
    if lag["entries"] is None:
        return "not known"
    if not lag["entries"]:
        return "none"
    entries = counted(lag["entries"], "entry", "entries")
    return f"{entries}, {size_text(lag['bytes'])}, oldest {_seconds(lag['seconds'])}"


def backlog_text(backlog: dict[str, Any]) -> str:
    """Return in words how near to its limit the fullest shard is."""
    if backlog["used"] is None:
        return "not known"
    limit = f"{backlog['entries_max']:,} entries or {size_text(backlog['bytes_max'])} a shard"
    return f"{backlog['used']:.0%} of {limit}" + (f" (shard {backlog['shard']})" if backlog["used"] else "")


def aside_text(found: Overview) -> str:
    """Return in words what is in quarantine and in conflict, and what is lost."""
    if found.quarantined is None:
        return "not known"
    new = f", {found.new_conflicts} of them new" if found.new_conflicts else ""
    lost = f", {counted(found.lost, 'position')} lost" if found.lost else ""
    parked, conflicts = count_text(found, "quarantined"), count_text(found, "conflicts")
    return f"{parked} in quarantine, {conflicts} in conflict{new}{lost}"


def _seconds(seconds: float | None) -> str:
    return "age not read" if seconds is None else time_text(seconds)

"""`quarantine list|show|retry|drop`: looking after what Postgres refused."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statecache.cli.exits import FINDING, OK
from statecache.cli.options import (
    Actor,
    AsJson,
    PostgresUrl,
    Reason,
    RedisUrl,
    SafeLevel,
    checked_durability,
    operator,
    settings_of,
)
from statecache.cli.screen import counted, plain, print_json, print_table, size_text, tell, time_text
from statecache.clock import wall
from statecache.errors import UsageError
from statecache.records import text_of

if TYPE_CHECKING:
    from statecache.settings import Settings
    from statecache_workers.parked_entries import Parked
    from statecache_workers.quarantine_release import Done

EXCERPT_BYTES = 400
LIST_MAX = 10_000
Ids = Annotated[list[str], typer.Argument(metavar="ID…", help="As `list` shows them, like 58:3-1207.")]
Dropped = Annotated[bool, typer.Option("--dropped", help="Also what was dropped.")]


def list_command(
    dropped: Dropped = False,
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0 for all.")] = LIST_MAX,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """List the entries that Postgres refused for their data, newest first.

    With --json, one object: `parked`, a list, and `more` where the limit cut it short.

    \b
    Examples:
      statecache quarantine list
      statecache quarantine list --dropped --json
      statecache quarantine list --limit 0 --json | jq -r .parked[].id
    """
    settings = settings_of(postgres_url=postgres_url)
    listed = asyncio.run(_listed(settings, dropped=dropped, limit=limit + 1 if limit else None))
    found = listed[:limit] if limit else listed
    more = len(listed) > len(found)
    if as_json:
        print_json({"parked": [_facts(one) for one in found], "more": more})
        return OK
    if not found:
        print("nothing is in quarantine")
        return OK
    from statecache_workers.parked_entries import reason_text

    now = wall()
    rows = [
        [
            str(one.place), time_text((now - one.recorded_at).total_seconds()), reason_text(one.sqlstate),
            _some(one.keys), size_text(one.size), one.error,
        ]
        for one in found
    ]  # fmt: skip
    print_table(["id", "age", "reason", "keys", "bytes", "error"], rows)
    if more:
        tell(f"there are more; --limit {limit} was reached")
    return OK


async def _listed(settings: Settings, *, dropped: bool, limit: int | None) -> list[Parked]:
    from statecache_workers.quarantine_release import opened

    async with opened(settings) as quarantine:
        return await quarantine.listed(dropped=dropped, limit=limit)


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _facts(one: Parked) -> dict[str, Any]:
    return {
        "id": str(one.place), "change_id": one.change_id, "keys": one.keys, "bytes": one.size,
        "reason": one.refused_for, "error": one.error, "recorded_at": text_of(one.recorded_at), "dropped": one.dropped,
        "being_dropped": one.being_dropped,
    }  # fmt: skip


def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")],  # noqa: A002
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Show one parked entry: why it is there, and what it holds.

    With --json the raw fields too, in base64. Exit status 1 where there is no such entry.

    \b
    Examples:
      statecache quarantine show 58:3-1207
      statecache quarantine show 58:3-1207 --json
    """
    from statecache_workers.parked_entries import ParkedAt, reason_text

    place = ParkedAt.parse(id)
    parked = asyncio.run(_found(settings_of(postgres_url=postgres_url), place))
    if parked is None:
        if as_json:
            print_json({"id": id, "found": False})
        else:
            tell(f"{place} is not in quarantine")
        return FINDING
    fields = parked.fields()
    pairs = list(zip(fields[::2], fields[1::2], strict=False))
    if as_json:
        raw = [[base64.b64encode(part).decode() for part in pair] for pair in pairs]
        print_json(_facts(parked) | {"fields": raw})
        return OK
    for name, value in (_facts(parked) | {"reason": reason_text(parked.sqlstate)}).items():
        text = ", ".join(value) if isinstance(value, list) else str(value)
        print(f"{name:<12}  {plain(text)}")
    _print_fields(pairs)
    return OK


def _print_fields(pairs: list[tuple[bytes, bytes]]) -> None:
    from statecache_workers.parked_entries import excerpt

    print()
    for name, value in pairs:
        size = f"  ({size_text(len(value))})" if len(value) > EXCERPT_BYTES else ""
        print(f"  {plain(excerpt(name, 40)):<12}  {plain(excerpt(value, EXCERPT_BYTES))}{size}")


async def _found(settings: Settings, place: Any) -> Parked | None:
    from statecache_workers.quarantine_release import opened

    async with opened(settings) as quarantine:
        return await quarantine.found(place)


def retry(
    ids: Ids,
    dropped: Dropped = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Take parked entries in after all, when what Postgres refused them for is gone; `all` for every one.

    A change goes to the version that it has always had, its gap closes, and a key that still ends with it can be read
    again. An entry goes in whole or not at all: not where Postgres still refuses it, and not where the key's chain
    went on without it. One that was dropped, or whose drop is under way or was cut short, goes in with --dropped
    alone, and the record of the drop ends with that. It takes the role that owns the schema. Exit status 1 where any
    did not go in.

    \b
    Examples:
      statecache quarantine retry 58:3-1207
      statecache quarantine retry all
      statecache quarantine retry 58:3-1207 --dropped
    """
    from statecache_workers.parked_entries import ParkedAt
    from statecache_workers.quarantine_release import retry as run

    places = None if ids == ["all"] else [ParkedAt.parse(one) for one in ids]
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    done = asyncio.run(run(settings, places, dropped=dropped))
    return _report(done, "retried", as_json=as_json)


def drop(
    ids: Ids,
    yes: Annotated[bool, typer.Option("--yes", help="Say that these changes are given up.")] = False,
    actor: Actor = "",
    reason: Reason = "",
    durability: SafeLevel = "postgres",
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Give parked entries up: they are kept and marked as dropped, with who, when and why.

    A key that still ends with the parked change gets its value before it back, as a new version, or is deleted where
    there was none: agents that hold the dropped value are told of a conflict. A key that was written since is left
    alone. Where Postgres refuses the value before it as well, nothing is done. A drop that was cut short is finished by
    the same command; of an entry that was dropped before, it says by whom. Exit status 1 where an id is not in
    quarantine, or stays there.

    \b
    Examples:
      statecache quarantine drop 58:3-1207 --yes --reason "test data"
    """
    from statecache_workers.parked_entries import ParkedAt
    from statecache_workers.quarantine_drop import drop as run
    from statecache_workers.quarantine_release import missing

    places = [ParkedAt.parse(one) for one in ids]
    level = checked_durability(durability)
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    if not yes:
        if unknown := asyncio.run(missing(settings, places)):
            return _report(unknown, "dropped", as_json=as_json)
        raise UsageError(
            f"this gives {counted(len(places), 'parked entry', 'parked entries')} up; "
            f"the keys {'of it' if len(places) == 1 else 'of them'} go back to what was before",
            hint="Say --yes if that is meant.",
        )
    done = asyncio.run(run(settings, places, actor=actor or operator(), reason=reason, durability=level or "postgres"))
    return _report(done, "dropped", as_json=as_json)


def _report(done: list[Done], verb: str, *, as_json: bool) -> int:
    from statecache_workers.quarantine_release import DROPPED_BEFORE, NOT_THERE

    whole = all(one.done for one in done)
    if as_json:
        print_json({verb: done})
        return OK if whole else FINDING
    for one in done:
        gone = not one.done and one.why.startswith(NOT_THERE)
        if gone and not one.restored:
            tell(one.id + one.why.removeprefix("it"))
            continue
        said = [f"{counted(len(keys), noun)} {what}" for keys, noun, what in (
            (one.unmarked, "key", "can be read again"), (one.mended, "gap", "closed"),
            (one.restored, "key", "went back to what was before"),
        ) if keys]  # fmt: skip
        taken = [f"{counted(one.taken, 'change')} taken in"] if verb == "retried" and one.done else []
        if one.done and one.why.startswith(DROPPED_BEFORE):
            print(plain(", ".join([f"{one.id}  {one.why.removeprefix('it ')}", *said])))
            continue
        text = ", ".join([*taken, *said, *([one.why] if one.why else [])])
        became = verb if one.done else "is gone" if gone else "stays"
        print(plain(f"{one.id}  {became}" + (f": {text}" if text else "")))
    if not done:
        print("nothing is in quarantine")
    return OK if whole else FINDING

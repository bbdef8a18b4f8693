"""`statecache erase`: removing a subject everywhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statecache.cli.asking import confirmed
from statecache.cli.exits import FINDING, OK
from statecache.cli.options import Actor, AsJson, PostgresUrl, Reason, RedisUrl, Yes, operator, settings_of
from statecache.cli.screen import counted, plain, print_json, say, size_text, tell
from statecache.keys import checked_group, checked_key

if TYPE_CHECKING:
    from statecache.core.history.subjects import Known
    from statecache.erasure import Erasure
    from statecache.settings import Settings

_NOUNS = {False: ("row",), True: ("entry", "entries")}


def erase(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key, or with --group a group.")],
    group: Annotated[bool, typer.Option("--group", help="All keys of the group that KEY names.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which keys would go.")] = False,
    yes: Yes = False,
    actor: Actor = "",
    reason: Reason = "",
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Delete a key, or a group, and all that was ever kept of it, everywhere and for good, and print a proof of it.

    Its values go from Redis, the stream, near caches, and the history, conflicts and quarantine in Postgres; with a
    key the records of its steps and its checkpoints. The key itself stays, with its version. It says first what would
    go, and asks, unless --yes. It takes a worker's role, or a right that was granted for it. What backups hold stays
    there. Interrupted, it may be begun again. Exit status 1 where there is nothing to erase, or nobody agreed.

    \b
    Examples:
      statecache erase users/ada --dry-run
      statecache erase users/ada --reason "asked for on 2026-11-20"
      statecache erase runs/42 --group --yes --json
    """
    checked = checked_group(key) if group else checked_key(key)
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    if dry_run or not yes:
        known = asyncio.run(_look(settings, checked, group=group))
        if dry_run:
            return _would(known, as_json=as_json)
        if known.keys and not confirmed(f"{_named(known)} would be erased for good, with all history", yes=False):
            tell("nothing was erased")
            return FINDING
    more_facts: dict[str, Any] = {"actor": actor or operator(), "reason": reason, "group": group}
    proof = asyncio.run(_erase(settings, checked, more_facts))
    if as_json:
        print_json(_facts(proof))
    else:
        _tell(proof)
    return OK


async def _look(settings: Settings, key: str, *, group: bool) -> Known:
    """Return what would go, and what was made from it."""
    from statecache.cli.connecting import client
    from statecache.core.history.subjects import Subject, known_of

    async with client(settings) as cache:
        return await known_of(cache._runtime, Subject(key, group, "", ""), seconds=cache.settings.timeout_s)


def _named(known: Known) -> str:
    more = f" and {len(known.keys) - 3} more" if len(known.keys) > 3 else ""
    return f"{counted(len(known.keys), 'key')} ({', '.join(map(plain, sorted(known.keys)[:3]))}{more})"


def _would(known: Known, *, as_json: bool) -> int:
    if as_json:
        print_json({"keys": sorted(known.keys), "branches": sorted(known.branches), "dry_run": True})
    else:
        for key in sorted(known.keys):
            say(f"would be erased: {plain(key)}")
        for key in sorted(known.branches):
            say(_stays(key))
    return OK if known.keys else FINDING


def _stays(key: str) -> str:
    return f"not erased: {plain(key)}, which was made from it"


async def _erase(settings: Settings, key: str, more: dict[str, Any]) -> Erasure:
    from statecache.cli.connecting import client

    async with client(settings) as cache:
        return await cache.erase(key, **more)


def _facts(proof: Erasure) -> dict[str, Any]:
    return {
        "key": proof.key, "keys": proof.keys, "positions": [str(one) for one in proof.positions], "at": proof.at,
        "places": proof.places, "branches": proof.branches, "left": proof.left,
    }  # fmt: skip


def _tell(proof: Erasure) -> None:
    say(f"erased: {', '.join(map(plain, proof.keys))}")
    say(f"deleted at {', '.join(map(str, proof.positions))}, {proof.at.isoformat(timespec='seconds')}")
    for one in proof.places:
        if one.rows:
            size = f", {size_text(one.bytes)}" if one.bytes else ""
            print(f"  {one.place:<12} {counted(one.rows, *_NOUNS[one.place == 'stream'])}{size}")
    for key in proof.branches:
        say(_stays(key))
    for what in proof.left:
        say(f"it is still in: {what}")

"""`branch` and `branches`: another key that begins with what a key holds, or held, and which of them there are."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from statecache.cli.connecting import client
from statecache.cli.exits import FINDING, OK
from statecache.cli.history.points import NEWEST, PointName, point_of
from statecache.cli.options import (
    Actor,
    AsJson,
    Level,
    PostgresUrl,
    Reason,
    RedisUrl,
    checked_durability,
    operator,
    settings_of,
)
from statecache.cli.restoring.checkpoint_command import Whole
from statecache.cli.screen import plain, print_json, print_table, tell, time_text
from statecache.cli.states.command import ChangeId, Key, facts_of_state, tell_state
from statecache.clock import wall
from statecache.errors import NotFound, UsageError
from statecache.keys import checked_group, checked_key
from statecache.records import text_of

if TYPE_CHECKING:
    from statecache._async.client import AsyncStateCache
    from statecache.changes import Branch
    from statecache.model import State
    from statecache.settings import Settings

_COLUMNS = ("key", "from", "age", "by", "reason")


def branch(
    key: Key,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The key that begins; with --group, the group.")],
    at: Annotated[
        str, typer.Option("--at", metavar="POINT", help="Begin with what it held then, as of show; else now.")
    ] = "",
    group: Whole = False,
    durability: Level = None,
    actor: Actor = "",
    reason: Reason = "",
    change_id: ChangeId = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Begin a key with what another holds, or held at a point: both go on by themselves, and can be merged.

    With --group all keys of a group begin anew, in one commit. Nothing of KEY changes. Exit status 1 where there is a
    NEW already, or nothing to begin with. With --json, one object: the state, or of a group `states`.

    \b
    Examples:
      statecache branch runs/42 runs/42-b
      statecache branch runs/42 runs/42-b --at -1 --reason "try the other way"
      statecache branch runs/42 runs/43 --group --at "before payment"
    """
    places = [checked_group(one) if group else checked_key(one) for one in (key, new)]
    point = point_of(at.removeprefix("@"), now=wall())
    if group and (point.version is not None or point.back is not None):
        raise UsageError(f"a group has no version {at}", hint="Say a checkpoint's label, a position, or a time, as 2h.")
    if group and change_id is not None:
        raise UsageError("--change-id is for one key, not for a group")
    more: dict[str, Any] = {
        "durability": checked_durability(durability), "actor": actor or operator(), "reason": reason, "group": group,
    }  # fmt: skip
    more |= {"change_id": change_id} if change_id is not None else {}
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    begun = asyncio.run(_begun(settings, places, point, more))
    if group and as_json:
        print_json({"states": [facts_of_state(state) for state in begun]})
    else:
        for state in begun:
            tell_state(state, as_json=as_json)
    return OK


def branches(
    key: Key,
    group: Whole = False,
    ancestry: Annotated[
        bool, typer.Option("--ancestry", help="What KEY was made from instead, and that, and so on.")
    ] = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """List the branches of a key, or of all keys of a group, by the version that they began with.

    What Postgres does not hold yet is not among them; `statecache log` draws them. Exit status 1 where there is none.
    With --json, one object: `branches`, or `ancestry`, which are branches and merges.

    \b
    Examples:
      statecache branches runs/42
      statecache branches runs/42-b --ancestry
      statecache branches runs/42 --json | jq -r '.branches[].key'
    """
    if group and ancestry:
        raise UsageError("--group and --ancestry exclude one another")
    place = checked_group(key) if group else checked_key(key)
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    found = asyncio.run(_found(settings, place, group=group, ancestry=ancestry))
    if as_json:
        print_json({"ancestry" if ancestry else "branches": [*map(_facts, found)]})
    elif found:
        print_table(_COLUMNS, [_row(one) for one in found])
    else:
        nothing = "it was made from no other key" if ancestry else "there is no branch"
        tell(f"{plain(place)}: {nothing}")
    return OK if found else FINDING


async def _begun(settings: Settings, keys: Sequence[str], point: PointName, more: dict[str, Any]) -> list[State[Any]]:
    async with client(settings) as cache:
        at = await _place_of(cache, keys[0], point, whole=more["group"])
        begin: Any = cache.branch
        try:
            begun = await begin(*keys, at=at, **more)
        except NotFound as error:
            raise NotFound(error.key, hint=_remedy(keys[0], keys[1], point, group=more["group"])) from error
        return [*begun.values()] if more["group"] else [begun]


def _remedy(key: str, new: str, point: PointName, *, group: bool) -> str:
    """Return what to do where there is nothing to branch from, as if a point stood behind the key."""
    words, behind, said = key.rpartition("@")
    if behind and said and point == NEWEST:
        named = [shlex.quote(plain(word)) for word in (words, new, said)]
        return f"A point is an option here: `statecache branch {named[0]} {named[1]} --at {named[2]}`."
    if group:
        return "There is nothing to branch from."
    return f"`statecache log {shlex.quote(plain(key))}` lists what it held; --at begins with that."


async def _place_of(cache: AsyncStateCache, key: str, point: PointName, *, whole: bool) -> Any:
    """Return what the verb takes for a point."""
    from statecache.cli.history.reading import version_at
    from statecache.core.history.reader import Point
    from statecache.core.history.targets import Target, position_of

    if point.time is not None and whole:
        return await position_of(cache._view, key, Target(Point(time=point.time)), end=cache._view.end_of(None))
    if point.time is not None or point.back is not None:
        return (await version_at(cache, key, point)).version
    return next((one for one in (point.version, point.position, point.label) if one is not None), None)


async def _found(settings: Settings, key: str, *, group: bool, ancestry: bool) -> Sequence[Branch]:
    async with client(settings) as cache:
        return await cache.ancestry(key) if ancestry else await cache.branches(key, group=group)


def _facts(one: Branch) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(one, enc_hook=str)
    return found | {"at": text_of(one.at)}


def _row(one: Branch) -> tuple[str, ...]:
    age = time_text((wall() - one.at).total_seconds())
    took = "merge of " if one.kind == "merge" else ""
    return (
        f"{one.key}@{one.version}",
        f"{took}{one.origin}@{one.origin_version}",
        age,
        one.actor or one.writer,
        one.reason,
    )

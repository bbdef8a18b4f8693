"""`rollback`, `undo` and `redo`: going back by a new commit, after a person has seen what that changes.

What is shown was decided on the state as it was read, and the commit expects that state: where somebody was quicker,
nothing is done. Of a group it is shown as it is at that moment; its commit compares what it finds then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from statecache.cli.connecting import client
from statecache.cli.exits import FINDING, OK
from statecache.cli.history.points import FORMS, NEWEST, PointName, point_of
from statecache.cli.options import (
    Actor,
    AsJson,
    Level,
    PostgresUrl,
    Reason,
    RedisUrl,
    Yes,
    checked_durability,
    operator,
    refuse_unknown,
    settings_of,
)
from statecache.cli.screen import plain, print_json, tell
from statecache.cli.states.command import ChangeId, Key, asks, confirmed, facts_of_state, tell_state
from statecache.clock import wall
from statecache.errors import UsageError, VersionConflict
from statecache.keys import checked_group, checked_key

if TYPE_CHECKING:
    from statecache._async.client import AsyncStateCache
    from statecache.cli.restoring.going import Going, Verb
    from statecache.model import State
    from statecache.settings import Settings

Whole = Annotated[bool, typer.Option("--group", help="KEY is a group, its first two segments: all of its keys.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
_DOES = {"rollback": "Roll back", "undo": "Undo the last edit of", "redo": "Redo"}


def rollback(
    context: typer.Context,
    key: Key,
    to: Annotated[str, typer.Argument(metavar="TO", help="A point, as of show: 7, -1, 2h, a checkpoint's label.")],
    group: Whole = False,
    steps: Annotated[bool, typer.Option("--steps", help="Of a group, the records of steps too.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    durability: Level = None,
    actor: Actor = "",
    reason: Reason = "",
    change_id: ChangeId = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Write what a key, or a whole group, was at an earlier point, by a new commit: history stays as it is.

    On a terminal it shows what that changes and asks, unless --yes; what is done is what was shown, or nothing. With
    --group, all keys go back in one commit: what was created since is deleted, what was deleted comes back. Exit
    status 1 where nothing would change, or the answer is no. With --json, one object: the state, or of a group
    `states`; with --dry-run, `differences`, or `keys`.

    \b
    Examples:
      statecache rollback runs/42 7
      statecache rollback runs/42 "before payment" --group --reason "wrong"
      statecache rollback runs/42 -1 --dry-run
    """
    refuse_unknown(context, key, to)
    return _go(
        "rollback", _place(key, group), settings_of(redis_url=redis_url, postgres_url=postgres_url), group=group,
        to=_target(to, group=group), steps=steps,
        more=_more(durability, actor, reason, change_id, group=group), dry_run=dry_run, yes=yes, as_json=as_json,
    )  # fmt: skip


def undo(
    key: Key,
    group: Whole = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    durability: Level = None,
    actor: Actor = "",
    reason: Reason = "",
    change_id: ChangeId = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Take back the last edit of a key, or the last commit of a group, by a new commit.

    Said again, it goes further back. An edit is every change but an undo and a redo, whoever made it. It shows, asks,
    ends and tells as `statecache rollback` does. Exit status 1 where there is nothing to be undone.

    \b
    Examples:
      statecache undo runs/42
      statecache undo runs/42 --group --yes --reason "it was paid twice"
    """
    return _go(
        "undo", _place(key, group), settings_of(redis_url=redis_url, postgres_url=postgres_url), group=group,
        more=_more(durability, actor, reason, change_id, group=group), dry_run=dry_run, yes=yes, as_json=as_json,
    )  # fmt: skip


def redo(
    key: Key,
    group: Whole = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    durability: Level = None,
    actor: Actor = "",
    reason: Reason = "",
    change_id: ChangeId = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Bring back by a new commit what the last undo took back.

    It shows, asks, ends and tells as `statecache rollback` does. Exit status 1 where there is nothing to be redone: no
    undo, or an edit since.

    \b
    Examples:
      statecache redo runs/42
      statecache redo runs/42 --dry-run
    """
    return _go(
        "redo", _place(key, group), settings_of(redis_url=redis_url, postgres_url=postgres_url), group=group,
        more=_more(durability, actor, reason, change_id, group=group), dry_run=dry_run, yes=yes, as_json=as_json,
    )  # fmt: skip


def _place(key: str, group: bool) -> str:
    return checked_group(key) if group else checked_key(key)


def _more(durability: str | None, actor: str, reason: str, change_id: str | None, *, group: bool) -> dict[str, Any]:
    if group and change_id is not None:
        raise UsageError("--change-id is for one key, not for a group")
    more = {"durability": checked_durability(durability), "actor": actor or operator(), "reason": reason}
    return more if change_id is None else more | {"change_id": change_id}


def _target(text: str, *, group: bool) -> PointName:
    point = point_of(text.removeprefix("@"), now=wall())
    if point == NEWEST:
        raise UsageError("TO is where it is already", hint=f"Say {FORMS}.")
    if group and (point.version is not None or point.back is not None):
        raise UsageError(
            f"a group has no version {text}", hint="Say a checkpoint's label, a position, or a time, as 2h."
        )
    return point


def _go(
    verb: Verb, key: str, settings: Settings, *, group: bool, more: dict[str, Any], dry_run: bool, yes: bool,
    as_json: bool, to: PointName | None = None, steps: bool = False,
) -> int:  # fmt: skip
    from statecache.cli.restoring.going import Going

    going = Going(verb=verb, key=key, group=group, more=more, to=to, steps=steps)
    asking, seen = asks(not yes) and "change_id" not in more, ...
    if dry_run or asking:
        going, seen = asyncio.run(_shown(going, settings, as_json=as_json and dry_run))
    if dry_run:
        return OK
    if asking and not confirmed(f"{_DOES[verb]} {plain(key)}?"):
        tell("nothing was changed")
        return FINDING
    done = asyncio.run(_gone(going, settings, seen=seen))
    if done is None:
        tell(f"{plain(key)} was changed while you were asked: nothing was done. Look again.")
        return FINDING
    if group and as_json:
        print_json({"states": [facts_of_state(state) for state in done]})
        return OK
    for state in done:
        tell_state(state, as_json=as_json)
    return OK


async def _shown(going: Going, settings: Settings, *, as_json: bool) -> tuple[Going, Any]:
    """Show what will change; return the way back with its version, and what has to be the same when it is done."""
    from statecache.cli.restoring.going import show_group, show_key

    async with client(settings) as cache:
        going = await _placed(cache, going)
        return going, await (show_group if going.group else show_key)(cache, going, as_json=as_json)


async def _gone(going: Going, settings: Settings, *, seen: Any) -> Sequence[State[Any]] | None:
    """Go back; return the states that were written, None where what was seen has changed: `...` for nothing seen."""
    from statecache.cli.restoring.going import group_decided

    async with client(settings) as cache:
        going = await _placed(cache, going)
        if going.group:
            if seen is not ... and await group_decided(cache, going) != seen:
                return None
            return [*(await _verb(cache, going)(going.key, **going.scope, **going.aim, **going.more)).values()]
        try:
            return [await _verb(cache, going)(going.key, expected=seen, **going.aim, **going.more)]
        except VersionConflict:
            if seen is ...:
                raise
            return None


async def _placed(cache: AsyncStateCache, going: Going) -> Going:
    """Return the way back with the version that a count of versions, as -1, comes to now."""
    from statecache.cli.history.reading import version_at

    if going.to is None or going.to.back is None:
        return going
    version = (await version_at(cache, going.key, going.to)).version
    return msgspec.structs.replace(going, to=PointName(version=version))


def _verb(cache: AsyncStateCache, going: Going) -> Callable[..., Any]:
    verb: Callable[..., Any] = getattr(cache, going.verb)
    return verb

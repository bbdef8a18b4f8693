"""`checkpoint` and `checkpoints`: names for points that can be gone back to, made, listed, renamed and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from statecache.cli.connecting import client
from statecache.cli.exits import FINDING, OK
from statecache.cli.options import (
    Actor,
    AsJson,
    PostgresUrl,
    Reason,
    RedisUrl,
    SafeLevel,
    Yes,
    checked_durability,
    operator,
    settings_of,
)
from statecache.cli.screen import plain, print_json, print_table, say, tell, time_text
from statecache.cli.states.command import ChangeId, Key, asks, confirmed
from statecache.clock import wall
from statecache.errors import UsageError
from statecache.keys import checked_group, checked_key
from statecache.records import text_of
from statecache.rules import exact_json
from statecache.rules.checkpoints import checked_label

if TYPE_CHECKING:
    from statecache.checkpoints import Checkpoint
    from statecache.settings import Settings

Whole = Annotated[bool, typer.Option("--group", help="KEY is a group, its first two segments: all of its keys.")]
_COLUMNS = ("label", "of", "point", "age", "made by", "metadata")


def checkpoint(
    key: Key,
    label: Annotated[
        str | None, typer.Argument(metavar="[LABEL]", help="Its name; else one that sorts by time.")
    ] = None,
    group: Whole = False,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="Kept with it, at most 64 KiB.")] = None,
    durability: SafeLevel = "postgres",
    actor: Actor = "",
    reason: Reason = "",
    change_id: ChangeId = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Give the current state of a key, or of a whole group, a name that can be gone back to.

    What it names is pinned: retention keeps it until the checkpoint is deleted. A checkpoint of a group is one
    consistent point of all its keys. Exit status 1 where the label is in use, or there is nothing. With --json, one
    object: the checkpoint.

    \b
    Examples:
      statecache checkpoint runs/42 "before payment"
      statecache checkpoint runs/42 --group --metadata '{"ticket": 7}'
      statecache checkpoint runs/42 --json | jq -r .label
    """
    place = checked_group(key) if group else checked_key(key)
    more = {
        "label": None if label is None else checked_label(label), "group": group, "metadata": _data_of(metadata),
        "durability": checked_durability(durability), "actor": actor or operator(), "reason": reason,
        "change_id": change_id,
    }  # fmt: skip
    made = asyncio.run(_made(settings_of(redis_url=redis_url, postgres_url=postgres_url), place, more))
    _tell(made, as_json=as_json)
    return OK


def checkpoints(
    key: Key,
    group: Whole = False,
    delete: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Delete this one; nothing is pinned then.")
    ] = None,
    rename: Annotated[str | None, typer.Option(metavar="LABEL", help="Rename this one; needs --to.")] = None,
    to: Annotated[str | None, typer.Option(metavar="LABEL", help="What it is called from then on.")] = None,
    yes: Yes = False,
    actor: Actor = "",
    reason: Reason = "",
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """List the checkpoints of a key and of its group, the oldest first; delete one, or give it another name.

    Before it deletes one it asks on a terminal, unless --yes: what that one pinned may be pruned from then on. Exit
    status 1 where there is none. With --json, one object: `checkpoints`, or the one that was renamed or deleted.

    \b
    Examples:
      statecache checkpoints runs/42
      statecache checkpoints runs/42 --group --json | jq -r '.checkpoints[].label'
      statecache checkpoints runs/42 --rename "a label" --to "another"
      statecache checkpoints runs/42 --delete "before payment"
    """
    place = checked_group(key) if group else checked_key(key)
    if (rename is None) != (to is None) or (rename is not None and delete is not None):
        raise UsageError("--rename goes with --to, and not with --delete")
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    more = {"actor": actor or operator(), "reason": reason}
    if rename is not None:
        _tell(asyncio.run(_renamed(settings, place, rename, str(to), more)), as_json=as_json)
        return OK
    if delete is not None:
        if asks(not yes) and not confirmed(f"Delete the checkpoint {plain(repr(delete))} of {plain(place)}?"):
            tell("nothing was deleted")
            return FINDING
        _tell(asyncio.run(_deleted(settings, place, delete, more)), as_json=as_json)
        return OK
    found = asyncio.run(_listed(settings, place, group=group))
    if as_json:
        print_json({"checkpoints": [*map(_facts, found)]})
    elif found:
        print_table(_COLUMNS, [_row(one) for one in found])
    else:
        tell(f"{plain(place)}: there is no checkpoint")
    return OK if found else FINDING


def _data_of(text: str | None) -> Any:
    return None if text is None else exact_json.decoded(text, "the metadata", hint="Quote it for your shell.")


async def _made(settings: Settings, key: str, more: dict[str, Any]) -> Checkpoint:
    async with client(settings) as cache:
        return await cache.checkpoint(key, **more)


async def _renamed(settings: Settings, key: str, label: str, to: str, more: dict[str, Any]) -> Checkpoint:
    async with client(settings) as cache:
        return await cache.rename_checkpoint(key, label, to, **more)


async def _deleted(settings: Settings, key: str, label: str, more: dict[str, Any]) -> Checkpoint:
    async with client(settings) as cache:
        return await cache.delete_checkpoint(key, label, **more)


async def _listed(settings: Settings, key: str, *, group: bool) -> Sequence[Checkpoint]:
    async with client(settings) as cache:
        return await cache.checkpoints(key, group=group)


def _facts(one: Checkpoint) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(one, enc_hook=str)
    return found | {"position": str(one.position), "created_at": text_of(one.created_at)}


def _tell(one: Checkpoint, *, as_json: bool) -> None:
    if as_json:
        print_json(_facts(one))
    else:
        pinned = "" if one.pinned else "  not pinned any more"
        say([plain(one.key), plain(one.label), _point(one) + pinned])


def _point(one: Checkpoint) -> str:
    return f"position {one.position}" if one.version is None else f"version {one.version}"


def _row(one: Checkpoint) -> tuple[str, ...]:
    made_by = f"{one.writer} (automatic)" if one.automatic else one.writer
    metadata = "" if one.metadata is None else msgspec.json.encode(one.metadata).decode()
    age = time_text((wall() - one.created_at).total_seconds())
    scope = f"{one.key} (group)" if one.scope == "group" else one.key
    return one.label, scope, _point(one), age, made_by, metadata

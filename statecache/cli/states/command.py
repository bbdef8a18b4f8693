"""`get`, `set`, `rm`, `ls`, `where`: looking at states and changing them by hand.

All of it goes through the client, so a change made by hand is a commit like any other: versioned, streamed, flushed.
Values are shown as JSON, whatever they are stored in.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from statecache.cli.exits import FINDING, OK
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
    settings_of,
)
from statecache.cli.screen import is_terminal, plain, print_json, print_table, print_value, size_text, time_text
from statecache.clock import wall
from statecache.errors import InvalidKey, UsageError
from statecache.keys import checked_key
from statecache.records import time_of

if TYPE_CHECKING:
    from statecache.model import State

Key = Annotated[str, typer.Argument(metavar="KEY", help="Like runs/42.")]
ChangeId = Annotated[
    str | None, typer.Option(metavar="CHANGE_ID", help="Of a write whose outcome is not known, to ask again.")
]
LIST_MAX = 100


def get(
    key: Key,
    meta: Annotated[bool, typer.Option("--meta", help="Also tell version, change and writer, on stderr.")] = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Print the value of a key as JSON: laid out on a terminal, as it is stored when piped.

    With --json, one object: key, value, epoch, version, change_id, position, writer, whether it is durable, and so on.
    Exit status 1 where there is no value.

    \b
    Examples:
      statecache get runs/42
      statecache get runs/42 --meta
      statecache get runs/42 --json | jq .version
    """
    from statecache.cli.states import by_hand

    found = asyncio.run(by_hand.get(settings_of(redis_url=redis_url, postgres_url=postgres_url), checked_key(key)))
    if as_json:
        print_json(found)
        return OK if found.exists else FINDING
    if meta:
        for name, value in found.facts():
            print(f"{name:<16}  {plain(value)}", file=sys.stderr)
    if not found.exists:
        print(f"statecache: {plain(key)}: {found.absence()}", file=sys.stderr)
        return FINDING
    print_value(bytes(found.value))
    return OK


def put(
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE|-", help="JSON, or - to read it from stdin.")],
    text: Annotated[bool, typer.Option("--text", help="VALUE is text, not JSON.")] = False,
    expected: Annotated[
        str | None, typer.Option(metavar="CHANGE_ID", help="Only where this is still the current change.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Only where there is nothing yet.")] = False,
    durability: Level = None,
    actor: Actor = "",
    reason: Reason = "",
    change_id: ChangeId = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Write a value: a commit like an agent's, with the actor and reason that you give.

    Exit status 1 where --expected or --create does not hold. A VALUE that begins with a dash goes behind `--`.

    \b
    Examples:
      statecache set runs/42 '{"goal": "refund order 7"}' --reason "set right by hand"
      statecache set runs/42 --text hello --create
      statecache get runs/42 | jq .step=2 | statecache set runs/42 - --expected 5f3c…
    """
    from statecache.cli.states import by_hand

    if create and expected is not None:
        raise UsageError("--create and --expected exclude one another")
    checked_key(key)
    data = _value_of(value, text=text)
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    more: dict[str, Any] = {
        "durability": checked_durability(durability), "actor": actor or operator(), "reason": reason,
        "change_id": change_id,
    }  # fmt: skip
    if expected is not None:
        more["expected"] = expected
    written = asyncio.run(by_hand.put(settings, key, data, create=create, more=more))
    _tell(written, as_json=as_json)
    return OK


def _value_of(given: str, *, text: bool) -> Any:
    data = sys.stdin.buffer.read() if given == "-" else given.encode("utf-8", "surrogateescape")
    try:
        return data.decode() if text else msgspec.json.decode(data)
    except UnicodeDecodeError as error:
        raise UsageError(f"the value is not UTF-8: {error.reason}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"the value is not JSON: {error}", hint="Quote it for your shell, or say --text.") from None


def _tell(state: State[Any], *, as_json: bool) -> None:
    if as_json:
        names = ("key", "epoch", "version", "change_id", "parent_change_id", "updated_at", "writer")
        print_json({name: getattr(state, name) for name in names} | {"position": str(state.position)})
    else:
        print(f"{plain(state.key)}  version {state.version}  change {state.change_id}  position {state.position}")


def rm(
    key: Key,
    yes: Yes = False,
    durability: Level = None,
    actor: Actor = "",
    reason: Reason = "",
    change_id: ChangeId = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Delete a key's state; its history stays, and its version goes on from there.

    On a terminal it asks first, unless --yes. Exit status 1 where there is nothing.

    \b
    Examples:
      statecache rm runs/42
      statecache rm runs/42 --yes --durability postgres
    """
    from statecache.cli.states import by_hand

    checked_key(key)
    more = {
        "durability": checked_durability(durability), "actor": actor or operator(), "reason": reason,
        "change_id": change_id,
    }  # fmt: skip
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    asks = not yes and sys.stdin.isatty() and is_terminal()
    refused = asks and not typer.confirm(f"Delete {plain(key)}?", err=True)
    tombstone = None if refused else asyncio.run(by_hand.rm(settings, key, more))
    if tombstone is not None:
        _tell(tombstone, as_json=as_json)
        return OK
    print(
        f"statecache: {plain(key)}: {'nothing was deleted' if refused else 'there is nothing to delete'}",
        file=sys.stderr,
    )
    if as_json:
        print_json({"key": key, "deleted": False})
    return FINDING


def ls(
    prefix: Annotated[
        str | None, typer.Argument(metavar="[PREFIX]", help="A namespace at least, like runs/ or runs/4.")
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="What changed last first; else by key.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0 for all.")] = LIST_MAX,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """List the keys that begin with a prefix, those not yet in Postgres or in quarantine too; alone, the namespaces.

    With --json, one object: `states`, without their values, and `more` where the limit cut it short; or `namespaces`.

    \b
    Examples:
      statecache ls
      statecache ls runs/
      statecache ls runs/42/ --newest --limit 20
      statecache ls runs/ --limit 0 --json | jq -r .states[].key
    """
    from statecache.cli.states import by_hand

    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    if prefix is None:
        return _tell_namespaces(asyncio.run(by_hand.namespaces(settings)), as_json=as_json)
    whole = prefix if "/" in prefix else f"{prefix}/"
    try:
        found, more = asyncio.run(by_hand.ls(settings, whole, newest=newest, limit=limit))
    except InvalidKey as error:
        raise InvalidKey(prefix, reason=error.reason) from error
    if as_json:
        print_json({"states": found, "more": more})
        return OK
    if not found:
        print(f"statecache: nothing under {plain(repr(whole))}; `statecache ls` names what there is", file=sys.stderr)
        return OK
    now = wall()
    rows = [
        [
            one["key"], str(one["version"]), time_text((now - time_of(one["updated_at"])).total_seconds()),
            "quarantined" if one["quarantined_as"] else "yes" if one["durable"] else "not yet",
            size_text(one["bytes"]), one["writer"],
        ]
        for one in found
    ]  # fmt: skip
    print_table(["key", "version", "age", "durable", "bytes", "writer"], rows)
    if more:
        print(f"statecache: there are more; --limit {limit} was reached", file=sys.stderr)
    return OK


def _tell_namespaces(found: list[str], *, as_json: bool) -> int:
    if as_json:
        print_json({"namespaces": found})
        return OK
    for name in found:
        print(f"{plain(name)}/")
    if not found:
        print("statecache: there is nothing yet", file=sys.stderr)
    return OK


def where(key: Key, redis_url: RedisUrl = None, postgres_url: PostgresUrl = None, as_json: AsJson = False) -> int:
    """Tell where a key lives, with lines for redis-cli and psql to paste.

    \b
    Examples:
      statecache where runs/42
      statecache where runs/42 --json
    """
    from statecache.cli.states.where import where as look

    found = look(settings_of(redis_url=redis_url, postgres_url=postgres_url), key)
    if as_json:
        print_json(found)
        return OK
    print(f"key        {plain(found.key)}")
    print(f"shard      {found.shard} of {found.shards}")
    print(f"Redis key  {plain(found.redis_key)}")
    for note in found.notes:
        print(f"# {note}")
    print("# what agents see now")
    print(found.redis_cli)
    print("# what Postgres holds")
    print(found.psql)
    return OK

"""`get`, `set`, `rm`, `ls`, `where`: looking at states and changing them by hand.

All of it goes through the client, so a change made by hand is a commit like any other: versioned, streamed, flushed.
Values are shown as JSON, whatever they are stored in.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from math import isinf
from typing import TYPE_CHECKING, Annotated, Any

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
    span_of,
)
from statecache.cli.screen import (
    console,
    counted,
    folded,
    is_terminal,
    plain,
    print_json,
    print_table,
    print_value,
    say,
    size_text,
    tell,
    time_text,
)
from statecache.clock import wall
from statecache.errors import InvalidKey, UsageError
from statecache.keys import checked_key
from statecache.model import VALUE_BYTES_MAX
from statecache.records import text_of, time_of
from statecache.rules import exact_json

if TYPE_CHECKING:
    from statecache.model import State
    from statecache.settings import Settings

Key = Annotated[str, typer.Argument(metavar="KEY", help="Like runs/42.")]
ChangeId = Annotated[
    str | None, typer.Option(metavar="CHANGE_ID", help="Of a write whose outcome is not known, to ask again.")
]
LIST_MAX = 100
_READ_MAX = 16 * VALUE_BYTES_MAX
"""How much is read of a value, in bytes: laid out over lines, it takes several times what it is kept in."""


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
        tell(f"{plain(key)}: {found.absence()}")
        return FINDING
    print_value(bytes(found.value))
    return OK


def _lasts(text: str) -> timedelta | float:
    """Return how long a state lasts that is written: a span of time, or seconds, and not for ever: 1e400 is a slip."""
    hint = "Say 90s, 20min, 2h or 30d; `statecache rm` deletes at once."
    try:
        seconds = float(text)
    except ValueError:
        return span_of(text, "--ttl", hint=hint)
    if isinf(seconds):
        raise UsageError(f"--ttl {text!r} is no span of time", hint=hint)
    return seconds


def put(
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE|-", help="JSON, or - to read it from stdin.")],
    text: Annotated[bool, typer.Option("--text", help="VALUE is text, not JSON.")] = False,
    expected: Annotated[
        str | None, typer.Option(metavar="CHANGE_ID", help="Only where this is still the current change.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Only where there is nothing yet.")] = False,
    ttl: Annotated[
        str | None, typer.Option(metavar="SPAN", help="How long it lasts, as 20min or 2h; else for ever.")
    ] = None,
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
    Refused is one that would not be kept as it is given: with a member named twice, or a fraction of more digits than a
    double has.

    \b
    Examples:
      statecache set runs/42 '{"goal": "refund"}' --reason "by hand"
      statecache set runs/42 --text hello --create
      statecache set approvals/42 true --ttl 2h
      statecache get runs/42 | jq .n=2 | statecache set runs/42 - --expected 5f3c…
    """
    from statecache.cli.states import by_hand

    if create and expected is not None:
        raise UsageError("--create and --expected exclude one another")
    checked_key(key)
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    data = _value_of(value, text=text)
    more: dict[str, Any] = {
        "durability": checked_durability(durability), "actor": actor or operator(), "reason": reason,
        "change_id": change_id, "ttl": None if ttl is None else _lasts(ttl),
    }  # fmt: skip
    if expected is not None:
        more["expected"] = expected
    written = asyncio.run(by_hand.put(settings, key, data, create=create, more=more))
    tell_state(written, as_json=as_json)
    return OK


def _value_of(given: str, *, text: bool) -> Any:
    """Return the value that was given, or is read: no more than could be one, for a pipe may not end."""
    data = sys.stdin.buffer.read(_READ_MAX + 1) if given == "-" else given.encode("utf-8", "surrogateescape")
    if len(data) > _READ_MAX:
        raise UsageError(f"more than {size_text(_READ_MAX)} was read, and a value takes {size_text(VALUE_BYTES_MAX)}")
    try:
        return data.decode() if text else _exact(data)
    except UnicodeDecodeError as error:
        raise UsageError(f"the value is not UTF-8: {error.reason}") from None


def _exact(data: bytes) -> Any:
    return exact_json.decoded(data, "the value", hint="Quote it for your shell, or say --text.")


def tell_state(state: State[Any], *, as_json: bool) -> None:
    """Print a state that was written, without its value."""
    if as_json:
        print_json(facts_of_state(state))
    else:
        say([plain(state.key), f"version {state.version}", f"change {state.change_id}", f"position {state.position}"])


def facts_of_state(state: State[Any]) -> dict[str, Any]:
    """Return a state that was written as an object, without its value."""
    names = ("key", "epoch", "version", "change_id", "parent_change_id", "updated_at", "writer")
    until = "" if state.expires_at is None else text_of(state.expires_at)
    more = {"position": str(state.position), "expires_at": until}
    return {name: getattr(state, name) for name in names} | more


def rm(
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY…", help="Like runs/42.", show_default=False)] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="All keys that begin with it; a namespace at least.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
    yes: Yes = False,
    durability: Level = None,
    actor: Actor = "",
    reason: Reason = "",
    change_id: ChangeId = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Delete states; their history stays, and their versions go on from there.

    On a terminal it asks first, unless --yes. Exit status 1 where there is nothing. With --json, one object: of one
    key its tombstone, else how many were `deleted`.

    \b
    Examples:
      statecache rm runs/42
      statecache rm runs/42 --yes --durability postgres
      statecache rm runs/42 runs/43
      statecache rm --prefix runs/42/ --dry-run
    """
    from statecache.cli.states import by_hand

    named = [checked_key(key) for key in keys or ()]
    if bool(named) == (prefix is not None):
        raise UsageError("say which keys are meant, or a --prefix")
    more = {"durability": checked_durability(durability), "actor": actor or operator(), "reason": reason}
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    if len(named) == 1 and not dry_run:
        return _rm_one(settings, named[0], more | {"change_id": change_id}, asking=not yes, as_json=as_json)
    if change_id is not None:
        raise UsageError("--change-id is for one key, without --dry-run")
    chosen: dict[str, Any] = {"names": named} if prefix is None else {"prefix": whole_prefix(prefix)}
    what = "" if prefix is None else f" under {plain(repr(chosen['prefix']))}"
    there = asyncio.run(by_hand.rm_many(settings, chosen, more, dry_run=True)) if dry_run or asks(not yes) else None
    if dry_run:
        print_json({"would_delete": there}) if as_json else print(f"{counted(there or 0, 'state')}{what}")
        return OK if there else FINDING
    refused = there == 0 or (there is not None and not confirmed(f"Delete {counted(there, 'state')}{what}?"))
    deleted = 0 if refused else asyncio.run(by_hand.rm_many(settings, chosen, more, total=there))
    if as_json:
        print_json({"deleted": deleted})
    elif deleted:
        say(f"{counted(deleted, 'state')} deleted{what}")
    if not deleted:
        nothing = "nothing was deleted" if refused and there else "there is nothing to delete"
        tell(f"{nothing}{what}")
    return OK if deleted else FINDING


def asks(asked_for: bool) -> bool:
    """Return whether a person can be asked, where that is asked for."""
    return asked_for and sys.stdin.isatty() and is_terminal()


def confirmed(question: str) -> bool:
    """Ask a question that yes or no answers, no if it is nothing; return whether it was yes."""
    return typer.confirm(question, err=True)


def _rm_one(settings: Settings, key: str, more: dict[str, Any], *, asking: bool, as_json: bool) -> int:
    from statecache.cli.states import by_hand

    refused = asks(asking) and not confirmed(f"Delete {plain(key)}?")
    tombstone = None if refused else asyncio.run(by_hand.rm(settings, key, more))
    if tombstone is not None:
        tell_state(tombstone, as_json=as_json)
        return OK
    tell(f"{plain(key)}: {'nothing was deleted' if refused else 'there is nothing to delete'}")
    if as_json:
        print_json({"key": key, "deleted": False})
    return FINDING


def whole_prefix(prefix: str) -> str:
    """Return a prefix that names its namespace whole: `runs` is `runs/`."""
    return prefix if "/" in prefix else f"{prefix}/"


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
    whole = whole_prefix(prefix)
    try:
        found, more = asyncio.run(by_hand.ls(settings, whole, newest=newest, limit=limit))
    except InvalidKey as error:
        raise InvalidKey(prefix, reason=error.reason) from error
    if as_json:
        print_json({"states": found, "more": more})
        return OK
    if not found:
        tell(f"nothing under {plain(repr(whole))}; `statecache ls` names what there is")
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
        tell(f"there are more; --limit {limit} was reached")
    return OK


def _tell_namespaces(found: list[str], *, as_json: bool) -> int:
    if as_json:
        print_json({"namespaces": found})
        return OK
    for name in found:
        print(f"{plain(name)}/")
    if not found:
        tell("there is nothing yet")
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
        lines = folded(note, console().width - 2).splitlines() if is_terminal() else [note]
        print("\n".join(f"# {line}" for line in lines))
    print("# what agents see now")
    print(found.redis_cli)
    print("# what Postgres holds")
    print(found.psql)
    return OK

"""`tail`: the changes under a prefix as they become durable, a line each."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.cells import cell_len
from rich.text import Text

from statecache.cli.connecting import client
from statecache.cli.exits import OK
from statecache.cli.options import PostgresUrl, RedisUrl, settings_of
from statecache.cli.screen import console, is_terminal, plain, print_json, shortened, tell
from statecache.errors import StateCacheError
from statecache.records import text_of

if TYPE_CHECKING:
    from statecache._async.feed import AsyncChanges
    from statecache.changes import Change
    from statecache.settings import Settings

_COLUMNS = ("at", "key", "version", "op", "writer", "value")
_NAMES = (
    "key",
    "op",
    "value",
    "version",
    "epoch",
    "change_id",
    "parent_change_id",
    "writer",
    "actor",
    "reason",
    "late",
    "kept",
)
_KEY_PART = 0.4
"""How much of a terminal's width a key may take where a value would have to be cut for more."""


def tail(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="A namespace at least, like runs/ or runs/42/.")],
    since: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="now, beginning, or what the last call told; else now.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="What there is, from the beginning unless --since.")] = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> int:
    """Print every change under a prefix as Postgres gets to hold it, in order for each key. Ctrl-C or SIGTERM ends it.

    In the end it tells the cursor on stderr with which it can be gone on from. A terminal gets a line of its width for
    each change, a pipe all of it.

    \b
    Examples:
      statecache tail runs/
      statecache tail runs/42/ --since beginning
      statecache tail runs/ --once --json | jq -r 'select(.op == "delete") | .key'
    """
    whole = prefix if "/" in prefix else f"{prefix}/"
    start = since or ("beginning" if once else "now")
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    return asyncio.run(_tail(settings, whole, None if start == "beginning" else start, once=once, as_json=as_json))


async def _tail(settings: Settings, prefix: str, since: str | None, *, once: bool, as_json: bool) -> int:

    async with client(settings) as cache:
        feed = cache.changes(prefix, since=since, follow=not once)
        _stop_by_signals(feed)
        header = "" if as_json or is_terminal() else "\t".join(_COLUMNS)  # told once something could be read
        async with feed:
            try:
                async for change in feed:
                    if header:
                        print(header)
                        header = ""
                    _tell(change, as_json=as_json)
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on: that is how it ends
                return OK
            except StateCacheError:
                _tell_cursor(feed)
                raise
        if header:
            print(header)
        _tell_cursor(feed)
    return OK


def _tell_cursor(feed: AsyncChanges[Any]) -> None:
    """Tell from where it can be gone on, be it an error that has ended it."""
    if feed.begun:
        tell(f"go on with --since {plain(feed.cursor)!r}")


def _stop_by_signals(feed: AsyncChanges[Any]) -> None:
    """Have a first Ctrl-C or SIGTERM end the feed, and a second the command, which may be waiting for who reads it."""
    loop = asyncio.get_running_loop()

    def stop(_: int, __: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        loop.call_soon_threadsafe(feed.stop)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _tell(change: Change[Any], *, as_json: bool) -> None:
    if as_json:
        facts = {name: getattr(change, name) for name in _NAMES}
        print_json(facts | {"position": str(change.position), "shard": change.shard, "at": text_of(change.at)})
    elif is_terminal():
        print(line_of(change, console().width))
    else:
        cells = (text_of(change.at), change.key, str(change.version), change.op, change.writer, _value_text(change))
        print("\t".join(map(plain, cells)))
    sys.stdout.flush()


def line_of(change: Change[Any], width: int) -> str:
    """Return a change in one line of a terminal that is so many columns wide."""
    what = "deleted" if change.deleted else _value_text(change)
    late = "late " if change.late else ""
    at, key, rest = f"{change.at.astimezone():%H:%M:%S}", plain(change.key), f"v{change.version} {late}{plain(what)}"
    spare = width - cell_len(at) - cell_len(rest) - 2
    key = shortened(key, max(12, int(width * _KEY_PART), spare))
    return _cut(f"{at} {key} {rest}", width)


def _value_text(change: Change[Any]) -> str:
    if not change.kept:
        return "(no longer kept)"
    return "" if change.deleted else msgspec.json.encode(change.value, enc_hook=str).decode()


def _cut(text: str, width: int) -> str:
    line = Text(text)
    line.truncate(width, overflow="ellipsis")
    return line.plain

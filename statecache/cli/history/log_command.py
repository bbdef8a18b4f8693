"""`log`: the history of a key, with the branches and merges that belong to it, as a graph."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from statecache.cli.connecting import client
from statecache.cli.error_text import text_of
from statecache.cli.exits import FINDING, OK
from statecache.cli.history.points import bound_of
from statecache.cli.options import PostgresUrl, RedisUrl, settings_of
from statecache.cli.screen import console, is_terminal, plain, print_json, tell
from statecache.cli.states.command import Key
from statecache.clock import wall
from statecache.keys import checked_key

if TYPE_CHECKING:
    from rich.text import Text

    from statecache.cli.history.lanes import Row
    from statecache.cli.history.log_view import GraphLog
    from statecache.cli.history.logged import Entry, Range
    from statecache.settings import Settings

LIMIT = 100
COLUMNS = ("key", "version", "at", "op", "actor", "writer", "bytes", "marks", "reason")
Bound = Annotated[str, typer.Option(metavar="POINT", help="A version, a time, or 2h for two hours ago.")]


def log(
    key: Key,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most so many; 0 for all.")] = LIMIT,
    since: Bound = "",
    until: Bound = "",
    reverse: Annotated[bool, typer.Option("--reverse", help="The oldest of them first.")] = False,
    alone: Annotated[bool, typer.Option("--alone", help="Without branches and what was merged.")] = False,
    flushed: Annotated[bool, typer.Option("--flushed", help="Only what Postgres holds; Redis is not needed.")] = False,
    graph: Annotated[
        bool | None, typer.Option("--graph/--no-graph", help="Draw it; else on a terminal only.", show_default=False)
    ] = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> int:
    """Show the history of a key as a graph, the newest change first: who changed it, when, and why.

    Branches of the key stand beside it, and so does what it is a branch of, and what was merged into it. What Postgres
    does not hold yet is shown too, unless --flushed. Marks in parentheses are checkpoints, rollbacks, branches and
    merges. A pipe gets a table. Exit status 1 where there is nothing. With --json, one object a line: the change,
    without its value.

    \b
    Examples:
      statecache log runs/42
      statecache log runs/42 --since 2h --graph | less -R
      statecache log runs/42 --json | jq -r .reason
    """
    checked_key(key)
    asked = _range(since, until)
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    drawn = (is_terminal() if graph is None else graph) and not as_json
    screen = _Graph(key, reverse) if drawn else _Lines(reverse, as_json=as_json)
    shown, more = asyncio.run(_log(settings, key, asked, screen, limit=limit, alone=alone, flushed=flushed))
    screen.close()
    if more:
        tell(f"there are more; --limit {limit} was reached")
    if not shown:
        what = " of that time or version" if since or until else ": it was never written, or all of it is in quarantine"
        tell(f"{plain(key)}: there is no history{what}")
    return OK if shown else FINDING


class _Graph:
    """A log beside its graph; what begins with the oldest change is drawn at the end.

    What parts the lanes behind a change is drawn with the next one, and not where there is none.
    """

    def __init__(self, key: str, reverse: bool) -> None:
        self._screen = console()
        self._key = key
        self._drawing: GraphLog | None = None
        self._reverse = reverse
        self._rows: list[tuple[Row, Text | None]] = []

    def __call__(self, entry: Entry) -> None:
        from statecache.cli.history.log_view import GraphLog

        self._drawing = self._drawing or GraphLog(self._key, entry.newest, wall())
        self._rows += self._drawing.rows(entry)
        if not self._reverse:
            end = 1 + max(at for at, (row, _) in enumerate(self._rows) if row.node is not None)
            self._print(self._rows[:end])
            self._rows = self._rows[end:]

    def close(self) -> None:
        """Draw what was kept back."""
        from statecache.cli.history.log_view import turned

        while self._rows and self._rows[-1][0].node is None:
            self._rows.pop()
        self._print(turned(self._rows))

    def _print(self, rows: Sequence[tuple[Row, Text | None]]) -> None:
        from statecache.cli.history.log_view import lines_of

        for row, text in rows:
            for line in lines_of(row, text, self._screen):
                self._screen.print(line, soft_wrap=True)


class _Lines:
    """A log of which each change is one line by itself, in a table with a header once it could be read."""

    def __init__(self, reverse: bool, *, as_json: bool) -> None:
        self._tell = _tell_object if as_json else _tell_row
        self._kept: list[Entry] | None = [] if reverse else None
        self._header = "" if as_json else "\t".join(COLUMNS)

    def __call__(self, entry: Entry) -> None:
        if self._kept is None:
            self._begin()
            self._tell(entry)
        else:
            self._kept.append(entry)

    def close(self) -> None:
        """Tell what was kept back."""
        self._begin()
        for entry in reversed(self._kept or []):
            self._tell(entry)

    def _begin(self) -> None:
        if self._header:
            print(self._header)
            self._header = ""


def _tell_row(entry: Entry) -> None:
    from statecache.cli.history.log_view import cells_of

    print("\t".join(map(plain, cells_of(entry))))


def _tell_object(entry: Entry) -> None:
    from statecache.cli.history.headers import header_of

    more = {"checkpoints": entry.checkpoints, "made_into": entry.links}
    print_json(msgspec.structs.asdict(header_of(entry.version)) | more)


async def _log(
    settings: Settings, key: str, asked: Range, show: Callable[[Entry], None], *, limit: int, **how: bool
) -> tuple[int, bool]:
    """Tell the changes of a key's log, and return how many there were, and whether there are more."""
    from statecache.cli.history.logged import Log

    shown, more = 0, False
    async with client(settings) as cache:
        read = Log(cache, key, asked, **how)
        async for entry in read.entries():
            more = bool(limit) and shown == limit
            if more:
                break
            show(entry)
            shown += 1
        if read.unmarked:
            tell(f"checkpoints are not marked: {text_of(read.unmarked)}")
        for many in read.too_many:
            tell(f"{plain(many)} has too many branches: none of them is shown")
    return shown, more


def _range(since: str, until: str) -> Range:
    from statecache.cli.history.logged import Range

    now, asked = wall(), Range()
    for text, version, time, what in ((since, "first", "since", "--since"), (until, "last", "until", "--until")):
        bound = bound_of(text, now=now, what=what)
        if bound is not None:
            name = time if isinstance(bound, datetime) else version
            asked = msgspec.structs.replace(asked, **{name: bound})
    return asked

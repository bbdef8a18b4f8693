"""`diff`: what differs between two points of a key's history, or between two keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from statecache.cli.connecting import client
from statecache.cli.exits import FINDING, OK
from statecache.cli.history.points import NEWEST, PointName, key_and_point, point_of
from statecache.cli.options import AsJson, PostgresUrl, RedisUrl, refuse_unknown, settings_of
from statecache.cli.screen import beside, console, is_terminal, plain, print_json, tell
from statecache.clock import wall
from statecache.errors import UsageError

if TYPE_CHECKING:
    from statecache.rules.difference import Difference
    from statecache.rules.versions import Version
    from statecache.settings import Settings

Place = tuple[str, PointName]
_BEFORE = PointName(back=1)


def diff(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY[@A]", help="Like runs/42, or runs/42@7.")],
    a: Annotated[str | None, typer.Argument(metavar="[A]", help="A point of it, or another key, as KEY@B.")] = None,
    b: Annotated[str | None, typer.Argument(metavar="[B]", help="Another point; else the newest version.")] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit status 1 where they differ.")] = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Show what differs between two points of a key's history, by paths: what was added, removed and changed.

    A and B are points as `statecache show` takes them. B is the newest version where it is not given, and A the one
    before that. Two keys may be compared as well. Long texts are compared by words, those of several lines by lines.
    Exit status 0 whether they differ or not, unless --exit-code. With --json, one object: the headers `a` and `b`, and
    `differences`.

    \b
    Examples:
      statecache diff runs/42
      statecache diff runs/42 3 7
      statecache diff runs/42 "before payment"
      statecache diff runs/42@7 runs/42-b --json | jq -r '.differences[].path'
    """
    refuse_unknown(context, key, a, b)
    places = places_of([word for word in (key, a, b) if word is not None], now=wall())
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    versions, found = asyncio.run(_compared(settings, *places))
    if as_json:
        print_json(_facts(versions, found))
    else:
        _tell(versions, found, wall())
    return FINDING if exit_code and found else OK


def places_of(words: Sequence[str], *, now: datetime) -> tuple[Place, Place]:
    """Return the two points that are compared; a word with a `/` in it is a key, and perhaps a point of it."""
    key, first = key_and_point(words[0], now=now)
    places = [key_and_point(w, now=now) if "/" in w else (key, _point(w, now=now)) for w in words[1:]]
    if len(words) == 1:
        return (key, _BEFORE if first == NEWEST else first), (key, NEWEST)
    if len(words) == 2 and (first != NEWEST or "/" in words[1]):
        return (key, first), places[0]
    if first == NEWEST:
        return places[0], places[1] if len(words) == 3 else (key, NEWEST)
    hint = "Say KEY A B, or KEY@A KEY@B; a key that holds an @ is given with another one behind it."
    raise UsageError("too many points: two can be compared", hint=hint)


def _point(word: str, *, now: datetime) -> PointName:
    return point_of(word.removeprefix("@"), now=now)


async def _compared(settings: Settings, a: Place, b: Place) -> tuple[tuple[Version, Version], tuple[Difference, ...]]:
    from statecache.cli.history.reading import plain_value, version_at
    from statecache.rules.difference import differences

    async with client(settings) as cache:
        versions = await version_at(cache, *a), await version_at(cache, *b)
        values = [await plain_value(cache, one) for one in versions]
        return versions, differences(*values)


def _facts(versions: Sequence[Version], found: Sequence[Difference]) -> dict[str, Any]:
    from statecache.cli.history.diff_view import facts_of
    from statecache.cli.history.headers import header_of

    a, b = map(header_of, versions)
    return {"a": a, "b": b, "differences": facts_of(found)}


def _tell(versions: Sequence[Version], found: Sequence[Difference], now: datetime) -> None:
    from statecache.cli.history.diff_view import drawn, tell_table
    from statecache.cli.history.headers import titled

    if not found:
        a, b = (plain(f"{one.key}@{one.version}") for one in versions)
        tell(f"{a} and {b} hold the same")
    elif is_terminal():
        screen = console()
        for sign, colour, one in zip("-+", ("red", "green"), versions, strict=True):
            screen.print(beside(Text(sign, colour), titled(one, now)))
        screen.print()
        screen.print(drawn(found, screen))
    else:
        tell_table(found)

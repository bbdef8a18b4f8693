"""`blame`: which change set what stands at a path of a value.

Versions are read from the newest on, a few at first and more the longer it takes, and nothing older than the answer.
Where the change that is found was made from another version (it rolled back to it, branched from it, merged it) that
holds the same there, the search goes on from that one: what is told is who set it, and on which way it came here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import UNSET
from rich.text import Text

from statecache.cli.connecting import client
from statecache.cli.exits import FINDING, OK
from statecache.cli.history.points import PointName, key_and_point
from statecache.cli.options import AsJson, PostgresUrl, RedisUrl, settings_of
from statecache.cli.screen import beside, console, is_terminal, plain, print_json, print_table, print_value, tell
from statecache.clock import monotonic, wall
from statecache.errors import CodecError
from statecache.history_errors import VersionNotFound
from statecache.model import Position
from statecache.records import text_of
from statecache.rules.blame import Blame, BlameSearch, followed
from statecache.rules.paths import Path, part_at, path_of
from statecache.rules.sameness import same
from statecache.rules.versions import Version

if TYPE_CHECKING:
    from statecache._async.client import AsyncStateCache
    from statecache.settings import Settings

FIRST, MOST = 4, 256
"""How many values are read at first, and at most at once."""
_COLUMNS = ("key", "version", "path", "at", "op", "actor", "writer", "made from", "reason")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Which change set what stands at a path; `certain` is false where an older version may have done so.

    `way` are the changes that brought it from there to where it was asked for, the newest first.
    """

    blame: Blame[Version]
    way: list[Version]
    certain: bool

    @property
    def there(self) -> bool:
        """Whether anything stands at the path."""
        return self.blame.value is not UNSET

    @property
    def ever(self) -> bool:
        """Whether anything ever stood there."""
        return self.there or self.blame.found


def blame(
    which: Annotated[str, typer.Argument(metavar="KEY[@POINT]", help="Like runs/42; a point as of show.")],
    path: Annotated[str, typer.Argument(metavar="PATH", help="Like messages[3].content; $ is all of it.")],
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Tell which change set what stands at a path, by whom, when and why.

    Items of lists are followed, wherever they stood before. Where it came by a rollback, a branch or a merge, the
    change that set it there first is told, and the way that it took. Exit status 1 where nothing stands at the path;
    what is told then is the change that took it away. With --json, one object: `set_by`, the header of the change,
    with the `path` there, the `value`, the `way`, and whether it is `certain`.

    \b
    Examples:
      statecache blame runs/42 step
      statecache blame runs/42 messages[3].content
      statecache blame runs/42@7 'tools["read file"]' --json | jq -r .set_by.actor
    """
    steps = path_of(path)
    key, point = key_and_point(which, now=wall())
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    found = asyncio.run(_found(settings, key, point, steps))
    if as_json:
        print_json(_facts(found))
    elif found.ever:
        _tell(found, path)
    if not found.certain:
        version = found.blame.header.version
        tell(f"it may have been set before: no value before version {version} is kept")
    if not found.there:
        since = "since that change" if found.ever else "in any version"
        tell(f"{plain(key)}: nothing stands at {plain(path)} {since}")
    return OK if found.there else FINDING


async def _found(settings: Settings, key: str, point: PointName, path: Path) -> Found:
    from statecache.cli.history.reading import version_at

    async with client(settings) as cache:
        start, way = await version_at(cache, key, point), list[Version]()
        while True:
            found = await _search(cache, start, path)
            source = await _source(cache, found)
            if source is None:
                return msgspec.structs.replace(found, way=way)
            way.append(found.blame.header)
            start, path = source


async def _search(cache: AsyncStateCache, start: Version, path: Path) -> Found:
    """Go back through the versions of a key from one on."""
    from statecache.cli.history.reading import plain_of, plain_value

    search, oldest = BlameSearch[Version](path), start
    search.look(start, await plain_value(cache, start))
    async for version, data in _older(cache, start):
        oldest = version
        if data is None or search.look(version, plain_of(version, data)):
            break
    assert search.blame is not None
    first = search.blame.header.version == oldest.version and not oldest.gap
    return Found(blame=search.blame, way=[], certain=search.over or first)


async def _older(cache: AsyncStateCache, start: Version) -> AsyncIterator[tuple[Version, bytes | None]]:
    """Yield the versions before one, from the newest on, with their values; None where one is no longer kept."""
    history, many = cache._runtime.history, FIRST
    seconds = cache._view.end_of(None) - monotonic()
    async for page in history.versions(
        start.key, last=start.version - 1, reverse=True, unflushed=not start.durable, seconds=seconds
    ):
        while page:
            some, page = page[:many], page[many:]
            many, at = min(2 * many, MOST), 0
            async for values in history.values_between(some, end=monotonic() + seconds):
                for data in values:
                    yield some[at], data
                    at += 1


async def _source(cache: AsyncStateCache, found: Found) -> tuple[Version, Path] | None:
    """Return from which version the change that was found took what stands there, and where it stood in that.

    None where it did not take it from another one.
    """
    from statecache.cli.history.headers import made_from
    from statecache.cli.history.reading import plain_value, version_at

    blame, made = found.blame, made_from(found.blame.header)
    if made is None or not made.key or not (found.certain and found.there):
        return None
    try:
        point = PointName(version=made.version, position=Position.parse(made.position))
        source = await version_at(cache, made.key, point)
        value = await plain_value(cache, source)
        path = followed(blame.path, await plain_value(cache, blame.header), value)
    except (VersionNotFound, CodecError):
        return None
    if path is None or not same(part_at(value, path), blame.value):
        return None
    return source, path


def _facts(found: Found) -> dict[str, Any]:
    from statecache.cli.history.headers import header_of

    blame = found.blame
    facts = {"set_by": header_of(blame.header), "path": blame.place, "way": [*map(header_of, found.way)]}
    value = {"value": blame.value} if found.there else {}
    return facts | {"exists": found.there, "certain": found.certain} | value


def _tell(found: Found, path: str) -> None:
    from statecache.cli.history.diff_view import json_text
    from statecache.cli.history.headers import made_from, reason_of, titled

    blame, now = found.blame, wall()
    changes = [blame.header, *reversed(found.way)]
    if not is_terminal():
        rows = [
            (
                one.key, str(one.version), blame.place, text_of(one.at), one.op, one.actor, one.writer,
                str(made_from(one) or ""), reason_of(one),
            )
            for one in changes
        ]  # fmt: skip
        print_table(_COLUMNS, rows)
        return
    screen = console()
    for at, one in enumerate(changes):
        screen.print(beside(Text("then" if at else "set by", "dim"), titled(one, now)))
    if blame.place != path:
        screen.print(beside(Text("as", "dim"), Text(plain(blame.place), "bold")))
    if found.there:
        screen.print()
        print_value(json_text(blame.value).encode())

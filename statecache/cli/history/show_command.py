"""`show`: what a key held at a point of its history, and the change that made it so."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from statecache.cli.connecting import client
from statecache.cli.exits import FINDING, OK
from statecache.cli.history.points import PointName, key_and_point
from statecache.cli.options import AsJson, PostgresUrl, RedisUrl, settings_of
from statecache.cli.screen import plain, print_json, print_labelled, print_value, tell
from statecache.clock import wall
from statecache.errors import UsageError
from statecache.history_errors import VersionNotFound

if TYPE_CHECKING:
    from statecache.rules.versions import Version
    from statecache.settings import Settings

_LABEL_WIDTH = 12


def show(
    which: Annotated[
        str, typer.Argument(metavar="KEY[@POINT]", help="Like runs/42@7; @-1 is one before the newest; see above.")
    ],
    raw: Annotated[bool, typer.Option("--raw", help="Only the value, byte by byte as it is stored.")] = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Show what a key held at a point of its history, and by which change.

    A point is a version (7), -1 for one before the newest, a time (2026-11-20T12:00Z; without a zone, this system's),
    2h for two hours ago, a position (5-1144), or the label of a checkpoint; without one it is the newest version. A
    label that reads like another point is written with = before it, a key that holds an @ with another one behind it.
    Exit status 1 where there is no value: it was deleted, or is no longer kept. With --json, one object.

    \b
    Examples:
      statecache show runs/42@7
      statecache show runs/42@-1 --json | jq .value
      statecache show runs/42@"before payment"
      statecache show runs/42@2h --raw > run.json
    """
    if raw and as_json:
        raise UsageError("--raw and --json exclude one another")
    key, point = key_and_point(which, now=wall())
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    version, data, nearest = asyncio.run(_read(settings, key, point))
    if raw:
        sys.stdout.buffer.write(data or b"")
        sys.stdout.buffer.flush()
    elif as_json:
        print_json(_facts(version, data, nearest))
    else:
        _tell(version, data)
    if data is None:
        tell(f"{plain(key)}: {_absence(version, nearest)}")
    return OK if data is not None else FINDING


async def _read(settings: Settings, key: str, point: PointName) -> tuple[Version, bytes | None, int | None]:
    """Return the version, its value if there is one, and if there is none the next version that has one."""
    from statecache.cli.history.reading import version_at

    async with client(settings) as cache:
        version = await version_at(cache, key, point)
        if version.op != "set":
            return version, None, None
        try:
            return version, await cache._runtime.history.value_of(version, end=cache._view.end_of(None)), None
        except VersionNotFound as error:
            return version, None, error.nearest


def _facts(version: Version, data: bytes | None, nearest: int | None) -> dict[str, Any]:
    from statecache.cli.history.headers import header_of
    from statecache.cli.states.by_hand import json_of

    value = None if data is None else msgspec.Raw(json_of(data, version.encoding, key=version.key))
    kept = version.kept and nearest is None
    return msgspec.structs.asdict(header_of(version)) | {"kept": kept, "nearest": nearest, "value": value}


def _tell(version: Version, data: bytes | None) -> None:
    from statecache.cli.history.headers import header_of
    from statecache.cli.states.by_hand import json_of

    for name, text in header_of(version).facts(wall(), version.at):
        print_labelled(name, text, width=_LABEL_WIDTH)
    if data is not None:
        print()
        print_value(json_of(data, version.encoding, key=version.key))


def _absence(version: Version, nearest: int | None) -> str:
    if version.op == "expired":
        return f"what version {version.version} wrote had ended by then"
    if version.op != "set":
        return f"version {version.version} deleted it"
    next_to = "" if nearest is None else f"; version {nearest} is the one next to it that has one"
    return f"the value of version {version.version} is no longer kept{next_to}"

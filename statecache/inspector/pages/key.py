"""One key: what it holds at a version, how it came to that, its checkpoints and branches; and two versions compared.

Each part is read by itself and may fail by itself. Of all its versions one value is read: a key with any number of them
shows as quickly as one with few.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from msgspec import UNSET
from starlette.responses import Response

from statecache.cli.states.where import where
from statecache.core.history.reader import Point
from statecache.errors import CodecError, StateCacheError, UsageError
from statecache.history_errors import VersionNotFound
from statecache.inspector.errors import status_of
from statecache.inspector.family import Drawing, drawing
from statecache.inspector.pages.asked import key_in, number_in, path_in, source_of
from statecache.inspector.rendering import page
from statecache.inspector.source import VERSIONS_MAX, Part, Shown, part
from statecache.inspector.tree import Row, brief, tree, visible
from statecache.keys import group_of
from statecache.rules.difference import Difference, differences
from statecache.rules.paths import Path, part_at

if TYPE_CHECKING:
    from starlette.requests import Request

    from statecache.checkpoints import Checkpoint
    from statecache.inspector.source import Source
    from statecache.rules.versions import Version

EXCERPT = 4096
"""How much is shown of bytes that are not what their encoding says."""
DIFFERENCES_MAX = 300
SIDE_MAX = 300
"""How many characters are shown of each side of a difference."""


class Held(NamedTuple):
    """A version's value as it is shown: a tree, or why there is none, with the beginning of the bytes."""

    rows: list[Row]
    error: StateCacheError | None = None
    excerpt: str = ""


async def key(request: Request) -> Response:
    """Return the page of a key, or with `part` only what its version holds."""
    source, name = source_of(request), key_in(request)
    path, first = path_in(request), number_in(request, "first") or 0
    point = point_in(request)
    shown = await part(source.shown(name, point))
    held = await held_by(shown.value, path, first) if shown.value is not None else Held([])
    given: dict[str, Any] = {
        "key": name, "shown": shown.value, "error": shown.error, "held": held, "path": path, "first": first,
    }  # fmt: skip
    status = 200 if shown.error is None else status_of(shown.error)
    if request.query_params.get("part"):
        given["newest"] = number_in(request, "newest") or 0
        return await page(request, "_shown.html", status=status, **given)
    now, newest, checkpoints, drawn = await asyncio.gather(  # at once: where a server is away each of them waits for it
        part(source.now(name)), part(_newest(source, name, point, shown.value)), part(source.checkpoints(name)),
        part(_drawn(source, name)),
    )  # fmt: skip
    last = newest.value or 0
    until = number_in(request, "until") or _window(shown.value, last)
    versions = await part(source.versions(name, until))
    if isinstance(shown.error, VersionNotFound) and not last and now.value is not None and not now.value.record.version:
        return await page(request, "nothing.html", status=404, query=name, key=name)
    rows = (versions.value or [])[:VERSIONS_MAX]
    return await page(
        request, "key.html", status=status, query=name, **given, now=now, newest=last, group=group_of(name),
        versions=versions, rows=rows, compared=_comparable(versions.value or []), older=_older(versions.value),
        until=until, newer=_newer(rows, last),
        checkpoints=checkpoints, labels=_labels(name, checkpoints), drawn=drawn, written=number_in(request, "written"),
        where=where(source.settings, name), shard=source.runtime.keys.shard(name),
    )  # fmt: skip


def point_in(request: Request) -> Point:
    """Return the point that is asked for: a version, a position of the shard, or what is newest."""
    version, n = number_in(request, "version"), number_in(request, "n")
    if version is not None and n is not None:
        raise UsageError("one of version= and n= says which point is meant")
    if version is not None:
        return Point(version=version)
    return Point() if n is None else Point(n=n)


async def _newest(source: Source, name: str, point: Point, shown: Shown | None) -> int:
    if point == Point() and shown is not None:
        return shown.version
    return await source.newest_version(name)


def _window(shown: Shown | None, newest: int) -> int | None:
    """Return where the list of versions begins that has the shown one in its middle; None for the newest ones."""
    if shown is None or newest - shown.version < VERSIONS_MAX // 2:
        return None
    return shown.version + VERSIONS_MAX // 2


def _older(found: Sequence[Version] | None) -> int | None:
    """Return the version at which the next page of older ones begins."""
    return found[VERSIONS_MAX].version if found is not None and len(found) > VERSIONS_MAX else None


def _comparable(found: Sequence[Version]) -> set[int]:
    """Return which versions, listed from the newest on, can be compared to the one before: both values are kept."""
    kept = {one.version for one in found if one.kept}
    return {version for version in kept if version - 1 in kept}


def _newer(rows: Sequence[Version], newest: int) -> int | None:
    """Return the version at which the page of newer ones begins."""
    return min(newest, rows[0].version + VERSIONS_MAX) if rows and rows[0].version < newest else None


def _labels(name: str, checkpoints: Part[list[Checkpoint]]) -> dict[int, list[str]]:
    """Return the labels of the key's own checkpoints by version."""
    labels: dict[int, list[str]] = {}
    for one in checkpoints.value or ():
        if one.key == name and one.version is not None:
            labels.setdefault(one.version, []).append(one.label)
    return labels


async def _drawn(source: Source, name: str) -> Drawing | None:
    return drawing(await source.family(name), name)


async def held_by(shown: Shown, path: Path = (), first: int = 0) -> Held:
    """Return what a version holds, as rows; made beside the loop, for values may be large."""
    return await asyncio.to_thread(_held, shown, path, first)


def _held(shown: Shown, path: Path, first: int) -> Held:
    if shown.value is None:
        return Held([], shown.lacking)
    try:
        value = shown.plain()
    except CodecError as error:
        return Held([], error, _excerpt(shown.value))
    found = part_at(value, path)
    if found is UNSET:
        return Held([], UsageError("nothing stands at that path in this version", hint="Look at the whole value."))
    if isinstance(found, bytes) and not path:
        return Held([], None, _excerpt(found))
    return Held(tree(found, path=path, first=first))


def _excerpt(data: bytes) -> str:
    """Return the beginning of bytes as text where they are that, else as a dump."""
    some = data[:EXCERPT]
    more = f"\n… {len(data):,} bytes in all" if len(data) > EXCERPT else ""
    try:
        text = some.decode()
        if visible(text) == text:
            return text + more
    except UnicodeDecodeError:
        pass
    lines = [some[at : at + 16] for at in range(0, len(some), 16)]
    shown = [
        f"{number * 16:08x}  {line.hex(' '):<47}  {''.join(chr(b) if 32 <= b < 127 else '.' for b in line)}"
        for number, line in enumerate(lines)
    ]
    return "\n".join(shown) + more


async def raw(request: Request) -> Response:
    """Return the bytes of a version as they are stored, as a file to keep."""
    source, name = source_of(request), key_in(request)
    shown = await source.shown(name, point_in(request))
    if shown.value is None:
        raise shown.lacking or VersionNotFound(
            name, wanted=f"value in version {shown.version}", reason=f"it is a {shown.op}"
        )
    ending = {"json": "json", "msgpack": "msgpack"}.get(shown.form, "bin")
    file = quote(f"{name.replace('/', '_')}@{shown.version}.{ending}", safe="")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{file}"}
    return Response(shown.value, media_type="application/octet-stream", headers=headers)


async def diff(request: Request) -> Response:
    """Return the page of what differs between two versions of a key."""
    source, name = source_of(request), key_in(request)
    a, b = number_in(request, "a"), number_in(request, "b")
    if a is None or b is None:
        raise UsageError("a= and b= say which two versions are compared", hint="Choose them in the list of versions.")
    before, after = await source.shown(name, Point(version=a)), await source.shown(name, Point(version=b))
    for one in (before, after):
        if one.lacking is not None:
            raise one.lacking
    found = await compared(before, after)
    return await page(
        request, "diff.html", query=name, key=name, before=before, after=after, found=found[:DIFFERENCES_MAX],
        count=len(found), side=SIDE_MAX,
    )  # fmt: skip


class Compared(NamedTuple):
    """A difference as it is shown: its path, what was done, and both sides, None where there is nothing."""

    path: Path
    op: str
    before: str | None
    after: str | None


async def compared(before: Shown, after: Shown) -> list[Compared]:
    """Return what differs between two versions; a deleted one has no value. Raises CodecError."""
    return await asyncio.to_thread(lambda: compare(_value_of(before), _value_of(after)))


def compare(before: Any, after: Any) -> list[Compared]:
    """Return what differs between two plain values, UNSET for none."""
    return [_compared(one) for one in differences(before, after)]


def _compared(one: Difference) -> Compared:
    sides = [None if side is UNSET else brief(side, SIDE_MAX) for side in (one.before, one.after)]
    return Compared(one.path, one.op, *sides)


def _value_of(shown: Shown) -> Any:
    return UNSET if shown.value is None else shown.plain()

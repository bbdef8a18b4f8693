"""What the commands on history read through the client: the version that a point names, and its value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from statecache.cli.history.points import PointName
from statecache.clock import monotonic
from statecache.codec import codec_for
from statecache.core.history.reader import Point
from statecache.core.history.targets import target_of, version_of
from statecache.history_errors import VersionNotFound

if TYPE_CHECKING:
    from statecache._async.client import AsyncStateCache
    from statecache.rules.versions import Version

_PLAIN = codec_for(Any, "json")


async def version_at(cache: AsyncStateCache, key: str, point: PointName) -> Version:
    """Return the version of a key that a point names.

    Raises VersionNotFound, CheckpointNotFound, HistoryIncomplete where it cannot be known, and PostgresUnavailable.
    """
    end = cache._view.end_of(None)
    if point.back is not None:
        return await _back(cache, key, point.back)
    wanted = Point()
    if point.version is not None:
        wanted = Point(version=point.version)
    elif point.position is not None:
        wanted = Point.at(point.position)
    elif point.time is not None:
        wanted = Point(time=point.time)
    elif point.label is not None:
        target = await target_of(cache._view, key, point.label, None, whole=False, end=end)
        return await version_of(cache._view, key, target, end=end)
    return await cache._runtime.history.version_at(key, wanted, end=end)


async def _back(cache: AsyncStateCache, key: str, back: int) -> Version:
    """Return the version that is so many before the newest."""
    seconds = cache._view.end_of(None) - monotonic()
    at, oldest = back, None
    async for page in cache._runtime.history.versions(key, reverse=True, seconds=seconds):
        if at < len(page):
            return page[at]
        at -= len(page)
        oldest = page[-1].version if page else oldest
    why = "nothing was ever written there" if oldest is None else f"it has {back - at} in all"
    raise VersionNotFound(key, wanted=f"version {back} before the newest", reason=why, nearest=oldest)


async def plain_value(cache: AsyncStateCache, version: Version) -> Any:
    """Return a version's value as plain data, UNSET for a delete; raise VersionNotFound where it is no longer kept."""
    if version.op != "set":
        return UNSET
    return plain_of(version, await cache._runtime.history.value_of(version, end=cache._view.end_of(None)))


def plain_of(version: Version, data: bytes) -> Any:
    """Return a version's value that was read as plain data, UNSET for a delete."""
    if version.op != "set":
        return UNSET
    return _PLAIN.decode(data, key=version.key, encoding=version.encoding, schema="")

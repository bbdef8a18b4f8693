"""One group, a run say, over all its keys at one moment: a position of its shard orders all their changes.

Small values are shown as they were; what is large, and what is more than a page can hold, is a link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from statecache.core.own_records import OWN_SCHEMAS
from statecache.errors import InvalidKey, StateCacheError
from statecache.inspector.errors import status_of
from statecache.inspector.pages.asked import key_in, number_in, source_of
from statecache.inspector.pages.key import Held, held_by
from statecache.inspector.rendering import page
from statecache.inspector.source import COMMITS_MAX, part
from statecache.keys import group_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from statecache.inspector.source import Source
    from statecache.rules.versions import Version

KEYS_MAX = 200
"""How many keys of a group are listed."""
VALUES_MAX = 20
VALUE_BYTES_MAX = 16 * 1024
VALUES_BYTES_MAX = 96 * 1024
"""How many values are shown, of how many bytes one, and all together."""


class Entry(msgspec.Struct, frozen=True):
    """A key of the group as it was: its version, what it held if that is shown, and whether it changed right then."""

    version: Version
    held: Held | None
    changed: bool
    own: bool


async def run(request: Request) -> Response:
    """Return the page of a group at one of its positions, or as it is."""
    source, group, n = source_of(request), key_in(request, "group"), number_in(request, "n")
    if group_of(group) != group:
        raise InvalidKey(group, reason=f"it is no group: that is its first two segments, {group_of(group)!r}")
    until = number_in(request, "until")
    found, commits = await part(source.group_at(group, n)), await part(source.commits(group, until))
    versions = found.value or []
    newest = max((one.position for one in versions), default=None)
    at = n if n is not None else newest.n if newest is not None else 0
    live = [one for one in versions if one.op == "set"]
    entries = await _entries(source, live[:KEYS_MAX], newest.n if newest is not None else 0)
    checkpoints = await part(source.group_checkpoints(group))
    rows = (commits.value or [])[:COMMITS_MAX]
    if found.error is None and not versions and n is None:
        return await page(request, "nothing.html", status=404, query=group, key=group)
    return await page(
        request, "run.html", status=200 if found.error is None else status_of(found.error), query=group + "/",
        group=group, n=n, at=at, newest=newest, found=found, entries=entries, more=max(len(live) - KEYS_MAX, 0),
        deleted=[one for one in versions if one.op != "set"], commits=commits, rows=rows,
        older=commits.value[COMMITS_MAX].position.n if commits.value and len(commits.value) > COMMITS_MAX else None,
        until=until, checkpoints=checkpoints, shard=source.runtime.keys.shard(group),
        earlier=next((one.position.n for one in rows if one.position.n < at), None),
        later=next((one.position.n for one in reversed(rows) if one.position.n > at), None),
        unflushed=any(not one.durable for one in versions),
    )  # fmt: skip


async def _entries(source: Source, versions: Sequence[Version], newest: int) -> list[Entry]:
    """Return the keys with as many of their values as are shown."""
    left, shown = VALUES_BYTES_MAX, list[int]()
    for number, one in enumerate(versions):
        if one.schema not in OWN_SCHEMAS and one.size <= min(VALUE_BYTES_MAX, left) and len(shown) < VALUES_MAX:
            shown.append(number)
            left -= one.size
    held: dict[int, Held] = {}
    if shown:
        made = await asyncio.gather(*(_held(source, versions[number]) for number in shown))
        held = dict(zip(shown, made, strict=True))
    return [
        Entry(one, held.get(number), one.position.n == newest, one.schema in OWN_SCHEMAS)
        for number, one in enumerate(versions)
    ]


async def _held(source: Source, version: Version) -> Held:
    try:
        return await held_by(await source.shown_of(version))
    except StateCacheError as error:
        return Held([], error)

"""What was set aside: changes in conflict, entries in quarantine, and what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.cli.lost import ranges
from statecache.core.history.reader import Point
from statecache.errors import CodecError, NotFound
from statecache.inspector.pages.asked import key_in, number_in, source_of
from statecache.inspector.pages.key import DIFFERENCES_MAX, compared, held_by
from statecache.inspector.rendering import page
from statecache.inspector.source import Shown, part
from statecache.inspector.tree import visible
from statecache.model import Position
from statecache_workers.parked_entries import Parked, ParkedAt, excerpt, reason_text
from statecache_workers.quarantine_release import LIST_MAX, opened

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from statecache.inspector.source import Source

PAGE = 50
LOST_MAX = 50
FIELD_MAX = 4096
FIELDS_MAX = 200
"""How much of a parked entry is shown: of each field, and how many of them."""


class Conflict(msgspec.Struct, frozen=True):
    """A change that was set aside, and why."""

    change_id: str
    key: str
    shard: int
    position: Position
    op: str
    version: int
    at: datetime
    writer: str
    actor: str
    reason: str
    cause: str
    recorded_at: datetime
    size: int


async def aside(request: Request) -> Response:
    """Return the page of all that was set aside, the newest first."""
    source, skip = source_of(request), number_in(request, "skip", most=1_000_000) or 0
    dropped = bool(request.query_params.get("dropped"))
    conflicts = await part(_conflicts(source, skip))
    parked, lost = await part(_parked(source, dropped=dropped)), await part(ranges(source.settings, LOST_MAX))
    rows = (conflicts.value or [])[:PAGE]
    return await page(
        request, "aside.html", conflicts=conflicts, rows=rows, more=len(conflicts.value or ()) > PAGE, skip=skip,
        page_size=PAGE, parked=parked, parked_max=LIST_MAX, lost=lost, reason_text=reason_text, dropped=dropped,
    )  # fmt: skip


async def _conflicts(source: Source, skip: int) -> list[Conflict]:
    asked = {"most": PAGE + 1, "skip": skip}
    rows = await source.runtime.postgres.fetch("conflict_list", asked, seconds=source.seconds)
    return [_conflict(row) for row in rows]


def _conflict(row: Sequence[Any]) -> Conflict:
    change_id, key, shard, epoch, n, *more = row
    return Conflict(change_id, key, shard, Position(epoch, n), *more)


async def _parked(source: Source, *, dropped: bool) -> list[Parked]:
    async with opened(source.settings) as quarantine:
        return await quarantine.listed(dropped=dropped, limit=LIST_MAX + 1)


async def conflict(request: Request) -> Response:
    """Return the page of one change that was set aside, compared with what stands in its place."""
    source, key, change_id = source_of(request), key_in(request), request.query_params.get("change", "")
    asked = {"change_id": change_id.replace("\0", ""), "key": key}
    rows = await source.runtime.postgres.fetch("conflict_entry", asked, seconds=source.seconds)
    if not rows:
        raise NotFound(key, hint="No change of that key and change_id was set aside.")
    one, shown = _with_value(key, rows[0])
    place = await part(source.shown(key, Point(version=one.version)))
    found, error = [], None
    if place.value is not None and place.value.lacking is None:
        try:
            found = await compared(place.value, shown)
        except CodecError as undecodable:
            error = undecodable
    return await page(
        request, "conflict.html", query=key, key=key, one=one, shown=shown, held=await held_by(shown), place_of=place,
        found=found[:DIFFERENCES_MAX], count=len(found), error=error, path=(), first=0,
    )  # fmt: skip


def _with_value(key: str, row: Sequence[Any]) -> tuple[Conflict, Shown]:
    *facts, parent, value, encoding, schema = row
    one = _conflict(facts)
    return one, Shown(
        key=key, version=one.version, op=one.op, at=one.at, change_id=one.change_id, parent_change_id=parent,
        position=one.position, encoding=encoding, schema=schema, size=one.size,
        value=bytes(value) if one.op == "set" else None, writer=one.writer, actor=one.actor, reason=one.reason,
        durable=False,
    )  # fmt: skip


async def parked(request: Request) -> Response:
    """Return the page of one entry in quarantine: why it is there, and what it holds."""
    source = source_of(request)
    place = ParkedAt.parse(request.query_params.get("id", ""))
    async with opened(source.settings) as quarantine:
        found = await quarantine.found(place)
    if found is None:
        raise NotFound(str(place), hint="It is not in quarantine.")
    fields = found.fields()
    pairs = [
        (visible(excerpt(name, 60)), visible(excerpt(value, FIELD_MAX)), len(value))
        for name, value in zip(fields[::2], fields[1::2], strict=False)
    ]
    return await page(
        request, "parked.html", one=found, reason=reason_text(found.sqlstate), pairs=pairs[:FIELDS_MAX],
        more=max(len(pairs) - FIELDS_MAX, 0),
    )  # fmt: skip

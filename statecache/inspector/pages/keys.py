"""Namespaces, and the keys of one: by prefix, newest first or by key, a page at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statecache.core.own_records import OWN_SCHEMAS
from statecache.core.read.listed import Listed
from statecache.inspector.pages.asked import number_in, source_of
from statecache.inspector.rendering import page
from statecache.inspector.source import part
from statecache.keys import checked_prefix_of_list
from statecache.records import time_of
from statecache.rules.filters import Selection, checked_bound

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from statecache.core.read.listed import Sight
    from statecache.inspector.source import Source

PAGE = 50
SKIP_MAX = 5000
"""How far the newest-first pages reach; they are read anew from their beginning."""
NEWEST_OF_MAX = 20
"""Of how many namespaces the newest state is shown."""


async def overview(request: Request) -> Response:
    """Return the page of all namespaces."""
    return await _namespaces(request, "")


async def keys(request: Request) -> Response:
    """Return a page of the keys under a prefix; without a `/` in it, of the namespaces that begin so."""
    prefix = request.query_params.get("prefix", "")
    if "/" not in prefix:
        return await _namespaces(request, prefix)
    source = source_of(request)
    checked_prefix_of_list(prefix, source.settings.shards)
    newest = request.query_params.get("order", "newest") != "key"
    skip = number_in(request, "skip", most=SKIP_MAX) or 0
    after = request.query_params.get("after", "")
    if newest:
        listed = Listed(selection=Selection(prefix=prefix), order="newest", limit=skip + PAGE + 1, values=False)
    else:
        bound = checked_bound(after, "after") if after else ""
        listed = Listed(selection=Selection(prefix=prefix, after=bound), limit=PAGE + 1, values=False)
    found = await source.sights(listed)
    found = found[skip:] if newest else found
    rows = [_row(sight) for sight in found[:PAGE]]
    return await page(
        request, "keys.html", query=prefix, prefix=prefix, newest=newest, rows=rows, skip=skip, after=after,
        more=len(found) > PAGE, page_size=PAGE, skip_max=SKIP_MAX, live=newest and not skip,
        crumbs=_crumbs(prefix), group=_whole_group(prefix),
    )  # fmt: skip


def _row(sight: Sight) -> dict[str, object]:
    record = sight.record
    return {
        "key": record.key, "version": record.version, "at": time_of(record.updated_at), "writer": record.writer,
        "schema": record.schema, "parked": sight.parked or record.op == "quarantined", "durable": sight.stored,
        "own": record.schema in OWN_SCHEMAS,
    }  # fmt: skip


def _crumbs(prefix: str) -> list[tuple[str, str]]:
    """Return the parts of a prefix, each with the prefix that ends with it."""
    parts = prefix.split("/")
    found = ["/".join(parts[: number + 1]) + "/" for number in range(len(parts) - 1)]
    return [(one.split("/")[-2] + "/", one) for one in found]


def _whole_group(prefix: str) -> str:
    """Return the group that a prefix names, or '' where it names none."""
    parts = prefix.split("/")
    return "/".join(parts[:2]) if len(parts) == 3 and not parts[2] else ""


async def _namespaces(request: Request, start: str) -> Response:
    source = source_of(request)
    names = [name for name in await source.cache.namespaces() if name.startswith(start)]
    newest = {name: await _newest(source, name) for name in names[:NEWEST_OF_MAX]}
    return await page(request, "namespaces.html", query=start, names=names, newest=newest)


async def _newest(source: Source, name: str) -> Sight | None:
    return (await part(source.newest_of(name))).value

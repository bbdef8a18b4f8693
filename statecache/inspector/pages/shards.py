"""The shards: their epochs, gates, owners and lag, the servers and workers, and what calls for a person."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from statecache.cli.status.attention import NEW
from statecache.cli.status.command import (
    OPENINGS_MAX,
    aside_text,
    backlog_text,
    lag_text,
    overview_of,
    server_text,
    shards_text,
)
from statecache.errors import StateCacheError
from statecache.inspector.pages.asked import source_of
from statecache.inspector.rendering import page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from statecache.cli.status.sample import Sample
    from statecache.inspector.source import Source


async def shards(request: Request) -> Response:
    """Return the page of the shards, or with `part` only what changes in it."""
    source = source_of(request)
    sample = await source.sampler.take()
    figures = source.looks.add(sample)
    found = overview_of(source.settings, sample, await _history(source, sample))
    texts = {
        "redis": server_text(found.redis), "postgres": server_text(found.postgres), "shards": shards_text(found.shards),
        "lag": lag_text(found.lag), "backlog": backlog_text(found.backlog), "aside": aside_text(found),
    }  # fmt: skip
    template = "_shards.html" if request.query_params.get("part") else "shards.html"
    return await page(request, template, found=found, sample=sample, figures=figures, texts=texts)


async def _history(source: Source, sample: Sample) -> dict[str, Any]:
    """Return what `status` asks for beyond one look; what cannot be had is left open."""
    found: dict[str, Any] = {}
    if sample.postgres.reachable:
        with suppress(StateCacheError, TimeoutError):
            found |= await source.sampler.history(new=NEW, openings=OPENINGS_MAX)
    if sample.redis.reachable:
        with suppress(StateCacheError, TimeoutError):
            found["foreign_entries"] = await source.sampler.foreign_entries()
    return found

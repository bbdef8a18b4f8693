"""What changes under a prefix, told to an open page as it becomes durable: server-sent events from `watch`.

Of each key its newest change is told, without its value, a few times a second at most. A stream is one reader of the
feed, so there are not many of them at once; where servers are away the page is told, and the stream goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import PlainTextResponse, StreamingResponse

from statecache.clock import monotonic
from statecache.errors import CodecError, StateCacheError, Unavailable
from statecache.inspector.pages.asked import source_of
from statecache.keys import checked_prefix_of_list
from statecache.records import text_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from statecache.changes import Change
    from statecache.inspector.source import Source

STREAMS_MAX = 16
EVERY_S = 0.25
"""How long changes are gathered before they are told."""
QUIET_S = 15.0
"""How long a stream says nothing at most."""
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


async def live(request: Request) -> Response:
    """Return the stream of what changes under a prefix, or with `only` of one key."""
    source = source_of(request)
    prefix, only = request.query_params.get("prefix", ""), request.query_params.get("only", "")
    checked_prefix_of_list(only or prefix, source.settings.shards)
    if source.streams >= STREAMS_MAX:
        return PlainTextResponse("Too many pages are live: close some.", status_code=503)
    return StreamingResponse(_events(source, prefix, only), media_type="text/event-stream", headers=_HEADERS)


async def _events(source: Source, prefix: str, only: str) -> AsyncIterator[bytes]:
    source.streams += 1
    try:
        yield b"retry: 2000\n\n"
        async for name, told in _told(source, prefix, only):
            head = b"event: %s\n" % name if name else b""
            yield head + b"data: " + msgspec.json.encode(told) + b"\n\n"
    finally:
        source.streams -= 1


async def _told(source: Source, prefix: str, only: str) -> AsyncIterator[tuple[bytes, Any]]:
    """Yield events: a list of changes, why there are none, or that the stream is open and quiet."""
    stopping = asyncio.ensure_future(source.stopping.wait())
    watch = source.cache.watch(only or prefix)
    asked: asyncio.Future[Change[Any]] | None = None
    gathered: dict[str, dict[str, Any]] = {}
    try:
        async with watch:
            yield b"open", []
            tell_at = monotonic() + QUIET_S
            while not stopping.done():
                asked = asked or asyncio.ensure_future(anext(watch))
                left = max(tell_at - monotonic(), 0)
                waited: set[asyncio.Future[Any]] = {asked, stopping}
                await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if monotonic() >= tell_at:
                    yield b"" if gathered else b"quiet", [*gathered.values()]
                    gathered, tell_at = {}, monotonic() + QUIET_S
                if not asked.done():
                    continue
                done, asked = asked, None
                try:
                    change = done.result()
                except CodecError as error:
                    gathered[str(error.facts.get("key", ""))] = {"key": error.facts.get("key", "")}
                except Unavailable as error:
                    yield b"away", error.problem
                else:
                    if not only or change.key == only:
                        gathered[change.key] = _facts(change)
                if gathered:
                    tell_at = min(tell_at, monotonic() + EVERY_S)
    except StateCacheError as error:
        yield b"away", error.problem
    finally:
        for one in (asked, stopping):
            if one is not None:
                one.cancel()
                with suppress(asyncio.CancelledError, StateCacheError, StopAsyncIteration):
                    await one


def _facts(change: Change[Any]) -> dict[str, Any]:
    return {
        "key": change.key, "version": change.version, "op": change.op, "at": text_of(change.at),
        "writer": change.writer, "schema": change.schema,
    }  # fmt: skip

"""The application: which page answers which path, what is opened with it, and what stands before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from statecache.errors import StateCacheError
from statecache.inspector.errors import failed, refused
from statecache.inspector.guard import Guard
from statecache.inspector.pages import aside, key, keys, live, run, shards, writing

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from statecache.inspector.source import Source

_ASSETS = {"inspector.css": "text/css", "inspector.js": "text/javascript", "icon.svg": "image/svg+xml"}
_PAGES: dict[str, Callable[[Any], Any]] = {
    "/": keys.overview,
    "/keys": keys.keys,
    "/key": key.key,
    "/raw": key.raw,
    "/diff": key.diff,
    "/run": run.run,
    "/shards": shards.shards,
    "/aside": aside.aside,
    "/conflict": aside.conflict,
    "/parked": aside.parked,
    "/live": live.live,
}


def application(source: Source, *, token: str) -> ASGIApp:
    """Return the inspector as an ASGI application; it closes the source at its end."""

    @asynccontextmanager
    async def opened(app: Starlette) -> AsyncIterator[None]:
        app.state.source = source
        try:
            yield
        finally:
            await source.close()

    app = Starlette(
        routes=[
            *(Route(path, answer) for path, answer in _PAGES.items()),
            Route("/edit", writing.edit),
            Route("/confirm", writing.confirm, methods=["GET", "POST"]),
            Route("/write", writing.write, methods=["POST"]),
            Route("/assets/{name}", _asset),
        ],
        exception_handlers={StateCacheError: refused, HTTPException: failed, Exception: failed},
        lifespan=opened,
    )
    return Guard(app, token=token, write=source.write)


async def _asset(request: Request) -> Response:
    """Return one of the files that pages load."""
    name = request.path_params["name"]
    if name not in _ASSETS:
        raise HTTPException(404)
    data = files("statecache.inspector").joinpath("assets", name).read_bytes()
    return Response(data, media_type=_ASSETS[name], headers={"cache-control": "private, max-age=300"})

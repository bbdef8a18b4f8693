"""Pages from templates: everything that is shown is escaped, links are relative, so no page holds the token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from statecache import __version__
from statecache.cli.error_text import text_of as error_text
from statecache.cli.screen import counted, size_text, time_text
from statecache.clock import wall
from statecache.history_errors import VersionNotFound
from statecache.inspector.tree import brief, visible
from statecache.records import text_of, time_of
from statecache.rules.paths import text_of as path_text
from statecache.settings import masked

if TYPE_CHECKING:
    from starlette.requests import Request

    from statecache.errors import StateCacheError
    from statecache.inspector.source import Source


def url(page: str, **query: Any) -> str:
    """Return a link to a page, relative to every other one; what is None or '' is left out."""
    given = {name: value for name, value in query.items() if value is not None and value != ""}
    return f"{page}?{urlencode(given)}" if given else page


def age(at: datetime) -> str:
    """Return how long ago something was."""
    return f"{time_text((wall() - at).total_seconds())} ago"


def moment(at: datetime) -> str:
    """Return a moment as a person reads it."""
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def told(error: StateCacheError) -> str:
    """Return what happened and what to do about it, in the words of whoever looks."""
    return error.problem if isinstance(error, VersionNotFound) else error_text(error)


@cache
def templates() -> Environment:
    """Return the templates."""
    found = Environment(
        loader=PackageLoader("statecache.inspector"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {
        "visible": visible, "age": age, "moment": moment, "iso": text_of, "size": size_text, "seconds": time_text,
        "brief": brief, "path": path_text, "parsed": time_of, "told": told,
    }  # fmt: skip
    found.globals |= {"url": url, "counted": counted, "release": __version__}
    return found


async def page(
    request: Request, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **given: Any
) -> HTMLResponse:
    """Return a page; a large one is made beside the loop."""
    source: Source = request.app.state.source
    shared = {
        "write": source.write,
        "redis_url": masked(source.settings.redis_url),
        "postgres_url": masked(source.settings.postgres_url),
        "root": "../" * max(request.url.path.count("/") - 2, 0),
        "query": "",
    }
    text = await asyncio.to_thread(templates().get_template(template).render, shared | given)
    return HTMLResponse(text, status_code=status, headers=headers)

"""What a request asks for, read from its address: checked, and bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statecache.errors import UsageError
from statecache.keys import checked_key
from statecache.rules.paths import Path, path_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from statecache.inspector.source import Source

NUMBER_MAX = 2**62


def source_of(request: Request) -> Source:
    """Return what the pages read from."""
    found: Source = request.app.state.source
    return found


def key_in(request: Request, name: str = "key") -> str:
    """Return the key that is asked for; raise InvalidKey."""
    return checked_key(request.query_params.get(name, ""))


def number_in(request: Request, name: str, *, most: int = NUMBER_MAX) -> int | None:
    """Return a number that is asked for, None where there is none; raise UsageError for what is no number."""
    return number_of(request.query_params.get(name, ""), name, most=most)


def number_of(text: str, name: str, *, most: int = NUMBER_MAX) -> int | None:
    """Return the number that a text is, None for an empty one, at most `most`; raise UsageError for what is none."""
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 19:
        return min(int(text), most)
    raise UsageError(f"{name}={text!r} is not a number")


def path_in(request: Request) -> Path:
    """Return the path into a value that is asked for; raise UsageError."""
    text = request.query_params.get("path", "")
    return path_of(text) if text else ()

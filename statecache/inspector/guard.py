"""Who is let in, decided from a request's head, and what every answer tells browsers.

host      the request must name this machine by a loopback name: a page elsewhere whose name was made to lead here
          (DNS rebinding) sends its own
token     the path must begin with the token: no page elsewhere, and nobody else on this machine, knows it. It is in
          no cookie, for browsers send those to every port of this machine, whoever listens there
origin    what changes something must come from a page of ours, by what browsers say of that, and carry a second
          token that only such a page has
headers   nothing from elsewhere is loaded or run, no other page may frame or embed ours, no address or copy of one
          is handed on
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""The names under which a browser on this machine reaches it; a tunnel keeps them, with a port of its own."""
TOKEN_BYTES = 24
_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NO_STORE = (b"cache-control", b"no-store")


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    text: str


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def refusal_of(
    method: str, path: str, headers: Iterable[tuple[bytes, bytes]], *, token: str, write: bool
) -> Refusal | None:
    """Return why a request is refused, or None. Pure."""
    told: dict[bytes, list[str]] = {}
    for name, value in headers:
        told.setdefault(name.lower(), []).append(value.decode("latin-1"))
    host = told.get(b"host", [])
    if len(host) != 1 or _name_of(host[0]) not in HOSTS:
        return Refusal(403, "This is served to this machine alone: ask for 127.0.0.1.")
    given = path.split("/", 2)[1] if path.startswith("/") else ""
    if not secrets.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        return Refusal(403, "The address lacks its token: open the one that `statecache inspect` has printed.")
    if method in ("GET", "HEAD"):
        return None
    if method != "POST":
        return Refusal(405, f"{method} is not answered here.")
    if not write:
        return Refusal(403, "This inspector is read-only: start it with --write to change states.")
    origin, site = told.get(b"origin", []), told.get(b"sec-fetch-site", [])
    if origin not in ([], [f"http://{host[0]}"]) or site not in ([], ["same-origin"]) or not (origin or site):
        return Refusal(403, "Changes are taken only from the inspector's own pages.")
    return None


def _name_of(host: str) -> str:
    """Return a Host header's name without its port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


class Guard:
    """What stands before the application: it answers by itself where a request is refused."""

    def __init__(self, app: ASGIApp, *, token: str, write: bool) -> None:
        self._app = app
        self._token = token
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = [*message.get("headers", [])]
                caching = () if any(name.lower() == b"cache-control" for name, _ in given) else (_NO_STORE,)
                message = {**message, "headers": [*given, *_HEADERS, *caching]}
            await send(message)

        refusal = refusal_of(scope["method"], scope["path"], scope["headers"], token=self._token, write=self._write)
        if refusal is None and scope["path"] == f"/{self._token}":  # links are relative to the slash behind it
            head = [(b"location", f"/{self._token}/".encode()), (b"content-length", b"0")]
            await sent({"type": "http.response.start", "status": 307, "headers": head})
            await sent({"type": "http.response.body", "body": b""})
            return
        if refusal is None:
            await self._app({**scope, "root_path": f"/{self._token}"}, receive, sent)
            return
        body = f"{refusal.text}\n".encode()
        head = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
        await sent({"type": "http.response.start", "status": refusal.status, "headers": head})
        await sent({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

"""Who is let in to the inspector: decided from a request's head, and said to browsers with every answer."""

from __future__ import annotations

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from statecache.inspector.guard import TOKEN_BYTES, Guard, new_token, refusal_of

TOKEN = "secret"
HOST = (b"host", b"127.0.0.1:8042")
OURS = (HOST, (b"origin", b"http://127.0.0.1:8042"), (b"sec-fetch-site", b"same-origin"))


def refused(method: str = "GET", path: str = "/secret/keys", *headers: tuple[bytes, bytes], write: bool = True) -> str:
    found = refusal_of(method, path, headers or (HOST,), token=TOKEN, write=write)
    return "" if found is None else f"{found.status} {found.text}"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8042", "localhost:1", "LocalHost", "[::1]:8042", "[::1]"])
def test_whoever_names_this_machine_and_has_the_token_is_let_in(host: str) -> None:
    assert refused("GET", "/secret/", (b"Host", host.encode())) == ""
    assert refused("HEAD", "/secret", (b"host", host.encode())) == ""


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8042", "127.0.0.1.evil.example", "127.0.0.2:8042", "", "::1", "0.0.0.0:8042"]
)
def test_a_name_that_was_made_to_lead_here_is_refused(host: str) -> None:
    assert refused("GET", "/secret/", (b"host", host.encode())).startswith("403 This is served to this machine alone")


def test_a_request_names_one_host() -> None:
    assert refused("GET", "/secret/", (b"x", b"y")).startswith("403 This is served to this machine alone")
    assert refused("GET", "/secret/", HOST, (b"host", b"localhost")).startswith("403")


@pytest.mark.parametrize(
    "path", ["/", "", "/keys", "/secre/", "/secrets/", "/Secret/", "//secret/", "/x/secret/", "/sécret/", "/\udcff/"]
)
def test_a_wrong_token_and_none_are_refused(path: str) -> None:
    assert refused("GET", path).startswith("403 The address lacks its token")


def test_a_form_of_ours_may_change_something_where_that_is_allowed() -> None:
    assert refused("POST", "/secret/write", *OURS) == ""
    assert refused("POST", "/secret/write", HOST, OURS[1]) == ""
    assert refused("POST", "/secret/write", HOST, OURS[2]) == ""
    assert refused("POST", "/secret/write", *OURS, write=False).startswith("403 This inspector is read-only")
    assert refused("POST", "/other/write", *OURS).startswith("403 The address")


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"origin", b"http://evil.example"),),
        ((b"origin", b"http://127.0.0.1:9999"),),
        ((b"origin", b"https://127.0.0.1:8042"),),
        ((b"origin", b"null"),),
        ((b"origin", b"http://127.0.0.1:8042"), (b"sec-fetch-site", b"same-site")),
        ((b"origin", b"http://127.0.0.1:8042"), (b"origin", b"http://127.0.0.1:8042")),
        ((b"sec-fetch-site", b"cross-site"),),
        ((b"sec-fetch-site", b"none"),),
    ],
)
def test_a_form_of_another_page_or_port_is_refused(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    assert refused("POST", "/secret/write", HOST, *headers) == (
        "403 Changes are taken only from the inspector's own pages."
    )


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_not_answered(method: str) -> None:
    assert refused(method, "/secret/keys", *OURS).startswith("405")


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= TOKEN_BYTES * 8 // 6


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    caching = {"cache-control": "private"} if scope["path"].endswith("asset") else {}
    await PlainTextResponse(f"{scope['root_path']} {scope['path']}", headers=caching)(scope, receive, send)


@pytest.mark.parametrize(("path", "status"), [("/secret/keys", 200), ("/wrong/keys", 403), ("/secret/asset", 200)])
def test_every_answer_tells_browsers_what_to_keep_from_it(path: str, status: int) -> None:
    client = TestClient(Guard(_answer, token=TOKEN, write=False), base_url="http://localhost")
    answer = client.get(path)
    assert answer.status_code == status
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cache-control"] == ("private" if path.endswith("asset") else "no-store")
    assert "set-cookie" not in answer.headers
    assert "secret" not in answer.text or status == 200


def test_without_its_last_slash_the_address_leads_to_the_one_that_links_are_relative_to() -> None:
    client = TestClient(Guard(_answer, token=TOKEN, write=False), base_url="http://localhost")
    answer = client.get("/secret", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/secret/")
    assert client.get("/secret/x").text == "/secret /secret/x"
    assert client.head("/nothing").content == b""
    with pytest.raises(RuntimeError, match="websocket"), client.websocket_connect("/secret/x"):
        pass

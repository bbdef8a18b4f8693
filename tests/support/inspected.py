"""The inspector in a test: its pages without a server, taken apart as a browser would; or served by the command."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

from starlette.testclient import TestClient

from statecache import Settings
from statecache.inspector.application import application
from statecache.inspector.source import Source
from statecache.settings import process_environment
from tests.support.command_line import WAIT_S, variables

TOKEN = "the-token-of-this-test"
ORIGIN = "http://127.0.0.1:8042"
_VOID = frozenset({"meta", "link", "input", "br", "circle", "line", "path"})


class Page(HTMLParser):
    """An answer: its status, its text without tags, its links, and the fields of its forms."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.status: int = answer.status_code
        self.headers: dict[str, str] = dict(answer.headers)
        self.source: str = answer.text
        self.url = str(answer.url)
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.fields: dict[str, str] = {}
        self.open: list[str] = []
        self._parts: list[str] = []
        if self.headers.get("content-type", "").startswith("text/html"):
            self.feed(self.source)
            assert self.open == [], "a tag that is not closed"
        self.text = " ".join("".join(self._parts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag == "input" and given.get("name") and given.get("type") == "hidden":
            self.fields[str(given["name"])] = given.get("value") or ""
        if tag in ("td", "th", "dt", "dd", "p", "li", "h1", "h2", "h3", "div", "summary", "a", "option", "span"):
            self._parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        assert self.open
        assert self.open.pop() == tag
        self._parts.append(" ")

    def handle_data(self, data: str) -> None:
        self._parts.append(data)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def facts(self) -> dict[str, str]:
        """Return what stands in the page's list of facts."""
        pairs = re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", self.source, re.DOTALL)
        return {name: " ".join(re.sub(r"<[^>]*>", " ", value).split()) for name, value in pairs}

    def links_to(self, page: str) -> list[dict[str, str]]:
        """Return the queries of the links that lead to a page."""
        found = [urlsplit(link) for link in self.links]
        return [{name: values[0] for name, values in parse_qs(one.query).items()} for one in found if one.path == page]


class Web:
    """An inspector of one deployment, asked as a browser on this machine asks."""

    def __init__(self, client: TestClient, source: Source) -> None:
        self.client = client
        self.source = source
        self.home = f"/{TOKEN}/"

    def get(self, page: str = "", **query: Any) -> Page:
        """Return a page."""
        return Page(self.client.get(f"{self.home}{page}", params=query or None))

    def follow(self, page: Page, link: str) -> Page:
        """Return the page that a link of another one leads to."""
        return Page(self.client.get(urljoin(page.url, link)))

    def post(self, page: str, fields: dict[str, Any], **headers: str) -> Page:
        """Send a form as a page of the inspector does, and return where that leads."""
        given = {"origin": ORIGIN, "sec-fetch-site": "same-origin"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        given = {name: value for name, value in given.items() if value}
        return Page(self.client.post(f"{self.home}{page}", data=fields, headers=given))


@contextmanager
def inspected(settings: Settings, *, write: bool = False) -> Iterator[Web]:
    """Open an inspector of a deployment."""
    source = Source(settings, write=write, operator="ada")
    with TestClient(application(source, token=TOKEN), base_url=ORIGIN) as client:
        yield Web(client, source)


class Served:
    """An inspector that the command serves, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return urlsplit(self.url).port or 0

    @contextmanager
    def stream(self, query: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """Open a live stream, and yield its events but those that only say that nothing happened."""
        with urllib.request.urlopen(f"{self.url}live?{query}", timeout=WAIT_S) as answer:
            yield _events(answer)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Tell it to stop, and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


def _events(lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        field, _, value = line.decode().strip().partition(": ")
        if field == "event":
            name = value
        elif field == "data" and name != "quiet":
            yield name, json.loads(value)
        if field in ("data", ""):
            name = ""


@contextmanager
def served(settings: Settings, *options: str) -> Iterator[Served]:
    """Run `statecache inspect` on a deployment, and end it behind the block if it still runs."""
    command = [sys.executable, "-m", "statecache", "inspect", "--json", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=process_environment() | variables(settings),
    )  # fmt: skip
    assert process.stdout
    assert process.stderr
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Served(process, json.loads(line)["url"])
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(WAIT_S)
        process.stdout.close()
        process.stderr.close()

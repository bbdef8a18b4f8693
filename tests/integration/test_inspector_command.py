"""`statecache inspect` as a process: where it listens, how it ends, and what it tells pages while they are open."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings
from statecache.inspector.pages.live import STREAMS_MAX
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeSettings
from tests.support.command_line import WAIT_S, CommandLine
from tests.support.inspected import Served, served
from tests.support.polling import pause_thread

KEY = "runs/42"


def got(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return str(answer.read().decode())


async def test_it_serves_to_this_machine_alone_until_it_is_told_to_stop(
    settings: Settings, cache: AsyncStateCache
) -> None:
    await cache.set(KEY, {"step": 1})
    with served(settings) as inspector:
        assert "step" in got(f"{inspector.url}key?key={KEY}")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            got(f"http://127.0.0.1:{inspector.port}/")
        with pytest.raises(OSError), socket.create_connection(("127.0.0.2", inspector.port), 5):
            pass
        assert inspector.end(signal.SIGINT) == 0
        assert inspector.process.stderr
        assert inspector.process.stderr.read() == ""


def test_urls_differ_from_start_to_start_and_the_port_can_be_insisted_on(settings: Settings) -> None:
    with served(settings) as first:
        port = str(first.port)
        token = first.url.split("/")[3]
        with served(settings, "--write") as second:
            assert second.port != first.port
            assert second.url.split("/")[3] != token
            assert "can write" in got(second.url)
        assert first.end() == 0
    with served(settings, "--port", port) as again:
        assert str(again.port) == port
        assert again.url.split("/")[3] != token


def test_a_port_that_is_taken_is_said(cli: CommandLine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = cli("inspect", "--port", str(taken.getsockname()[1]))
    assert ended.status == 3
    assert "cannot be listened on" in ended.err
    assert "Give another --port" in ended.err


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "jinja2"])
def test_without_the_extra_there_is_one_line(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; from statecache.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect"], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr == (
        "statecache: the inspector needs starlette, uvicorn and jinja2: "
        "pip install 'statecache[web]' ('.[web]' in a checkout)\n"
    )


@pytest.fixture
def inspector(settings: Settings) -> Iterator[Served]:
    """An inspector that the command serves."""
    with served(settings) as found:
        yield found


async def test_open_pages_are_told_what_becomes_durable(
    inspector: Served, cache: AsyncStateCache, worker: Worker
) -> None:
    await cache.set(KEY, "before")
    await flush(worker)
    with inspector.stream("prefix=runs/") as events, inspector.stream(f"only={KEY}") as own:
        assert (next(events), next(own)) == (("open", []), ("open", []))
        state = await cache.set(KEY, "after")
        await cache.set("runs/43", 1)
        await cache.set("others/1", 1)
        await flush(worker)
        found = {change["key"]: change for change in _until(events, 2)}
        assert set(found) == {KEY, "runs/43"}
        assert (found[KEY]["version"], found[KEY]["op"], found[KEY]["writer"]) == (2, "set", state.writer)
        assert "after" not in str(found)
        await cache.delete(KEY)
        await flush(worker)
        assert [(change["version"], change["op"]) for change in _until(own, 2)][-1] == (3, "delete")


def _until(events: Iterator[tuple[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return changes as they are told, until there are so many."""
    found: list[dict[str, Any]] = []
    for name, told in events:
        assert name == ""
        found += told
        if len(found) >= count:
            return found
    raise AssertionError(f"the stream has ended behind {found}")


async def test_it_ends_with_pages_open(inspector: Served) -> None:
    with inspector.stream("prefix=runs/") as events:
        assert next(events) == ("open", [])
        assert inspector.end() == 0
        assert list(events) == []


async def test_there_are_not_too_many_streams_and_a_closed_page_makes_room(inspector: Served) -> None:
    with ExitStack() as pages:
        for _ in range(STREAMS_MAX):
            assert next(pages.enter_context(inspector.stream("prefix=runs/"))) == ("open", [])
        with pytest.raises(urllib.error.HTTPError, match="503"), inspector.stream("prefix=runs/"):
            pass
    while True:
        try:
            with inspector.stream("prefix=runs/") as events:
                assert next(events) == ("open", [])
                return
        except urllib.error.HTTPError:  # it has not noticed yet
            pause_thread()


async def test_open_pages_are_told_that_postgres_is_away(make_settings: MakeSettings) -> None:
    url = "postgresql://127.0.0.1:1/x"
    away = make_settings(migrated=False, postgres_url=url, timeout_s=0.5, hydrate_token_s=0.5)
    with served(away) as inspector, inspector.stream("prefix=runs/") as events:
        name, told = next(events)
        assert name == "away"
        assert "Postgres is unavailable" in told

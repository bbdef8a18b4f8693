"""Connecting to a Postgres of which several addresses are known: one that is silent leaves time for the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.concurrency import TASKS, THREADS, Concurrency
from statecache.concurrency.bounding import BoundConnection, SeveredConnection
from statecache.core.postgres.connection import connect
from statecache.errors import ConfigurationError, PostgresUnavailable

TWO = "postgresql://127.0.0.1:1,127.0.0.1:2/x"
MANY = "postgresql://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,127.0.0.1:4/x"


class Server:
    """What each address does that is asked: `took` seconds, and then an error, or a connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, int]] = []
        self.answers: list[Any] = []
        self.took: Callable[[int], float] = float
        self._now = 100.0
        monkeypatch.setattr("statecache.concurrency.addresses.monotonic", lambda: self._now)
        monkeypatch.setattr(BoundConnection, "connect", self._connect)
        monkeypatch.setattr(SeveredConnection, "connect", self._connect_task)

    def _connect(self, **options: Any) -> Any:
        self.asked.append((options["port"], options["connect_timeout"]))
        self._now += self.took(options["connect_timeout"])
        answer = self.answers.pop(0) if self.answers else psycopg.errors.ConnectionTimeout("connection timeout expired")
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _connect_task(self, **options: Any) -> Any:
        return self._connect(**options)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """All addresses of a Postgres, silent ones at first."""
    return Server(monkeypatch)


async def _asked(server: Server, url: str, *, io: Concurrency = TASKS, connect_timeout_s: float = 5.0) -> Any:
    with pytest.raises(PostgresUnavailable):
        await connect(Settings(postgres_url=url, connect_timeout_s=connect_timeout_s), "test", io=io)
    return server.asked


@pytest.mark.parametrize("io", [TASKS, THREADS])
async def test_a_silent_host_leaves_its_share_of_the_time_to_the_next(server: Server, io: Concurrency) -> None:
    assert await _asked(server, TWO, io=io) == [("1", 2), ("2", 3)]
    server.answers, server.asked = [psycopg.errors.ConnectionTimeout("silent"), object()], []
    assert await connect(Settings(postgres_url=TWO, connect_timeout_s=20.0), "test", seconds=8.0, io=io)
    assert server.asked == [("1", 4), ("2", 4)]


async def test_what_a_host_that_refuses_at_once_did_not_need_is_the_others(server: Server) -> None:
    server.took = lambda _: 0.0
    assert await _asked(server, TWO, connect_timeout_s=10.0) == [("1", 5), ("2", 10)]


async def test_no_host_has_less_than_libpq_allows(server: Server) -> None:
    assert await _asked(server, MANY) == [("1", 2), ("2", 2), ("3", 2), ("4", 2)]


async def test_one_host_has_all_the_time(server: Server) -> None:
    assert await _asked(server, "postgresql://127.0.0.1:1/x") == [("1", 5)]


async def test_a_connect_timeout_in_the_url_is_the_most_that_each_host_has(server: Server) -> None:
    assert await _asked(server, TWO + "?connect_timeout=3", connect_timeout_s=10.0) == [("1", 3), ("2", 3)]
    server.asked = []
    assert await _asked(server, TWO + "?connect_timeout=9", connect_timeout_s=10.0) == [("1", 5), ("2", 5)]
    with pytest.raises(ConfigurationError, match="connect_timeout: 'soon'"):
        await connect(Settings(postgres_url=TWO + "?connect_timeout=soon"), "test")


async def test_of_several_hosts_that_let_nobody_in_the_last_one_is_told(server: Server) -> None:
    server.answers = [psycopg.OperationalError("one is away"), psycopg.OperationalError("another is away")]
    with pytest.raises(PostgresUnavailable, match="another is away"):
        await connect(Settings(postgres_url=TWO), "test")

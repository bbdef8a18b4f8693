"""What a pooler in front of Postgres refuses, in the words of PgBouncer 1.18, and libpq before it asks one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn, Self

import psycopg
import pytest
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus

from statecache import ConfigurationError, PostgresUnavailable, Settings
from statecache.cli.doctor import postgres as doctor
from statecache.core.postgres.connection import BEGIN, connect
from statecache_workers.database import Call, Database

SETTINGS = Settings(redis_url="redis://x/0", postgres_url="postgresql://127.0.0.1/y")


@pytest.mark.parametrize(
    "said",
    [
        "no such database: y",
        "unsupported startup parameter: options",
        'syntax error in service file "/etc/pg_service.conf", line 12',
    ],
)
async def test_what_the_url_names_and_a_pooler_does_not_have_is_no_outage(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise psycopg.OperationalError(f'connection to server at "x", port 6432 failed: FATAL:  {said}')

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", refused)
    with pytest.raises(ConfigurationError, match=said):
        await connect(SETTINGS, "a test")


class OfStatements:
    """A connection to a pooler that lends a server for one statement only: among several, nobody hears its reason."""

    closed = broken = False
    pgconn = SimpleNamespace(flush=lambda: 0)
    info = SimpleNamespace(backend_pid=1, transaction_status=TransactionStatus.IDLE)
    adapters = AdaptersMap(psycopg.adapters)

    def add_notice_handler(self, _: object) -> None:
        """Warn of nothing."""

    def pipeline(self) -> NoReturn:
        """Close the connection."""
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""

    async def execute(self, query: Any, *_: Any) -> Any:
        """Refuse what begins a transaction."""
        if query in ("BEGIN", BEGIN):
            raise psycopg.errors.ProtocolViolation("transaction blocks not allowed in statement pooling mode")
        pytest.fail(f"{query} was asked first")


async def test_the_doctor_tells_of_a_pooler_of_single_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients get along with it, which send their statements as one."""

    async def connected(*_: Any) -> OfStatements:
        return OfStatements()

    monkeypatch.setattr(doctor, "connect", connected)
    with pytest.raises(PostgresUnavailable, match="transaction blocks not allowed in statement pooling mode"):
        await doctor.ask(SETTINGS)


async def test_a_worker_tells_of_a_pooler_of_single_statements() -> None:
    session: Any = SimpleNamespace(connection=OfStatements(), alive=True)
    async with Database(session, SETTINGS).transaction() as transaction:
        with pytest.raises(PostgresUnavailable, match="transaction blocks not allowed in statement pooling mode"):
            await transaction.run(Call("cluster", {}))

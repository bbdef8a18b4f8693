"""What a pooler in front of Postgres refuses, in the words of PgBouncer 1.18."""

from __future__ import annotations

from typing import Any, NoReturn, Self

import psycopg
import pytest

from statecache import ConfigurationError, PostgresUnavailable, Settings
from statecache.cli.doctor import postgres as doctor
from statecache.core.postgres.connection import connect

SETTINGS = Settings(redis_url="redis://x/0", postgres_url="postgresql://x/y")


@pytest.mark.parametrize("said", ["no such database: y", "unsupported startup parameter: options"])
async def test_what_the_url_names_and_a_pooler_does_not_have_is_no_outage(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise psycopg.OperationalError(f'connection to server at "x", port 6432 failed: FATAL:  {said}')

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", refused)
    with pytest.raises(ConfigurationError, match=said):
        await connect(SETTINGS, "a test")


class OfStatements:
    """A connection to a pooler that lends a server for one statement only."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""

    async def execute(self, query: Any, *_: Any) -> Any:
        """Refuse what begins a transaction."""
        if query == "BEGIN":
            raise psycopg.errors.ProtocolViolation("transaction blocks not allowed in statement pooling mode")
        pytest.fail(f"{query} was asked first")


async def test_the_doctor_tells_of_a_pooler_of_single_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and clients are told only that the connection was closed, for they send more at once."""

    async def connected(*_: Any) -> OfStatements:
        return OfStatements()

    monkeypatch.setattr(doctor, "connect", connected)
    with pytest.raises(PostgresUnavailable, match="transaction blocks not allowed in statement pooling mode"):
        await doctor.ask(SETTINGS)

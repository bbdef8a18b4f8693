"""What a Postgres says that does not speak English, in the words of Postgres 15: it is told from one that is away."""

from __future__ import annotations

from typing import NoReturn

import psycopg
import pytest

from statecache import PostgresUnavailable, Settings
from statecache.core.postgres.connection import connect

SETTINGS = Settings(redis_url="redis://x/0", postgres_url="postgresql://127.0.0.1/y")
AT = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("FATAL:  Datenbank »nowhere« existiert nicht", "The server is up"),
        ("FATAL:  Passwort-Authentifizierung für Benutzer »pw« fehlgeschlagen", "The server is up"),
        ('ВАЖНО:  роль "nobody" не существует', "The server is up"),
        ('致命错误:  数据库 "nowhere" 不存在', "The server is up"),
        ("FATAL:  the database system is starting up", "The server is up"),
        (
            "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
            "Is the server up",
        ),
        ("server closed the connection unexpectedly", "Is the server up"),
        ("session is read-only", "`primary` asks for the primary"),
        ("server is in hot standby mode", "`primary` asks for the primary"),
    ],
)
async def test_a_server_that_refuses_is_not_asked_for(said: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked whether the server is up, where the database, the user or the password were wrong."""

    def refused(*_: object, **__: object) -> NoReturn:
        raise psycopg.OperationalError(f"{AT}{said}")

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", refused)
    with pytest.raises(PostgresUnavailable, match=told) as caught:
        await connect(SETTINGS, "a test")
    assert caught.value.reason == "connect", "it may pass by itself"
    assert ("password in the URL" in str(caught.value)) == (told == "The server is up")

"""Roles that Postgres knows and does not let in: told as a matter of configuration, with what to grant."""

from __future__ import annotations

from urllib.parse import urlsplit

import psycopg
import pytest

from statecache import Settings
from tests.support.command_line import CommandLine


@pytest.mark.own_servers("it closes a database for a moment")
@pytest.mark.parametrize(
    ("given", "taken", "answer"),
    [
        ("NOLOGIN", "SELECT", "is not permitted to log in"),
        ("LOGIN", "REVOKE CONNECT ON DATABASE {} FROM PUBLIC", "permission denied for database"),
    ],
)
def test_a_role_that_postgres_does_not_let_in_is_a_matter_of_configuration(
    cli: CommandLine, settings: Settings, given: str, taken: str, answer: str
) -> None:
    parts = urlsplit(settings.postgres_url)
    url = parts._replace(netloc=f"shut_out:secret@{parts.netloc.rpartition('@')[2]}").geturl()
    with psycopg.connect(settings.postgres_url, autocommit=True) as psql:
        database = psql.info.dbname
        psql.execute(f"CREATE ROLE shut_out {given} PASSWORD 'secret'".encode())
        psql.execute(taken.format(database).encode())
        try:
            ended = cli("doctor", "--json", "--postgres-url", url)
            logged = cli("log", "runs/1", "--flushed", "--postgres-url", url)
        finally:
            psql.execute(f"GRANT CONNECT ON DATABASE {database} TO PUBLIC".encode())
            psql.execute("DROP ROLE shut_out")
    assert (ended.status, ended.json["unreachable"]) == (3, [])
    (finding,) = [one for one in ended.json["findings"] if answer in one["what"]]
    assert finding["remedy"] == "give this role LOGIN, and CONNECT on the database"
    assert (logged.status, "Give this role LOGIN, and CONNECT on the database." in logged.err) == (3, True)

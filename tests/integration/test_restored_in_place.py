"""Agents beside a Postgres that is restored in its place: what worked, and is gone, is waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from statecache import ConfigurationError, PostgresUnavailable, Settings, StateCacheError, Unavailable
from statecache.keys import KeySpace
from tests.fixtures.servers import MakeClient

KEY = "runs/1"
AWAY = {
    "the table of shards": ("ALTER TABLE shard RENAME TO away", "ALTER TABLE away RENAME TO shard"),
    "the shards' rows": (
        "CREATE TABLE away AS SELECT * FROM shard; DELETE FROM shard",
        "INSERT INTO shard SELECT * FROM away; DROP TABLE away",
    ),
    "a function": ("ALTER FUNCTION begin_epoch RENAME TO away", "ALTER FUNCTION away RENAME TO begin_epoch"),
    "the schema": ("ALTER SCHEMA {schema} RENAME TO {schema}_away", "ALTER SCHEMA {schema}_away RENAME TO {schema}"),
}

pytestmark = pytest.mark.counts_seconds


class Gate:
    """The gate of KEY's shard, which a client may open."""

    def __init__(self, settings: Settings, raw: Any, psql: psycopg.Connection[Any]) -> None:
        self._raw, self._psql = raw, psql
        self._keys = KeySpace(settings.prefix, settings.shards)

    def close(self, server: str) -> None:
        """Have the shard belong to a server in whose place this one stands, without a loss."""
        shard = self._keys.shard(KEY)
        self._raw.hset(self._keys.meta(shard), "replid", server * 40)
        self._psql.execute("UPDATE shard SET replid = %s WHERE shard = %s", [server * 40, shard])


@pytest.mark.parametrize("missing", AWAY)
async def test_a_shard_is_opened_when_what_was_there_is_back(
    make_client: MakeClient, settings: Settings, redis_raw: Any, psql: psycopg.Connection[Any], missing: str
) -> None:
    """Their connections live: a restore in place need not end them."""
    client, gate = make_client(settings), Gate(settings, redis_raw, psql)
    gate.close("a")
    await client.set(KEY, 1)
    gate.close("b")
    away, back = (text.format(schema=settings.postgres_schema) for text in AWAY[missing])
    psql.execute(away.encode())
    with pytest.raises(Unavailable) as met:
        await client.set(KEY, "too early", timeout=1)
    assert met.value.reason == "epoch"
    assert "being restored" in f"{met.value} {met.value.__cause__}"
    psql.execute(back.encode())
    assert (await client.set(KEY, 2)).version == 2


async def test_rights_that_were_there_are_waited_for(
    make_client: MakeClient, settings: Settings, psql: psycopg.Connection[Any]
) -> None:
    """A dump grants them last; whoever never had them is told at once."""
    schema, role = settings.postgres_schema, f"{settings.postgres_schema}_agent"
    granted = f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"
    psql.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA {schema} TO {role}; {granted}")
    url = urlsplit(settings.postgres_url)
    url = url._replace(netloc=f"{role}:secret@{url.netloc.rpartition('@')[2]}")
    mine = settings.model_copy(update={"postgres_url": url.geturl()})
    try:
        client = make_client(mine)
        assert await client.get("runs/2") is None
        psql.execute(f"REVOKE SELECT ON ALL TABLES IN SCHEMA {schema} FROM {role}")
        with pytest.raises(PostgresUnavailable, match="else grant this role what it needs") as met:
            await client.get(KEY, timeout=1)
        assert met.value.reason == "schema"
        with pytest.raises(ConfigurationError, match="Grant this role what it needs"):
            await make_client(mine).get(KEY)
        psql.execute(granted)
        assert await client.get(KEY) is None
    finally:
        psql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("what", ["a read", "a key that is new", "a list", "versions"])
async def test_what_another_deployments_dump_holds_is_not_believed_on_connections_that_stand(
    make_client: MakeClient, settings: Settings, psql: psycopg.Connection[Any], what: str
) -> None:
    """Nor is another database, to which a pooler's alias was turned."""
    client = make_client(settings)
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "a read": lambda: client.get("runs/3", timeout=1),
        "a key that is new": lambda: client.create("runs/3", 1, timeout=1),
        "a list": lambda: anext(client.list("runs/", timeout=1)),
        "versions": lambda: client.get_at("runs/1", version=1, timeout=1),
    }
    await client.set(KEY, 1)
    assert await client.get("runs/2") is None
    ((ours,),) = psql.execute("SELECT id FROM cluster").fetchall()
    psql.execute("UPDATE cluster SET id = gen_random_uuid()")
    with pytest.raises(StateCacheError, match="it is another one than before"):
        await calls[what]()
    psql.execute("UPDATE cluster SET id = %s", [ours])
    assert await client.get("runs/3") is None

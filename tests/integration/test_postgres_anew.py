"""A Postgres that is lost for good and made anew beside a live Redis: the messages lead to where everything works."""

from __future__ import annotations

import re
from contextlib import ExitStack
from urllib.parse import urlsplit

import psycopg
import pytest

from statecache import PostgresUnavailable, Settings, StateCache
from statecache.keys import KeySpace
from statecache.testing import servers
from tests.fixtures.servers import plain_client
from tests.support.command_line import CommandLine

KEY = "runs/1"


def made_anew(url: str) -> None:
    """Drop a database, whoever uses it, and create an empty one of its name."""
    name = urlsplit(url).path.removeprefix("/")
    with psycopg.connect(urlsplit(url)._replace(path="/template1").geturl(), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
        connection.execute(f'CREATE DATABASE "{name}"'.encode())


def test_the_commands_that_the_messages_name_put_it_to_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started anew, and what Redis still holds is in the new Postgres, though its streams were trimmed."""
    with servers(workers=1, settings={"shards": "4"}) as started, ExitStack() as ending:
        own = Settings(redis_url=started.redis_url, postgres_url=started.postgres_url, shards=4)
        cli, keys = CommandLine(own, monkeypatch, capsys), KeySpace("sc", 4)
        client, leaving, idle = (ending.enter_context(StateCache(settings=own)) for _ in range(3))
        for number, one in enumerate((client, leaving, idle)):
            one.set(f"runs/{number}", 1, durability="postgres")
        with plain_client(own.redis_url) as raw:
            for shard in range(4):
                raw.xtrim(keys.changes(shard), maxlen=0)
        made_anew(own.postgres_url)
        leaving.set(KEY, 2)
        refused = cli("migrate")
        make, adopt = re.findall(r"`statecache (.+?)`", refused.err)
        assert refused.status == 3
        assert cli(*make.split()).status == 0
        with pytest.raises(PostgresUnavailable, match="another one than before"):
            client.get("runs/cold", timeout=0.5)
        with pytest.raises(PostgresUnavailable, match="`statecache doctor` says which command to run"):
            leaving.lost(timeout=0.5)
        left = leaving.close(drain=0.5)
        assert (left.shards, left.nothing) == ((keys.shard(KEY),), False)
        assert f"statecache {adopt}\n" in cli("doctor").out
        assert f"`statecache {adopt}`" in cli("epoch", "adopt", "all").err
        assert cli(*adopt.split()).status == 0
        assert idle.close(drain=20).nothing
        assert client.set(KEY, 3, durability="postgres").version == 3
        assert client.lost() == ()
        with psycopg.connect(own.postgres_url) as psql:
            found = psql.execute("SELECT key, version FROM statecache.state ORDER BY key").fetchall()
        assert found == [("runs/0", 1), ("runs/1", 3), ("runs/2", 1)]

"""The audit looks at the real servers: each is tampered with behind its back, and it sees every time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from statecache import Settings
from statecache.keys import KeySpace
from statecache.replay.audit import Verdict, judge
from statecache.replay.evidence import Sources
from statecache.replay.journal import Tail
from statecache.replay.ledger import Ledger
from statecache.replay.runs import AgentRun, key_of, read_runs
from statecache.replay.supervisor import Options, replayed
from statecache.testing import servers
from tests.fixtures.servers import plain_client

SAMPLE = Path(__file__).parents[2] / "statecache/replay/sample.jsonl"
KEY = key_of("library-renewal")
TABLES = ("change", "state", "conflict", "quarantine", "epoch")


class Scene(NamedTuple):
    """A replay that has ended well, with its servers still running."""

    settings: Settings
    runs: list[AgentRun]
    ledger: Ledger

    def audited(self) -> Verdict:
        """Audit what the servers hold now."""
        return asyncio.run(self._audited())

    async def _audited(self) -> Verdict:
        verdict = Verdict()
        async with Sources(self.settings) as sources:
            starts = await sources.starts()
            async for one in sources.evidence(self.runs, self.ledger):
                judge(one, starts, verdict)
        return verdict


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A replay of three runs, and a copy of every table."""
    folder = tmp_path_factory.mktemp("journals") / "of the replay"
    runs = read_runs(SAMPLE.read_bytes(), name="sample", limit=3)
    with servers(workers=0) as given:
        settings = Settings(redis_url=given.redis_url, postgres_url=given.postgres_url)
        options = Options(runs=runs, seed=1, flushers=1, journals=folder, durability="memory", timeout_s=120)
        with replayed(options, settings, show=lambda *_: None) as played:
            assert played.report.audit_ok
            ledger = Ledger()
            for path in sorted(folder.glob("agent-*.jsonl")):
                ledger.take(Tail(path).read())
            scene = Scene(played.stage.settings, runs, ledger)
            with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
                for table in TABLES:
                    of = f"{scene.settings.postgres_schema}.{table}"
                    connection.execute(f"CREATE TABLE copy_of_{table} AS TABLE {of}".encode())
            yield scene


@pytest.fixture
def psql(scene: Scene) -> Iterator[psycopg.Connection[Any]]:
    """A connection for tampering; afterwards every table is as it was."""
    url, path = scene.settings.postgres_url, f"{scene.settings.postgres_schema},public"
    with psycopg.connect(url, autocommit=True, options=f"-c search_path={path}") as connection:
        yield connection
        for table in TABLES:
            connection.execute(f"TRUNCATE {table}".encode())
            connection.execute(f"INSERT INTO {table} SELECT * FROM copy_of_{table}".encode())


def test_untouched_servers_pass(scene: Scene) -> None:
    verdict = scene.audited()
    assert verdict.ok
    assert verdict.findings == []


ANOTHER = """INSERT INTO change
    SELECT c.key, c.version + 1, 'again', c.change_id, c.shard, c.epoch, c.n + 1000, c.op, s.value, c.encoding,
           c.schema, c.writer, actor, reason, gap, at
    FROM change c JOIN state s ON s.key = c.key AND s.version = c.version WHERE c.key = %(key)s"""
FORK = """INSERT INTO conflict
    SELECT 'fork', key, shard, epoch, n, op, version, parent_change_id, '', encoding, schema, writer, actor, reason,
           at, 'test'
    FROM change WHERE key = %(key)s AND version = 2"""
TAMPERINGS = [
    ("DELETE FROM change WHERE key = %(key)s AND version = 3", "lost", "message 3, acknowledged"),
    (
        ANOTHER,
        "duplicated",
        "is in the chain 2 times",
    ),
    (
        FORK,
        "forked",
        "1 changes are in conflict",
    ),
    (
        "INSERT INTO quarantine VALUES (0, 1, 1, 'bad', ARRAY[%(key)s, 'runs/x'], '', '22P05', 'test')",
        "quarantined",
        "1 changes are in quarantine",
    ),
    ("UPDATE change SET parent_change_id = 'other' WHERE key = %(key)s AND version = 2", "others", "continues other"),
    ("UPDATE change SET gap = true WHERE key = %(key)s AND version = 2", "others", "has a gap before it"),
    ("UPDATE change SET value = '{}' WHERE key = %(key)s AND version = 2", "others", "has step 0, not 2"),
    ("UPDATE epoch SET start_n = 1000", "others", "outside its epoch"),
    ("UPDATE state SET value = '{}' WHERE key = %(key)s", "others", "the final state is not what the input makes"),
    ("UPDATE state SET version = 99 WHERE key = %(key)s", "others", "Redis has set version 16"),
    ("DELETE FROM state WHERE key = %(key)s", "others", "there is no state in Postgres"),
]


@pytest.mark.parametrize(("statement", "number", "told"), TAMPERINGS)
def test_tampering_with_postgres_is_seen(
    scene: Scene, psql: psycopg.Connection[Any], statement: str, number: str, told: str
) -> None:
    psql.execute(statement.encode(), {"key": KEY})
    verdict = scene.audited()
    assert getattr(verdict, number) > 0
    assert not verdict.ok
    assert told in "\n".join(verdict.findings)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"value": "{}"}, "with another value"),
        ({"version": "17"}, "Redis has set version 17"),
        ({"change_id": "other"}, "(other)"),
        ({"op": "delete"}, "Redis has delete version 16"),
    ],
)
def test_tampering_with_redis_is_seen(scene: Scene, fields: dict[str, str], told: str) -> None:
    keys = KeySpace(scene.settings.prefix, scene.settings.shards)
    with plain_client(scene.settings.redis_url) as client:
        before = client.hgetall(keys.state(KEY))
        client.hset(keys.state(KEY), mapping=fields)
        verdict = scene.audited()
        client.hset(keys.state(KEY), mapping=before)
    assert told in "\n".join(verdict.findings)
    assert not verdict.ok


def test_a_state_that_left_redis_is_loaded_and_compared(scene: Scene, psql: psycopg.Connection[Any]) -> None:
    keys = KeySpace(scene.settings.prefix, scene.settings.shards)
    with plain_client(scene.settings.redis_url) as client:
        client.delete(keys.state(KEY))
        assert scene.audited().ok
        assert client.exists(keys.state(KEY))

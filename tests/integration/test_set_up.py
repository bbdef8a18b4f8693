"""What the tests' own deployments are made by leaves behind what a migration leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from statecache import Settings, StateCache
from statecache.concurrency import THREADS, run
from statecache.concurrency.bounding import BoundConnection
from statecache.core.postgres.migrate import MigrationReport, migrate
from statecache.testing.emptied_schemas import Schemas, set_up
from tests.fixtures.servers import MakeSettings, Site, plain_client

POSTGRES = {
    "relations": """
        SELECT relname, relkind, reloptions, relacl::text, obj_description(oid, 'pg_class'),
               CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) END
        FROM pg_class WHERE relnamespace = 'NAME'::regnamespace AND relkind IN ('r', 'v') ORDER BY 1""",
    "columns": """
        SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull, attcollation, pg_get_expr(adbin, adrelid)
        FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = 'NAME'::regnamespace AND relkind IN ('r', 'v') AND attnum > 0 ORDER BY 1, attnum""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'NAME'::regnamespace ORDER BY 1, 2""",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'NAME' ORDER BY 1",
    "functions": """
        SELECT proname, pg_get_functiondef(oid), proacl::text
        FROM pg_proc WHERE pronamespace = 'NAME'::regnamespace ORDER BY 1""",
    "steps": "SELECT number, name FROM NAME.migration ORDER BY 1",
    "pin": "SELECT id::text, shards, hash, group_rule, prefix, min_code FROM NAME.cluster",
    "shards": "SELECT * FROM NAME.shard ORDER BY 1",
    "epochs": "SELECT shard, epoch, start_n, replid, opened_by FROM NAME.epoch ORDER BY 1",
}
"""Everything that Postgres holds of a deployment, but for times."""


def _in_postgres(settings: Settings) -> dict[str, str]:
    with BoundConnection.connect(settings.postgres_url) as connection:
        texts = {name: text.replace("NAME", settings.postgres_schema) for name, text in POSTGRES.items()}
        found = {name: connection.execute(text.encode()).fetchall() for name, text in texts.items()}
    assert all(found.values())
    return {name: repr(rows) for name, rows in found.items()}


def _contents(client: Any, name: str) -> Any:
    kind = client.type(name)
    look = {"hash": client.hgetall, "zset": lambda key: client.zrange(key, 0, -1, withscores=True)}
    return kind, client.pttl(name), look.get(kind, client.xlen)(name)


def _in_redis(settings: Settings) -> dict[str, str]:
    with plain_client(settings.redis_url, decode_responses=True) as client:
        names = sorted(client.scan_iter(f"{settings.prefix}:*"))
        return {name: repr(_contents(client, name)) for name in names}


def _left(settings: Settings) -> dict[str, str]:
    """Return everything that there is of a deployment, its own names aside."""
    with BoundConnection.connect(settings.postgres_url) as connection:
        row = connection.execute(f"SELECT id::text FROM {settings.postgres_schema}.cluster".encode()).fetchone()
    assert row is not None

    def nameless(text: str) -> str:
        return text.replace(settings.prefix, "NAME").replace(settings.postgres_schema, "NAME").replace(row[0], "ID")

    both = _in_postgres(settings) | _in_redis(settings)
    return {nameless(name): nameless(text) for name, text in both.items()}


@pytest.fixture
def fresh(make_settings: MakeSettings) -> tuple[Settings, Settings]:
    """Settings of two deployments that do not exist yet."""
    return make_settings(migrated=False), make_settings(migrated=False)


def test_a_deployment_that_was_set_up_is_one_that_was_migrated(fresh: tuple[Settings, Settings], site: Site) -> None:
    one, other = fresh
    run(migrate(one, io=THREADS))
    set_up(other, site.postgres)
    assert _left(other) == _left(one)
    assert len(_in_redis(one)) > one.shards
    assert run(migrate(other, io=THREADS)) == MigrationReport()


def test_a_deployment_in_a_schema_that_was_used_is_one_that_was_migrated(
    fresh: tuple[Settings, Settings], site: Site
) -> None:
    one, other = fresh
    run(migrate(one, io=THREADS))
    schemas = Schemas()
    used = schemas.set_up(other, site.postgres)
    with StateCache(settings=used) as cache:
        cache.set("runs/1", 1)
    site.postgres.execute(f"INSERT INTO {used.postgres_schema}.namespace VALUES ('runs', 'enforced', 1, 'x')".encode())
    schemas.give(used.postgres_schema, site.postgres)
    again = schemas.set_up(used.model_copy(update={"prefix": f"{used.prefix}_again"}), site.postgres)
    assert again.postgres_schema == used.postgres_schema
    assert _left(again) == _left(one)
    assert run(migrate(again, io=THREADS)) == MigrationReport()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE NAME.lost ADD COLUMN extra text",
        "DROP TABLE NAME.lost_change",
        "DROP INDEX NAME.change_position",
        "GRANT SELECT ON NAME.shard TO PUBLIC",
        "CREATE FUNCTION NAME.one() RETURNS int LANGUAGE sql RETURN 1",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA NAME GRANT SELECT ON TABLES TO PUBLIC",
        "CREATE TRIGGER t BEFORE INSERT ON NAME.shard EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "INSERT INTO NAME.migration SELECT n, 'x' FROM generate_series(100, 40000) AS n",
    ],
)
def test_a_schema_that_was_altered_is_not_used_again(fresh: tuple[Settings, Settings], site: Site, change: str) -> None:
    schemas = Schemas()
    used = schemas.set_up(fresh[0], site.postgres)
    site.postgres.execute(change.replace("NAME", used.postgres_schema).encode())
    schemas.give(used.postgres_schema, site.postgres)
    assert schemas.set_up(fresh[1], site.postgres).postgres_schema == fresh[1].postgres_schema

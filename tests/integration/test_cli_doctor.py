"""The doctor on real servers: it sees each wrong setting, says what it costs, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.keys import KeySpace
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.fixtures.servers import MakeSettings, on_database, plain_client
from tests.support.command_line import CommandLine

GOOD = {
    "maxmemory": "1gb",
    "maxmemory-policy": "volatile-lru",
    "maxmemory-clients": "20%",
    "client-output-buffer-limit": '"pubsub 32mb 8mb 60"',
}
OWNED = "UPDATE statecache.shard SET owner = 'a worker', lease_until = now() + interval '1 day'"
Psql = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def throwaway() -> Iterator[Servers]:
    """Servers of this module's own, whose settings it may spoil."""
    config = {name: value.strip('"') for name, value in GOOD.items()}
    with servers(workers=0, settings={"shards": "4"}, redis_config=config) as started:
        with psycopg.connect(started.postgres_url, autocommit=True) as connection:
            connection.execute(OWNED)
        yield started


@pytest.fixture
def own(throwaway: Servers) -> Settings:
    """The settings of the throwaway servers' deployment."""
    return Settings(redis_url=throwaway.redis_url, postgres_url=throwaway.postgres_url, shards=4)


@pytest.fixture
def cli(own: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on the throwaway servers."""
    return CommandLine(own, monkeypatch, capsys)


@pytest.fixture
def raw(own: Settings) -> Iterator[Any]:
    """A plain client of the throwaway Redis."""
    with plain_client(own.redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def psql(own: Settings) -> Iterator[Psql]:
    """A plain connection to the throwaway Postgres."""
    with psycopg.connect(own.postgres_url, autocommit=True) as connection:
        yield connection


@contextmanager
def configured(raw: Any, name: str, value: str) -> Iterator[None]:
    before = raw.config_get(name)[name]
    raw.config_set(name, value)
    try:
        yield
    finally:
        raw.config_set(name, before)


def found(cli: CommandLine, *arguments: str) -> tuple[int, dict[str, str], dict[str, str]]:
    """Return the exit status, the findings with their severity, and each level with '' or why it is not given."""
    ended = cli("doctor", "--json", *arguments)
    facts = ended.json
    levels = {one["level"]: "" if one["given"] else one["why"] for one in facts["levels"]}
    return ended.status, {one["what"]: one["severity"] for one in facts["findings"]}, levels


def test_servers_in_order_have_no_errors_and_no_warnings(cli: CommandLine) -> None:
    status, findings, levels = found(cli, "--strict", "--worker")
    assert status == 0
    assert set(findings.values()) == {"note"}
    assert levels == {
        "memory": "",
        "replica": "0 replicas are connected and 1 must acknowledge",
        "disk": "",
        "postgres": "",
    }
    shown = cli.apart("doctor")
    assert shown.status == 0
    assert "0 errors, 0 warnings, " in shown.out
    assert "disk\tyes\t" in shown.out
    assert "\x1b" not in shown.out


@pytest.mark.parametrize(
    ("name", "value", "what", "severity"),
    [
        ("appendonly", "no", "there is no append-only file", "warning"),
        ("appendfsync", "no", "appendfsync is no", "warning"),
        ("appendfsync", "everysec", "appendfsync is everysec", "note"),
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy is allkeys-lru", "error"),
        ("maxmemory-policy", "volatile-random", "maxmemory-policy is volatile-random", "warning"),
        ("maxmemory", "0", "there is no maxmemory", "warning"),
        ("maxmemory-clients", "0", "maxmemory-clients is 0", "warning"),
        ("proto-max-bulk-len", "8388607", "proto-max-bulk-len is 8388607 bytes", "warning"),
        ("client-query-buffer-limit", "16mb", "client-query-buffer-limit is 16777216 bytes", "warning"),
        ("client-output-buffer-limit", "pubsub 0 0 0", "client-output-buffer-limit has none for pubsub", "warning"),
    ],
)
def test_each_wrong_setting_of_redis_is_seen(
    cli: CommandLine, raw: Any, name: str, value: str, what: str, severity: str
) -> None:
    with configured(raw, name, value):
        status, findings, levels = found(cli)
        assert findings[what] == severity
        assert status == (1 if severity == "error" else 0)
        assert found(cli, "--strict")[0] == (0 if severity == "note" else 1)
        if value == "no":
            assert levels["disk"]
    with configured(raw, "appendfsync", "always"):
        assert what not in found(cli)[1]


def test_every_finding_has_its_cost_and_every_problem_its_remedy(cli: CommandLine, raw: Any) -> None:
    with configured(raw, "maxmemory-policy", "allkeys-lru"), configured(raw, "maxmemory-clients", "0"):
        shown = cli("doctor")
        facts = cli("doctor", "--json").json
    assert shown.status == 1
    assert [one["severity"] for one in facts["findings"]][:2] == ["error", "warning"]
    assert all(one["costs"] for one in facts["findings"])
    assert all(one["remedy"] for one in facts["findings"] if one["severity"] != "note")
    assert "  remedy  CONFIG SET maxmemory-policy volatile-lru, and in redis.conf" in shown.out


def test_a_replica_is_an_error(cli: CommandLine, raw: Any) -> None:
    raw.replicaof("127.0.0.1", 1)
    try:
        status, findings, _ = found(cli)
    finally:
        raw.replicaof("NO", "ONE")
    assert (status, findings["this is a replica"]) == (1, "error")


def test_too_few_replicas_for_any_write_are_an_error_here_and_in_status(
    cli: CommandLine, raw: Any, own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = "too few replicas: 0 replicas keep up with it, and min-replicas-to-write asks for at least one"
    assert not any("NOREPLICAS" in one for one in cli("status", "--json").json["attention"])
    with configured(raw, "min-replicas-to-write", "1"):
        status, findings, _ = found(cli)
        assert (status, findings[what.replace("at least one", "1")]) == (1, "error")
        ended = cli("status", "--json")
        (reason,) = [one for one in ended.json["attention"] if "NOREPLICAS" in one]
        assert (ended.status, "refuses every commit and every lock" in reason) == (1, True)
        with redis_user(raw, own, "+@all -config", monkeypatch):
            assert found(cli)[1][what] == "error"


@contextmanager
def redis_user(raw: Any, own: Settings, rights: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    raw.execute_command("ACL", "SETUSER", "someone", "reset", "on", ">secret", "~*", "&*", *rights.split())
    address = own.redis_url.rpartition("@")[2]
    monkeypatch.setenv("STATECACHE_REDIS_URL", f"redis://someone:secret@{address}")
    yield
    raw.acl_deluser("someone")


def test_what_a_managed_redis_hides_is_named_and_not_guessed(
    cli: CommandLine, raw: Any, own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_user(raw, own, "+@all -config", monkeypatch):
        status, findings, levels = found(cli)
    hidden = [what for what in findings if what.startswith("CONFIG GET is refused")]
    assert (status, len(hidden)) == (0, 1)
    assert "CONFIG GET appendfsync is refused" in levels["disk"]
    assert not [what for what in findings if "appendfsync is" in what and what not in hidden]


@pytest.mark.parametrize(
    ("rights", "severity", "named"),
    [
        ("+@all -xadd", "error", "XADD"),
        ("+@all -ssubscribe", "error", "SSUBSCRIBE"),
        ("+@all resetchannels &*:events", "error", "the channels &sc:{*}:events:* (SPUBLISH, SSUBSCRIBE)"),
        ("+@all resetchannels &sc:{00}*", "error", "&sc:{01}:events:* (SPUBLISH, SSUBSCRIBE) and of 2 shards more"),
        ("+@all resetkeys ~sc:{00}*", "error", "may not use the keys ~sc:{01}:* and of 2 shards more"),
        ("+@all resetkeys ~sc:{*}:[^w]*", "error", "the keys ~sc:{*}:waiters (HDEL, HMGET, HSET)"),
        *((f"+@all -{script}", "error", f"run {script.upper()}") for script in ("eval", "evalsha")),
        ("+@all -xtrim", "note", "XTRIM"),
    ],
)
def test_rights_that_an_agent_or_a_worker_lacks_in_redis_are_named(
    cli: CommandLine, raw: Any, own: Settings, monkeypatch: pytest.MonkeyPatch, rights: str, severity: str, named: str
) -> None:
    with redis_user(raw, own, rights, monkeypatch):
        (status, findings, _), as_worker = found(cli), found(cli, "--worker")[0]
        lacking = {findings[what] for what in findings if what.startswith("this user may not ") and named in what}
        assert severity in lacking
    of_worker = {"-ssubscribe": 0, "resetchannels &*:events": 0}.get(rights.partition(" ")[2], 1)
    assert (status, as_worker) == (1 if severity == "error" else 0, of_worker), "a worker listens to nobody"


def test_a_pin_that_is_not_ours_is_named_from_both_sides(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECACHE_SHARDS", "8")
    status, findings, levels = found(cli)
    assert status == 1
    assert {what for what in findings if " is pinned to " in what} == {
        f"{server} is pinned to shards 4; the settings say 8" for server in ("Redis", "Postgres")
    }
    assert all("is pinned to" in why for why in levels.values())
    pins = [one for one in cli("doctor", "--json").json["findings"] if " is pinned to " in one["what"]]
    assert ["here STATECACHE_SHARDS=4, or" in one["remedy"] for one in pins] == [True, True]


def test_a_redis_without_a_data_set_is_named(cli: CommandLine, raw: Any, own: Settings) -> None:
    meta = KeySpace("sc", 4).meta(0)
    held = raw.hgetall(meta)
    raw.delete(meta)
    try:
        status, findings, _ = found(cli)
    finally:
        raw.hset(meta, mapping=held)
    assert (status, findings["no data set under the prefix 'sc' has been opened here"]) == (1, "error")


def test_a_redis_that_takes_the_place_of_another_one_is_an_operators_to_claim(
    cli: CommandLine, raw: Any, psql: Psql, own: Settings
) -> None:
    """Nobody else may open it, neither agents nor `migrate`: no level is given."""
    ((replid,),) = psql.execute("SELECT DISTINCT replid FROM statecache.shard").fetchall()
    empty = on_database(own.redis_url, 9)
    status, findings, levels = found(cli, "--redis-url", empty)
    assert (status, findings["no data set under the prefix 'sc' has been opened here"]) == (1, "error")
    assert ["every commit is refused" in why for why in levels.values()] == [True] * 4
    told = cli("doctor", "--redis-url", empty)
    assert f"statecache epoch adopt all --from {replid}" in told.out
    assert "statecache migrate" not in told.out
    psql.execute("UPDATE statecache.shard SET replid = 'another', epoch = 9 WHERE shard = 3")
    try:
        status, findings, levels = found(cli)
    finally:
        psql.execute("UPDATE statecache.shard SET replid = %s, epoch = 1 WHERE shard = 3", (replid,))
    (what,) = [what for what in findings if "may not be opened" in what]
    assert (status, findings[what], what.startswith("1 of 4 shards may not be opened, 3 first: ")) == (1, "error", True)
    assert levels["memory"] == ""


def test_a_redis_that_nobody_has_opened_yet_is_for_migrate(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings(migrated=False)
    cli = CommandLine(settings, monkeypatch, capsys)
    assert cli("migrate", "--no-redis").status == 0
    facts = cli("doctor", "--json").json
    assert "statecache migrate" in [one["remedy"] for one in facts["findings"]]
    assert ["every commit is refused" in one["why"] for one in facts["levels"]] == [True] * 4


def test_shards_that_no_worker_owns_are_an_error_with_its_remedy(cli: CommandLine, psql: Psql) -> None:
    psql.execute("UPDATE statecache.shard SET lease_until = now() - interval '1 second' WHERE shard > 0")
    try:
        facts = cli("doctor", "--json")
    finally:
        psql.execute(OWNED)
    (one,) = [one for one in facts.json["findings"] if one["severity"] == "error"]
    assert facts.status == 1
    assert one["what"] == "3 of 4 shards have no live worker"
    assert one["remedy"].startswith("statecache worker; where one runs, its log says")
    assert "`postgres` durability is not reached" in one["costs"]


def test_two_deployments_mixed_up_are_named(cli: CommandLine, raw: Any) -> None:
    meta = KeySpace("sc", 4).meta(0)
    cluster = raw.hget(meta, "cluster")
    raw.hset(meta, "cluster", "another")
    try:
        status, findings, _ = found(cli)
    finally:
        raw.hset(meta, "cluster", cluster)
    (what,) = [what for what in findings if what.startswith(f"Redis belongs to cluster another, Postgres to {cluster}")]
    assert (status, findings[what], "never joined" in what) == (1, "error", True)


@pytest.mark.parametrize(
    ("name", "value", "what", "severity"),
    [
        ("synchronous_commit", "off", "synchronous_commit is off", "note"),
        (
            "default_transaction_read_only",
            "on",
            "the role postgres reads only (default_transaction_read_only)",
            "warning",
        ),
        ("idle_in_transaction_session_timeout", "0", "idle_in_transaction_session_timeout is 0", "note"),
        ("idle_session_timeout", "1s", "idle_session_timeout is 1 s", "warning"),
    ],
)
def test_each_wrong_setting_of_the_role_is_seen(
    cli: CommandLine, psql: Psql, name: str, value: str, what: str, severity: str
) -> None:
    psql.execute(f"ALTER ROLE postgres SET {name} = '{value}'".encode())
    try:
        assert found(cli)[1][what] == severity
        harmless = {"0": "60s", "1s": "1h", "on": "off"}.get(value, "on")
        psql.execute(f"ALTER ROLE postgres SET {name} = '{harmless}'".encode())
        assert what not in found(cli)[1]
    finally:
        psql.execute(f"ALTER ROLE postgres RESET {name}".encode())


def test_what_a_server_was_started_with_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"max_connections": "15"}
    with servers(workers=0, fsync=False, settings={"shards": "4"}, postgres_config=config) as started:
        own = Settings(redis_url=started.redis_url, postgres_url=started.postgres_url, shards=4)
        status, findings, _ = found(CommandLine(own, monkeypatch, capsys))
    assert status == 1
    assert findings["fsync is off"] == findings["full_page_writes is off"] == "error"
    assert [what for what in findings if "of 15 connections are left" in what]


def test_migrations_that_are_behind_or_ahead_are_named(cli: CommandLine, psql: Psql) -> None:
    psql.execute("INSERT INTO statecache.migration (number, name) VALUES (9999, 'later')")
    assert "a newer release has applied 9999" in found(cli)[1]
    psql.execute("DELETE FROM statecache.migration WHERE number = 9999")
    psql.execute("UPDATE statecache.migration SET number = -1 WHERE number = 1")
    status, findings, _ = found(cli)
    psql.execute("UPDATE statecache.migration SET number = 1 WHERE number = -1")
    assert (status, findings["migrations 1 are not applied"]) == (1, "error")


def test_a_database_without_the_schema_is_named(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECACHE_POSTGRES_SCHEMA", "elsewhere")
    status, findings, levels = found(cli)
    assert (status, findings["there is no schema 'elsewhere' with tables"]) == (1, "error")
    assert levels["postgres"]


def test_rights_that_an_agent_or_a_worker_lacks_in_postgres_are_named(
    cli: CommandLine, psql: Psql, own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    psql.execute("CREATE ROLE someone LOGIN PASSWORD 'secret'")
    address = own.postgres_url.rpartition("@")[2]
    monkeypatch.setenv("STATECACHE_POSTGRES_URL", f"postgresql://someone:secret@{address}")
    try:
        assert found(cli)[1]["the role someone may not use the schema"] == "error"
        psql.execute("GRANT USAGE ON SCHEMA statecache TO someone")
        psql.execute("GRANT SELECT ON ALL TABLES IN SCHEMA statecache TO someone")
        assert found(cli)[1]["the role someone may not run begin_epoch"] == "error"
        psql.execute("GRANT EXECUTE ON FUNCTION statecache.begin_epoch TO someone")
        status, findings, _ = found(cli)
        (lacking,) = [what for what in findings if what.startswith("the role someone lacks")]
        assert (status, findings[lacking]) == (0, "note")
        assert "UPDATE on shard" in lacking
        assert found(cli, "--worker")[0] == 1
        psql.execute("REVOKE SELECT ON statecache.worker FROM someone")
        assert found(cli)[0] == 0, "who may not see the workers misses none"
        psql.execute("REVOKE SELECT ON statecache.change FROM someone")
        status, findings, _ = found(cli)
        assert (status, findings["the role someone lacks SELECT on change"]) == (1, "error")
    finally:
        psql.execute("DROP OWNED BY someone")
        psql.execute("DROP ROLE someone")


@pytest.mark.parametrize(
    ("option", "url", "status", "what"),
    [
        ("--redis-url", "redis://127.0.0.1:1/0", 4, "idle_in_transaction_session_timeout is 0"),
        ("--postgres-url", "postgresql://127.0.0.1:1/x", 4, "appendfsync is everysec"),
        ("--postgres-url", "postgresql://127.0.0.1:1/x?nonsense=1", 3, "appendfsync is everysec"),
    ],
)
def test_with_one_server_away_the_other_is_examined(
    cli: CommandLine, option: str, url: str, status: int, what: str
) -> None:
    ended, findings, levels = found(cli, option, url)
    assert ended == status
    assert what in findings
    assert levels["postgres"]
    assert "unreachable  " in cli("doctor", option, url).out


def test_it_changes_nothing(cli: CommandLine, raw: Any, psql: Psql) -> None:
    def contents() -> tuple[Any, ...]:
        meta = KeySpace("sc", 4).meta(0)
        tables = [psql.execute(f"SELECT * FROM statecache.{name}".encode()).fetchall() for name in ("shard", "state")]
        return sorted(raw.scan_iter()), raw.hgetall(meta), tables

    before = contents()
    assert found(cli)[0] == 0
    assert contents() == before

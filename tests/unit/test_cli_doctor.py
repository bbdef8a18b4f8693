"""What the doctor makes of answers that a test's servers do not give: replicas, standbys, old and foreign servers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from statecache.cli.doctor import postgres as doctor_postgres
from statecache.cli.doctor import redis as doctor_redis
from statecache.cli.doctor.command import _against_postgres, _worth, between
from statecache.cli.doctor.postgres import PostgresFacts
from statecache.cli.doctor.postgres_rights import AGENT_READS, FUNCTIONS, WORKER_READS, WORKER_WRITES, lacking_of
from statecache.cli.doctor.redis import RedisFacts
from statecache.cli.doctor.redis_rights import Asked
from statecache.cli.status.replicas import replicas_min_of, too_few_replicas
from statecache.core.redis.rights import Rights
from statecache.keys import GROUP_RULE, HASH
from statecache.redis_errors import CLUSTER_NODE, SENTINEL
from statecache.settings import Settings
from statecache.sql import CODE, migrations

SETTINGS = Settings(redis_url="redis://x/0", postgres_url="postgresql://x/y")
NOTHING_REFUSED: dict[str, list[str]] = {"SELECT": [], "INSERT": [], "UPDATE": [], "DELETE": []}
REDIS = RedisFacts(
    info={"redis_version": "7.4.0", "role": "master", "connected_slaves": "0", "maxmemory": "1000",
          "maxmemory_policy": "volatile-lru", "aof_enabled": "1", "aof_last_write_status": "ok"},
    config={"appendfsync": "always", "save": "", "maxmemory-clients": "1073741824", "min-replicas-to-write": "1",
            "client-output-buffer-limit": "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"},
    config_refused="", pin=["64", HASH, "sc", "statecache", "one"], lacking=[],
    rights=Asked(Rights((), ())), ahead_s=0.0,
)  # fmt: skip
POSTGRES = PostgresFacts(
    version="17.2", version_num=170002,
    settings={"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "synchronous_standby_names": "",
              "max_connections": "100", "superuser_reserved_connections": "3",
              "idle_in_transaction_session_timeout": "60000", "default_transaction_read_only": "off"},
    standby=False, role="me", encoding="UTF8", standbys=[], connections=5,
    tables=dict.fromkeys({*AGENT_READS, *WORKER_READS, *WORKER_WRITES}, NOTHING_REFUSED),
    may_use=True, functions={name: True for some in FUNCTIONS for name in some.names},
    applied=[step.number for step in migrations("statecache")],
    cluster=("one", 64, HASH, GROUP_RULE, "sc", CODE), ahead_s=0.0,
)  # fmt: skip


def of_redis(**facts: Any) -> dict[str, str]:
    info = {**REDIS.info, **facts.pop("info", {})}
    config = {**REDIS.config, **facts.pop("config", {})}
    changed = msgspec.structs.replace(REDIS, **{"info": info, "config": config, **facts})
    return {one.what: one.severity for one in doctor_redis.findings(changed, SETTINGS, worker=True)}


def of_postgres(**facts: Any) -> dict[str, str]:
    given = {**POSTGRES.settings, **facts.pop("settings", {})}
    changed = msgspec.structs.replace(POSTGRES, settings=given, **facts)
    return {one.what: one.severity for one in doctor_postgres.findings(changed, SETTINGS, worker=True)}


def test_servers_in_order_give_no_finding_at_all() -> None:
    assert of_redis() == {}
    assert of_postgres() == {}
    assert between(REDIS, POSTGRES, SETTINGS) == []


@pytest.mark.parametrize(
    ("facts", "what", "severity"),
    [
        ({"info": {"connected_slaves": "2"}, "config": {"min-replicas-to-write": "0"}},
         "min-replicas-to-write is 0 with 2 replicas", "warning"),
        ({"info": {"connected_slaves": "1"}, "config": {"client-output-buffer-limit": "slave 33554432 0 0"}},
         "client-output-buffer-limit for replicas is 33554432 bytes", "warning"),
        ({"info": {"connected_slaves": "2", "min_slaves_good_slaves": "1"}, "config": {"min-replicas-to-write": "2"}},
         "too few replicas: 1 replicas keep up with it, and min-replicas-to-write asks for 2", "error"),
        ({"kind": "cluster", "rights": Asked(Rights((), ["INFO"]))}, CLUSTER_NODE, "error"),
        ({"kind": "sentinel", "info": {}, "pin": [], "rights": Asked(Rights((), ["EVAL"]))}, SENTINEL, "error"),
        ({"info": {"aof_last_write_status": "err"}}, "the append-only file could not be written", "error"),
        ({"info": {"rdb_last_bgsave_status": "err"}}, "the last snapshot failed", "warning"),
        ({"lacking": ["sharded pub/sub"]}, "Redis 7.4.0 lacks sharded pub/sub", "error"),
        ({"rights": Asked(Rights((), []), worker=Rights((), ["!the command XTRIM"]))},
         "Redis 7.4.0 lacks the command XTRIM", "error"),
        ({"rights": Asked(Rights((), []), agent=Rights((), ["SPUBLISH &"]), worker=Rights((), ["SPUBLISH &"]))},
         "this user may not run SPUBLISH", "error"),
    ],
)  # fmt: skip
def test_redis(facts: dict[str, Any], what: str, severity: str) -> None:
    assert of_redis(**facts) == {what: severity}


@pytest.mark.parametrize(
    ("maxmemory", "config", "told"),
    [
        ("0", {"client-output-buffer-limit": "normal 2097152 1048576 60 pubsub 1 1 1"},
         ["client-output-buffer-limit for clients is 2097152 bytes"]),
        ("0", {"client-output-buffer-limit": "normal 0 1048576 1 pubsub 1 1 1"},
         ["client-output-buffer-limit for clients is 1048576 bytes"]),
        ("0", {"client-output-buffer-limit": "normal 536870912 33554432 60 pubsub 1 1 1"}, []),
        ("0", {"maxmemory-clients": "3145728"}, ["maxmemory-clients is 3145728 bytes"]),
        ("104857600", {"maxmemory-clients": "20%"}, ["maxmemory-clients is 20%, 20971520 bytes"]),
        ("1073741824", {"maxmemory-clients": "20%"}, []),
        ("0", {"maxmemory-clients": "20%"}, []),
    ],
)  # fmt: skip
def test_limits_that_cut_a_worker_off_that_reads_a_batch(
    maxmemory: str, config: dict[str, str], told: list[str]
) -> None:
    found = of_redis(info={"maxmemory": maxmemory}, config=config)
    assert [what for what in found if "limit for clients" in what or "maxmemory-clients" in what] == told


def test_a_smaller_batch_fits_into_a_smaller_limit() -> None:
    facts = msgspec.structs.replace(REDIS, config={**REDIS.config, "maxmemory-clients": str(40 << 20)})
    small = SETTINGS.model_copy(update={"flush_bytes_max": 8 << 20})
    for settings, count in ((SETTINGS, 1), (small, 0)):
        found = [one for one in doctor_redis.findings(facts, settings, worker=True) if one.what.startswith("maxmemory")]
        assert [one.severity for one in found] == ["warning"] * count


def test_replicas_that_are_not_there_need_no_settings() -> None:
    assert of_redis(config={"min-replicas-to-write": "0", "client-output-buffer-limit": "slave 1 0 0"}) == {}
    unlimited = {"client-output-buffer-limit": "replica 0 0 0"}
    assert of_redis(info={"connected_slaves": "1"}, config=unlimited) == {}


def test_as_many_replicas_as_are_asked_for_are_in_order() -> None:
    keeping_up = {"connected_slaves": "2", "min_slaves_good_slaves": "2"}
    assert of_redis(info=keeping_up, config={"min-replicas-to-write": "2"}) == {}
    assert "too few replicas" not in str(of_redis(info=keeping_up, config_refused="NOPERM"))


@pytest.mark.parametrize(
    ("asked", "told"),
    [([b"min-replicas-to-write", b"2"], 2), ([], None), (Exception("NOPERM"), None), (None, None)],
)
def test_status_reads_how_many_replicas_are_asked_for_where_that_is_shown(asked: Any, told: int | None) -> None:
    assert replicas_min_of(asked) == told
    one = {"min_slaves_good_slaves": "1"}
    assert bool(too_few_replicas(one, told)) == (told == 2)


@pytest.mark.parametrize(
    ("facts", "what", "severity"),
    [
        ({"version_num": 140010, "version": "14.10"}, "this is Postgres 14.10", "error"),
        ({"standby": True, "unowned": (64, 64)}, "this is a standby", "error"),
        ({"encoding": "SQL_ASCII"}, "the database's encoding is SQL_ASCII", "error"),
        ({"standbys": [("a", "async")]}, "1 standbys, and synchronous_standby_names is empty", "warning"),
        ({"settings": {"synchronous_standby_names": "a"}},
         "synchronous_standby_names is 'a', and no synchronous standby is seen", "error"),
        ({"settings": {"synchronous_standby_names": "a"}, "standbys": [("a", None)]},
         "synchronous_standby_names is 'a', and no synchronous standby is seen", "note"),
        ({"connections": 90}, "7 of 100 connections are left", "warning"),
        ({"unowned": (3, 64)}, "3 of 64 shards have no live worker", "error"),
        ({"hindered": [("w1", "NOPERM", 0)]}, "worker w1 cannot serve: NOPERM", "error"),
        ({"hindered": [("w1", "", 4)]}, "worker w1 cannot serve: it does not say why", "error"),
        ({"applied": None}, "which migrations were applied cannot be seen", "note"),
        ({"cluster": ("one", 64, HASH, GROUP_RULE, "sc", CODE + 1)},
         f"the schema asks for code level {CODE + 1}, this program has {CODE}", "error"),
    ],
)  # fmt: skip
def test_postgres(facts: dict[str, Any], what: str, severity: str) -> None:
    assert of_postgres(**facts) == {what: severity}


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ({"shard": {"UPDATE": ["flushed", "shard"]}}, "UPDATE (flushed) on shard"),
        ({"shard": {"UPDATE": ["owner", "lease_until"]}}, "UPDATE (owner, lease_until) on shard"),
        ({"shard": {"UPDATE": [*WORKER_WRITES["shard"]["UPDATE"], "shard"]}}, "UPDATE on shard"),
        ({"shard": {"UPDATE": ["shard"], "INSERT": ["shard"]}}, ""),
        ({"worker": {"DELETE": ["worker"], "INSERT": ["id"]}}, "INSERT on worker, DELETE on worker"),
        ({}, ""),
    ],
)
def test_what_lacks_of_the_rights_is_named_by_column(refused: dict[str, dict[str, list[str]]], told: str) -> None:
    assert lacking_of(refused, WORKER_WRITES) == told


def test_functions_of_a_newer_or_older_schema_are_no_rights_that_lack() -> None:
    assert of_postgres(functions={"not_ours": False}) == {}
    assert of_postgres(functions={"set_locking": False}) == {"the role me may not run set_locking": "error"}


def test_synchronous_standbys_are_in_order() -> None:
    assert of_postgres(settings={"synchronous_standby_names": "a"}, standbys=[("a", "sync"), ("b", "async")]) == {}
    assert of_postgres(settings={"synchronous_standby_names": "ANY 1 (*)"}, standbys=[("a", "quorum")]) == {}


def test_clocks_that_differ_and_a_fence_that_is_off() -> None:
    ahead = msgspec.structs.replace(REDIS, ahead_s=5.0)
    behind = msgspec.structs.replace(POSTGRES, ahead_s=-3.0)
    assert [one.what for one in between(ahead, behind, SETTINGS)] == [
        "the clock of Redis is 5.0 s ahead of this machine's",
        "the clock of Postgres is 3.0 s behind this machine's",
    ]
    unfenced = Settings(redis_url="redis://x/0", postgres_url="postgresql://x/y", fence="off")
    assert [one.what for one in between(None, None, unfenced)] == ["the fence is off"]


def test_what_postgres_durability_is_worth() -> None:
    def worth(**facts: Any) -> str:
        given = {**POSTGRES.settings, **facts.pop("settings", {})}
        return _worth("postgres", SETTINGS, REDIS, msgspec.structs.replace(POSTGRES, settings=given, **facts))

    assert worth() == "survives any loss of Redis"
    assert "no crash of Postgres' machine" in worth(settings={"fsync": "off"})
    assert "may lack the last commits" in worth(standbys=[("a", "async")])
    assert _against_postgres(None) == "Postgres could not be asked"
    assert "standby" in _against_postgres(msgspec.structs.replace(POSTGRES, standby=True))
    assert "migrate" in _against_postgres(msgspec.structs.replace(POSTGRES, tables={}))

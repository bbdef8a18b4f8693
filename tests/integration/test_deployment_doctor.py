"""The doctor under the rights of config/roles.sql and config/users.acl.

Each right that is taken back is named, with what mends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from statecache.cli.doctor import postgres as doctor_postgres
from statecache.cli.doctor import redis as doctor_redis
from statecache.cli.doctor.findings import Finding
from tests.support.command_line import CommandLine
from tests.support.deployment_world import SHARDS, Deployment, agent, granted

GRANTED = """
SELECT privilege_type, column_name, table_name FROM information_schema.column_privileges
WHERE table_schema = 'statecache' AND grantee = %s AND privilege_type = 'UPDATE'
UNION ALL
SELECT privilege_type, '', table_name FROM information_schema.table_privileges
WHERE table_schema = 'statecache' AND grantee = %s AND privilege_type <> 'UPDATE'
"""
FUNCTIONS = """
SELECT DISTINCT routine_name FROM information_schema.routine_privileges
WHERE specific_schema = 'statecache' AND grantee = %s AND routine_name NOT IN (
    SELECT routine_name FROM information_schema.routine_privileges WHERE grantee = 'PUBLIC')
"""
NOT_NEEDED = {
    "agent": {"worker", "lock_token", "migration", "prune_pass", "erasure", "consumer", "vector_index"},
    "worker": {"migration", "consumer", "late_change", "vector_pending"},
}
"""Tables that are granted to everybody and that this one does not read."""


@contextmanager
def taken_back(deployment: Deployment, user: str, what: str) -> Iterator[None]:
    deployment.sql(f"REVOKE {what} FROM statecache_{user}")
    try:
        yield
    finally:
        deployment.sql(f"GRANT {what} TO statecache_{user}")


async def told(deployment: Deployment, user: str) -> list[Finding]:
    """Return what the doctor says of a role's rights."""
    settings = deployment.settings_of(user, shards=SHARDS)
    found = doctor_postgres.findings(await doctor_postgres.ask(settings), settings, worker=user == "worker")
    named = f"the role statecache_{user} "
    return [one for one in found if one.what.startswith((f"{named}lacks", f"{named}may not"))]


@pytest.mark.parametrize("user", ["agent", "worker"])
async def test_each_right_of_a_table_that_is_taken_back_is_named(deployment: Deployment, user: str) -> None:
    assert [one for one in await told(deployment, user) if one.severity != "note"] == []
    role, columns = f"statecache_{user}", set()
    for right, column, table in deployment.sql(GRANTED, role, role):
        some = f" ({column})" if column else ""
        columns.add(column)
        if right == "UPDATE" and table == "prune_pass":
            some = ""  # of the whole table
        elif right == "SELECT" and (table in NOT_NEEDED[user] or table.endswith("_view")):
            continue
        with taken_back(deployment, user, f"{right}{some} ON {table}"):
            (one,) = [one for one in await told(deployment, user) if one.severity != "note"]
        assert (one.severity, one.what) == ("error", f"the role {role} lacks {right}{some} on {table}")
        assert "config/roles.sql" in one.remedy
    assert (len(columns) > 20) == (user == "worker")


@pytest.mark.parametrize("user", ["agent", "worker"])
async def test_each_function_that_is_taken_back_is_named(deployment: Deployment, user: str) -> None:
    severities = {}
    for (name,) in deployment.sql(FUNCTIONS, f"statecache_{user}"):
        with taken_back(deployment, user, f"EXECUTE ON FUNCTION {name}"):
            (one,) = [one for one in await told(deployment, user) if "may not run" in one.what]
        assert one.what == f"the role statecache_{user} may not run {name}"
        assert (bool(one.costs), "config/roles.sql" in one.remedy) == (True, True)
        severities[name] = one.severity
    assert severities["begin_epoch"] == "error"
    assert severities["set_locking"] == {"agent": "warning", "worker": "error"}[user]
    assert ("erase_history" in severities) == (user == "worker")


@pytest.mark.parametrize("user", ["agent", "worker"])
async def test_each_command_that_is_taken_back_is_named(deployment: Deployment, raw: Any, user: str) -> None:
    """The levels tell WAITAOF."""
    settings = deployment.settings_of(user, shards=SHARDS)

    async def refused() -> dict[str, str]:
        found = doctor_redis.findings(await doctor_redis.ask(settings), settings, worker=user == "worker")
        told = [one for one in found if "this user may not" in one.what or "CONFIG GET is refused" in one.what]
        return {one.what.partition(" (")[0]: one.severity for one in told if "others need none of it" not in one.costs}

    before = await refused()
    assert before == ({"CONFIG GET is refused": "note"} if user == "worker" else {})
    severities = {}
    for command in sorted(granted(deployment, user) - {"waitaof"}):
        raw.execute_command("ACL", "SETUSER", user, f"-{command}")
        ((what, severities[command]),) = ((await refused()).items() - before.items()) or [("", "")]
        raw.execute_command("ACL", "SETUSER", user, f"+{command}")
        name = command.replace("|", " ").upper()
        assert what == (f"this user may not run {name}" if name != "CONFIG GET" else "CONFIG GET is refused")
    done_without = {"rpush": "warning", "blmpop": "warning", "client|tracking": "warning", "client|caching": "warning"}
    assert severities == dict.fromkeys(severities, "error") | (
        done_without | {"config|get": "note"} if user == "agent" else {}
    )


async def test_who_looks_needs_the_users_that_the_page_says(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with agent(deployment) as client:
        await client.set("looks/1", {"a": 1})
    reads = deployment.settings_of("inspector", shards=SHARDS)
    asks_redis = ["status", "top --once", "ls looks/", "get looks/1", "export looks/", "log looks/1"]
    asks_postgres = ["tail looks/ --once", "schemas", "lost", "quarantine list", "verify", "vectors list"]
    by_agent, by_worker = (
        reads.model_copy(update={"redis_url": deployment.redis.url_of(user)}) for user in ("agent", "worker")
    )
    deployment.sql("REVOKE ALL ON FUNCTION vector_tables() FROM statecache_inspector")  # as where roles came last
    deployment.run("grants")
    index = "(namespace, member, dims, relation, ready) VALUES ('notes', 'vectors', 1, 'not_made', true)"
    deployment.sql(f"INSERT INTO vector_index {index}")
    for settings, commands in ((by_agent, asks_redis), (by_worker, ["locks"]), (reads, asks_postgres)):
        cli = CommandLine(settings, monkeypatch, capsys)
        for command in commands:
            ended = await cli.beside(*command.split())
            assert (ended.status in (0, 1), "lack" in ended.err) == (True, False), (command, ended)
    deployment.sql("DELETE FROM vector_index")
    told = await CommandLine(reads, monkeypatch, capsys).beside("status")
    assert (told.status, "NOPERM" in told.err) == (3, True)

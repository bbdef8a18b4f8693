"""What a server lacks, and what it was pinned to by others, is found out before anything is written to it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from statecache import AsyncStateCache, ConfigurationError, RedisUnavailable, Settings
from statecache.cli.doctor import redis as doctor
from statecache.core.postgres.migrate import migrate
from statecache.core.redis import tier
from statecache.keys import KeySpace
from statecache.lua import Script, script
from statecache.testing import servers
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.denying import SAYS, denying

WITHOUT = {
    "sharded pub/sub": "name == 'SPUBLISH' then return { err = 'ERR Unknown Redis command called from script' }",
    "a replication id in INFO": "name == 'INFO' then return 'role:master\\r\\n'",
}
"""What a server may lack, and how its scripts would then be answered."""

SHADOW = """
local server = redis
local redis = setmetatable({{}}, {{ __index = server }})
redis.pcall = function(name, ...)
  if {answer} end
  return server.pcall(name, ...)
end
"""


@every_redis
@pytest.mark.parametrize("lacking", WITHOUT)
async def test_a_server_that_lacks_what_the_fence_needs_is_refused(
    settings: Settings, redis_raw: Any, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    before = {*redis_raw.scan_iter(f"{settings.prefix}:*")}

    def shadowed(name: str) -> Script:
        found = script(name)
        text = SHADOW.format(answer=WITHOUT[lacking]) + found.text if name == "handshake" else found.text
        return found._replace(text=text)

    monkeypatch.setattr(tier, "script", shadowed)
    async with AsyncStateCache(settings=settings) as cache:
        with pytest.raises(ConfigurationError, match=f"lacks {lacking}") as caught:
            await cache.set("runs/42", 1)
    assert "fence=off" in str(caught.value)
    assert {*redis_raw.scan_iter(f"{settings.prefix}:*")} == before


@pytest.mark.parametrize("command", ["UNLINK", "INFO", "EVALSHA"])
async def test_a_command_that_was_taken_away_is_named(
    make_client: MakeClient, settings: Settings, command: str
) -> None:
    with servers(workers=0, migrate=False, fsync=False, redis_config={"rename-command": f'{command} ""'}) as own:
        client = make_client(settings.model_copy(update={"redis_url": own.redis_url}))
        with pytest.raises(ConfigurationError, match=f"lacks the command {command}[ .]") as caught:
            await client.set("runs/42", 1)
        facts = await doctor.ask(settings.model_copy(update={"redis_url": own.redis_url}))
        assert [*facts.lacking, *facts.rights.client.unknown] == [f"the command {command}"]
        asked = facts.rights
        assert {some.refused for some in (asked.client, asked.agent, asked.worker, *asked.uses)} == {""}
    assert "rename-command" in str(caught.value)


@pytest.mark.own_servers("it takes commands away")
@pytest.mark.parametrize(
    ("command", "severity"),
    [("HELLO", "warning"), ("CLIENT", "warning"), ("BLMPOP", "warning"), ("SSUBSCRIBE", "error"), ("WAIT", "error")],
)
async def test_a_command_that_some_agents_do_without_is_missed_by_doctor(
    settings: Settings, command: str, severity: str
) -> None:
    with servers(workers=0, migrate=False, fsync=False, redis_config={"rename-command": f'{command} ""'}) as own:
        without = settings.model_copy(update={"redis_url": own.redis_url})
        found = doctor.findings(await doctor.ask(without), without, worker=False)
        (one,) = [one for one in found if f" lacks the command {command}" in one.what]
        assert (one.severity, bool(one.costs), "rename-command" in one.remedy) == (severity, True, True)


@pytest.mark.own_servers("it takes a command away")
async def test_a_command_that_only_workers_run_is_missed_by_doctor_and_by_migrate(settings: Settings) -> None:
    with servers(workers=0, migrate=False, fsync=False, redis_config={"rename-command": 'SCAN ""'}) as own:
        without = settings.model_copy(update={"redis_url": own.redis_url, "postgres_url": own.postgres_url})
        facts = await doctor.ask(without)
        asked = facts.rights
        assert (facts.lacking, asked.worker.unknown) == ([], ["the command SCAN"])
        assert [one for some in (asked.client, asked.agent, *asked.uses) for one in some.unknown] == []
        with pytest.raises(ConfigurationError, match=r"this Redis server lacks the command SCAN\.") as caught:
            await migrate(without)
        assert "rename-command" in str(caught.value)
        with psycopg.connect(own.postgres_url) as connection:
            assert connection.execute("SELECT to_regnamespace(%s)", [settings.postgres_schema]).fetchone() == (None,)


async def test_what_a_server_says_before_it_hangs_up_is_told_by_doctor(settings: Settings) -> None:
    with denying() as at, pytest.raises(RedisUnavailable, match=f"{at}.*{SAYS}"):
        await doctor.ask(settings.model_copy(update={"redis_url": f"redis://{at}"}))


@every_redis
@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ("~{p}:{{00}}:*", "~{p}:{{01}}:* and of 2 shards more"),
        ("~{p}:{{*}}:[^h]*", "~{p}:{{*}}:hydrating (DEL, HDEL, HLEN)"),
        ("~{p}:{{*}}:[^m]*", "~{p}:{{*}}:meta (HGET, HINCRBY, HMGET, HSET)"),
        ("%R~{p}:*", "~{p}:{{*}}:* (DEL, HDEL, HINCRBY, HSET, …)"),
    ],
)
async def test_the_pattern_of_keys_that_a_user_lacks_is_named(
    make_client: MakeClient, settings: Settings, redis_raw: Any, keys: str, named: str
) -> None:
    """One that fits only some shards, or not each kind of key, was met by whoever came to such a key."""
    name, parts = settings.prefix, urlsplit(settings.redis_url)
    pattern = keys.format(p=name)
    redis_raw.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", pattern, "&*", "+@all")
    url = parts._replace(netloc=f"{name}:secret@{parts.netloc.rpartition('@')[2]}").geturl()
    with pytest.raises(ConfigurationError) as caught:
        await make_client(settings.model_copy(update={"redis_url": url, "shards": 4})).get("runs/42")
    assert "may not use the keys " in str(caught.value)
    assert named.format(p=name) in str(caught.value)
    redis_raw.acl_deluser(name)


async def test_a_rule_that_would_put_keys_on_other_shards_is_refused_by_both_tiers(
    make_client: MakeClient, settings: Settings, redis_raw: Any, keys: KeySpace, psql: psycopg.Connection[Any]
) -> None:
    before = {*redis_raw.scan_iter(f"{settings.prefix}:*")}
    redis_raw.hset(keys.meta(0), "hash", "another")
    with pytest.raises(ConfigurationError, match="this Redis is pinned to hash another; this release crc32"):
        await make_client(settings).set("runs/42", 1)
    redis_raw.hset(keys.meta(0), "hash", "crc32")
    for column in (b"hash", b"group_rule"):
        kept = psql.execute(b"SELECT " + column + b" FROM cluster").fetchone()
        psql.execute(b"UPDATE cluster SET " + column + b" = 'another'")
        with pytest.raises(ConfigurationError, match="this schema is pinned"):
            await make_client(settings).set("runs/42", 1)
        psql.execute(b"UPDATE cluster SET " + column + b" = %s", kept)
    assert {*redis_raw.scan_iter(f"{settings.prefix}:*")} == before
    assert (await make_client(settings).set("runs/42", 1)).version == 1

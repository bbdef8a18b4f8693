"""What the users of Redis may not do: each is refused whatever its list in config/users.acl does not name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from statecache.keys import KeySpace
from tests.support.deployment_world import SHARDS, Deployment, Ran, agent, granted, plainly

REFUSED = {
    "agent": [
        "FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "CONFIG SET appendonly no", "CONFIG RESETSTAT", "ACL LIST",
        "SHUTDOWN NOSAVE", "REPLICAOF NO ONE", "CLIENT LIST", "CLIENT KILL TYPE normal", "SCRIPT FLUSH",
        "FUNCTION FLUSH", "MONITOR", "BGREWRITEAOF", "LATENCY RESET", "GET sc:{00}:x", "SET sc:{00}:x 1",
        "RENAME sc:{00}:meta sc:{00}:y",
        "DEL other", "DEL sc:00", "HGETALL other:{00}:meta", "HSET other a b", "PUBLISH sc:{00}:events x",
        "SPUBLISH other x", "SSUBSCRIBE other", "XTRIM sc:{00}:changes MAXLEN 0",
        "XREAD STREAMS sc:{00}:changes 0",
    ],
    "worker": [
        "FLUSHALL", "KEYS *", "CONFIG GET *", "CONFIG SET appendonly no", "ACL LIST", "SHUTDOWN NOSAVE",
        "REPLICAOF NO ONE", "CLIENT LIST", "MONITOR", "DEL other", "HGETALL other:{00}:meta", "RENAME sc:{00}:x other",
        "SPUBLISH other x", "WAIT 0 1", "GET sc:{00}:x", "SET sc:{00}:x 1",
    ],
    "inspector": [
        "FLUSHALL", "KEYS *", "CONFIG GET *", "ACL LIST", "EVAL return 0", "EVALSHA x 0", "MULTI", "WATCH sc:{00}:meta",
        "HGETALL other", "SPUBLISH sc:{00}:events x", "GET sc:{00}:x", "HSET sc:{00}:meta n 1", "DEL sc:{00}:meta",
    ],
    "default": ["PING", "HGETALL sc:{00}:meta"],
}  # fmt: skip
"""What each user tries in vain."""


@pytest.mark.parametrize("user", REFUSED)
def test_what_is_not_granted_is_refused(deployment: Deployment, raw: Any, user: str) -> None:
    let_through = []
    with deployment.raw(user) if user != "default" else stranger(deployment) as client:
        for line in REFUSED[user]:
            try:
                client.execute_command(*line.split())
                let_through.append(line)
            except redis.exceptions.ResponseError as error:
                if not isinstance(error, redis.exceptions.NoPermissionError):
                    let_through.append(f"{line}: {error}")
            except redis.exceptions.AuthenticationError:
                assert user == "default"
    assert let_through == []


def stranger(deployment: Deployment) -> Any:
    """Return a client without a user name."""
    return redis.Redis(port=deployment.redis.port, retry=Retry(NoBackoff(), 0), driver_info=None)


def test_a_script_reaches_no_further_than_its_caller(deployment: Deployment, raw: Any) -> None:
    with deployment.raw("agent") as client:
        for script, key in (("return redis.call('FLUSHALL')", None), ("return redis.call('DEL', 'other')", None),
                            ("return redis.call('GET', KEYS[1])", "other")):  # fmt: skip
            with pytest.raises(
                redis.exceptions.ResponseError, match=r"(?i)permission|ACL failure|can't run|can't access"
            ):
                client.eval(script, 1 if key else 0, *([key] if key else []))


LOOKS = (
    "PING", "INFO", "TIME", "SCAN 0 MATCH sc:* COUNT 10", "EXISTS {state}", "TYPE {state}", "TTL {state}",
    "PTTL {state}", "OBJECT ENCODING {state}", "MEMORY USAGE {state}", "HGET {state} value", "HMGET {state} key value",
    "HGETALL {state}", "HEXISTS {state} value", "HLEN {state}", "HSCAN {state} 0", "HSTRLEN {state} value",
    "XLEN {changes}", "XRANGE {changes} - +", "XREVRANGE {changes} + -", "XREAD COUNT 1 STREAMS {changes} 0",
    "XINFO STREAM {changes}", "ZCARD {unflushed}", "ZCOUNT {unflushed} 0 9", "ZSCORE {unflushed} _",
    "ZRANGE {unflushed} 0 -1", "ZRANGEBYSCORE {unflushed} 0 9", "SSUBSCRIBE {events}", "SUNSUBSCRIBE {events}",
)  # fmt: skip
"""Everything that an inspector may run."""


async def test_an_inspector_sees_everything_and_changes_nothing(deployment: Deployment, raw: Any) -> None:
    async with agent(deployment) as client:
        await client.set("runs/seen", 1)
    keys = KeySpace(shards=SHARDS)
    shard = keys.shard("runs/seen")
    names = {
        "state": keys.state("runs/seen"), "changes": keys.changes(shard), "unflushed": keys.unflushed(shard),
        "events": keys.events(shard),
    }  # fmt: skip
    ran = Ran()
    with ran.noting(raw), deployment.raw("inspector", protocol=2) as client:
        for line in LOOKS:
            plainly(client, *line.format(**names).split(" "))
    assert granted(deployment, "inspector") - ran.commands == set()


def test_an_inspector_may_run_no_command_that_writes(deployment: Deployment, raw: Any) -> None:
    writes = [name.decode() for name in plainly(raw, "COMMAND", "LIST", "FILTERBY", "ACLCAT", "write")]
    assert len(writes) > 100
    arities = [about[1] for about in plainly(raw, "COMMAND", "INFO", *writes)]
    key = KeySpace(shards=SHARDS).state("runs/seen")
    may: dict[str, list[str]] = {"inspector": [], "operator": []}
    for user, found_writable in may.items():
        for command, arity in zip(writes, arities, strict=True):
            arguments = [key] * max(1, abs(arity) - 1)
            with suppress(redis.exceptions.ResponseError):
                if plainly(raw, "ACL", "DRYRUN", user, *command.split("|"), *arguments) == b"OK":
                    found_writable.append(command)
    assert may["inspector"] == []
    raw.execute_command("ACL", "SETUSER", "inspector", "+hset")
    with deployment.raw("inspector") as client, pytest.raises(redis.exceptions.NoPermissionError, match="key"):
        client.hset(key, "value", "2")
    raw.execute_command("ACL", "SETUSER", "inspector", "-hset")
    assert len(may["operator"]) > 80

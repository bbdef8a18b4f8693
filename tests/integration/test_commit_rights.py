"""A Redis user who loses a right while it works: nothing is applied, and with the right restored all goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from statecache import AsyncStateCache, ConfigurationError, Settings, StateCacheError
from statecache.keys import KeySpace
from statecache.lua import script
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, rows, turn_until
from tests.fixtures.servers import MakeClient, every_redis, plain_client

KEY = "runs/42"
PLAN = "runs/42/plan"
SECRET = "secret"
Psql = psycopg.Connection[Any]


@pytest.fixture
def limited(redis_raw: Any, settings: Settings) -> Iterator[Settings]:
    """The settings of a user who may do everything with the deployment's keys, until a rule of his is changed."""
    name, parts = settings.prefix, urlsplit(settings.redis_url)
    rules = ("reset", "on", f">{SECRET}", f"~{name}:*", f"&{name}:*", "+@all")
    redis_raw.execute_command("ACL", "SETUSER", name, *rules)
    url = parts._replace(netloc=f"{name}:{SECRET}@{parts.netloc.rpartition('@')[2]}").geturl()
    yield settings.model_copy(update={"redis_url": url})
    redis_raw.acl_deluser(name)


@pytest.fixture
def rule(redis_raw: Any, settings: Settings) -> Callable[..., None]:
    """A changer of that user's rules."""
    return lambda *rules: redis_raw.execute_command("ACL", "SETUSER", settings.prefix, *rules)


def _held(redis_raw: Any, settings: Settings) -> dict[bytes, Any]:
    """Return everything that Redis holds of the deployment."""
    return {name: redis_raw.dump(name) for name in redis_raw.scan_iter(f"{settings.prefix}:*", count=1000)}


async def _write_both(client: AsyncStateCache, value: int) -> None:
    async with client.transaction(KEY, PLAN) as tx:
        tx.set(KEY, value)
        tx.set(PLAN, value)


LOST = {
    "HSET": (("-hset",), ("+hset",)),
    "PERSIST": (("-persist",), ("+persist",)),
    "ZADD": (("-zadd",), ("+zadd",)),
    "HDEL": (("-hdel",), ("+hdel",)),
    "XADD": (("-xadd",), ("+xadd",)),
    "one of the keys": (
        ("resetkeys", "%R~{0}:*", "~{0}:*:meta", "~{0}:*:changes", "~{0}:*:unflushed", "~{0}:*:hydrating",
         "~{0}:*:state:" + KEY),
        ("~{0}:*",),
    ),
}  # fmt: skip
"""Rights that a commit needs, each as the rules that take it away and those that give it back."""


@every_redis
@pytest.mark.parametrize("lost", LOST)
async def test_a_right_that_is_lost_in_mid_life_leaves_nothing_of_a_commit(
    make_client: MakeClient, limited: Settings, rule: Callable[..., None], settings: Settings, redis_raw: Any,
    keys: KeySpace, worker: Worker, psql: Psql, lost: str,
) -> None:  # fmt: skip
    client = make_client(limited)
    await _write_both(client, 1)
    await flush(worker)
    shard = keys.shard(KEY)
    redis_raw.hset(keys.hydrating(shard), "runs/other", "a-token|1|9999999999999")  # so HDEL is asked for too
    before, rules = _held(redis_raw, settings), LOST[lost]
    rule(*(one.format(settings.prefix) for one in rules[0]))
    with pytest.raises(ConfigurationError, match="the Redis user lacks rights"):
        await _write_both(client, 2)
    assert _held(redis_raw, settings) == before
    rule(*(one.format(settings.prefix) for one in rules[1]))
    await _write_both(client, 3)
    await flush(worker)
    assert rows(psql, "SELECT key, version FROM change ORDER BY version, key") == [
        (KEY, 1), (PLAN, 1), (KEY, 2), (PLAN, 2),
    ]  # fmt: skip
    assert [(await client.get(key)).value for key in (KEY, PLAN)] == [3, 3]  # type: ignore[union-attr]


def _commit_in_part(limited: Settings, keys: KeySpace, *states: Any, change_id: str) -> None:
    """Commit by a script that checks no rights first: it writes until one is missing, and no further."""
    text = script("commit").text
    unproven = text.replace("local may, lacking = redis.acl_check_cmd, nil", "local may, lacking = nil, nil")
    assert unproven != text
    with plain_client(limited.redis_url) as raw, pytest.raises(redis.ResponseError):
        Agents(limited, keys, raw).ask(*states, change_id=change_id, text=unproven)


@every_redis
@pytest.mark.parametrize("lost", ["HSET", "PERSIST", "ZADD", "HDEL"])
@pytest.mark.parametrize("flushed_before", [True, False])
async def test_a_commit_that_was_written_in_part_is_taken_out_and_its_shard_goes_on(
    agents: Agents, limited: Settings, rule: Callable[..., None], redis_raw: Any, keys: KeySpace,
    make_worker: MakeWorker, psql: Psql, log: Log, client: AsyncStateCache, lost: str, flushed_before: bool,
) -> None:  # fmt: skip
    """An earlier release, or whoever writes by hand, leaves one; it was reported as not applied."""
    worker = make_worker()
    agents.commit((KEY, "1"), (PLAN, "1"))
    if flushed_before:
        await flush(worker)
    redis_raw.hset(keys.hydrating(keys.shard(KEY)), "runs/other", "a-token|1|9999999999999")
    rule(*LOST[lost][0])
    _commit_in_part(limited, keys, (KEY, "2"), (PLAN, "2"), change_id="neverapplied")
    rule(*LOST[lost][1])
    await turn_until(worker, log, "expelled")
    await flush(worker)
    assert rows(psql, "SELECT key FROM change WHERE change_id = 'neverapplied'") == []
    assert [(await client.get(key)).value for key in (KEY, PLAN)] == [1, 1]  # type: ignore[union-attr]
    await _write_both(client, 3)
    await flush(worker)
    assert rows(psql, "SELECT key, version, n FROM change ORDER BY version, key") == [
        (KEY, 1, 1), (PLAN, 1, 1), (KEY, 2, 2), (PLAN, 2, 2),
    ]  # fmt: skip
    again = await client.set(KEY, 4, change_id="neverapplied")
    assert (again.version, again.value) == (3, 4)


async def test_a_restart_takes_out_what_was_written_in_part_too(
    agents: Agents, limited: Settings, rule: Callable[..., None], redis_raw: Any, keys: KeySpace,
    make_worker: MakeWorker, psql: Psql, client: AsyncStateCache,
) -> None:  # fmt: skip
    worker = make_worker()
    agents.commit((KEY, "1"), (PLAN, "1"))
    rule(*LOST["ZADD"][0])
    _commit_in_part(limited, keys, (KEY, "2"), (PLAN, "2"), change_id="neverapplied")
    rule(*LOST["ZADD"][1])
    meta = keys.meta(keys.shard(KEY))
    redis_raw.hset(meta, "replid", "a-restart", mapping={"continues": redis_raw.hget(meta, "replid")})
    await flush(worker)
    assert [(await client.get(key)).value for key in (KEY, PLAN)] == [1, 1]  # type: ignore[union-attr]
    await _write_both(client, 3)
    await flush(worker)
    assert rows(psql, "SELECT key, version, gap FROM change ORDER BY version, key") == [
        (KEY, 1, False), (PLAN, 1, False), (KEY, 2, False), (PLAN, 2, False),
    ]  # fmt: skip


@every_redis
async def test_a_right_to_read_the_stream_that_is_lost_is_named_by_whatever_reads_history(
    make_client: MakeClient, limited: Settings, rule: Callable[..., None], worker: Worker
) -> None:
    client = make_client(limited)
    await client.set(KEY, 1)
    await client.checkpoint(KEY, "mark", group=True, durability="memory")
    await flush(worker)
    state = await client.set(KEY, 2)
    rule("-xrange")

    async def listed() -> list[Any]:
        return [change async for change in client.history(KEY)]

    calls: dict[str, Callable[[], Any]] = {
        "history": listed,
        "get_at": lambda: client.get_at(KEY, version=state.version),
        "get_group_at": lambda: client.get_group_at(KEY, time=state.updated_at),
        "undo": lambda: client.undo(KEY),
        "rollback": lambda: client.rollback(KEY, "mark", group=True),
        "branch": lambda: client.branch(KEY, "runs/43", timeout=1),
    }
    told: dict[str, str] = {}
    for verb, call in calls.items():
        with pytest.raises(StateCacheError) as refused:
            await call()
        told[verb] = f"{type(refused.value).__name__} {refused.value}"
    lacks = "ConfigurationError .*the Redis user lacks rights"
    assert [verb for verb, said in told.items() if not re.match(lacks, said)] == []
    rule("+xrange")
    assert (await client.undo(KEY)).value == 1

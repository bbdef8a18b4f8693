"""A change whose entry is gone is rebuilt from its state with who made it, and why: histories are read by that."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.entries import many_of, said_of
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, rows
from tests.fixtures.servers import MakeClient, every_redis

Psql = psycopg.Connection[Any]

SAID = [("ada", "approved by the board"), ("", "späte Einsicht"), ("Zoë", ""), ("7 x", "12 monkeys"), ("", "")]


@every_redis
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("actor", "reason"), SAID)
async def test_who_made_a_change_and_why_is_rebuilt(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace, count: int, actor: str, reason: str
) -> None:
    await flush(worker)
    group = agents.key_on(0)
    agents.commit(*(f"{group}/{number}" for number in range(count)), actor=actor, reason=reason)
    redis_raw.xtrim(keys.changes(0), maxlen=0)
    await flush(worker)
    assert rows(psql, "SELECT actor, reason FROM change") == [(actor, reason)] * count
    assert rows(psql, "SELECT * FROM lost") == []


@pytest.mark.parametrize("count", [1, 2])
async def test_what_was_said_of_an_earlier_change_is_not_said_of_a_later_one(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace, count: int
) -> None:
    await flush(worker)
    group = agents.key_on(0)
    both = [f"{group}/{number}" for number in range(2)]
    agents.commit(*both, actor="ada", reason="approved")
    agents.commit(*both[:count])
    redis_raw.xtrim(keys.changes(0), maxlen=0)
    await flush(worker)
    said = dict(rows(psql, "SELECT key, actor || reason FROM change"))
    assert said == {both[0]: "", both[1]: "" if count == 2 else "adaapproved"}


async def test_an_undo_that_was_rebuilt_is_gone_on_from(
    make_client: MakeClient, settings: Settings, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    """It was taken for a value that somebody had written, so the next one brought the value before it back."""
    client, key = make_client(settings), "runs/1"
    for value in "ABCD":
        await client.set(key, value)
    await flush(worker)
    assert (await client.undo(key)).value == "C"
    redis_raw.xtrim(keys.changes(keys.shard(key)), maxlen=0)
    await flush(worker)
    assert (await client.undo(key)).value == "B"


@pytest.mark.parametrize(("actor", "reason"), SAID)
async def test_a_state_that_is_loaded_says_what_its_commit_said(
    make_client: MakeClient,
    settings: Settings,
    worker: Worker,
    redis_raw: Any,
    keys: KeySpace,
    actor: str,
    reason: str,
) -> None:
    """Postgres may go back to before it."""
    client, key = make_client(settings), "runs/1"
    await client.set(key, 1, reason="before")
    await client.set(key, 2, actor=actor, reason=reason)
    await flush(worker)
    redis_raw.unlink(keys.state(key))
    loaded = await client.get(key)
    assert loaded is not None
    assert loaded.value == 2
    state = {name.decode(): value for name, value in redis_raw.hgetall(keys.state(key)).items()}
    assert said_of(state) == (actor, reason)
    assert many_of(state) == 1

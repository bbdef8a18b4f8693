"""What a client asks Postgres goes there in one message: its limits hold, and misses of many tasks share it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.generators import execute

from statecache import AsyncStateCache, Settings, Unavailable
from statecache.concurrency.exchanging import rows_of
from statecache.core.postgres.tier import SPELLED, spelled
from statecache.keys import KeySpace
from statecache.sql import statement
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.dirtiness import evict
from tests.support.polling import pause

Psql = psycopg.Connection[Any]
ODD = [
    "runs/it's",
    'runs/"quoted"',
    "runs/back\\slash",
    "runs/\\'; --",
    "runs/%(keys)s",
    "runs/{a,b}",
    "runs/Ω",
    "runs/absent",
]
WAITING = b"SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'state'::regclass"


async def test_misses_of_many_tasks_share_a_query_and_each_has_its_own_answer(
    cache: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"runs/{number}" for number in range(64)]
    for name in names[::2]:
        await cache.set(name, name)
    await flush(worker)
    for name in names[::2]:
        assert evict(redis_raw, keys, name)
    cache._runtime.near.drop()
    asked, fetch_each = list[list[str]](), cache._runtime.postgres.fetch_each

    async def counted(wanted: Any, parameters: Any, *, seconds: float) -> Any:
        if "states" in wanted:
            asked.append(parameters["keys"])
        return await fetch_each(wanted, parameters, seconds=seconds)

    monkeypatch.setattr(cache._runtime.postgres, "fetch_each", counted)
    found = await asyncio.gather(*map(cache.get, names))
    assert [state and state.value for state in found] == [None if at % 2 else name for at, name in enumerate(names)]
    assert sorted(key for some in asked for key in some) == sorted(names[::2])
    assert len(asked) <= 32


@pytest.mark.parametrize("conforming", ["on", "off"])
async def test_keys_that_are_looked_for_are_quoted_whatever_the_server_takes_a_backslash_for(
    cache: AsyncStateCache, worker: Worker, psql: Psql, settings: Settings, conforming: str
) -> None:
    for name in ODD:
        await cache.set(name, 1)
    await flush(worker)
    psql.execute(f"SET standard_conforming_strings = {conforming}".encode())
    asked = {"shards": [0], "keys": [*ODD, "runs/nowhere"], "statement": "900ms"}
    names = ("look_limits", "watermarks", "state_keys", "lost_keys")
    text = spelled(psql.pgconn, names, settings.postgres_schema, asked)
    psql.pgconn.send_query(text)
    (limits,), (shard, *_), states, lost = rows_of(psql, psql.wait(execute(psql.pgconn)))
    assert (limits[0], limits[-1], shard[0]) == ("900ms", False, 0)
    assert sorted(key for (key,) in states) == sorted(ODD)
    assert lost == []


@pytest.mark.parametrize("conforming", ["on", "off"])
async def test_what_a_listing_asks_for_is_quoted_whatever_the_server_takes_a_backslash_for(
    cache: AsyncStateCache, worker: Worker, psql: Psql, settings: Settings, conforming: str
) -> None:
    for name in ODD:
        await cache.set(name, {"of": name, "count": 1})
    await flush(worker)
    psql.execute(f"SET standard_conforming_strings = {conforming}".encode())
    for statement_of_order in sorted(SPELLED - {"watermarks", "state_keys", "lost_keys"}):
        for name in ODD:
            where = [msgspec.json.encode({"of": name}).decode(), '{"count": 1}']
            asked = {
                "prefix": "runs/", "after": "runs/", "least": name, "before": "runs0", "most": name, "where": where,
                "without": [name], "values": True, "limit": None if name == ODD[0] else 5, "bytes": 1 << 20,
                "statement": "900ms",
            }  # fmt: skip
            text = spelled(psql.pgconn, ("read_limits", statement_of_order), settings.postgres_schema, asked)
            psql.pgconn.send_query(text)
            (limits,), rows = rows_of(psql, psql.wait(execute(psql.pgconn)))
            assert (limits[0], [row[0] for row in rows]) == ("900ms", [name])
            assert msgspec.json.decode(rows[0][2]) == {"of": name, "count": 1}


def test_statements_that_are_spelled_here_hold_no_percent_sign_but_in_what_they_are_given(settings: Settings) -> None:
    """Nothing undoubles one, as psycopg does."""
    for name in ("look_limits", "read_limits", *SPELLED):
        assert "%" not in re.sub(r"%\(\w+\)s", "", statement(name, settings.postgres_schema))


async def test_the_server_ends_a_statement_whose_time_is_up(
    cache: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    """Nothing else would: a session that waits for a lock does not look whether its client is still there."""
    await cache.set("runs/42", 1)
    await flush(worker)
    assert evict(redis_raw, keys, "runs/42")
    cache._runtime.near.drop()
    await worker.expiry.stop()  # which would wait for the table too
    with psql.transaction():
        psql.execute(b"LOCK TABLE state IN ACCESS EXCLUSIVE MODE")
        asking = asyncio.ensure_future(cache.get("runs/42", timeout=0.5))
        await _until_waiting(psql, 1)
        with pytest.raises(Unavailable):
            await asking
        await _until_waiting(psql, 0)
    state = await cache.get("runs/42")
    assert state is not None
    assert state.value == 1


async def _until_waiting(psql: Psql, count: int) -> None:
    async with asyncio.timeout(10):
        while psql.execute(WAITING).fetchone() != (count,):
            await pause()

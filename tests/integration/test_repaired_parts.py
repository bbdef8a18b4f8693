"""A gap that is passed in parts, or of which Postgres refuses something: what is recorded fits what is there."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.keys import KeySpace
from statecache_workers.quarantine_release import retry
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, MakeWorker, flush, rows

Psql = psycopg.Connection[Any]


async def test_a_rebuilt_change_that_was_parked_is_taken_in(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace, settings: Settings
) -> None:
    """And with it what was parked before it."""
    await flush(worker)
    psql.execute(b"ALTER TABLE change ADD CONSTRAINT no_bad CHECK (key NOT LIKE 'bad/%')")
    shard = keys.shard("bad/1")
    agents.commit(("bad/1", "1"), reason="in the stream")
    await flush(worker)
    agents.commit(("bad/1", "2"), ("bad/1/ü", "3"), actor="ada", reason="in the gap")
    redis_raw.xdel(keys.changes(shard), agents.entries(shard)[-1])
    await flush(worker)
    psql.execute(b"ALTER TABLE change DROP CONSTRAINT no_bad")
    assert [done.done for done in await retry(settings, None)] == [True, True]
    await flush(worker)
    assert rows(psql, "SELECT key, version, value, actor, reason FROM change ORDER BY n, key") == [
        ("bad/1", 1, b"1", "", "in the stream"),
        ("bad/1", 2, b"2", "ada", "in the gap"),
        ("bad/1/ü", 1, b"3", "ada", "in the gap"),
    ]
    assert (await verify(settings))[1] == []


@pytest.mark.parametrize("most", [1000, 3, 1])
async def test_what_only_bytes_tell_of_is_recorded_somewhere_in_the_whole_gap(
    agents: Agents, make_worker: MakeWorker, psql: Psql, redis_raw: Any, keys: KeySpace, settings: Settings, most: int
) -> None:
    """One of two states of a commit that does not tell how many there were was written again."""
    worker = make_worker(settings.model_copy(update={"flush_batch_max": most}))
    await flush(worker)
    names = ["a", "b", *"cdefghi", "z"]
    agents.commit(("runs/1/a", "1"), ("runs/1/b", "1"))
    for name in names[2:9]:
        agents.commit(f"runs/1/{name}")
    agents.commit(("runs/1/b", "2"))
    agents.commit("runs/1/z")
    redis_raw.xtrim(keys.changes(keys.shard("runs/1")), maxlen=0)
    for name in names:
        redis_raw.hdel(keys.state(f"runs/1/{name}"), "parts")
    await flush(worker)
    assert rows(psql, "SELECT first_n, last_n, positions FROM lost") == [(1, 10, 1)]
    assert (await verify(settings))[1] == []


async def test_the_backlog_falls_with_each_part(
    agents: Agents, make_worker: MakeWorker, redis_raw: Any, keys: KeySpace, settings: Settings
) -> None:
    worker = make_worker(settings.model_copy(update={"flush_batch_max": 2}))
    await flush(worker)
    shard = keys.shard("runs/1")
    for number in range(10):
        agents.commit(f"runs/1/{number}")
    redis_raw.xtrim(keys.changes(shard), maxlen=0)
    seen = dict[int, int]()
    while len(seen) < 6:
        await worker.turn()
        meta = {name: int(value) for name, value in agents.meta(shard).items() if value.isdigit()}
        seen[meta["n"] - meta["flushed"]] = meta["entries"] - meta["flushed_entries"]
    assert seen == {left: left for left in (10, 8, 6, 4, 2, 0)}

"""What stands in a shard's stream that no commit wrote: it is set aside or taken out, and the shard goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import psycopg
import pytest

from statecache.keys import KeySpace
from statecache_workers import foreign_entries
from statecache_workers.foreign_entries import ENTRIES_PER_PAGE, PAGES_PER_TURN
from statecache_workers.worker import Worker
from tests.fixtures.flusher import TURNS_S, Agents, Log, flush, flushed, rows, turn_until
from tests.fixtures.servers import every_redis

Psql = psycopg.Connection[Any]
LAST_ID = "18446744073709551615-18446744073709551615"


@every_redis
async def test_another_programs_entry_is_parked_and_taken_out_and_commits_go_on(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    """Added in the usual way its id is far above ours: no commit can be added behind it."""
    key = agents.key_on(0)
    agents.commit(key)
    stray = redis_raw.xadd(keys.changes(0), {"temperature": "21"})
    assert agents.ask(key)[1] == b"FOREIGN"
    await turn_until(worker, log, "expelled")
    agents.commit(key)
    await flush(worker)
    assert agents.entries(0) == ["1-1", "1-2"]
    assert rows(psql, "SELECT version, gap FROM change ORDER BY version") == [(1, False), (2, False)]
    assert log.of("expelled") == [{"alarm": True, "shard": 0, "entries": 1}]
    milliseconds = int(stray.partition(b"-")[0])
    parked = rows(psql, "SELECT epoch, n, entry FROM quarantine")
    assert parked == [(milliseconds, -1, msgspec.msgpack.encode([b"temperature", b"21"]))]


async def test_however_many_entries_another_program_adds_they_are_taken_out_and_commits_go_on(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    agents.commit(key)
    await flush(worker)
    pipe = redis_raw.pipeline(transaction=False)
    many = PAGES_PER_TURN * ENTRIES_PER_PAGE + 1
    for _ in range(many):
        pipe.xadd(keys.changes(0), {"temperature": "21"})
    pipe.execute()
    await turn_until(worker, log, "expelled")
    assert agents.ask(key)[1] == b"FOREIGN", "a turn takes out so many"
    await worker.rest()
    await worker.turn()
    agents.commit(key)
    await flush(worker)
    assert flushed(psql)[0] == 2
    assert agents.entries(0) == ["1-1", "1-2"]
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(many,)]
    assert [line["entries"] for line in log.of("expelled")] == [many - 1, 1]
    assert worker.flusher.counters.quarantined == many


@every_redis
@pytest.mark.parametrize("stray", ["*", LAST_ID])
async def test_a_stream_that_ends_with_an_entry_that_was_deleted_again_takes_commits_again(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace,
    monkeypatch: pytest.MonkeyPatch, stray: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(foreign_entries, "_LOOK_S", 0.0)
    key = agents.key_on(0)
    agents.commit(key)
    await flush(worker)
    stray = redis_raw.xadd(keys.changes(0), {"temperature": "21"}, id=stray).decode()
    redis_raw.xdel(keys.changes(0), stray)
    assert agents.ask(key)[1] == b"FOREIGN"
    await turn_until(worker, log, "expelled")
    agents.commit(key)
    await flush(worker)
    assert agents.entries(0) == ["1-1", "1-2"]
    assert log.of("expelled") == [{"alarm": True, "shard": 0, "entries": 0, "last_id": stray}]
    assert rows(psql, "SELECT version, gap FROM change ORDER BY version") == [(1, False), (2, False)]
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(0,)]


async def test_an_entry_with_the_very_last_id_is_taken_out_too(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    """Nothing can be asked for behind it."""
    key = agents.key_on(0)
    agents.commit(key)
    await flush(worker)
    redis_raw.xadd(keys.changes(0), {"temperature": "21"}, id=LAST_ID)
    await turn_until(worker, log, "expelled")
    agents.commit(key)
    await flush(worker)
    assert agents.entries(0) == ["1-1", "1-2"]
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(1,)]


async def test_what_could_not_be_taken_out_is_not_said_to_be(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    agents.commit(key)
    await flush(worker)
    stray = redis_raw.xadd(keys.changes(0), {"temperature": "21"})
    psql.execute(b"ALTER TABLE quarantine ADD CONSTRAINT full_up CHECK (false)")
    await turn_until(worker, log, "not_quarantined")
    assert redis_raw.xrange(keys.changes(0), min=stray)
    assert not log.of("expelled")
    assert worker.flusher.counters.quarantined == 0
    psql.execute(b"ALTER TABLE quarantine DROP CONSTRAINT full_up")
    worker.refresh()
    await turn_until(worker, log, "expelled")
    assert agents.commit(key) == "1-2"


async def test_an_entry_in_the_next_place_is_taken_out_too(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    agents.commit(key)
    redis_raw.xadd(keys.changes(0), {"x": "1"}, id="1-2")
    redis_raw.xadd(keys.changes(0), {"x": "2"}, id="18446744073709551615-5")
    await turn_until(worker, log, "expelled")
    assert agents.commit(key) == "1-2"
    await flush(worker)
    assert flushed(psql)[0] == 2
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(2,)]


async def test_an_entry_that_looks_newer_where_no_commit_can_be_is_taken_out(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    key = agents.key_on(0)
    agents.commit(key)
    await flush(worker)
    redis_raw.xadd(keys.changes(0), {"format": "3", "what": "ever"})
    await turn_until(worker, log, "expelled")
    agents.commit(key)
    await flush(worker)
    assert flushed(psql)[0] == 2
    assert not log.of("newer_format")


async def test_a_foreign_entry_that_was_taken_for_a_position_is_parked_in_its_place(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    """Meta has counted it, as after an epoch was opened behind it."""
    key = agents.key_on(0)
    agents.commit(key)
    redis_raw.xadd(keys.changes(0), {"x": "1"}, id="1-2")
    redis_raw.hset(keys.meta(0), "n", 2)
    agents.commit(key)
    await flush(worker)
    assert rows(psql, "SELECT n FROM change ORDER BY n") == [(1,), (3,)]
    assert rows(psql, "SELECT epoch, n, sqlstate FROM quarantine") == [(1, 2, "entry")]
    assert agents.meta(0)["excepted"] == "2"


async def test_an_entry_of_a_newer_release_stops_its_shard_and_nothing_is_parked(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    newer, other = agents.key_on(0), agents.key_on(1)
    agents.commit(newer)
    redis_raw.xadd(keys.changes(0), {"format": "3", "what": "ever"}, id="1-2")
    redis_raw.hset(keys.meta(0), "n", 2)
    agents.commit(other)
    await flush(worker)
    agents.commit(other)
    await flush(worker)
    assert rows(psql, "SELECT (SELECT count(*) FROM quarantine), (SELECT count(*) FROM change)") == [(0, 3)]
    assert flushed(psql)[0] == 1
    assert log.of("newer_format")[0]["alarm"]
    assert rows(psql, "SELECT owner FROM shard WHERE shard = 0") == [(None,)], "a newer worker may take it"


@pytest.mark.parametrize("which", ["meta", "changes", "unflushed"])
async def test_a_key_of_another_type_stops_its_shard_alone_and_is_named(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace, which: str
) -> None:
    foreign, other = agents.key_on(0), agents.key_on(1)
    agents.commit(foreign)
    name = getattr(keys, which)(0)
    held = redis_raw.dump(name)
    redis_raw.set(name, "something else")
    agents.commit(other)
    async with asyncio.timeout(TURNS_S):
        while name not in repr(log.lines) or not rows(psql, "SELECT FROM change WHERE key = %s", other):
            await worker.turn()
            await worker.rest()
    assert which != "changes" or agents.meta(0)["flushed"] == "0"
    redis_raw.restore(name, 0, held, replace=True)
    worker.refresh()
    await flush(worker)
    agents.commit(foreign)
    await flush(worker)
    assert flushed(psql)[0] == 2
    assert agents.meta(0)["flushed"] == "2"

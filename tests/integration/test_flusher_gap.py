"""Somebody trims or deletes entries before they are flushed: noticed, repaired from the states, counted."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.errors import RedisUnavailable
from statecache.keys import KeySpace
from statecache_workers import recall
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flushed, rows
from tests.fixtures.servers import every_redis

Psql = psycopg.Connection[Any]


@every_redis
async def test_a_trimmed_stream_is_repaired_from_the_states(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    await flush(worker)
    one, two = agents.key_on(0), agents.key_on(0, "jobs")
    agents.commit((one, "first"))
    agents.commit((two, "second"))
    agents.commit({"key": one, "op": "delete", "value": ""})
    assert redis_raw.xtrim(keys.changes(0), maxlen=0) == 3
    await flush(worker)
    (told,) = log.of("gap")
    assert {name: told[name] for name in ("first", "last", "repaired", "lost", "keys")} == {
        "first": 1, "last": 3, "repaired": 2, "lost": 1, "keys": [one],
    }  # fmt: skip
    assert rows(psql, "SELECT key, version, op, gap FROM change ORDER BY key") == sorted(
        [(one, 2, "delete", True), (two, 1, "set", False)]
    )
    assert agents.dirty(0) == set()
    meta = agents.meta(0)
    assert (meta["flushed"], meta["flushed_entries"], meta["flushed_bytes"]) == ("3", meta["entries"], meta["bytes"])
    agents.commit((one, "later"))
    await flush(worker)
    assert rows(psql, "SELECT version, gap FROM change WHERE key = %s ORDER BY version", one) == [(2, True), (3, False)]


@pytest.mark.parametrize("how", ["evicted", "overwritten", "whole"])
async def test_a_commit_of_which_a_part_can_be_rebuilt_is_lost_in_part(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace, how: str
) -> None:
    """The position is found again, and held more than what the states still hold."""
    await flush(worker)
    one = agents.key_on(0)
    other = f"{one}/other"
    agents.commit((one, "-30"), (other, "+30"))
    if how == "evicted":
        redis_raw.unlink(keys.state(other))
    if how == "overwritten":
        agents.commit((other, "later"))
    redis_raw.xtrim(keys.changes(0), maxlen=0)
    await flush(worker)
    repaired = 0 if how == "evicted" else 1
    (told,) = log.of("gap")
    lost = 0 if how == "whole" else len(other) + len("+30") + 200
    assert (told["repaired"], told["lost"], told["missing_bytes"]) == (repaired, int(lost > 0), lost)
    recorded = rows(psql, "SELECT first_n, last_n, cause, positions, keys FROM lost")
    assert recorded == ([(1, 1, "gap", 1, [one, other])] if lost else [])
    assert rows(psql, "SELECT key FROM change WHERE n = 1 AND key = %s", one) == [(one,)], "what is there is kept"
    meta = agents.meta(0)
    assert (meta["flushed"], meta["flushed_bytes"]) == (meta["n"], meta["bytes"])


HALF, WHOLE, GONE = "half", "whole", "gone"


@pytest.mark.parametrize("often", [1, 7])
@pytest.mark.parametrize("commits", [(WHOLE, HALF), (HALF, WHOLE), (HALF, HALF), (GONE, HALF), (HALF, WHOLE, GONE)])
async def test_each_position_of_a_gap_that_is_not_whole_again_counts_as_lost(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace, commits: tuple[str, ...],
    often: int,
) -> None:  # fmt: skip
    """However often a state was written again since: it may have forgotten by then, and the commit's others know."""
    await flush(worker)
    group = agents.key_on(0)
    for n, _ in enumerate(commits):
        agents.commit((f"{group}/{n}x", "1"), (f"{group}/{n}y", "1"))
    redis_raw.xtrim(keys.changes(0), maxlen=0)
    for n, what in enumerate(commits):
        for name in {HALF: "y", WHOLE: "", GONE: "xy"}[what]:
            for _ in range(often):
                agents.commit((f"{group}/{n}{name}", "2"))
    await flush(worker)
    lost = [n for n, what in enumerate(commits) if what != WHOLE]
    (told,) = log.of("gap")
    assert (told["repaired"], told["lost"]) == (len(commits) - len(lost), len(lost))
    recorded = rows(psql, "SELECT first_n, last_n, positions, keys FROM lost")
    assert sorted(n - 1 for first, last, _, _ in recorded for n in range(first, last + 1)) == lost
    assert all(positions == last - first + 1 for first, last, positions, _ in recorded)
    known = {f"{group}/{n}{name}" for n in lost for name in ("xy" if often == 1 else "x" * (commits[n] == HALF))}
    assert {key for *_, named in recorded for key in named} == known == set(told["keys"])


async def test_a_part_of_what_an_earlier_release_committed_is_missed_by_its_bytes(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    """Its states do not tell how many there were: somewhere in the gap a position is not whole."""
    await flush(worker)
    group = agents.key_on(0)
    for n in range(2):
        agents.commit((f"{group}/{n}x", "1"), (f"{group}/{n}y", "1"))
    redis_raw.xtrim(keys.changes(0), maxlen=0)
    agents.commit((f"{group}/1y", "2"))
    for name in ("0x", "0y", "1x"):
        redis_raw.hdel(keys.state(f"{group}/{name}"), "parts")
    await flush(worker)
    assert [(line["repaired"], line["lost"]) for line in log.of("gap")] == [(1, 1)]
    assert rows(psql, "SELECT first_n, last_n, positions, keys FROM lost") == [(1, 2, 1, [])]


async def test_whoever_waits_for_a_change_in_a_gap_is_told_to_ask(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    """The watermark passes a version that is nowhere any more: below it, being flushed is no proof."""
    await flush(worker)
    key = agents.key_on(0)
    agents.commit((key, "lost"))
    agents.commit((key, "rebuilt"))
    redis_raw.xtrim(keys.changes(0), maxlen=0)
    await flush(worker)
    meta = agents.meta(0)
    assert (meta["flushed"], meta["excepted"]) == ("2", "2")
    assert rows(psql, "SELECT flushed, excepted FROM shard WHERE shard = 0") == [(2, 2)]
    agents.commit((key, "later"))
    await flush(worker)
    assert agents.meta(0)["excepted"] == "2"


async def test_entries_missing_in_the_middle_are_a_gap_and_the_rest_is_flushed_around_it(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    await flush(worker)
    key, other = agents.key_on(0), agents.key_on(0, "jobs")
    for i in range(6):
        agents.commit((key, str(i)))
    agents.commit((other, "once"))
    for i in range(2):
        agents.commit((key, str(6 + i)))
    redis_raw.xdel(keys.changes(0), "1-3", "1-4", "1-7")
    await flush(worker)
    assert [(line["first"], line["last"], line["repaired"], line["lost"]) for line in log.of("gap")] == [
        (3, 4, 0, 2),
        (7, 7, 1, 0),
    ]
    assert rows(psql, "SELECT version, gap FROM change WHERE key = %s ORDER BY version", key) == [
        (1, False), (2, False), (5, True), (6, False), (7, False), (8, False),
    ]  # fmt: skip
    assert rows(psql, "SELECT n, value, gap FROM change WHERE key = %s", other) == [(7, b"once", False)]
    assert flushed(psql)[0] == 9


async def test_a_deleted_stream_is_repaired_and_written_to_again(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    await flush(worker)
    key = agents.key_on(0)
    agents.commit(key)
    redis_raw.delete(keys.changes(0))
    await flush(worker)
    agents.commit(key)
    await flush(worker)
    assert rows(psql, "SELECT version, n, gap FROM change ORDER BY version") == [(1, 1, False), (2, 2, False)]


async def test_states_that_outlive_meta_and_stream_are_written_from_their_hashes(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    """As a server that evicts any key leaves them: what was acknowledged is served, so it has to reach Postgres."""
    await flush(worker)
    group = agents.key_on(0)
    agents.commit((f"{group}/a", "flushed"))
    await flush(worker)
    agents.commit((f"{group}/a", "newer"))
    agents.commit((f"{group}/b", "overwritten"))
    agents.commit((f"{group}/b", "only in Redis"))
    redis_raw.delete(keys.meta(0), keys.changes(0), keys.unflushed(0))
    await flush(worker)
    assert rows(psql, "SELECT key, version, value, gap FROM change WHERE n > 1 ORDER BY key") == [
        (f"{group}/a", 2, b"newer", False), (f"{group}/b", 2, b"only in Redis", True),
    ]  # fmt: skip
    assert rows(psql, "SELECT first_n, last_n, cause, positions FROM lost") == [(3, 3, "gap", 1)]
    assert agents.dirty(0) == set()
    agents.commit((f"{group}/a", "later"))
    await flush(worker)
    assert rows(psql, "SELECT n, version FROM state WHERE key = %s", f"{group}/a") == [(5, 3)]


async def test_the_states_of_one_lost_commit_are_repaired_as_one(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    await flush(worker)
    group = agents.key_on(0)
    agents.commit(group, f"{group}/a", f"{group}/b")
    agents.commit(f"{group}/b")
    redis_raw.delete(keys.changes(0))
    await flush(worker)
    assert rows(psql, "SELECT key, n, version FROM change ORDER BY key") == [
        (group, 1, 1), (f"{group}/a", 1, 1), (f"{group}/b", 2, 2),
    ]  # fmt: skip
    assert rows(psql, "SELECT count(DISTINCT change_id) FROM change WHERE n = 1") == [(1,)]


async def test_what_cannot_be_repaired_is_named(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace
) -> None:
    await flush(worker)
    key, gone = agents.key_on(0), agents.key_on(0, "jobs")
    agents.commit(key)
    agents.commit(gone)
    redis_raw.delete(keys.changes(0), keys.state(gone))
    await flush(worker)
    (line,) = log.of("gap")
    assert (line["repaired"], line["lost"], line["keys"]) == (1, 1, [gone])
    assert flushed(psql)[0] == 2
    assert rows(psql, "SELECT shard, epoch, first_n, last_n, cause, positions, keys, reported_by FROM lost") == [
        (0, 1, 2, 2, "gap", 1, [gone], worker.id)
    ]


@pytest.mark.parametrize("limit", [{"flush_batch_max": 10}, {"flush_bytes_max": 1000}])
async def test_a_long_gap_is_repaired_batch_by_batch(
    agents: Agents, make_worker: MakeWorker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace, settings: Settings,
    limit: dict[str, int],
) -> None:  # fmt: skip
    worker = make_worker(settings.model_copy(update=limit))
    await flush(worker)
    group = agents.key_on(0)
    for i in range(35):
        agents.commit((f"{group}/{i}", "x" * 300))
    redis_raw.delete(keys.changes(0))
    agents.commit(f"{group}/last")
    await flush(worker)
    assert rows(psql, "SELECT count(*), bool_or(gap) FROM change") == [(36, False)]
    assert len(log.of("gap")) > 3
    meta = agents.meta(0)
    assert (meta["flushed"], meta["flushed_bytes"]) == ("36", meta["bytes"])


async def test_a_damaged_state_in_a_gap_is_parked(
    agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    await flush(worker)
    key = agents.key_on(0)
    agents.commit(key)
    redis_raw.delete(keys.changes(0))
    redis_raw.hdel(keys.state(key), "value")
    await flush(worker)
    assert rows(psql, "SELECT n, sqlstate, error FROM quarantine") == [
        (1, "entry", "the state's field 'value' is missing")
    ]
    assert flushed(psql)[0] == 1


def _went_back(psql: Psql, flushed: int) -> None:
    """Put Postgres back to where shard 0 was flushed up to `flushed`."""
    psql.execute("DELETE FROM change WHERE shard = 0 AND n > %s", (flushed,))
    psql.execute("DELETE FROM state WHERE shard = 0 AND n > %s", (flushed,))
    psql.execute("UPDATE shard SET flushed = %s, entries = %s, bytes = %s WHERE shard = 0", (flushed,) * 3)


async def test_what_a_restored_postgres_has_forgotten_and_no_stream_holds_is_rebuilt_from_the_states(
    agents: Agents, worker: Worker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(recall, "NAMES_PER_PAGE", 10)
    await flush(worker)
    group, elsewhere = agents.key_on(0), agents.key_on(1)
    agents.commit((f"{group}/kept", "0"))
    for i in range(300):
        agents.commit((f"{group}/{i}", str(i)))
    agents.commit({"key": f"{group}/7", "op": "delete", "value": ""})
    agents.commit((elsewhere, "x"))
    await flush(worker)
    redis_raw.xtrim(keys.changes(0), maxlen=1)
    for name in ("kept", *range(300)):
        redis_raw.pexpire(keys.state(f"{group}/{name}"), 3_600_000)
    redis_raw.pexpire(keys.state(elsewhere), 3_600_000)
    _went_back(psql, 1)
    worker.refresh()
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change WHERE shard = 0") == [(301,)]
    assert rows(psql, "SELECT op, version, gap FROM change WHERE key = %s", f"{group}/7") == [("delete", 2, True)]
    assert log.of("postgres_went_back")[0]["flushed"] == 1
    assert [line["lost"] for line in log.of("gap")] == [1], "the version that was deleted since"
    assert flushed(psql)[0] == 302
    assert agents.dirty(0) == set()
    assert redis_raw.ttl(keys.state(f"{group}/9")) == -1, "as after any commit, until its entry would leave"
    assert redis_raw.ttl(keys.state(f"{group}/kept")) > 0
    assert redis_raw.ttl(keys.state(elsewhere)) > 0


async def test_a_gap_in_which_nothing_is_dirty_is_looked_for_among_the_states(
    agents: Agents, make_worker: MakeWorker, psql: Psql, log: Log, redis_raw: Any, keys: KeySpace, settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Redis was opened anew since Postgres went back, and took its watermark over: nothing tells what was flushed."""
    monkeypatch.setattr(
        recall, "NAMES_PER_PAGE", max(10, redis_raw.dbsize() // 50)
    )  # other tests' states are there too
    monkeypatch.setattr(recall, "PAGES_PER_TURN", 1)
    worker = make_worker(settings.model_copy(update={"flush_batch_max": 10}))
    await flush(worker)
    group = agents.key_on(0)
    for i in range(25):
        agents.commit((f"{group}/{i}", str(i)))
    for _ in range(25):
        agents.commit((f"{group}/often", "x"))
    await flush(worker)
    redis_raw.delete(keys.changes(0))
    _went_back(psql, 0)
    redis_raw.hset(keys.meta(0), mapping={"flushed": 0, "flushed_entries": 0, "flushed_bytes": 0})
    worker.refresh()
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change") == [(26,)]
    assert rows(psql, "SELECT version FROM state WHERE key = %s", f"{group}/often") == [(25,)]
    assert not log.of("postgres_went_back")
    assert len(log.of("recalled")) == 1, "once, however long the gap"


async def test_what_stands_in_the_stream_is_dirty_too_when_postgres_has_forgotten_it(
    agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch, redis_raw: Any, keys: KeySpace
) -> None:
    """Else a reader could load the old value, and its next commit would be a fork of what is flushed again."""
    await flush(worker)
    key = agents.key_on(0)
    agents.commit((key, "1"))
    agents.commit((key, "2"))
    await flush(worker)
    redis_raw.pexpire(keys.state(key), 3_600_000)
    _went_back(psql, 0)
    worker.refresh()
    dirty: list[set[str]] = []
    cycle = worker.flusher.cycle

    async def noted(*args: Any, **more: Any) -> Any:
        dirty.append(agents.dirty(0))
        return await cycle(*args, **more)

    monkeypatch.setattr(worker.flusher, "cycle", noted)
    await flush(worker)
    assert {key} in dirty
    assert rows(psql, "SELECT version, gap FROM change ORDER BY version") == [(1, False), (2, False)]
    assert agents.dirty(0) == set()


async def test_a_worker_that_may_not_look_for_forgotten_states_says_so_and_goes_on(
    agents: Agents, worker: Worker, psql: Psql, log: Log, monkeypatch: pytest.MonkeyPatch, redis_raw: Any,
    keys: KeySpace,
) -> None:  # fmt: skip
    await flush(worker)
    for _ in range(2):
        agents.commit(agents.key_on(0))
    await flush(worker)
    redis_raw.xdel(keys.changes(0), "1-1")
    _went_back(psql, 0)
    worker.refresh()
    run = worker.flusher.streams.run

    async def refused(link: Any, commands: Any, **more: Any) -> Any:
        if commands[0][0] == "SCAN":
            raise RedisUnavailable("refused", detail="NOPERM this user has no permissions to run the 'scan' command")
        return await run(link, commands, **more)

    monkeypatch.setattr(worker.flusher.streams, "run", refused)
    await flush(worker)
    assert log.of("not_recalled")[0]["alarm"]
    assert [line["lost"] for line in log.of("gap")] == [1]
    assert rows(psql, "SELECT n FROM change") == [(2,)]


async def test_a_row_that_is_older_than_what_redis_says_is_read_again_before_anything_is_believed(
    agents: Agents, worker: Worker, log: Log
) -> None:
    """As after a pause in which another worker has flushed the shard."""
    await flush(worker)
    agents.commit(agents.key_on(0))
    await flush(worker)
    holding = worker.holdings[0]
    holding.row, holding.phase = holding.row._replace(flushed=0), "new"
    await flush(worker)
    assert (holding.row.flushed, holding.phase) == (1, "open")
    assert log.of("postgres_went_back") == log.of("recalled") == []
    assert agents.dirty(0) == set()

"""What Postgres refused, in an operator's hands: listed, shown, taken in after all, or given up on the record."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.errors import Quarantined
from statecache.keys import KeySpace
from statecache_workers import quarantine_release
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, MakeWorker, flush, rows
from tests.support.command_line import CommandLine, parked_ids
from tests.support.fault_proxy import FaultProxy

Psql = psycopg.Connection[Any]
NUL = "a\0b"
POISON = "ALTER TABLE change ADD CONSTRAINT small CHECK (octet_length(value) < 10)"
CURE = "ALTER TABLE change DROP CONSTRAINT small"
BIG = '"much too big"'
CHAIN = "SELECT version, value, gap FROM change WHERE key = 'runs/1' ORDER BY version"


async def test_nothing_parked_is_said(cli: CommandLine) -> None:
    assert await cli.beside("quarantine", "list") == (0, "nothing is in quarantine\n", "")
    assert (await cli.beside("quarantine", "list", "--json")).json == {"parked": [], "more": False}
    assert await cli.beside("quarantine", "retry", "all") == (0, "nothing is in quarantine\n", "")
    not_there = (1, "", "statecache: 0:1-1 is not in quarantine\n")
    for command in (["show", "0:1-1"], ["retry", "0:1-1"], ["drop", "0:1-1"], ["drop", "0:1-1", "--yes"]):
        assert await cli.beside("quarantine", *command) == not_there
    assert (await cli.beside("quarantine", "drop", "0:1-1", "--json")).json["dropped"][0]["done"] is False
    assert (await cli.beside("quarantine", "show", "runs/1")).status == 2


async def test_what_is_parked_is_listed_and_shown_and_cannot_steer_the_terminal(
    cli: CommandLine, agents: Agents, worker: Worker, keys: KeySpace
) -> None:
    agents.commit(("runs/1", '"\x1b[31mred"'), reason=NUL)
    agents.commit(("runs/2", b"\xff\xfe binary"), reason=NUL)
    await flush(worker)
    listed = await cli.beside("quarantine", "list")
    assert listed.status == 0
    assert listed.out.splitlines()[0] == "id\tage\treason\tkeys\tbytes\terror"
    assert f"{keys.shard('runs/1')}:1-" in listed.out
    assert "\t22021 (character not in repertoire)\t" in listed.out
    for one in await parked_ids(cli):
        shown = await cli.beside("quarantine", "show", one)
        assert shown.status == 0
        assert "\x1b" not in shown.out
        assert "\\x1b[31mred" in shown.out or "hex fffe" in shown.out
        facts = (await cli.beside("quarantine", "show", one, "--json")).json
        assert facts["reason"] == "22021"
        assert facts["recorded_at"].endswith("Z")
        assert f"recorded_at   {facts['recorded_at']}\n" in shown.out
        assert "reason        22021 (character not in repertoire)\n" in shown.out
        assert facts["fields"][0] == ["Zm9ybWF0", "MQ=="]


async def test_a_retry_in_vain_says_why_and_changes_nothing(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql
) -> None:
    agents.commit("runs/1", "runs/1/a", reason=NUL)
    await flush(worker)
    before = rows(psql, "SELECT * FROM quarantine"), rows(psql, "SELECT * FROM state")
    done = await cli.beside("quarantine", "retry", *await parked_ids(cli))
    assert done.status == 1
    assert "stays: Postgres still refuses it: 22" in done.out
    assert (rows(psql, "SELECT * FROM quarantine"), rows(psql, "SELECT * FROM state")) == before
    assert rows(psql, "SELECT count(*) FROM change") == [(0,)]


async def test_a_retried_tip_gets_its_value_and_can_be_read_at_once(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, cache: AsyncStateCache, redis_raw: Any, keys: KeySpace
) -> None:
    """Redis has forgotten the state meanwhile and knows it as quarantined only."""
    agents.commit(("runs/1", "1"))
    psql.execute(POISON)
    agents.commit(("runs/1", BIG))
    await flush(worker)
    redis_raw.delete(keys.state("runs/1"))
    with pytest.raises(Quarantined):
        await cache.get("runs/1")
    assert "runs/1: version 2 is in quarantine" in (await cli.beside("get", "runs/1")).err
    psql.execute(CURE)
    hydrating = keys.hydrating(keys.shard("runs/1"))
    redis_raw.hset(hydrating, "runs/1", "somebody-who-asked-before|1|99999999999999")
    done = await cli.beside("quarantine", "retry", "all", "--json")
    assert done.status == 0
    assert not redis_raw.hexists(hydrating, "runs/1"), "what was read before is not installed after"
    assert done.json["retried"][0] | {"id": ""} == {
        "id": "", "done": True, "why": "", "taken": 1, "unmarked": ["runs/1"], "mended": [], "restored": [],
    }  # fmt: skip
    state = await cache.get("runs/1")
    assert state is not None
    assert (state.value, state.version) == ("much too big", 2)
    assert rows(psql, CHAIN) == [(1, b"1", False), (2, BIG.encode(), False)]
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(0,)]
    await cache.set("runs/1", 3, expected=state)
    await flush(worker)
    assert rows(psql, CHAIN)[2:] == [(3, b"3", False)], "the flusher does not go by the tip that it remembered"


async def test_the_worker_that_parked_it_sees_the_retry_before_its_next_flush(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql
) -> None:
    """It remembers tips; one that it marked itself may be whole again."""
    psql.execute(POISON)
    agents.commit(("runs/1", BIG))
    await flush(worker)
    psql.execute(CURE)
    assert (await cli.beside("quarantine", "retry", "all")).status == 0
    agents.commit(("runs/1", "2"))
    await flush(worker)
    assert rows(psql, CHAIN) == [(1, BIG.encode(), False), (2, b"2", False)]


async def test_a_redis_that_could_not_be_told_of_a_retry_is_said(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, settings: Settings, proxy: FaultProxy
) -> None:
    psql.execute(POISON)
    agents.commit(("runs/1", BIG), change_id="c" * 24)
    await flush(worker)
    psql.execute(CURE)
    lost = proxy.arm("drop_request", at=b"c" * 24)
    done = await cli.beside("quarantine", "retry", "all", "--redis-url", through(settings, redis=proxy).redis_url)
    assert lost.struck
    assert done.status == 0
    assert "  retried: 1 change taken in, 1 key can be read again, Redis could not be told, and may " in done.out
    assert rows(psql, CHAIN) == [(1, BIG.encode(), False)]


async def test_a_role_that_may_not_take_in_or_drop_is_told_whose_to_use(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, settings: Settings
) -> None:
    agents.commit("runs/1", reason=NUL)
    await flush(worker)
    (parked,) = await parked_ids(cli)
    role = f"reader_{settings.postgres_schema}"
    url = f"postgresql://{role}:secret@{settings.postgres_url.rpartition('@')[2]}"
    psql.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
    psql.execute(f"GRANT USAGE ON SCHEMA {settings.postgres_schema} TO {role}".encode())
    psql.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {settings.postgres_schema} TO {role}".encode())
    try:
        listed = await cli.beside("quarantine", "list", "--postgres-url", url)
        ended = [
            await cli.beside("quarantine", *command, "--postgres-url", url)
            for command in (("retry", parked), ("drop", parked, "--yes", "--durability", "memory"))
        ]
    finally:
        psql.execute(f"DROP OWNED BY {role}".encode())
        psql.execute(f"DROP ROLE {role}".encode())
    assert listed.status == 0
    for one in ended:
        assert (one.status, one.out, one.err.count("\n")) == (3, "", 1)
        assert "permission denied for table shard" in one.err
        assert "Use the schema owner's role: " in one.err
    assert await parked_ids(cli) == [parked]


async def test_a_gap_closes_behind_a_retried_change_and_the_tip_stays(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql
) -> None:
    psql.execute(POISON)
    for value in ("1", BIG, BIG, "4", "5"):
        agents.commit(("runs/1", value))
    await flush(worker)
    assert [(version, gap) for version, _, gap in rows(psql, CHAIN)] == [(1, False), (4, True), (5, False)]
    tip = rows(psql, "SELECT * FROM state")
    in_vain = await cli.beside("quarantine", "retry", "all")
    assert "stays: Postgres still refuses it: 23514 (check violation): " in in_vain.out
    assert "version 3 of 'runs/1' is not there either, for what is parked behind it did not go in" in in_vain.out
    psql.execute(CURE)
    later, earlier = sorted(await parked_ids(cli), reverse=True)
    alone = await cli.beside("quarantine", "retry", earlier)
    assert alone.status == 1
    why = f"take {later} in first: `statecache quarantine retry {later} {earlier}` keeps the order"
    assert alone.out == f"{earlier}  stays: version 3 of 'runs/1' is not there either, {why}\n"
    done = await cli.beside("quarantine", "retry", earlier, later)
    assert (done.status, done.out.count("1 change taken in, 1 gap closed")) == (0, 2)
    assert [(version, gap) for version, _, gap in rows(psql, CHAIN)] == [(n, False) for n in range(1, 6)]
    assert rows(psql, "SELECT * FROM state") == tip


async def test_nothing_goes_in_behind_what_was_dropped_and_that_is_said(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql
) -> None:
    psql.execute(POISON)
    for value in ("1", BIG, BIG, "4"):
        agents.commit(("runs/1", value))
    await flush(worker)
    psql.execute(CURE)
    later, earlier = sorted(await parked_ids(cli), reverse=True)
    await cli.beside("quarantine", "drop", later, "--yes", "--durability", "memory")
    done = await cli.beside("quarantine", "retry", "all")
    assert f"{earlier}  stays: version 3 of 'runs/1' is not there either, and no parked entry holds it" in done.out


async def test_a_commits_changes_go_in_together_or_not_at_all(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql
) -> None:
    psql.execute(POISON)
    agents.commit("runs/1/a", ("runs/1/b", BIG))
    await flush(worker)
    psql.execute("UPDATE state SET change_id = 'ffffffffffff', version = 9 WHERE key = 'runs/1/a'")
    psql.execute(CURE)
    assert (await cli.beside("quarantine", "retry", "all")).status == 1
    assert rows(psql, "SELECT count(*) FROM change") == [(0,)]
    assert rows(psql, "SELECT key, op FROM state WHERE key = 'runs/1/b'") == [("runs/1/b", "quarantined")]


async def test_a_change_whose_version_another_took_stays_parked(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    """It was a fork when it was parked: somebody vouched for a durable key as new."""
    for value in ("1", "2"):
        agents.commit(("runs/1", value))
    await flush(worker)
    redis_raw.delete(keys.state("runs/1"))
    agents.commit("runs/1", reason=NUL)
    await flush(worker)
    done = await cli.beside("quarantine", "retry", "all")
    assert done.status == 1
    assert "version 1 of 'runs/1' is change" in done.out
    assert rows(psql, "SELECT version FROM state") == [(2,)]


async def test_what_no_commit_wrote_and_what_lies_in_another_shard_stays_parked(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    home, stranger = agents.key_on(0), agents.key_on(1)
    agents.commit(home, stranger)
    redis_raw.xadd(keys.changes(0), {"x": "1"}, id="1-2")
    redis_raw.hset(keys.meta(0), "n", 2)
    agents.commit(home)
    await flush(worker)
    done = await cli.beside("quarantine", "retry", "all")
    assert done.status == 1
    assert "0:1-2  stays: no commit of this release wrote it" in done.out
    assert f"0:1-1  stays: the key '{stranger}' belongs to shard 1" in done.out


async def test_a_retry_waits_for_the_flusher_of_the_shard(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, settings: Settings
) -> None:
    agents.commit("runs/1", reason=NUL)
    await flush(worker)
    path = f"-c search_path={settings.postgres_schema}"
    with psycopg.connect(settings.postgres_url, options=path) as other:
        other.execute("SELECT * FROM shard FOR UPDATE")
        done = await cli.beside("quarantine", "retry", "all")
        assert done.status == 4
        assert "lock timeout" in done.err
        other.rollback()
    assert rows(psql, "SELECT count(*) FROM quarantine") == [(1,)]


async def test_a_listing_that_its_limit_cuts_short_says_so(cli: CommandLine, agents: Agents, worker: Worker) -> None:
    for i in range(3):
        agents.commit(f"runs/{i}", reason=NUL)
    await flush(worker)
    for limit, told in (("2", True), ("3", False), ("0", False)):
        listed = await cli.beside("quarantine", "list", "--limit", limit)
        assert (listed.status, len(listed.out.splitlines()) - 1) == (0, int(limit) or 3)
        assert listed.err == "statecache: there are more; --limit 2 was reached\n" * told
        found = (await cli.beside("quarantine", "list", "--limit", limit, "--json")).json
        assert (len(found["parked"]), found["more"]) == (int(limit) or 3, told)


async def test_all_of_more_entries_than_a_listing_shows_are_taken_in(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine_release.Quarantine.listed, "__kwdefaults__", {"limit": 2})
    psql.execute(POISON)
    for i in range(5):
        agents.commit((f"runs/{i}", BIG))
    await flush(worker)
    psql.execute(CURE)
    assert len((await cli.beside("quarantine", "retry", "all", "--json")).json["retried"]) == 5


async def test_a_quarantined_key_can_be_deleted(
    cli: CommandLine, agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    agents.commit("runs/1", reason=NUL)
    await flush(worker)
    redis_raw.delete(keys.state("runs/1"))
    done = await cli.beside("rm", "runs/1", "--json")
    assert (done.status, done.json["version"]) == (0, 2)


async def test_another_worker_takes_over_after_a_retry_as_after_any_flush(
    cli: CommandLine, agents: Agents, make_worker: MakeWorker, psql: Psql
) -> None:
    first = make_worker()
    psql.execute(POISON)
    agents.commit(("runs/1", BIG))
    await flush(first)
    await first.leave()
    psql.execute(CURE)
    assert (await cli.beside("quarantine", "retry", "all")).status == 0
    agents.commit(("runs/1", "2"))
    await flush(make_worker())
    assert [(version, gap) for version, _, gap in rows(psql, CHAIN)] == [(1, False), (2, False)]

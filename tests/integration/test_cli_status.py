"""How a deployment stands, at one look and live: what is shown, what a person is called for, and outages."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from functools import partial
from typing import Any

import psycopg
import pytest

from statecache import Settings
from statecache.cli.exits import CONFIGURATION
from statecache.cli.status.attention import GATES
from statecache.cli.status.sample import Sampler
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush
from tests.fixtures.servers import MakeSettings, on_database
from tests.support.command_line import WAIT_S, CommandLine
from tests.support.terminals import in_terminal

Psql = psycopg.Connection[Any]
NOWHERE = "redis://127.0.0.1:1/0"
NO_POSTGRES = "postgresql://127.0.0.1:1/x"


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of leases that stand for as long as a test takes to look at them: its worker is turned only by it."""
    return make_settings(lease_s=600.0)


async def test_all_is_well(cli: CommandLine, agents: Agents, worker: Worker) -> None:
    agents.commit("runs/1")
    await flush(worker)
    shown = await cli.beside("status")
    assert (shown.status, shown.err) == (0, "")
    assert "Shards      4: 4 open, 0 closed, 0 unowned\n" in shown.out
    assert "Nothing needs a person." in shown.out
    found = (await cli.beside("status", "--json")).json
    assert found["attention"] == []
    assert found["shards"] == {"count": 4, "open": 4, "closed": 0, "unowned": 0}
    assert (found["lag"]["entries"], found["backlog"]["used"], found["epoch"]) == (0, 0.0, 1)
    assert (found["redis"]["role"], found["postgres"]["role"]) == ("primary", "primary")
    assert [(one["id"], one["shards"]) for one in found["workers"]] == [(worker.id, 4)]
    assert found["workers"][0]["heartbeat_s"] < WAIT_S
    assert found["openings"][0]["shards"] == 4


@pytest.mark.own_servers("they ask for a password")
async def test_the_urls_are_shown_without_their_passwords(cli: CommandLine, settings: Settings) -> None:
    password = settings.redis_url.partition("default:")[2].partition("@")[0]
    shown = await cli.beside("status")
    assert password
    assert password not in shown.out
    assert ":***@" in shown.out


async def test_lag_is_told_in_entries_bytes_and_time_with_the_worst_shards(cli: CommandLine, agents: Agents) -> None:
    for shard, count in ((0, 1), (1, 3)):
        for _ in range(count):
            agents.commit((agents.key_on(shard), "x" * 100))
    lag = (await cli.beside("status", "--json")).json["lag"]
    assert lag["entries"] == 4
    assert 1200 <= lag["bytes"] <= 1300
    assert 0 <= lag["seconds"] < WAIT_S
    assert [(one["shard"], one["lag_entries"]) for one in lag["worst"]] == [(1, 3), (0, 1)]


async def test_a_shard_without_a_worker_calls_for_a_person(cli: CommandLine) -> None:
    shown = await cli.beside("status")
    assert shown.status == 1
    assert "4 of 4 shards have no worker: start one with `statecache worker`; where one runs, its log says" in shown.out


async def test_a_closed_gate_calls_for_a_person(
    cli: CommandLine, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> None:
    await flush(worker)
    redis_raw.hset(keys.meta(0), "replid", "f" * 40)
    redis_raw.delete(keys.meta(1))
    psql.execute("UPDATE shard SET epoch = 7 WHERE shard = 2")
    found = await cli.beside("status", "--json")
    assert found.status == 1
    assert found.json["attention"] == [
        "the gate of shard 0 is closed: its data set is not open on this server; " + GATES,
        "the gate of shard 1 is closed: Redis holds no data set of it; " + GATES,
        "the gate of shard 2 is closed: Redis is at epoch 1, Postgres at 7; " + GATES,
    ]


async def test_quarantine_and_new_conflicts_call_for_a_person_and_old_ones_do_not(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    agents.commit("runs/1")
    await flush(worker)
    redis_raw.delete(keys.state("runs/1"))
    agents.commit("runs/1")
    agents.commit("runs/2", reason="a\0b")
    await flush(worker)
    found = await cli.beside("status", "--json")
    assert (found.status, found.json["quarantined"], found.json["conflicts"]) == (1, 1, 1)
    assert found.json["attention"] == [
        "1 entry is in quarantine: `statecache quarantine list`",
        "1 change was set aside in `conflict` within 24 hours: see there what should count, and write it anew",
    ]
    psql.execute("UPDATE conflict SET recorded_at = recorded_at - interval '2 days'")
    psql.execute("UPDATE quarantine SET sqlstate = 'dropped'")
    found = await cli.beside("status", "--json")
    assert (found.status, found.json["quarantined"], found.json["conflicts"]) == (0, 0, 1)


async def test_a_backlog_near_its_limit_calls_for_a_person(
    cli: CommandLine, agents: Agents, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await flush(worker)
    monkeypatch.setenv("STATECACHE_BACKLOG_ENTRIES_MAX", "5")
    for _ in range(4):
        agents.commit(agents.key_on(3))
    assert (await cli.beside("status")).status == 0
    agents.commit(agents.key_on(3))
    found = await cli.beside("status", "--json")
    assert found.status == 1
    assert found.json["attention"] == ["the backlog of shard 3 is above 80% of its limit"]


@pytest.mark.parametrize(
    ("option", "url", "seen"), [("--redis-url", NOWHERE, "Postgres 1"), ("--postgres-url", NO_POSTGRES, "primary, ")]
)
async def test_with_one_server_away_the_other_is_shown(cli: CommandLine, option: str, url: str, seen: str) -> None:
    for command in (["status"], ["top", "--once"]):
        shown = await cli.beside(*command, option, url)
        assert shown.status == 4
        assert "does not answer: connect: " in shown.out
        assert seen in shown.out
        assert (await cli.beside(*command, option, url, "--json")).status == 4


async def test_a_database_that_redis_does_not_have_is_status_3(cli: CommandLine, settings: Settings) -> None:
    ended = await cli.beside("status", "--redis-url", on_database(settings.redis_url, 9999))
    assert (ended.status, ended.err.count("\n")) == (3, 1)
    assert "DB index is out of range. Name a database that this server has" in ended.err
    ended = await cli.beside("status", "--redis-url", on_database(settings.redis_url, 10**19))
    assert (ended.status, ended.err.count("\n")) == (3, 1)


async def test_another_deployments_settings_are_status_3(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECACHE_SHARDS", "8")
    for command in ("status", "top"):
        ended = await cli.beside(command, *(["--once"] if command == "top" else []))
        assert (ended.status, ended.out, ended.err.count("\n")) == (3, "", 1)


# Live.


def test_top_needs_a_terminal_or_is_asked_for_lines(cli: CommandLine) -> None:
    ended = cli.apart("top")
    assert (ended.status, ended.out, ended.err) == (2, "", "statecache: top needs a terminal. Say --once or --json.\n")


async def test_one_look_compares_two_and_counts_the_keys_between(
    cli: CommandLine, agents: Agents, worker: Worker, settings: Settings
) -> None:
    await flush(worker)
    sampler = Sampler(settings, patience_s=WAIT_S)
    first = await sampler.take()
    for _ in range(3):
        agents.commit("runs/1")
    agents.commit("runs/2/a", "runs/2/b", reason="why")
    second = await sampler.take()
    await sampler.close()
    assert first.keys == []
    assert sorted(second.keys) == ["runs/1"] * 3 + ["runs/2/a", "runs/2/b"]
    assert (first.committed_total, second.committed_total, second.flushed_total) == (0, 4, 0)
    shown = await cli.beside("top", "--once")
    assert shown.status == 0
    head, *tables = shown.out.split("\n\n")
    assert [line.split()[0] for line in head.splitlines()] == [
        "Redis", "Postgres", "Shards", "Commits", "Flushed", "Lag", "Backlog",
    ]  # fmt: skip
    assert tables[0].startswith("shard behind\tentries\tbytes\toldest\n")
    assert tables[1].startswith(f"worker\tshards\theartbeat\n{worker.id}\t4\t")
    assert tables[2] == "no key was written between the two looks\n"
    facts = (await cli.beside("top", "--once", "--json")).json
    assert facts["commits_per_s"] == 0
    assert facts["lag"]["entries"] == 4


async def test_a_look_reads_no_more_of_large_entries_than_it_may(agents: Agents, settings: Settings) -> None:
    sampler = Sampler(settings, patience_s=WAIT_S)
    await sampler.take()
    agents.commit(("runs/1", "x" * 3_000_000))
    seen = await sampler.take()
    await sampler.close()
    assert seen.keys == []
    assert [one.lag_s for one in seen.shards if one.lag_entries] == [None]


@pytest.mark.own_servers("it ends the connections of others")
async def test_looking_survives_an_outage_of_either_server(settings: Settings, redis_raw: Any, psql: Psql) -> None:
    sampler = Sampler(settings, patience_s=WAIT_S)
    assert (await sampler.take()).redis.reachable
    redis_raw.client_kill_filter(_type="normal", skipme=True)
    away = await sampler.take()
    assert not away.redis.reachable
    assert (away.postgres.reachable, away.committed_total, away.shards[0].open) == (True, None, None)
    assert (await sampler.take()).redis.reachable
    psql.execute("ALTER TABLE shard RENAME TO away")
    impatient = Sampler(settings, patience_s=2.0)
    away = await impatient.take()
    await impatient.close()
    assert not away.postgres.reachable
    assert (away.redis.reachable, away.workers, away.shards[0].owned) == (True, None, None)
    psql.execute("ALTER TABLE away RENAME TO shard")
    assert (await sampler.take()).postgres.reachable
    await sampler.close()


async def test_a_look_never_takes_two_deployments_for_one(
    cli: CommandLine, agents: Agents, settings: Settings, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever tier answers first: Postgres compares when it is connected to, and may not know of a Redis yet."""
    agents.commit("runs/1")
    psql.execute("UPDATE cluster SET id = gen_random_uuid()")
    postgres_answered = asyncio.Event()
    ask_redis, ask_postgres = Sampler._ask_redis, Sampler._ask_postgres

    async def redis_last(sampler: Sampler) -> Any:
        await postgres_answered.wait()
        return await ask_redis(sampler)

    async def postgres_first(sampler: Sampler) -> Any:
        try:
            return await ask_postgres(sampler)
        finally:
            postgres_answered.set()

    monkeypatch.setattr(Sampler, "_ask_redis", redis_last)
    monkeypatch.setattr(Sampler, "_ask_postgres", postgres_first)
    shown = await cli.beside("status")
    assert shown.status == CONFIGURATION
    assert "Redis belongs to cluster" in shown.err
    sampler = Sampler(settings, patience_s=WAIT_S)
    seen = await sampler.take()
    await sampler.close()
    assert "Redis belongs to cluster" in seen.postgres.trouble
    assert (seen.redis.reachable, seen.workers) == (True, None)


def test_lines_for_programs_come_until_nobody_reads_on(cli: CommandLine) -> None:
    command = [sys.executable, "-m", "statecache", "top", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=cli.environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdout.close()
        assert process.wait(WAIT_S) == 0
        assert process.stderr.read() == b""
    assert lines[0]["commits_per_s"] is None
    assert lines[1]["commits_per_s"] == 0


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_the_live_screen_is_drawn_anew_fits_a_new_size_and_ends_at_a_key(cli: CommandLine, key: bytes) -> None:
    with in_terminal(cli, "top") as terminal:
        terminal.until(lambda seen: b"every 1 s, last 2 min, q quits" in seen and b"hot keys" in seen)
        assert b"\x1b[?1049h" in terminal.written
        terminal.until(lambda seen: b"q quits" in seen)
        terminal.resize(130, 40)
        terminal.until(lambda seen: b"q quits" in seen and b"256 MiB a shard" in seen)
        terminal.press(key)
        terminal.until(lambda seen: b"\x1b[?1049l" in seen)
        assert terminal.process.wait(WAIT_S) == 0


def test_the_live_screen_ends_when_it_is_told_to(cli: CommandLine) -> None:
    with in_terminal(cli, "top") as terminal:
        terminal.until(lambda seen: b"q quits" in seen)
        terminal.process.send_signal(signal.SIGTERM)
        terminal.until(lambda seen: b"\x1b[?1049l" in seen)
        assert terminal.process.wait(WAIT_S) == 0


def _holds(said: bytes, seen: bytes) -> bool:
    return said in seen


def test_on_a_terminal_there_is_colour_and_a_delete_asks_first(cli: CommandLine) -> None:
    assert cli("set", "runs/1", '{"a": 1}').status == 0
    with in_terminal(cli, "get", "runs/1") as terminal:
        terminal.until(lambda seen: b"}" in seen)
        assert b"\x1b[" in terminal.written
        assert terminal.process.wait(WAIT_S) == 0
    for answer, status, said in ((b"n\n", 1, b"nothing was deleted"), (b"y\n", 0, b"version 2")):
        with in_terminal(cli, "rm", "runs/1") as terminal:
            terminal.until(lambda seen: b"Delete runs/1?" in seen)
            terminal.press(answer)
            terminal.until(partial(_holds, said))
            assert terminal.process.wait(WAIT_S) == status
    assert cli("get", "runs/1").status == 1


def test_a_listing_on_a_terminal_fits_it(cli: CommandLine) -> None:
    cli("set", f"runs/{'long' * 60}", "1")
    with in_terminal(cli, "ls", "runs/", columns=60) as terminal:
        terminal.until(lambda seen: b"not yet" in seen)
        assert terminal.process.wait(WAIT_S) == 0


async def test_the_fence_may_be_off(
    cli: CommandLine, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a shard that was opened without it is open."""
    other = make_settings(fence="off")
    for name in ("prefix", "postgres_schema", "fence"):
        monkeypatch.setenv(f"STATECACHE_{name.upper()}", getattr(other, name))
    assert (await cli.beside("status", "--json")).json["shards"]["open"] == 4

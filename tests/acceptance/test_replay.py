"""The replay from end to end, as an operator runs it: real processes, real kills, and what it says at the end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from statecache import Settings, StateCache
from statecache.cli.exits import UNREACHABLE, status_of
from statecache.replay.deployment import NotRemoved, beside_others
from statecache.replay.journal import Invoke, Resumed, Tail
from statecache.replay.ledger import Ledger
from statecache.settings import process_environment
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.fixtures.servers import plain_client
from tests.support.polling import pause_thread

ALL = "agent,flusher,redis,postgres"
SECONDS = 240
FEW = ("--agents", "1", "--workers", "1")
QUIET = {"retention_s": "3600", "lease_s": "2", "lease_renew_s": "0.5"}
"""Workers that take nothing away while a test looks, and leave shards soon where they are killed."""


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def told(self) -> dict[str, Any]:
        """The JSON object on the last line."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


def replay(*arguments: str | Path, environment: dict[str, str] | None = None) -> Ended:
    """Run the command, on throwaway servers unless the environment names others."""
    clean = {name: value for name, value in process_environment().items() if not name.startswith("STATECACHE_")}
    done = subprocess.run(
        [sys.executable, "-m", "statecache", "replay", "--timeout", str(SECONDS), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS + 60,
        env=clean | (environment or {}),
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def sound(told: dict[str, Any], **others: Any) -> bool:
    """Return whether everything was acknowledged, nothing found, and the other facts are as given."""
    nothing = {"lost": 0, "duplicated": 0, "forked": 0, "quarantined": 0, "audit_ok": True, "findings": []}
    wanted = {"commits_acked": told["messages"], **nothing, **others}
    return {name: told[name] for name in wanted} == wanted


def folded(folder: Path) -> Ledger:
    """Return the journals of a replay folded into one ledger, the lives of each agent in order."""
    ledger = Ledger()
    for path in sorted(folder.glob("agent-*.*.jsonl"), key=lambda path: int(path.stem.rpartition(".")[2])):
        ledger.take(Tail(path).read())
    return ledger


def test_the_sample_survives_kills_of_everything(tmp_path: Path) -> None:
    ended = replay("--kill", ALL, "--seed", "7", "--json", "--journals", tmp_path)
    assert ended.status == 0, ended.err
    assert sound(ended.told, runs=12, kills=dict.fromkeys(ALL.split(","), 3), durability="disk", seed=7)
    assert ended.told["resumed"] > 0
    assert 0 < ended.told["commit_p50_ms"] <= ended.told["commit_p99_ms"]
    assert ended.told["flush_lag_p99_ms"] > 0
    assert ended.err.startswith("seed 7: 12 runs, 197 messages\n")
    assert "\x1b" not in ended.out + ended.err


def test_an_agent_that_died_goes_on_at_its_last_acknowledged_message(tmp_path: Path) -> None:
    ended = replay("--kill", "agent", "--seed", "11", "--json", "--journals", tmp_path)
    assert ended.status == 0, ended.err
    ledger = folded(tmp_path)
    assert len(ledger.resumed) == ended.told["resumed"] > 0
    again = [sent for sent in ledger.sent.values() if sent.sendings > 1]
    assert again, "nobody died with a commit in flight"
    assert len(ledger.sent) == ended.told["messages"], "a message got a second change_id"
    for life in sorted(tmp_path.glob("agent-*.[1-9].jsonl")):
        lines = list(Tail(life).read())
        taken_up = {line.run: line.step for line in lines if isinstance(line, Resumed)}
        for line in lines:
            if isinstance(line, Invoke) and line.run in taken_up:
                assert line.index == taken_up.pop(line.run), "it did not go on where it was"


def test_postgres_durability_is_acknowledged_from_postgres(tmp_path: Path) -> None:
    ended = replay("--limit", "4", "--durability", "postgres", "--kill", "flusher", "--seed", "3", "--json")
    assert ended.status == 0, ended.err
    assert sound(ended.told, durability="postgres", kills={"flusher": 3})


class Inside(NamedTuple):
    """What others find on two servers: Redis keys with their values, schemas, workers, and changes."""

    redis: dict[bytes, bytes]
    schemas: list[str]
    workers: int
    changes: int


def inside(given: Servers) -> Inside:
    """Return what the servers hold, but for the stream by which workers meet."""
    with plain_client(given.redis_url) as client:
        redis = {name: client.dump(name) for name in client.scan_iter() if not name.endswith(b":bell")}
    with psycopg.connect(given.postgres_url, autocommit=True) as connection:
        schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^statecache' ORDER BY 1")
        names = [str(row[0]) for row in schemas]
        counts = [connection.execute(f"SELECT count(*) FROM statecache.{table}".encode()) for table in _TABLES]
        workers, changes = (int((rows.fetchone() or (0,))[0]) for rows in counts)
    return Inside(redis, names, workers, changes)


_TABLES = ("worker", "change")


@pytest.fixture(scope="module")
def given() -> Iterator[Servers]:
    """Somebody's servers, at work, with a state whose key is that of a run of the sample."""
    with servers(appendfsync="always", settings=QUIET) as own:
        with StateCache(redis_url=own.redis_url, postgres_url=own.postgres_url, durability="postgres") as cache:
            cache.set("runs/library-renewal", {"mine": True})
        yield own


def test_given_servers_are_spared(given: Servers) -> None:
    killed = replay("--kill", "redis", "--limit", "2", environment=given.environment())
    assert (killed.status, killed.err.count("\n")) == (2, 1)
    assert "redis is not this replay's own" in killed.err


def test_on_given_servers_two_at_once_leave_nothing_behind_and_can_be_repeated(given: Servers) -> None:
    before = inside(given)
    arguments = ("--limit", "4", "--seed", "5", "--json", "--think-ms", "500")
    with ThreadPoolExecutor(2) as beside:
        both = {
            kind: beside.submit(replay, "--kill", kind, *arguments, environment=given.environment())
            for kind in ("agent", "flusher")
        }
    for kind, ended in ((kind, one.result()) for kind, one in both.items()):
        assert ended.status == 0, ended.err
        assert sound(ended.told, runs=4, kills={kind: 3})
    assert inside(given) == before
    again = replay("--limit", "1", *FEW, "--json", environment=given.environment())
    assert sound(again.told, runs=1), again.err
    assert inside(given) == before


def test_what_an_interrupt_ends_leaves_nothing_behind(given: Servers, tmp_path: Path) -> None:
    before = inside(given)
    command = [sys.executable, "-m", "statecache", "replay", "--think-ms", "5000", "--journals", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=process_environment() | given.environment()) as running:
        while running.poll() is None and not folded(tmp_path).acknowledged:
            pause_thread()
        during = inside(given)
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=SECONDS)
    assert running.returncode == 130
    assert len(told.splitlines()) == 1
    assert len(during.schemas) == 2
    assert any(b"-replay-" in name for name in during.redis)
    assert inside(given) == before


def test_a_server_that_is_never_migrated_will_do() -> None:
    with servers(workers=0, migrate=False) as fresh:
        ended = replay("--limit", "1", *FEW, "--json", environment=fresh.environment())
        assert ended.status == 0, ended.err
        assert sound(ended.told, runs=1)
        with plain_client(fresh.redis_url) as client:
            assert client.dbsize() == 0


def test_a_user_who_may_make_no_schema_is_told_so(given: Servers) -> None:
    with psycopg.connect(given.postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    guest = re.sub(r"//[^@]*@", "//guest:guest@", given.postgres_url)
    ended = replay("--limit", "1", environment=given.environment() | {"STATECACHE_POSTGRES_URL": guest})
    assert ended.status == 3
    assert "may create" in ended.err
    assert "Traceback" not in ended.err


def test_what_cannot_be_removed_is_named() -> None:
    with servers(workers=0) as broken:
        settings = Settings(redis_url=broken.redis_url, postgres_url=broken.postgres_url, connect_timeout_s=1.0)
        with pytest.raises(NotRemoved) as caught, beside_others(settings, ["runs/1"]) as own:
            broken.stop("redis")
        assert f"the keys {own.prefix}:* in Redis" in caught.value.hint
        assert own.postgres_schema not in caught.value.hint
        assert status_of(caught.value) == UNREACHABLE
        with psycopg.connect(broken.postgres_url) as connection:
            found = connection.execute("SELECT to_regnamespace(%s)", [own.postgres_schema]).fetchone()
        assert found == (None,)


def test_where_disk_is_refused_postgres_is_taken_unless_disk_was_asked_for() -> None:
    with servers(workers=0, redis_config={"appendonly": "no"}) as given:
        asked = replay("--limit", "2", "--durability", "disk", environment=given.environment())
        assert asked.status == 3
        assert "no append-only file" in asked.err
        assert "Traceback" not in asked.err
        ended = replay("--limit", "2", *FEW, "--json", environment=given.environment())
        assert ended.status == 0, ended.err
        assert sound(ended.told, durability="postgres")


def test_servers_that_are_away_are_status_4() -> None:
    nobody = {"STATECACHE_REDIS_URL": "redis://127.0.0.1:1/0", "STATECACHE_POSTGRES_URL": "postgresql://127.0.0.1:1/x"}
    ended = replay("--limit", "1", environment=nobody)
    assert ended.status == 4
    assert len(ended.err.splitlines()) == 2


def test_a_replay_that_takes_too_long_says_so_and_keeps_its_journals(tmp_path: Path) -> None:
    unhurried = ("--limit", "1", *FEW, "--think-ms", "60000")
    ended = replay(*unhurried, "--timeout", "15", "--journals", tmp_path)
    assert ended.status == 1
    assert "took longer than" in ended.err
    assert list(tmp_path.glob("agent-*.jsonl"))

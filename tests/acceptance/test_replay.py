"""The replay from end to end, as an operator runs it: real processes, real kills, and what it says at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from statecache.replay.journal import Invoke, Resumed, Tail
from statecache.replay.ledger import Ledger
from statecache.settings import process_environment
from statecache.testing import servers

ALL = "agent,flusher,redis,postgres"
SECONDS = 240


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


def test_given_servers_are_used_and_spared(tmp_path: Path) -> None:
    with servers(workers=0, appendfsync="always") as given:
        environment = given.environment()
        killed = replay("--kill", "redis", "--limit", "2", environment=environment)
        assert (killed.status, killed.err.count("\n")) == (2, 1)
        assert "redis is not this replay's own" in killed.err
        ended = replay("--kill", "agent,flusher", "--limit", "6", "--seed", "5", "--json", environment=environment)
        assert ended.status == 0, ended.err
        assert sound(ended.told, runs=6, kills={"agent": 3, "flusher": 3})
        again = replay("--limit", "2", environment=environment)
        assert again.status == 2
        assert "'runs/library-renewal' and 1 more of these runs are there already" in again.err


def test_where_disk_is_refused_postgres_is_taken_unless_disk_was_asked_for() -> None:
    with servers(workers=0, redis_config={"appendonly": "no"}) as given:
        asked = replay("--limit", "2", "--durability", "disk", environment=given.environment())
        assert asked.status == 3
        assert "no append-only file" in asked.err
        assert "Traceback" not in asked.err
        ended = replay("--limit", "2", "--json", environment=given.environment())
        assert ended.status == 0, ended.err
        assert sound(ended.told, durability="postgres")


def test_servers_that_are_away_are_status_4() -> None:
    nobody = {"STATECACHE_REDIS_URL": "redis://127.0.0.1:1/0", "STATECACHE_POSTGRES_URL": "postgresql://127.0.0.1:1/x"}
    ended = replay("--limit", "1", environment=nobody)
    assert ended.status == 4
    assert len(ended.err.splitlines()) == 2


def test_a_schema_that_was_never_migrated_is_status_3() -> None:
    with servers(workers=0, migrate=False) as given:
        ended = replay("--limit", "1", environment=given.environment())
    assert ended.status == 3
    assert "statecache migrate" in ended.err


def test_a_replay_that_takes_too_long_says_so_and_keeps_its_journals(tmp_path: Path) -> None:
    unhurried = ("--limit", "1", "--workers", "0", "--think-ms", "60000")  # no worker, so that agents start at once
    ended = replay(*unhurried, "--timeout", "10", "--journals", tmp_path)
    assert ended.status == 1
    assert "took longer than" in ended.err
    assert list(tmp_path.glob("agent-*.jsonl"))

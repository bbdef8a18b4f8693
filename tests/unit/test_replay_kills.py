"""When a replay kills what, at which pace, and what it makes of the numbers."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from statecache.clock import monotonic
from statecache.core.redis.connection import dialer
from statecache.errors import ConfigurationError, UsageError
from statecache.keys import KeySpace
from statecache.replay import fleet
from statecache.replay.audit import Verdict
from statecache.replay.journal import Invoke, Journal, Ok, journal_path
from statecache.replay.ledger import Ledger
from statecache.replay.nemesis import KILLS_EACH, KINDS, Kill, schedule
from statecache.replay.pace import Pace, think_s_for
from statecache.replay.report import report
from statecache.replay.runs import AgentRun
from statecache.replay.stage import Stage, stage, urls_are_given
from statecache.replay.supervisor import Options, Supervisor, refuse_unfit
from statecache.settings import Settings

HERE = Settings(redis_url="redis://127.0.0.1:1/0", postgres_url="postgresql://127.0.0.1:1/x")


def options(**other: object) -> Options:
    return Options(**{"runs": [AgentRun("a", [{"role": "user"}])], "seed": 1, **other})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_has_its_kills_spread_over_the_run(seed: int) -> None:
    kills = schedule(KINDS, seed=seed)
    assert sorted(kill.kind for kill in kills) == sorted(KINDS * KILLS_EACH)
    assert all(before.progress <= after.progress for before, after in pairwise(kills))
    assert all(0.05 <= kill.progress <= 0.75 for kill in kills)
    turns = [kills[start : start + len(KINDS)] for start in range(0, len(kills), len(KINDS))]
    assert all({kill.kind for kill in turn} == set(KINDS) for turn in turns)


def test_a_seed_fixes_the_schedule_and_another_changes_it() -> None:
    assert schedule(KINDS, seed=3) == schedule(KINDS, seed=3)
    assert schedule(KINDS, seed=3) != schedule(KINDS, seed=4)
    assert schedule((), seed=3) == []


def test_the_pace_is_slow_only_where_kills_need_it() -> None:
    assert think_s_for(5000, 0, 16) == 0.0
    assert think_s_for(200, 12, 12) == pytest.approx(0.384)
    assert think_s_for(5308, 12, 16) < 0.02
    assert think_s_for(8, 12, 1) == 0.5


def test_agents_read_the_pace_that_the_supervisor_sets(tmp_path: Path) -> None:
    with Pace.shared(tmp_path) as supervisor, Pace.shared(tmp_path) as agent:
        assert agent.think_s() == 0.0
        supervisor.set_think_s(0.25)
        assert agent.think_s() == 0.25
        supervisor.set_think_s(0.0)
        assert agent.think_s() == 0.0


def test_kills_that_cannot_be_are_refused_before_anything_starts() -> None:
    refuse_unfit(options(kills=("agent", "flusher")), HERE)
    with pytest.raises(UsageError, match="'disk' cannot be killed"):
        refuse_unfit(options(kills=("disk",)), HERE)
    with pytest.raises(UsageError, match="postgres is not this replay's own"):
        refuse_unfit(options(kills=("agent", "postgres")), HERE)


class FakeProcess:
    """A process that runs until it is killed."""

    returncode: int | None = None

    def is_running(self) -> bool:
        return self.returncode is None

    def kill(self) -> None:
        self.returncode = -9


@pytest.mark.parametrize("counts", [False, True], ids=["with another's commit alone", "with its own"])
def test_an_agents_kill_counts_with_a_commit_of_the_victim_in_flight(
    counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is struck as far as its journal was read by then; the rest of it tells whether the commit was over."""
    monkeypatch.setattr(fleet, "spawn", lambda *args, **more: FakeProcess())
    asked = options(runs=[AgentRun(name, [{"role": "user"}]) for name in "ab"], agents=2, kills=("agent",))
    supervisor: Any = Supervisor(asked, Stage(HERE, {}, None), tmp_path, lambda standing: None)
    kill = Kill(kind="agent", progress=0.0, down_s=100.0, pick=0.0)
    supervisor._due = [kill]
    paths = [journal_path(tmp_path, agent, 0) for agent in range(2)]
    with Journal(paths[0]) as victim, Journal(paths[1]) as other:
        for agent, journal in enumerate((victim, other)):
            supervisor._agents.start(agent)
            journal.write(Invoke(at=monotonic(), run="ab"[agent], index=0, change_id=f"c{agent}", expected=""))
        supervisor._agents.read()
        if not counts:
            victim.write(Ok(at=monotonic(), change_id="c0", version=1, epoch=1, position="1-1"))
        supervisor._strike(kill)
        supervisor._confirm(monotonic())
    assert supervisor._kills() == {"agent": int(counts)}
    assert supervisor._due == ([] if counts else [kill])


def test_one_url_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATECACHE_REDIS_URL", raising=False)
    monkeypatch.delenv("STATECACHE_POSTGRES_URL", raising=False)
    assert urls_are_given(HERE)
    assert not urls_are_given(Settings())
    with pytest.raises(ConfigurationError, match="redis_url is set and postgres_url is not"):
        urls_are_given(Settings(redis_url="redis://127.0.0.1/0"))
    monkeypatch.setenv("STATECACHE_POSTGRES_URL", "postgresql://127.0.0.1/x")
    with pytest.raises(ConfigurationError, match="postgres_url is set and redis_url is not"):
        urls_are_given(Settings())


def test_files_for_tls_are_not_meant_for_throwaway_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    own = SimpleNamespace(redis_url="redis://h/0", postgres_url="postgresql://h/x", environment=dict)
    monkeypatch.setattr("statecache.replay.stage.servers", lambda **_: nullcontext(own))
    with stage(Settings(redis_ca_file="/ca.pem"), ["a/b"], throwaway=True) as on:
        assert dialer(on.settings)() is not None
        assert on.environment["STATECACHE_REDIS_CA_FILE"] == ""


def test_the_report_adds_up() -> None:
    ledger = Ledger()
    for n in range(1, 101):
        ledger.take(
            [
                Invoke(at=10.0 + n, run="a", index=n, change_id=f"c{n}", expected=""),
                Ok(at=10.0 + n + n / 1000, change_id=f"c{n}", version=n, epoch=1, position=f"1-{n}"),
            ]
        )
    keys = KeySpace("sc", 64)
    seen = {keys.shard("runs/a"): [(0, 0.0), (100, 110.5)]}
    kills = {"agent": 3, "redis": 2}
    told = report(
        ledger, Verdict(), runs=1, messages=100, keys=keys, seen=seen, kills=kills, durability="disk", seed=1
    )  # fmt: skip
    assert (told.commits_acked, told.audit_ok, told.kills_reached) == (100, True, False)
    assert (told.commit_p50_ms, told.commit_p99_ms) == (50.0, 99.0)
    assert told.commits_per_s == pytest.approx(100 / 99.1, abs=0.1)
    assert told.flush_lag_p99_ms == pytest.approx((110.5 - 12.002) * 1000, abs=1)
    failed = report(
        ledger, Verdict(lost=1), runs=1, messages=100, keys=keys, seen={}, kills={}, durability="disk", seed=1
    )  # fmt: skip
    assert (failed.audit_ok, failed.lost, failed.flush_lag_p99_ms, failed.kills_reached) == (False, 1, 0.0, True)

"""Persistence for flows of CrewAI, by a Python of its own: CrewAI and what else is installed exclude one another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statecache import Settings, StateCache
from statecache.settings import process_environment
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.support.killer import Killer

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(sys.prefix) / ".crewai" / "bin" / "python"
CONTRACT, MOVING_IN, ONCE = "tests/crewai/contract.py", "tests/crewai/moving_in.py", "tests/crewai/once.py"
BRANCHED = "tests/crewai/branched.py"
SECONDS = 300
SAVES = 150
QUIET = {"OTEL_SDK_DISABLED": "true", "CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="CrewAI has no release for this Python")


@pytest.fixture(scope="module")
def running() -> Iterator[Servers]:
    """Servers with a worker."""
    assert PYTHON.exists(), "`make test` installs CrewAI beside: it takes no part in this environment"
    with servers(workers=1, fsync=False) as started:
        yield started


def _environment(on: Servers, home: Path, **more: str) -> dict[str, str]:
    urls = {"STATECACHE_REDIS_URL": on.redis_url, "STATECACHE_POSTGRES_URL": on.postgres_url}
    return process_environment() | QUIET | urls | {"PYTHONPATH": str(ROOT), "HOME": str(home)} | more


def _kept(on: Servers, home: Path, configuration: str, *files: str) -> None:
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ROOT / "tests/crewai",
         "--confcutdir", ROOT / "tests/crewai", "-p", "tests.crewai.persistences", *files],
        cwd=ROOT, env=_environment(on, home, CONFIGURATION=configuration), capture_output=True, text=True, check=False,
        timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("configuration", ["normal", "two clients", "cold"])
def test_it_keeps_the_contract(running: Servers, tmp_path: Path, configuration: str) -> None:
    once = [ONCE] if configuration == "normal" else []
    _kept(running, tmp_path, configuration, CONTRACT, MOVING_IN, BRANCHED, *once)


def test_it_keeps_the_contract_while_no_worker_runs(tmp_path: Path) -> None:
    with servers(workers=0, fsync=False) as started:
        _kept(started, tmp_path, "paused", CONTRACT, MOVING_IN)


def test_every_save_is_in_the_history_though_servers_and_worker_are_killed(tmp_path: Path) -> None:
    with servers(workers=1, fsync=False, settings={"shards": "4"}) as mortal:
        told, killer = list[str](), Killer(mortal, "redis", "postgres", "worker")
        environment = _environment(mortal, tmp_path, STATECACHE_SHARDS="4")
        command = [str(PYTHON), CONTRACT, "42", str(SAVES)]
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as flow:
            assert flow.stdout is not None
            for line in flow.stdout:
                if line.strip().isdecimal():
                    told.append(line.strip())
                    if len(told) % 30 == 10:
                        killer(len(killer.struck))
            assert flow.wait(SECONDS) == 0
        killer.wait()
        assert told == [str(number) for number in range(SAVES)]
        assert len(killer.struck) == SAVES // 30
        urls: dict[str, Any] = {"redis_url": mortal.redis_url, "postgres_url": mortal.postgres_url, "shards": 4}
        with StateCache(settings=Settings(**urls)) as cache:
            cache.set("crewai/42/end", 1, durability="postgres", timeout=60.0)
            saved = [(one.value or {})["number"] for one in cache.history("crewai/42", values=True)]
        assert saved == [*range(SAVES)]


def test_of_two_processes_on_one_flow_every_save_is_in_the_history(running: Servers, tmp_path: Path) -> None:
    environment, times = _environment(running, tmp_path), 40
    command = [str(PYTHON), CONTRACT, "shared", str(times), "with others"]
    both = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]  # fmt: skip
    told = [one.communicate(timeout=SECONDS)[0].split() for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert told == [[str(number) for number in range(times)]] * 2
    with StateCache(redis_url=running.redis_url, postgres_url=running.postgres_url) as cache:
        saved = [(one.value or {})["number"] for one in cache.history("crewai/shared", values=True)]
        state = cache.get("crewai/shared")
    assert sorted(saved) == sorted([*range(times)] * 2)
    assert state is not None
    assert state.value == {"number": saved[-1]}

"""What is the same however servers and clients stand, and takes processes that begin with CrewAI: see `test_crewai`."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statecache import Settings, StateCache, UsageError
from statecache.adapters.crewai import StateCacheFlowPersistence
from tests.crewai.flows import flow_of
from tests.crewai.persistences import Both


def test_the_flow_of_the_page_says_what_the_page_does(both: Both) -> None:
    without_memory = "from crewai.flow.flow import Flow; Flow._skip_auto_memory = True; import runpy, sys"
    run = f"{without_memory}; runpy.run_path(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", run, str(Path(__file__).parent / "agent.py")],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "['paid', 'packed', 'packed']" in done.stdout.splitlines()
    assert both.next().load_state("order/9") == {"id": "order/9", "steps": ["paid", "packed", "packed"]}
    both.clients[0].delete("crewai/order%2F9")


def test_a_flow_that_was_killed_is_gone_on_with(both: Both, flow_id: str) -> None:
    died = subprocess.run([sys.executable, __file__, flow_id], check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL
    state = both.next().load_state(flow_id)
    assert state is not None
    assert state["done"] == ["first"]
    flow = flow_of(both.next())()
    flow.kickoff(inputs={"id": flow_id, "said": "live"})
    assert flow.state.done == ["first", "first", "second"]


def test_a_persistence_that_stands_on_settings_is_pickled_with_them(both: Both, flow_id: str) -> None:
    settings = Settings(timeout_s=7.0)
    with StateCacheFlowPersistence(settings, namespace="others", durability="memory") as persistence:
        persistence.save_state(flow_id, "step", {"id": flow_id})
        with pickle.loads(pickle.dumps(persistence)) as again:
            assert (again.namespace, again.durability, again._clients._settings) == ("others", "memory", settings)
            assert again._clients._policy == {"durability": "memory"}
            assert again.load_state(flow_id) == {"id": flow_id}
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(persistence.load_state, (flow_id,)) == {"id": flow_id}
        assert persistence.load_state(flow_id) == {"id": flow_id}, "it has a client of its own"
    with pytest.raises(UsageError, match="stands on a client that was given") as refused:
        pickle.dumps(both.next())
    assert "settings" in refused.value.hint


def dies(flow_id: str) -> None:
    """Run a flow whose second method kills this process."""
    with StateCache() as cache:
        flow_of(StateCacheFlowPersistence(cache))().kickoff(inputs={"id": flow_id, "said": "die"})


if __name__ == "__main__":
    dies(sys.argv[1])

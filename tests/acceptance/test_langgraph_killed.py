"""A graph whose process is killed goes on in another one, from a checkpoint that is whole."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from statecache import Settings
from statecache.adapters.langgraph import StateCacheSaver
from tests.rules.tree import ROOT
from tests.support.langgraph_agent import STEPS, graph
from tests.support.langgraph_stories import config

_NAMED = ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards")


def killed_at(settings: Settings, thread: str, step: int) -> None:
    """Run the agent until it begins that step, and kill it then, wherever it has come to meanwhile."""
    environment = os.environ | {f"STATECACHE_{name.upper()}": str(getattr(settings, name)) for name in _NAMED}
    agent = [sys.executable, "-m", "tests.support.langgraph_agent", thread]
    with subprocess.Popen(agent, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if int(line) == step:
                break
        running.kill()
    assert running.returncode < 0


@pytest.mark.parametrize("step", [1, 13, 29])
def test_an_agent_that_is_killed_goes_on_where_it_was_and_does_each_step_once(settings: Settings, step: int) -> None:
    killed_at(settings, "42", step)
    with StateCacheSaver(settings) as saver:
        agent = graph(saver)
        kept = len(agent.get_state(config("42")).values["done"])
        assert kept >= step
        done = agent.invoke(None, config("42") | {"recursion_limit": 100})["done"]
        assert [one.partition(" ")[0] for one in done] == [str(number) for number in range(STEPS)]
        history = [*agent.get_state_history(config("42"))]
        assert [len(state.values.get("done", ())) for state in history] == [*range(STEPS, -1, -1), 0]

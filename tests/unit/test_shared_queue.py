"""Which states are crowded: for how long that is remembered, of how many, and not in a forked child."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from statecache._process import mutex
from statecache.keys import KeySpace


@pytest.fixture
def module() -> Any:
    """The module of the queue that processes share."""
    return import_module("statecache.core.update.shared_queue")


@pytest.fixture
def queues(module: Any) -> Any:
    """What knows the crowded states of a client that is not connected."""
    return module.SharedQueues(KeySpace(), None, None, new_token=lambda: "a-token")


def test_a_state_is_crowded_for_a_second(module: Any, queues: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    assert not queues.is_crowded("runs/1")
    queues.crowd("runs/1")
    assert queues.is_crowded("runs/1")
    assert not queues.is_crowded("runs/2")
    now += 1.0
    assert not queues.is_crowded("runs/1")


def test_where_it_is_refused_it_is_tried_again_after_a_minute(
    module: Any, queues: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    queues.refused()
    queues.crowd("runs/1")
    assert not queues.is_crowded("runs/1")
    now += 60.0
    queues.crowd("runs/1")
    assert queues.is_crowded("runs/1")


def test_of_many_crowded_states_the_last_ones_are_remembered(queues: Any) -> None:
    for number in range(1000):
        queues.crowd(f"runs/{number}")
    queues.crowd("runs/0")
    queues.crowd("runs/1000")
    assert [queues.is_crowded(f"runs/{number}") for number in (0, 1, 2, 1000)] == [True, False, True, True]


def test_a_forked_child_begins_anew(queues: Any) -> None:
    queues.crowd("runs/1")
    queues.begin_anew(mutex())
    assert not queues.is_crowded("runs/1")

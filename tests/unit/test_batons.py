"""Which states are crowded: for how long that is remembered, of how many, and not in a forked child."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from statecache import _process
from statecache.keys import KeySpace


@pytest.fixture
def module() -> Any:
    """The module of batons."""
    return import_module("statecache.core.update.batons")


@pytest.fixture
def batons(module: Any) -> Any:
    """What knows the crowded states of a client that is not connected."""
    return module.Batons(KeySpace(), None, None, new_token=lambda: "a-token")


def test_a_state_is_crowded_for_a_second(module: Any, batons: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    assert not batons.is_crowded("runs/1")
    batons.crowd("runs/1")
    assert batons.is_crowded("runs/1")
    assert not batons.is_crowded("runs/2")
    now += 1.0
    assert not batons.is_crowded("runs/1")


def test_where_it_is_refused_it_is_tried_again_after_a_minute(
    module: Any, batons: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    batons.refused()
    batons.crowd("runs/1")
    assert not batons.is_crowded("runs/1")
    now += 60.0
    batons.crowd("runs/1")
    assert batons.is_crowded("runs/1")


def test_of_many_crowded_states_the_last_ones_are_remembered(batons: Any) -> None:
    for number in range(1000):
        batons.crowd(f"runs/{number}")
    batons.crowd("runs/0")
    batons.crowd("runs/1000")
    assert [batons.is_crowded(f"runs/{number}") for number in (0, 1, 2, 1000)] == [True, False, True, True]


def test_a_forked_child_begins_anew(batons: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batons.crowd("runs/1")
    monkeypatch.setattr(_process, "pid", -1)
    batons.of("runs/1", end=0.0)
    assert not batons.is_crowded("runs/1")

"""The ready state type of an agent's run, and the text that a model is restarted with."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statecache import AgentRun, UsageError
from statecache.codec import codec_for

RUN = (
    AgentRun(goal="refund order 7", plan=("look it up", "refund", "tell the customer"))
    .with_step("look it up", {"total": 30, "paid": True})
    .with_decision("refund in full")
    .with_discovery("the customer\nlives in Oslo")
)
WHOLE = """\
Goal: refund order 7
Steps (1 of 3 done):
  [x] look it up: {"paid":true,"total":30}
  [ ] refund  <- next
  [ ] tell the customer
Decisions:
  - refund in full
Discoveries:
  - the customer lives in Oslo
"""


def _long() -> AgentRun:
    run = AgentRun(goal="sort the mail", plan=tuple(f"letter {at}" for at in range(50)))
    for at in range(40):
        run = run.with_step(f"letter {at}", "x" * 500).with_decision(f"decision {at}").with_discovery(f"discovery {at}")
    return run


def test_the_summary_says_everything_where_it_fits() -> None:
    assert RUN.resume_summary() == WHOLE
    assert AgentRun(goal="rest").resume_summary() == "Goal: rest\n"


def test_each_method_gives_the_next_run_and_leaves_this_one() -> None:
    before = AgentRun(goal="g", plan=("a", "b"))
    after = before.with_step("a", 1)
    assert (before.completed, before.results, before.next_step) == ((), {}, "a")
    assert (after.completed, after.results, after.next_step) == (("a",), {"a": 1}, "b")
    assert after.remaining == ("b",)
    assert after.with_plan("c").remaining == ("c",)


def test_a_step_that_is_done_again_replaces_its_result() -> None:
    run = AgentRun(goal="g").with_step("a", 1).with_step("b").with_step("a", 2)
    assert run.completed == ("a", "b")
    assert run.results == {"a": 2}
    assert run.with_step("a").results == {}


def test_what_is_done_beside_the_plan_is_shown_too() -> None:
    assert "[x] extra" in RUN.with_step("extra").resume_summary()


def test_long_texts_are_shortened_before_anything_is_left_out() -> None:
    text = RUN.with_step("refund", "r" * 9000).resume_summary(characters_max=700)
    assert "…" in text
    assert text.endswith("(Cut to 700 characters: texts shortened to 300.)\n")
    assert "Oslo" in text


def test_the_oldest_discoveries_give_way_first_and_the_goal_never() -> None:
    text = _long().resume_summary(characters_max=3400)
    assert "discovery 39" in text
    assert "discovery 0\n" not in text
    assert "decision 0\n" in text
    assert "letter 0:" in text
    assert "discoveries" in text.splitlines()[-1]


def test_the_end_of_the_plan_gives_way_last() -> None:
    text = _long().resume_summary(characters_max=400)
    assert text.startswith("Goal: sort the mail\n")
    assert "[ ] letter 40  <- next" in text
    assert "left out: 40 discoveries" in text


@pytest.mark.parametrize("characters_max", [0, 299])
def test_too_short_a_summary_is_refused(characters_max: int) -> None:
    with pytest.raises(UsageError, match="less than 300"):
        RUN.resume_summary(characters_max=characters_max)


def test_a_result_without_json_shows_what_it_is() -> None:
    assert "a: (object)" in AgentRun(goal="g").with_step("a", object()).resume_summary()
    assert 'a: {"1":"x"}' in AgentRun(goal="g").with_step("a", {1: "x"}).resume_summary()


def test_a_run_is_stored_and_read_back_as_it_was() -> None:
    codec = codec_for(AgentRun)
    data, _ = codec.encode(RUN, key="runs/1", bytes_max=10_000)
    assert codec.decode(data, key="runs/1") == RUN
    assert codec.decode(data, key="runs/1").resume_summary() == WHOLE


texts = st.text(max_size=300)
anything = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4), max_leaves=8)


@given(
    goal=texts,
    names=st.lists(texts, max_size=30),
    done=st.dictionaries(texts, anything, max_size=30),
    said=st.lists(texts, max_size=30),
    characters_max=st.integers(300, 3000),
)
def test_a_summary_is_never_longer_than_asked_and_always_the_same(
    goal: str, names: list[str], done: dict[str, Any], said: list[str], characters_max: int
) -> None:
    run = AgentRun(goal=goal, plan=tuple(names), decisions=tuple(said), discoveries=tuple(said))
    for name, result in done.items():
        run = run.with_step(name, result)
    text = run.resume_summary(characters_max=characters_max)
    assert len(text) <= characters_max
    again = msgspec.structs.replace(run, results=dict(reversed(run.results.items())))
    assert again.resume_summary(characters_max=characters_max) == text

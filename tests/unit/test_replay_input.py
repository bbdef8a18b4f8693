"""The input of a replay: what is taken, what is refused and how, and what agents derive from it."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statecache.errors import UsageError
from statecache.replay.audit import expected_value
from statecache.replay.runs import AgentRun, RunState, advanced, beginning, read_runs, state_after

SAMPLE = (files("statecache.replay") / "sample.jsonl").read_bytes()


def line(**fields: Any) -> bytes:
    return msgspec.json.encode({"id": "a", "messages": [{"role": "user", "content": "Hi"}], **fields})


def test_the_sample_is_a_dozen_short_runs_that_call_tools_and_ask() -> None:
    runs = read_runs(SAMPLE, name="sample")
    lasts = [state_after(run, len(run.messages)) for run in runs]
    assert len(runs) == 12
    assert all(8 <= len(run.messages) <= 24 for run in runs)
    assert all(state.tool_calls for state in lasts)
    assert all(any(state_after(run, step).open_question for step in range(len(run.messages))) for run in runs)


def test_a_limit_takes_the_first_runs_and_blank_lines_do_not_count() -> None:
    runs = read_runs(b"\n" + SAMPLE, name="sample", limit=2)
    assert [run.id for run in runs] == ["library-renewal", "bakery-order"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "bad.jsonl holds no runs"),
        (b"\n \n", "bad.jsonl holds no runs"),
        (b"hello", "bad.jsonl, line 1: not JSON"),
        (b"\xff\xfe", "bad.jsonl, line 1: not JSON"),
        (line() + b'\n{"id": "b", "mess', "bad.jsonl, line 2: not JSON"),
        (b"[1, 2]", "line 1: not a run"),
        (b'{"id": 7, "messages": []}', "line 1: not a run"),
        (b'{"id": "a"}', "line 1: not a run"),
        (line(messages="hello"), "line 1: not a run"),
        (line(messages=[7]), "line 1: not a run"),
        (line(messages=[]), "the run 'a' has no messages"),
        (line(messages=[{"content": "Hi"}]), "message 1 of the run 'a': its role is not text"),
        (line(messages=[{"role": "user", "content": 7}]), "its content is neither text nor null"),
        (line(messages=[{"role": "user", "tool_calls": 7}]), "its tool_calls are not a list"),
        (line(messages=[{"role": "user", "tool_calls": [7]}]), "a tool call has no function name"),
        (line(messages=[{"role": "user", "tool_calls": [{"function": {}}]}]), "a tool call has no function name"),
        (line() + b"\n" + line(), "line 2: the run 'a' is there twice"),
        (line(id=""), "segment 2 is empty"),
        (line(id="a/"), "segment 3 is empty"),
        (line(id="x" * 600), "more than 512"),
        (line(messages=[{"role": "user", "content": "x" * (8 << 20)}]), "more than the limit of 8,388,608 bytes"),
    ],
)
def test_a_bad_file_is_refused_with_its_line_and_reason(data: bytes, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_runs(data, name="bad.jsonl")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_limit_looks_at_no_line_beyond() -> None:
    assert len(read_runs(line() + b"\nnot JSON", name="x", limit=1)) == 1


_TEXT = st.none() | st.text(alphabet="ab .!?\n", max_size=12)
_CALLS = st.none() | st.lists(st.builds(lambda name: {"function": {"name": name}}, st.sampled_from("xy")), max_size=2)
_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": _TEXT},
    optional={"tool_calls": _CALLS},
)


@given(st.lists(_MESSAGE, max_size=8))
def test_agents_and_audit_derive_the_same_in_different_words(messages: list[dict[str, Any]]) -> None:
    run = AgentRun("a", messages)
    state: RunState = beginning("a")
    for step, message in enumerate(messages, 1):
        state = advanced(state, message)
        assert msgspec.to_builtins(state) == expected_value(run, step)
    assert state == state_after(run, len(messages))

"""The input, recorded agent runs, and what an agent derives from one message after the other.

A file holds one run a line: `{"id": …, "messages": [{"role": …, "content": …, "tool_calls": …}, …]}`. All of it is
checked before anything is started, for a run that turns out to be unfit halfway would be an incident, not a usage
error.
"""

from __future__ import annotations

from typing import Any

import msgspec

from statecache.codec import codec_for
from statecache.errors import CodecError, InvalidKey, LimitExceeded, UsageError
from statecache.keys import checked_key
from statecache.model import VALUE_BYTES_MAX

NAMESPACE = "runs"

Message = dict[str, Any]


class AgentRun(msgspec.Struct, frozen=True):
    """One recorded run."""

    id: str
    messages: list[Message]


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent keeps of its run after `step` messages: the value at the key `runs/<id>`."""

    id: str
    step: int
    tool_calls: list[str]
    open_question: str | None
    messages: list[Message]


def key_of(run_id: str) -> str:
    """Return the key of a run's state."""
    return f"{NAMESPACE}/{run_id}"


def beginning(run_id: str) -> RunState:
    """Return a run's state before its first message; it is never committed."""
    return RunState(id=run_id, step=0, tool_calls=[], open_question=None, messages=[])


def advanced(state: RunState, message: Message) -> RunState:
    """Return the state after one more message.

    `tool_calls` names every function that was called, in order; `open_question` is the last question of the assistant
    that the user has not answered yet.
    """
    question = state.open_question
    if message["role"] == "user":
        question = None
    elif message["role"] == "assistant":
        question = _last_question(message.get("content") or "") or question
    return RunState(
        id=state.id,
        step=state.step + 1,
        tool_calls=[*state.tool_calls, *(call["function"]["name"] for call in message.get("tool_calls") or ())],
        open_question=question,
        messages=[*state.messages, message],
    )


def state_after(run: AgentRun, step: int) -> RunState:
    """Return the state after the run's first `step` messages."""
    state = beginning(run.id)
    for message in run.messages[:step]:
        state = advanced(state, message)
    return state


def _last_question(text: str) -> str | None:
    end = text.rfind("?")
    if end < 0:
        return None
    start = max(text.rfind(mark, 0, end) for mark in ".!?\n") + 1
    return text[start : end + 1].strip()


def read_runs(data: bytes, *, name: str, limit: int | None = None) -> list[AgentRun]:
    """Return the runs of a file, at most `limit`; raise UsageError with the line and what is wrong with it."""
    runs: list[AgentRun] = []
    seen: set[str] = set()
    for number, line in enumerate(data.splitlines(), 1):
        if limit is not None and len(runs) >= limit:
            break
        if line.strip():
            run = _read_run(line, where=f"{name}, line {number}")
            if run.id in seen:
                raise UsageError(f"{name}, line {number}: the run {run.id!r} is there twice")
            seen.add(run.id)
            runs.append(run)
    if not runs:
        raise UsageError(f"{name} holds no runs")
    return runs


def _read_run(line: bytes, *, where: str) -> AgentRun:
    try:
        run = msgspec.json.decode(line, type=AgentRun)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: not a run: {error}", hint=_SHAPE) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: not JSON: {error}", hint=_SHAPE) from None
    if not run.messages:
        raise UsageError(f"{where}: the run {run.id!r} has no messages")
    for index, message in enumerate(run.messages):
        fault = _fault_of(message)
        if fault:
            raise UsageError(f"{where}: message {index + 1} of the run {run.id!r}: {fault}", hint=_SHAPE)
    _refuse_unfit(run, where)
    return run


_SHAPE = 'A line looks like {"id": "a", "messages": [{"role": "user", "content": "Hi"}]}.'


def _fault_of(message: Message) -> str:
    if not isinstance(message.get("role"), str):
        return "its role is not text"
    if not isinstance(message.get("content"), str | None):
        return "its content is neither text nor null"
    calls = message.get("tool_calls")
    if not isinstance(calls, list | None):
        return "its tool_calls are not a list"
    for call in calls or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return "a tool call has no function name"
    return ""


def _refuse_unfit(run: AgentRun, where: str) -> None:
    """Raise UsageError for a run whose key or last state, the largest, the cache would refuse."""
    try:
        key = checked_key(key_of(run.id))
        last = state_after(run, len(run.messages))
        codec_for(RunState).encode(last, key=key, bytes_max=VALUE_BYTES_MAX)
    except (InvalidKey, CodecError, LimitExceeded) as error:
        raise UsageError(f"{where}: {error}") from None

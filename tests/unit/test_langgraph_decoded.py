"""Messages that are kept decoded: copies equal what the serializer makes, and nothing of them is shared."""

from __future__ import annotations

import copy
import gc
import re
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from statecache.adapters.langgraph import decoded as module
from statecache.adapters.langgraph.decoded import Decoded
from statecache.adapters.langgraph.values import Packed, Serde

CALL: Any = {"name": "search", "args": {"query": ["a", {"b": 1}]}, "id": "1", "type": "tool_call"}
MESSAGES: list[Any] = [
    HumanMessage("hello", id="1", name="ada"),
    HumanMessage([{"type": "text", "text": "hello"}, "more"], additional_kwargs={"a": {"b": [1]}}),
    AIMessage("yes", tool_calls=[CALL], usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    AIMessage("yes", response_metadata={"model": "m"}, unheard={"of": [1]}),
    AIMessageChunk(content="part"),
    SystemMessage("be kind"),
    ToolMessage("found", tool_call_id="1", artifact={"rows": [1, 2]}, status="error"),
    RemoveMessage(id="1"),
]


def loaded(serde: Serde, data: bytes) -> Any:
    return serde.load(Packed("msgpack", data))


def test_a_copy_is_all_that_the_serializer_makes_and_nobody_elses() -> None:
    serializer, kept = JsonPlusSerializer(), Decoded()
    _, data = serializer.dumps_typed({"messages": MESSAGES, "at": (1, None, b"x")})
    serde, wanted = Serde(serializer, kept), serializer.loads_typed(("msgpack", data))
    first = loaded(serde, data)
    assert len(kept._copies) == len(MESSAGES)
    for _ in range(3):
        again = loaded(serde, data)
        assert again == first == wanted
        assert repr(again) == repr(wanted)
        assert serializer.dumps_typed(again) == serializer.dumps_typed(wanted)
        for one, other in zip(again["messages"], wanted["messages"], strict=True):
            assert type(one) is type(other)
            assert one.model_fields_set == other.model_fields_set
            assert one.model_extra == other.model_extra
            one.additional_kwargs["changed"] = True
            one.content = "changed"
            one.changed = True
        again["messages"][2].tool_calls[0]["args"]["query"].append("changed")
        again["messages"][3].response_metadata.clear()
        again["messages"].clear()
    first["messages"].clear()
    assert loaded(serde, data) == wanted


def test_of_a_conversation_that_has_grown_the_new_messages_alone_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    serializer, kept = JsonPlusSerializer(), Decoded()
    data = [serializer.dumps_typed(MESSAGES[:end])[1] for end in (3, 3, 5, 2)]
    decode, decoded = serializer.loads_typed, list[Any]()

    def load(typed: tuple[str, bytes]) -> Any:
        decoded.append(decode(typed))
        return decoded[-1]

    monkeypatch.setattr(serializer, "loads_typed", load)
    found = [loaded(Serde(serializer, kept), one) for one in data]
    assert found == [MESSAGES[:3], MESSAGES[:3], MESSAGES[:5], MESSAGES[:2]]
    assert decoded == [*MESSAGES[:3], *MESSAGES[:3], *MESSAGES[3:5]], "the second time it is seen how it is copied"


def test_what_is_not_known_to_be_copied_whole_is_decoded_each_time() -> None:
    serializer, kept = JsonPlusSerializer(), Decoded()
    values = [
        datetime(2026, 1, 1, tzinfo=UTC), {1, 2}, UUID(int=1), Path("a"), re.compile("a"), {3: (None, 1.5, b"x")},
        HumanMessage("hello", additional_kwargs={"at": datetime(2026, 1, 1, tzinfo=UTC)}),
        ToolMessage("found", tool_call_id="1", artifact={(1, 2): {3}}),
    ]  # fmt: skip
    _, data = serializer.dumps_typed(values)
    serde, wanted = Serde(serializer, kept), serializer.loads_typed(("msgpack", data))
    for _ in range(3):
        assert repr(loaded(serde, data)) == repr(wanted)
    assert not any(copied for _, copied, _ in kept._copies.values())


def test_each_serializer_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, kept = JsonPlusSerializer(), JsonPlusSerializer(), Decoded()
    _, data = one.dumps_typed([HumanMessage("hello")])
    for _ in range(3):
        assert loaded(Serde(one, kept), data) == [HumanMessage("hello")]
    monkeypatch.setattr(other, "loads_typed", lambda _: "another")
    assert loaded(Serde(other, kept), data) == ["another"]
    assert loaded(Serde(copy.copy(one), kept), data) == [HumanMessage("hello")]


def test_what_was_used_least_recently_goes_and_large_messages_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    serializer, kept, decoded = JsonPlusSerializer(), Decoded(), list[str]()
    data = {text: serializer.dumps_typed(HumanMessage(text))[1] for text in ("a", "b", "c", "d", "e" * 300)}
    monkeypatch.setattr(module, "MESSAGES_BYTES_MAX", 3 * (len(data["a"]) + module._NAME_BYTES))
    monkeypatch.setattr(module, "_bytes_of", lambda _: 0)
    monkeypatch.setattr(module, "_MESSAGE_BYTES_MAX", 2 * len(data["a"]))
    decode = serializer.loads_typed

    def load(typed: tuple[str, bytes]) -> Any:
        message = decode(typed)
        decoded.append(message.content[0])
        return message

    monkeypatch.setattr(serializer, "loads_typed", load)
    for text in ("a", "b", "c", "a", "d", "a", "b", "e" * 300, "e" * 300):
        assert loaded(Serde(serializer, kept), data[text]) == HumanMessage(text)
    assert decoded == [*"abcadbee"]
    assert kept._bytes == sum(len(name[2]) + module._NAME_BYTES for name in kept._copies)


def logged(number: int) -> Any:
    tokens = [{"token": str(at), "bytes": [at, number % 256], "logprob": -at / 7 - number} for at in range(100)]
    return AIMessage("text", id=str(number), response_metadata={"logprobs": {"content": tokens}})


def listed(number: int) -> Any:
    return ToolMessage("points", id=str(number), tool_call_id="1", artifact=[[number, at * 1000] for at in range(500)])


def called(number: int) -> Any:
    return AIMessage(f"text {number}", id=str(number), tool_calls=[CALL])


@pytest.mark.parametrize(("make", "count"), [(called, 1000), (logged, 60), (listed, 60)])
def test_what_is_kept_takes_what_is_said(make: Callable[[int], Any], count: int) -> None:
    serializer, kept = JsonPlusSerializer(), Decoded()
    _, data = serializer.dumps_typed([make(number) for number in range(count)])
    loaded(Serde(serializer, Decoded()), data)  # what is imported and cached by others meanwhile counts for nobody
    tracemalloc.start()
    try:
        for _ in range(2):
            loaded(Serde(serializer, kept), data)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(copied for _, copied, _ in kept._copies.values())
    assert 0.5 * kept._bytes < taken < 1.2 * kept._bytes


def test_what_takes_much_memory_for_its_bytes_is_decoded_each_time() -> None:
    serializer, kept = JsonPlusSerializer(), Decoded()
    message = ToolMessage("points", tool_call_id="1", artifact=[[at, at] for at in range(20_000)])
    _, data = serializer.dumps_typed([message])
    assert len(data) < module._MESSAGE_BYTES_MAX
    for _ in range(3):
        assert loaded(Serde(serializer, kept), data) == [message]
    assert kept._bytes < module._MESSAGE_BYTES_MAX

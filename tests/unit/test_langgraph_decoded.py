"""Values that are kept decoded: copies equal what the serializer makes, and nothing of them is shared."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

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
    assert len(kept._values) == 1
    for _ in range(2):
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


def test_what_is_not_known_to_be_copied_whole_is_decoded_each_time() -> None:
    serializer, kept = JsonPlusSerializer(), Decoded()
    value = [datetime(2026, 1, 1, tzinfo=UTC), {1, 2}]
    _, data = serializer.dumps_typed(value)
    serde = Serde(serializer, kept)
    for _ in range(2):
        assert loaded(serde, data) == value
    assert not kept._values


def test_each_serializer_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, kept = JsonPlusSerializer(), JsonPlusSerializer(), Decoded()
    _, data = one.dumps_typed([HumanMessage("hello")])
    assert loaded(Serde(one, kept), data) == [HumanMessage("hello")]
    monkeypatch.setattr(other, "loads_typed", lambda _: ["another"])
    assert loaded(Serde(other, kept), data) == ["another"]
    assert loaded(Serde(copy.copy(one), kept), data) == [HumanMessage("hello")]


def test_what_was_used_least_recently_goes_and_large_values_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VALUES_BYTES_MAX", 3)
    monkeypatch.setattr(module, "_VALUE_BYTES_MAX", 2)
    kept, made = Decoded(), list[bytes]()

    def load(data: bytes) -> Any:
        def make() -> Any:
            made.append(data)
            return [data]

        return kept.load(kept, data, make)

    for data in (b"a", b"b", b"c", b"a", b"d", b"a", b"b", b"eee", b"eee"):
        assert load(data) == [data]
    assert made == [b"a", b"b", b"c", b"d", b"b", b"eee", b"eee"]

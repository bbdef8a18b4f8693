"""Values of one kilobyte, made of what agents really said: recorded runs, one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import statecache.replay

SAMPLE = Path(statecache.replay.__file__).with_name("sample.jsonl")
VALUE_BYTES = 1024
VALUES_MAX = 64
SHORT_CHARACTERS = 80

Value = dict[str, Any]


def values_of(runs: Path) -> list[Value]:
    """Return values whose JSON has exactly one kilobyte."""
    texts = (message.get("content") for run in _runs(runs) for message in run["messages"])
    values: list[Value] = []
    for text in texts:
        if text and len(values) < VALUES_MAX:
            values.append(_value(len(values) + 1, text))
    return values


def short(value: Value) -> Value:
    """Return the same value with only the beginning of what was said."""
    said = value["messages"][0]
    return value | {"messages": [said | {"content": said["content"][:SHORT_CHARACTERS]}]}


def encoded(value: Value) -> bytes:
    """Return a value as it is stored."""
    return msgspec.json.encode(value)


def _runs(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            yield msgspec.json.decode(line)


def _value(step: int, text: str) -> Value:
    """Return a value whose text is cut or repeated until it fills the kilobyte."""
    text = (text * (VALUE_BYTES // len(text) + 1))[:VALUE_BYTES]
    while (over := len(encoded(_shaped(step, text))) - VALUE_BYTES) > 0:
        text = text[: -max(1, over // 4)]
    return _shaped(step, text + "." * -over)


def _shaped(step: int, text: str) -> Value:
    return {"step": step, "open_question": None, "messages": [{"role": "assistant", "content": text}]}

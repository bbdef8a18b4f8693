"""What the script's answers mean for a commit with modifiers, whose values are known from the answer alone."""

from __future__ import annotations

from typing import Any

import pytest

from statecache.commit_protocol.answers import Committed, Found
from statecache.commit_protocol.commit import Commit
from statecache.commit_protocol.decision import Applied, Refuse, Wait, after_lookup, next_step
from statecache.errors import ChangeIdReused, CodecError, LimitExceeded, Quarantined
from statecache.model import BLIND, Position, Write
from statecache.rules.modifiers import Made, modifier_of
from statecache.rules.outcomes import content_of

NOW = 100.0
AT = b"2026-01-01T00:00:00.000000Z"


def _write(key: str, verb: str, argument: bytes) -> Write:
    modifier = modifier_of(verb, argument, bytes_max=100, keeps_end=True) if verb != "set" else None
    return Write(key=key, op="set", expected=BLIND, value=argument, modifier=modifier)


def _commit(*writes: Write, **more: Any) -> Commit:
    given: dict[str, Any] = {
        "change_id": "c", "shard": 3, "writes": [*writes], "durability": "memory", "actor": "", "reason": "",
        "end": NOW + 5, "redis_keys": [f"state:{write.key}" for write in writes],
    }  # fmt: skip
    return Commit(**given | more)


def _counted(**more: Any) -> Commit:
    return _commit(_write("runs/1", "increment", b"2"), **more)


@pytest.mark.parametrize("verdict", [b"OK", b"DUP", b"MUTE"])
def test_an_answer_brings_what_was_made(verdict: bytes) -> None:
    reply = [b"n", verdict, b"7-9", AT, b"4", b"p", b"json until 5", b"s", b"12"]
    step = next_step(_counted(), reply, now=NOW)
    made = {0: Made(b"12", "json until 5", "s")}
    committed = Committed("c", Position(7, 9), AT.decode(), (4,), ("p",), made, repeated=verdict != b"OK")
    assert step == Applied(committed)


def test_of_several_writes_those_with_a_modifier_have_a_value() -> None:
    writes = [
        _write("runs/1", "set", b"1"), _write("runs/2", "append", b"[1]"),
        Write(key="runs/3", op="check", expected="p"), _write("runs/4", "add", b"[2]"),
    ]  # fmt: skip
    reply = [b"n", b"OK", b"7-9", AT, b"4", b"", b"1", b"", b"9", b"q", b"json", b"", b"[0 ,1]", b"json", b"s", b"[2]"]
    step = next_step(_commit(*writes), reply, now=NOW)
    assert isinstance(step, Applied)
    assert (step.committed.versions, step.committed.parents) == ((4, 1, 9), ("", "", "q"))
    assert step.committed.made == {1: Made(b"[0 ,1]", "json", ""), 2: Made(b"[2]", "json", "s")}


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ([b"n", b"UNFIT", 1, b"integer", b"{"], CodecError),
        ([b"n", b"UNFIT", 1, b"encoding", b"msgpack"], CodecError),
        ([b"n", b"UNFIT", 1, b"overflow", None], CodecError),
        ([b"n", b"UNFIT", 1, b"quarantined", b"q" * 24], Quarantined),
        ([b"n", b"LIMIT", 1, 11, b"10"], LimitExceeded),
        ([b"n", b"LIMIT", 0, 11, b"10"], LimitExceeded),
    ],
)
def test_what_cannot_be_made_now_could_have_been_by_an_attempt_that_is_under_way(
    reply: list[Any], kind: type[Exception]
) -> None:
    step = next_step(_counted(), reply, now=NOW)
    assert isinstance(step, Refuse)
    assert type(step.error) is kind
    step = next_step(_counted(lingers=NOW + 2), reply, now=NOW)
    assert isinstance(step, Wait)
    assert (type(step.error), step.seconds) == (kind, 2)


def _found(verb: str, argument: bytes, after: bytes, **bases: Any) -> Any:
    known = [None if base is None else Made(base, "json", "") for base in bases.values()]
    found = Found(
        Position(7, 2), "2026-11-27T08:00:00.000000Z", (5,), ("p",), (content_of("set", after, "json"),),
        in_stream=True, made={0: Made(after, "json", "")}, bases=dict(enumerate(known)),
    )  # fmt: skip
    return after_lookup(_commit(_write("runs/1", verb, argument)), found, [], applied=True)


def test_what_is_found_is_this_modifier_where_it_would_have_made_that_of_what_was_there() -> None:
    assert isinstance(_found("increment", b"2", b"7"), Found)
    assert isinstance(_found("increment", b"2", b"7", base=b"5"), Found)
    assert isinstance(_found("append", b"[1]", b"[1]", base=None), Found)
    for other in (
        _found("increment", b"2", b"7", base=b"4"),
        _found("increment", b"2", b"7", base=None),
        _found("increment", b"2", b"7", base=b"[5]"),
        _found("append", b"[1]", b"[0,1]", base=b"[0,0]"),
        _found("add", b"[1]", b"[0,1]", base=b""),
    ):
        assert isinstance(other, Refuse)
        assert isinstance(other.error, ChangeIdReused)


def test_a_modifier_is_spelled_longer_than_any_other_operation() -> None:
    """By that the script tells them apart."""
    longest = max(len(op) for op in ("set", "delete", "check"))
    for verb in ("increment", "append", "add", "remove"):
        write = _write("runs/1", verb, b"[1]")
        assert write.modifier is not None
        assert len(write.modifier.spelled) > longest
        verb_, digest, bytes_max, end = write.modifier.spelled.split(" ")
        assert (verb_, len(digest), bytes_max, end) == (verb, 16, "100", "keep")

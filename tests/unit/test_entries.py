"""Stream entries: what a commit wrote is read in full, and nothing else passes for it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as some

from statecache.entries import (
    ForeignEntry,
    NewerFormat,
    change_set,
    change_set_of_states,
    position_of,
    salvaged,
    storable,
)
from statecache.model import Position, Token

Fields = list[bytes]


def _head(**changed: bytes) -> Fields:
    names = {
        "format": b"1", "change_id": b"c" * 24, "at": b"2026-11-20T11:21:15.123456Z", "writer": b"host:1",
        "entries": b"7", "bytes": b"900",
    }  # fmt: skip
    return [part for name, value in (names | changed).items() for part in (name.encode(), value)]


def _state(i: int, *, key: bytes = b"runs/42", ttl: bytes | None = None, **changed: bytes) -> Fields:
    names = {
        "key": key, "op": b"set", "version": b"3", "parent": b"p" * 24, "encoding": b"json", "schema": b"Run@1",
        "value": b'{"a":1}',
    }  # fmt: skip
    fields = [part for name, value in (names | changed).items() for part in (b"%s%d" % (name.encode(), i), value)]
    return fields + ([b"ttl%d" % i, ttl] if ttl is not None else [])


def test_an_entry_of_one_state_is_read_in_full() -> None:
    found = change_set(b"5-12", _head() + _state(1))
    assert found.position == Position(5, 12)
    assert (found.change_id, found.writer, found.actor, found.reason) == ("c" * 24, "host:1", "", "")
    assert (found.entries, found.bytes, found.at) == (7, 900, datetime(2026, 11, 20, 11, 21, 15, 123456, tzinfo=UTC))
    (change,) = found.changes
    assert (change.key, change.op, change.version, change.parent_change_id) == ("runs/42", "set", 3, "p" * 24)
    assert (change.value, change.encoding, change.schema) == (b'{"a":1}', "json", "Run@1")
    assert change.change_id == found.change_id


def test_actor_and_reason_are_optional_and_times_to_live_of_earlier_releases_are_passed_over() -> None:
    fields = [*_head(), b"actor", b"ada", b"reason", b"test", *_state(1, ttl=b"5000"), *_state(2, key=b"runs/42/a")]
    found = change_set(b"5-12", fields)
    assert (found.actor, found.reason) == ("ada", "test")
    assert [change.key for change in found.changes] == ["runs/42", "runs/42/a"]
    assert change_set(b"5-12", [*_head(), b"reason", b"alone", *_state(1)]).reason == "alone"


def test_a_commit_of_256_states_is_read_and_one_more_is_foreign() -> None:
    fields = _head() + [part for i in range(1, 257) for part in _state(i, key=b"runs/42/%d" % i)]
    assert len(change_set(b"5-12", fields).changes) == 256
    with pytest.raises(ForeignEntry, match="state 257"):
        change_set(b"5-12", fields + _state(257))


def test_bytes_of_a_value_are_left_as_they_are() -> None:
    value = bytes(range(256))
    assert change_set(b"5-12", _head() + _state(1, value=value)).changes[0].value == value


def test_a_commit_under_leases_says_which_in_the_second_format() -> None:
    leases = [b"lock1", b"runs/42", b"token1", b"5-7", b"lock2", b"runs/42/steps/a b", b"token2", b"5-9"]
    found = change_set(b"5-12", [*_head(format=b"2"), b"actor", b"ada", *leases, *_state(1)])
    assert found.tokens == (("runs/42", Token(5, 7)), ("runs/42/steps/a b", Token(5, 9)))
    assert (found.actor, found.changes[0].key) == ("ada", "runs/42")
    assert change_set(b"5-12", _head() + _state(1)).tokens == ()


@pytest.mark.parametrize(
    ("head", "leases", "reason"),
    [
        (b"2", [], "names no lock"),
        (b"2", [b"lock1", b"runs/42"], "names no lock"),
        (b"2", [b"lock2", b"runs/42", b"token2", b"5-7"], "names no lock"),
        (b"2", [b"lock1", b"runs/42", b"token1", b"57"], "not one that a lock gives"),
        (b"2", [b"lock1", b"runs/42", b"token1", b"5--7"], "not one that a lock gives"),
        (b"2", [b"lock1", b"runs/42", b"token1", b"5-" + b"9" * 19], "not one that a lock gives"),
        (b"2", [b"lock1", b"runs/\xff", b"token1", b"5-7"], "not UTF-8"),
        (b"1", [b"lock1", b"runs/42", b"token1", b"5-7"], "state 1"),
    ],
)
def test_leases_that_no_commit_writes_are_foreign(head: bytes, leases: Fields, reason: str) -> None:
    with pytest.raises(ForeignEntry, match=reason):
        change_set(b"5-12", [*_head(format=head), *leases, *_state(1)])


def test_an_entry_of_a_newer_release_is_not_foreign_and_not_ours_to_judge() -> None:
    with pytest.raises(NewerFormat, match="format is 3"):
        change_set(b"5-12", [b"format", b"3", b"anything", b"else"])


FOREIGN: list[tuple[str, Fields]] = [
    ("start with a format", []),
    ("start with a format", [b"temperature", b"21"]),
    ("start with a format", [*_head(), *_state(1), b"odd"]),
    ("its format is 0", _head(format=b"0") + _state(1)),
    ("the format is not a number", _head(format=b"one") + _state(1)),
    ("head", _head()[:2] + _head()[4:] + _state(1)),
    ("time", _head(at=b"yesterday") + _state(1)),
    ("no zone", _head(at=b"2026-11-20T11:21:15.123456") + _state(1)),
    ("time", _head(at=b"\xff") + _state(1)),
    ("entries is not a number", _head(entries=b"-7") + _state(1)),
    ("bytes is not a number", _head(bytes=b"9e3") + _state(1)),
    ("not UTF-8", _head(writer=b"\xff") + _state(1)),
    ("not UTF-8", _head() + _state(1, key=b"runs/\xed\xa0\x80")),
    ("no state", _head()),
    ("state 1", _head() + _state(2)),
    ("state 1", _head() + _state(1)[2:]),
    ("state 2", [*_head(), *_state(1), b"more", b"1"]),
    ("op", _head() + _state(1, op=b"absent")),
    ("a version is not a number", _head() + _state(1, version=b"3.0")),
    ("a version is not a number", _head() + _state(1, version=b"9223372036854775808")),
    ("a version is not a number", _head() + _state(1, version="³".encode())),
]


@pytest.mark.parametrize(("reason", "fields"), FOREIGN)
def test_what_no_commit_wrote_is_foreign_and_says_why(reason: str, fields: Fields) -> None:
    with pytest.raises(ForeignEntry, match=reason):
        change_set(b"5-12", fields)


@pytest.mark.parametrize(
    "entry_id", [b"", b"5", b"5-", b"-12", b"5-x", b"9223372036854775808-0", b"5-9223372036854775808"]
)
def test_an_id_that_no_shard_can_have_reached_is_foreign(entry_id: bytes) -> None:
    with pytest.raises(ForeignEntry):
        position_of(entry_id)


@given(some.lists(some.one_of(some.binary(max_size=12), some.sampled_from(_head() + _state(1))), max_size=40))
def test_whatever_stands_in_a_stream_is_read_or_refused_and_never_breaks_the_reader(fields: Fields) -> None:
    try:
        found = change_set(b"5-12", fields)
    except (ForeignEntry, NewerFormat):
        return
    assert found.changes


@given(some.lists(some.binary(max_size=12), max_size=20))
def test_what_is_salvaged_can_be_stored(fields: Fields) -> None:
    change_id, keys = salvaged(fields)
    assert all("\0" not in text and text.encode() for text in (change_id or "-", *(key or "-" for key in keys)))


def test_change_id_and_keys_are_salvaged_from_a_damaged_entry() -> None:
    assert salvaged([b"change_id", b"abc", b"key1", b"runs/1", b"keyboard", b"no", b"key2", b"a\0b\xff"]) == (
        "abc",
        ("runs/1", "a\ufffdb\ufffd"),
    )


def test_text_that_postgres_takes_stays_as_it_is() -> None:
    assert storable("é/{}") == "é/{}"
    assert storable(b"a\0b") == "a\ufffdb"


def _hash(**changed: bytes) -> dict[str, bytes]:
    return {
        "key": b"runs/42", "op": b"set", "value": b"{}", "version": b"3", "epoch": b"5", "change_id": b"c" * 24,
        "parent_change_id": b"p" * 24, "position": b"5-12", "encoding": b"json", "schema": b"Run@1",
        "updated_at": b"2026-11-20T11:21:15.123456Z", "writer": b"host:1", "recent": b"",
    } | changed  # fmt: skip


def test_a_lost_entry_is_rebuilt_from_the_states_that_it_left() -> None:
    found = change_set_of_states(Position(5, 12), (7, 900), [_hash(), _hash(key=b"runs/42/b", op=b"delete")])
    assert (found.position, found.change_id, found.entries, found.bytes) == (Position(5, 12), "c" * 24, 7, 900)
    assert [(change.key, change.op, change.version) for change in found.changes] == [
        ("runs/42", "set", 3),
        ("runs/42/b", "delete", 3),
    ]


@pytest.mark.parametrize(
    "damaged",
    [
        {name: value for name, value in _hash().items() if name != "value"},
        _hash(op=b"absent"),
        _hash(version=b""),
        _hash(key=b"\xff"),
        _hash(updated_at=b""),
    ],
)
def test_a_damaged_state_rebuilds_nothing(damaged: dict[str, bytes]) -> None:
    with pytest.raises(ForeignEntry):
        change_set_of_states(Position(5, 12), (7, 900), [damaged])

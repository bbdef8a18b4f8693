"""Which parked changes may go into their chains, and where: decided from values alone."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from statecache.errors import UsageError
from statecache.keys import KeySpace
from statecache.model import ChangeRecord, ChangeSet, Position
from statecache_workers.parked_entries import (
    Parked,
    ParkedAt,
    Spot,
    Unfit,
    excerpt,
    newest_first,
    plan,
    readable,
    reason_text,
    together,
)

NOTHING = Spot(0, "", "", "", "", False)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def change(version: int = 3, *, key: str = "runs/1", parent: str = "b") -> ChangeRecord:
    return ChangeRecord(
        change_id="c",
        key=key,
        op="set",
        version=version,
        parent_change_id=parent,
        value=b"1",
        encoding="json",
        schema="",
    )


def change_set(*changes: ChangeRecord) -> ChangeSet:
    return ChangeSet(
        position=Position(1, 7),
        change_id="c",
        at=AT,
        writer="w",
        actor="",
        reason="",
        entries=7,
        bytes=9,
        changes=changes,
    )


def test_an_entry_whose_key_was_erased_is_told_as_that() -> None:
    erased = Parked(
        place=ParkedAt.parse("3:1-7"), change_id="c", keys=["runs/1"], size=1, sqlstate="dropped", error="erased",
        recorded_at=AT, entry=msgspec.msgpack.encode([]),
    )  # fmt: skip
    with pytest.raises(Unfit, match="it was dropped when its key was erased"):
        readable(erased, KeySpace(shards=4))


def planned(spot: Spot) -> list[bool]:
    """Return the gap of each change that goes in."""
    return [taking.gap for taking in plan(change_set(change()), {"runs/1": spot})]


def test_a_marked_tip_goes_in() -> None:
    assert planned(Spot(3, "c", "quarantined", "", "", True)) == [False]


def test_a_change_whose_parent_is_missing_goes_in_with_its_gap_and_a_first_one_has_none() -> None:
    assert planned(Spot(3, "c", "quarantined", "", "", False)) == [True]
    first = change_set(change(1, parent=""))
    assert [one.gap for one in plan(first, {"runs/1": Spot(1, "c", "quarantined", "", "", False)})] == [False]


def test_a_change_that_the_next_one_names_goes_in() -> None:
    assert planned(Spot(9, "z", "set", "", "c", True)) == [False]
    assert planned(Spot(9, "z", "quarantined", "", "c", True)) == [False]


def test_what_is_there_already_is_no_change_and_no_hindrance() -> None:
    assert planned(Spot(9, "z", "set", "c", "c", True)) == []


@pytest.mark.parametrize(
    ("spot", "why"),
    [
        (Spot(3, "x", "set", "x", "", True), "version 3 of 'runs/1' is change x"),
        (Spot(9, "z", "set", "x", "x", True), "version 3 of 'runs/1' is change x"),
        (Spot(9, "z", "set", "", "y", True), "went on from change y"),
        (Spot(9, "z", "set", "", "", True), "version 4 of 'runs/1' is not there either"),
        (Spot(3, "x", "quarantined", "", "", True), "nothing in Postgres shows"),
        (Spot(3, "c", "set", "", "", True), "nothing in Postgres shows"),
        (Spot(2, "b", "set", "", "", True), "nothing in Postgres shows"),
        (NOTHING, "nothing in Postgres shows"),
    ],
)
def test_what_is_not_the_chains_stays(spot: Spot, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        planned(spot)


def test_one_that_does_not_fit_keeps_the_others_out() -> None:
    fits = Spot(3, "c", "quarantined", "", "", True)
    both = change_set(change(), change(key="runs/1/a"))
    assert len(plan(both, {"runs/1": fits, "runs/1/a": fits})) == 2
    with pytest.raises(Unfit):
        plan(both, {"runs/1": fits, "runs/1/a": NOTHING})


HERE = ParkedAt(0, 1, 7)


def parked(*fields: bytes, place: ParkedAt = HERE) -> Parked:
    entry = msgspec.msgpack.encode(list(fields))
    return Parked(place=place, change_id="c", keys=[], size=1, sqlstate="22021", error="", recorded_at=AT, entry=entry)


def commit(key: str) -> list[bytes]:
    head = [
        "format",
        "1",
        "change_id",
        "c",
        "at",
        "2026-01-01T00:00:00.000000Z",
        "writer",
        "w",
        "entries",
        "7",
        "bytes",
        "9",
    ]
    state = [
        "key1",
        key,
        "op1",
        "set",
        "version1",
        "3",
        "parent1",
        "b",
        "encoding1",
        "json",
        "schema1",
        "",
        "value1",
        "1",
    ]
    return [part.encode() for part in head + state]


def test_an_entry_is_read_as_the_flusher_reads_it() -> None:
    keys = KeySpace("sc", 1)
    found = readable(parked(*commit("runs/1")), keys)
    assert (found.position, found.changes[0].version, found.changes[0].parent_change_id) == (Position(1, 7), 3, "b")
    for fields, why in (
        ([b"x", b"1"], "no commit of this release wrote it"),
        ([b"format", b"3"], "no commit of this release wrote it"),
        (commit("runs"), "can be in no chain"),
    ):
        with pytest.raises(Unfit, match=why):
            readable(parked(*fields), keys)
    other = next(shard for shard in range(4) if shard != KeySpace("sc", 4).shard("runs/1"))
    with pytest.raises(Unfit, match="belongs to shard"):
        readable(parked(*commit("runs/1"), place=ParkedAt(other, 1, 7)), KeySpace("sc", 4))


def test_ids_are_read_as_they_are_shown() -> None:
    for place in (ParkedAt(58, 3, 1207), ParkedAt(0, 1763000000000, -1)):
        assert ParkedAt.parse(str(place)) == place
    for text in ("", "58", "58:3", "58:3-", "a:1-1", "58:3-1 ", "-1:1-1"):
        with pytest.raises(UsageError):
            ParkedAt.parse(text)


def test_of_each_shard_the_newest_goes_first() -> None:
    places = [ParkedAt(1, 1, 1), ParkedAt(0, 1, 1), ParkedAt(0, 1, 2), ParkedAt(0, 2, 3)]
    order = [one.place for one in newest_first([parked(place=place) for place in places])]
    assert order == [ParkedAt(0, 2, 3), ParkedAt(0, 1, 2), ParkedAt(0, 1, 1), ParkedAt(1, 1, 1)]


def test_what_has_to_go_in_first_is_named_with_the_command() -> None:
    def of(place: ParkedAt, *keys: str) -> Parked:
        return msgspec.structs.replace(parked(place=place), keys=list(keys))

    mine = [of(HERE, "runs/1"), of(ParkedAt(0, 1, 6), "runs/1"), of(ParkedAt(1, 1, 9), "runs/1")]
    rest = [of(ParkedAt(0, 2, 9), "runs/1"), of(ParkedAt(0, 1, 8), "a/b", "runs/1"), of(ParkedAt(0, 1, 9), "a/b")]
    assert together(HERE, "runs/1", mine) == "and no parked entry holds it; write its value anew"
    assert together(HERE, "runs/1", mine + rest) == (
        "take 0:1-8 in first: `statecache quarantine retry 0:2-9 0:1-8 0:1-7` keeps the order"
    )
    many = [of(ParkedAt(0, 1, n), "runs/1") for n in range(8, 20)]
    assert together(HERE, "runs/1", many) == "take 0:1-8 in first: `statecache quarantine retry all` keeps the order"


def test_a_reason_is_told_in_words() -> None:
    assert reason_text("23514") == "23514 (check violation)"
    assert reason_text("entry") == "entry (it cannot be read)"
    assert [reason_text(text) for text in ("dropped", "99999")] == ["dropped", "99999"]


def test_an_excerpt_is_text_where_it_is_text() -> None:
    assert excerpt(b"abc", 10) == "abc"
    assert excerpt(b"abcdef", 3) == "abc…"
    assert excerpt("aé".encode(), 2) == "a…"
    assert excerpt(b"\xff\x00", 10) == "hex ff00"

"""What is wrong with a chain of changes is named, row by row; of a chain that is whole nothing is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from statecache.history import Parent, keep, link
from statecache.model import ChangeRecord, ChangeSet, Position
from statecache.retention import Retention
from statecache.rules.chains import ChainRow, Fault, MadePin, StateRow, Walk
from statecache.rules.links import Due, Linked, wrong_link
from statecache.rules.pins import Pin
from statecache.rules.retention import RecordedPolicy

AT = datetime(2026, 11, 20, tzinfo=UTC)
VALUES = [
    msgspec.json.encode({"messages": [f"message {n} " + "x" * (n * 37 % 200) for n in range(many)]})
    for many in range(5, 17)
]


def chain(
    values: Sequence[bytes | None] = VALUES, *, gaps: frozenset[int] = frozenset(), forget: int = 0
) -> list[ChainRow]:
    """Keep values as the flusher does, from version 1 on; None is a delete, and behind a gap a version is missing.

    Before the version `forget` it knows nothing of the parent's value.
    """
    rows: list[ChainRow] = []
    parent: Parent | None = None
    before, version, parent_id = b"", 0, ""
    for value in values:
        version += 1
        gap = version in gaps
        if gap:
            version, parent, before, parent_id = version + 1, None, b"", "lost"
        change = ChangeRecord(
            change_id=f"c{version}", key="runs/1", op="set" if value is not None else "delete", version=version,
            parent_change_id=parent_id, value=value or b"", encoding="json", schema="",
        )  # fmt: skip
        commit = ChangeSet(
            position=Position(1, version * 10), change_id=change.change_id, at=AT, writer="w", actor="ada", reason="",
            entries=1, bytes=1, changes=(change,),
        )  # fmt: skip
        kept, parent = keep(change, None if version == forget else parent)
        before = link(before, change, commit, kept.digest)
        rows.append(
            ChainRow(
                commit,
                msgspec.structs.replace(change, value=b""),
                change.value if kept.packed is None else None,
                kept.packed,
                kept.keyframe,
                len(change.value),
                kept.digest,
                before,
                gap,
                erased=False,
                hashed=10_000,
                kept_after=0,
            )
        )
        parent_id = change.change_id
    return rows


def walked(rows: Sequence[ChainRow], state: StateRow | str | None = "its own") -> list[Fault]:
    walk = Walk()
    walk.begin()
    faults = [fault for row in rows for fault in walk.take(row)]
    last = rows[-1]
    if isinstance(state, str):
        value = VALUES[-1] if last.change.op == "set" else b""
        parent = last.change.parent_change_id
        version, change_id, op = last.change.version, last.change.change_id, last.change.op
        state = of_last(version, change_id, op, value, parent_change_id=parent)
    return [*faults, *walk.end(state, last.change.key)]


def of_last(version: int, change_id: str, op: str, value: bytes | None, **other: Any) -> StateRow:
    """Return a state that says the rest as the last change of the chain does."""
    last = StateRow(
        version, change_id, op, value, shard=0, epoch=1, n=version * 10, parent_change_id=f"c{version - 1}",
        encoding="json", schema="", writer="w", updated_at=AT,
    )  # fmt: skip
    return last._replace(**other)


def told(faults: Sequence[Fault]) -> list[tuple[int, str]]:
    return [(fault.version, fault.what) for fault in faults]


def with_row(at: int, **other: Any) -> list[ChainRow]:
    rows = chain()
    return [*rows[:at], rows[at]._replace(**other), *rows[at + 1 :]]


def gone(row: ChainRow, policy: RecordedPolicy | None) -> ChainRow:
    return row._replace(value=None, packed=None, keyframe=None, policy=policy, newest=12)


def recorded(*, since: timedelta = timedelta(hours=1), read: timedelta = timedelta(0), **policy: Any) -> RecordedPolicy:
    """A policy that was recorded so long before the changes were made, and read so long behind them."""
    return RecordedPolicy(Retention(**policy), AT - since, AT + read)


LATEST = recorded(history="latest")


def said(row: ChainRow, **other: Any) -> ChainRow:
    return row._replace(change_set=msgspec.structs.replace(row.change_set, **other))


def flipped(data: bytes | None, at: int = -1) -> bytes:
    assert data is not None
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def test_whole_chains_are_silent() -> None:
    assert walked(chain()) == []
    assert any(row.keyframe for row in chain())
    again: list[bytes | None] = [*VALUES[:3], None, *VALUES[3:6], None]
    assert walked(chain(again)) == []
    assert walked(chain(gaps=frozenset({3, 8}))) == []
    parked = of_last(13, "parked", "quarantined", None)
    assert walked(chain(), parked) == []


def test_values_that_are_gone_are_counted_and_no_fault() -> None:
    rows = chain()
    pruned = [gone(row, LATEST) for row in rows]
    walk = Walk()
    assert [fault for row in pruned for fault in walk.take(row)] == []
    assert (walk.counts.changes, walk.counts.not_kept, walk.counts.values) == (12, 12, 0)
    assert walked(pruned) == [], "the state has the newest value"
    assert told(walked(pruned, of_last(12, "c12", "set", b"another"))) == [(12, "state")]
    forged = [*pruned[:-1], pruned[-1]._replace(size=7)]
    assert told(walked(forged)) == [(12, "state")], "its size is compared with the value of the state"


DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (None, range(1, 13)),
        (recorded(), range(1, 13)),
        (recorded(since=timedelta(minutes=4)), ()),
        (recorded(since=-DAY), ()),
        (LATEST, ()),
        (recorded(max_count=3), (10, 11, 12)),
        (recorded(max_count=1), (12,)),
        (recorded(max_age=DAY), range(1, 13)),
        (recorded(max_age=DAY, read=2 * DAY), (12,)),
        (recorded(max_age=DAY, max_count=3, read=2 * DAY), (10, 11, 12)),
        (recorded(max_age=2 * DAY, max_count=3, read=DAY), range(1, 13)),
    ],
)
def test_a_value_that_is_gone_is_named_where_no_policy_may_have_let_it_go(
    policy: RecordedPolicy | None, named: Sequence[int]
) -> None:
    assert told(walked([gone(row, policy) for row in chain()])) == [(version, "value") for version in named]


def test_a_gap_is_named_that_is_none_or_of_which_nothing_is_recorded() -> None:
    assert told(walked(with_row(5, gap=True))) == [(6, "gap")]
    assert told(walked(with_row(0, gap=True))) == [(1, "gap")]
    rows = chain(gaps=frozenset({3}))
    unknown = [row._replace(gap_known=False) for row in rows]
    assert told(walked(unknown)) == [(4, "gap")]
    assert walked([row._replace(kept_after=25) for row in unknown]) == [], "they may have been deleted"
    assert told(walked([row._replace(gap=False) for row in rows])) == [(3, "missing")]


def test_a_time_that_is_not_that_of_the_whole_commit_is_named() -> None:
    assert told(walked(with_row(5, same_at=False))) == [(6, "at")]


def test_a_value_that_is_gone_is_named_where_a_checkpoint_names_it() -> None:
    def pinned(pin: Pin, made: int | None, at: int = 5) -> list[Fault]:
        rows = [gone(row, LATEST) for row in chain()]
        return walked([*rows[:at], rows[at]._replace(pins=[MadePin(pin, made)]), *rows[at + 1 :]])

    version, group = Pin("runs/1", whole=False, version=6), Pin("runs", whole=True, n=69)
    for pin in (version, group):
        assert [told(pinned(pin, made)) for made in (None, 60, 69)] == [[(6, "pinned")]] * 3
        assert [told(pinned(pin, made)) for made in (59, 70)] == [[], []], "it may have come too late"
        assert pinned(pin, None, at=6) == []
    assert pinned(Pin("runs/1", whole=False, version=12), None, at=11) == [], "it stands in the state"


def test_a_row_in_another_shard_than_its_key_is_named() -> None:
    assert told(walked(with_row(5, key_shard=3))) == [(6, "shard")]


LINK = Linked("runs/0", 4, "o4", AT)
DUE = Due("runs/0", said=4, newest=4, linked_id="o4")
UP_TO = DUE._replace(said=None)


@pytest.mark.parametrize(
    ("link", "due", "says"),
    [
        (None, None, ""),
        (LINK, DUE, ""),
        (LINK, UP_TO, ""),
        (LINK._replace(change_id=""), DUE, ""),
        (LINK, DUE._replace(newest=None, linked_id=None), ""),
        (LINK, UP_TO._replace(newest=None, linked_id=None), ""),
        (None, UP_TO._replace(newest=None, linked_id=None), ""),
        (LINK._replace(version=3, change_id=""), UP_TO._replace(linked_id="o3"), ""),
        (LINK._replace(version=0, change_id=""), UP_TO._replace(linked_id=None), ""),
        (LINK._replace(version=0, change_id=""), UP_TO._replace(newest=None, linked_id=None), ""),
        (LINK._replace(version=3, change_id=""), DUE, "it is recorded as made from runs/0@3"),
        (LINK._replace(origin="runs/2", change_id=""), UP_TO, "it is recorded as made from runs/2@4"),
        (None, DUE, "it is not recorded that it was made from runs/0@4"),
        (None, DUE._replace(newest=None, linked_id=None), "it is not recorded that it was made from runs/0@4"),
        (None, UP_TO, "it is not recorded that it was made from runs/0@4"),
        (LINK, None, "it is recorded as made from runs/0@4, and its reason does not say so"),
        (LINK._replace(version=3), DUE, "it is recorded as made from runs/0@3, and its reason says runs/0@4"),
        (LINK._replace(version=3), UP_TO, "it is recorded as made from runs/0@3, and its reason says runs/0@4"),
        (LINK._replace(version=5), UP_TO, "it is recorded as made from runs/0@5, and its reason says runs/0@4"),
        (LINK._replace(origin="runs/2"), DUE, "it is recorded as made from runs/2@4, and its reason says runs/0@4"),
        (LINK._replace(change_id="x"), DUE, "it is recorded as made from change x, and runs/0@4 is o4"),
        (LINK._replace(at=datetime(2026, 1, 1, tzinfo=UTC)), DUE, "at another time"),
    ],
)
def test_what_is_recorded_of_an_origin_is_what_the_reason_says(link: Linked | None, due: Due | None, says: str) -> None:
    found = wrong_link(link, due, AT, recorded=True)
    assert (says in found) is True
    assert bool(found) is bool(says)
    assert told(walked(with_row(5, link=link, due=due))) == ([(6, "branch")] if says else [])
    if link is None:
        assert wrong_link(link, due, AT, recorded=False) == "", "packing records it"


def test_what_was_erased_is_blank() -> None:
    blank = {"value": None, "packed": None, "keyframe": None, "digest": None, "hash": None, "size": None}
    rows = [said(row._replace(erased=True, **blank), writer="") for row in chain()[:-1]]  # type: ignore[arg-type]
    last = chain()[-1]
    tombstone = last._replace(
        change=msgspec.structs.replace(last.change, op="delete"), value=b"", packed=None, keyframe=None, size=0,
        digest=sha256(b"").digest(),
    )  # fmt: skip
    tombstone = tombstone._replace(hash=link(b"", tombstone.change, tombstone.change_set, tombstone.digest or b""))
    assert walked([*rows, tombstone]) == []
    left = [rows[0]._replace(packed=chain()[0].packed), *rows[1:], tombstone]
    assert told(walked(left)) == [(1, "value")]
    sized = [rows[0]._replace(size=7), *rows[1:], tombstone]
    assert told(walked(sized)) == [(1, "value")]
    assert (1, "hash") in told(walked([rows[0]._replace(erased=False), *rows[1:], tombstone]))


def test_changes_of_an_earlier_release_have_no_hash_until_it_is_due() -> None:
    rows = [
        row._replace(value=value, packed=None, keyframe=None, size=None, digest=None, hash=None, hashed=0)
        for row, value in zip(chain(), VALUES, strict=True)
    ]
    assert walked(rows) == []
    behind = [*rows[:6], *(row._replace(hash=None, hashed=0) for row in chain(forget=7)[6:])]
    assert walked(behind) == []
    assert told(walked([row._replace(hashed=60) for row in behind])) == [(n, "hash") for n in range(1, 7)]
    assert told(walked([row._replace(hashed=30) for row in rows])) == [(1, "hash"), (2, "hash"), (3, "hash")]


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (lambda: with_row(0, packed=flipped(chain()[0].packed)), [(n, "value") for n in range(1, 13)]),
        (lambda: with_row(5, packed=flipped(chain()[5].packed)), [(n, "value") for n in range(6, 13)]),
        (lambda: with_row(11, value=VALUES[-1][:-1] + b"!", packed=None, keyframe=None), [(12, "value")]),
        (lambda: with_row(11, size=7), [(12, "value")]),
        (lambda: with_row(11, size=None), [(12, "value")]),
        (lambda: with_row(11, digest=None), [(12, "value")]),
        (lambda: with_row(11, keyframe=2), [(12, "keyframe")]),
        (lambda: with_row(11, keyframe=None), [(12, "keyframe")]),
        (lambda: with_row(0, keyframe=7), [(1, "keyframe")]),
        (lambda: with_row(11, hash=None), [(12, "hash")]),
        (lambda: with_row(3, hash=None), [(4, "hash"), (5, "hash")]),
        (lambda: with_row(3, hash=flipped(chain()[3].hash)), [(4, "hash"), (5, "hash")]),
        (lambda: with_row(0, hash=None), [(1, "hash"), (2, "hash")]),
        (lambda: [*chain()[:4], said(chain()[4], actor="eve"), *chain()[5:]], [(5, "hash")]),
        (lambda: [*chain()[:4], said(chain()[4], position=Position(1, 51)), *chain()[5:]], [(5, "hash")]),
    ],
)
def test_every_broken_row_is_named(broken: Callable[[], list[ChainRow]], expected: list[tuple[int, str]]) -> None:
    assert told(walked(broken())) == expected


def test_rows_whose_forms_were_swapped_are_named() -> None:
    rows = chain()
    rows[6], rows[8] = rows[6]._replace(packed=rows[8].packed), rows[8]._replace(packed=rows[6].packed)
    assert told(walked(rows)) == [(n, "value") for n in range(7, 13)]


def test_missing_rows_are_named_and_what_builds_on_them() -> None:
    rows = chain()
    assert told(walked([*rows[:4], *rows[5:]])) == [(5, "missing"), *((n, "value") for n in range(6, 13))]
    (first, *_) = walked([*rows[:4], *rows[7:]])
    assert (first.version, first.last, first.detail) == (5, 7, "versions 5 to 7 are not there")
    assert told(walked(rows[2:]))[0] == (1, "missing")
    deleted = [row._replace(kept_after=70) for row in rows]
    assert told(walked([row._replace(packed=None, value=VALUES[row.change.version - 1]) for row in deleted[7:]])) == [
        (n, "keyframe") for n in range(8, 13)
    ]


def test_another_parent_is_named() -> None:
    rows = chain()
    swapped = msgspec.structs.replace(rows[4].change, parent_change_id="c2")
    assert told(walked([*rows[:4], rows[4]._replace(change=swapped), *rows[5:]])) == [(5, "parent"), (5, "hash")]
    first = msgspec.structs.replace(rows[0].change, parent_change_id="c2")
    assert (1, "parent") in told(walked([rows[0]._replace(change=first), *rows[1:]]))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (None, "no state"),
        (of_last(13, "c13", "set", b""), "the change of the state's version is missing"),
        (of_last(11, "c11", "set", b""), "it is behind"),
        (of_last(12, "c11", "set", VALUES[-1]), "by change c11"),
        (of_last(12, "c12", "delete", b""), "it is delete"),
        (of_last(12, "c12", "set", VALUES[-2]), "not what the digest"),
        (of_last(12, "c12", "set", VALUES[-1], schema="another"), "it has not the schema of its"),
        (of_last(12, "c12", "set", VALUES[-1], n=7, writer="x"), "it has not the n, writer of its"),
    ],
)
def test_a_state_that_is_not_the_last_change_is_named(state: StateRow | None, says: str) -> None:
    (fault,) = walked(chain(), state)
    assert fault.what == "state"
    assert says in fault.detail

"""How values are kept: each version is given back as it was, and what is damaged is not given."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statecache.history import (
    DELTAS_MAX,
    DELTAS_MIN,
    Damage,
    Kept,
    NotKept,
    Parent,
    Stored,
    delta,
    is_delta,
    keep,
    link,
    restored,
    whole,
)
from statecache.model import ChangeRecord, ChangeSet, Position

AT = datetime(2026, 11, 20, tzinfo=UTC)


def change(version: int, value: bytes, *, parent: str | None = None, op: str = "set") -> ChangeRecord:
    return ChangeRecord(
        change_id=f"c{version}", key="runs/42", op=op, version=version,
        parent_change_id=f"c{version - 1}" if parent is None else parent, value=value, encoding="json", schema="",
    )  # fmt: skip


def commit(one: ChangeRecord, *, actor: str = "", reason: str = "") -> ChangeSet:
    return ChangeSet(
        position=Position(1, one.version), change_id=one.change_id, at=AT, writer="w", actor=actor, reason=reason,
        entries=1, bytes=1, changes=(one,),
    )  # fmt: skip


def rows(values: Sequence[bytes], *, forget: frozenset[int] = frozenset()) -> list[Stored]:
    """Keep these values as versions from 1 on; before those in `forget` the flusher knows nothing of the parent."""
    found: list[Stored] = []
    parent: Parent | None = None
    for version, value in enumerate(values, 1):
        kept, parent = keep(change(version, value), None if version in forget else parent)
        found.append(Stored(version, value if kept.packed is None else None, *kept))
    return found


def read(kept: Sequence[Stored], version: int) -> bytes:
    one = kept[version - 1]
    return restored(kept[(one.keyframe or version) - 1 : version])


GROWING = [
    msgspec.json.encode({"messages": [f"message {n} " + "x" * (n * 37 % 400) for n in range(many)]})
    for many in range(1, 200)
]


def test_every_version_of_a_growing_value_is_read_from_its_keyframe_on() -> None:
    kept = rows(GROWING)
    assert [read(kept, version) for version in range(1, len(GROWING) + 1)] == GROWING
    stored = sum(len(one.packed or one.value or b"") for one in kept)
    assert stored * 30 < sum(map(len, GROWING))
    assert _longest(kept) == DELTAS_MAX


def _longest(kept: Sequence[Stored]) -> int:
    return max(one.version - (one.keyframe or one.version) for one in kept)


@pytest.mark.parametrize(("size", "deltas"), [(40_000, 40), (60_000, 27), (400_000, DELTAS_MIN)])
def test_chains_of_large_values_are_shorter(size: int, deltas: int) -> None:
    base = random.Random(7).randbytes(size)
    kept = rows([b"%d" % version + base for version in range(100)])
    assert _longest(kept) == deltas
    assert read(kept, 77) == b"76" + base


@pytest.mark.parametrize("size", [0, 1, 100, 40_000, 120_000, 1_000_000, 8_000_000])
def test_a_small_edit_is_a_small_delta_whatever_the_size(size: int) -> None:
    base = random.Random(7).randbytes(size)
    value = b"new" + base[: size // 2] + b"edited" + base[size // 2 :]
    packed = delta(value, base)
    assert restored([Stored(2, None, packed, 1, None)], before=base) == value
    assert len(packed) < 60 + size // 5_000


def test_a_keyframe_is_made_where_the_parent_is_not_at_hand_or_is_another() -> None:
    value = b"".join(b"%d" % n for n in range(1000))
    first, parent = keep(change(1, value), None)
    assert first.keyframe is None
    assert first.packed is not None
    assert not is_delta(first.packed)
    follows, _ = keep(change(2, value + b"!"), parent)
    assert follows.keyframe == 1
    assert is_delta(follows.packed)
    other, _ = keep(change(2, value + b"!", parent="stranger"), parent)
    assert other.keyframe is None
    assert not is_delta(other.packed)


def test_a_delta_that_does_not_pay_is_no_delta() -> None:
    chance = random.Random(7)
    values = [chance.randbytes(2000) for _ in range(3)]
    assert [one.packed for one in rows(values)] == [None] * 3
    texts = [bytes(chance.choices(range(97, 101), k=2000)) for _ in range(3)]
    assert [one.keyframe for one in rows(texts)] == [None] * 3
    assert all(one.packed is not None for one in rows(texts))


def test_small_values_are_kept_as_they_are() -> None:
    assert [one[1:4] for one in rows([b"1", b"2", b""])] == [(b"1", None, None), (b"2", None, None), (b"", None, None)]


edits = st.lists(st.one_of(st.binary(max_size=300), st.sampled_from([b"", b"x" * 500])), max_size=40)


@given(edits, st.frozensets(st.integers(1, 40), max_size=5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_any_values_come_back(parts: list[bytes], forget: frozenset[int], times: int) -> None:
    values = [b"".join(parts[:count]) * times for count in range(len(parts) + 1)] + parts
    kept = rows(values, forget=forget)
    assert [read(kept, version) for version in range(1, len(values) + 1)] == values


def damaged(kept: list[Stored], at: int, **other: object) -> list[Stored]:
    return [*kept[:at], kept[at]._replace(**other), *kept[at + 1 :]]  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("byte", [0, 1, 9, -1])
def test_a_flipped_byte_is_told(place: int, byte: int) -> None:
    kept = rows(GROWING[10:20])
    data = bytearray(kept[place].packed or b"")
    data[byte] ^= 0x40
    with pytest.raises(Damage):
        restored(damaged(kept, place, packed=bytes(data))[: 6 if place else 1])


def test_a_missing_row_and_a_value_that_is_not_kept_are_told() -> None:
    kept = rows(GROWING[10:20])
    with pytest.raises(Damage, match="version 3, which it is a delta to, is missing"):
        restored([kept[0], kept[1], kept[3]])
    with pytest.raises(Damage, match="it is missing"):
        restored([])
    with pytest.raises(NotKept):
        restored(damaged(kept, 0, packed=None)[:1])
    with pytest.raises(Damage, match="what it is a delta to is missing"):
        restored(kept[1:2])


def test_a_branch_begins_with_a_delta_to_another_keys_value() -> None:
    origin = GROWING[50]
    packed = delta(origin, origin, origin=True)
    assert len(packed) < 40
    assert restored([Stored(1, None, packed, None, None)], origin=origin) == origin
    with pytest.raises(Damage):
        restored([Stored(1, None, packed, None, None)])
    with pytest.raises(Damage):
        restored([Stored(1, None, whole(b"x"), None, b"other")])


def test_threads_may_keep_and_read_at_the_same_time() -> None:
    values = [bytes(random.Random(n).choices(b"abcdefgh", k=60_000)) for n in range(4)]

    def came_back(value: bytes) -> bool:
        return all(restored([Stored(1, None, whole(value), None, None)]) == value for _ in range(100))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(came_back, values)) == [True] * 4


def test_the_hash_is_over_all_that_a_change_says() -> None:
    one = change(2, b"1")
    kept = Kept(None, None, b"d" * 32)
    base = link(b"h" * 32, one, commit(one), kept.digest)
    different = [
        link(b"", one, commit(one), kept.digest),
        link(b"h" * 32, one, commit(one), b"e" * 32),
        link(b"h" * 32, one, commit(one, actor="a"), kept.digest),
        link(b"h" * 32, one, commit(one, reason="a"), kept.digest),
        link(b"h" * 32, change(3, b"1"), commit(one), kept.digest),
        *(
            link(b"h" * 32, msgspec.structs.replace(one, **{name: "other"}), commit(one), kept.digest)
            for name in ("key", "op", "change_id", "parent_change_id", "encoding", "schema")
        ),
    ]
    assert len({base, *different}) == len(different) + 1

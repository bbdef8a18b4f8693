"""Whatever goes of a run, what is kept of it is read as before, and nothing else is touched."""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statecache.history import Damage, Parent, delta, is_delta, keep
from statecache.model import ChangeRecord
from statecache.rules.prune_plan import Content, Held, Plan, Rewrite, plan, prove, rewritten

VALUES = [msgspec.json.encode({"log": ["x" * 300, *range(many)]}) for many in range(40, 52)]


def run_of(values: Sequence[bytes], first: int = 1) -> list[Content]:
    """Keep values as the flusher does, as successive versions of which the first is a keyframe."""
    rows: list[Content] = []
    parent: Parent | None = None
    for version, value in enumerate(values, first):
        change = ChangeRecord(
            change_id=f"c{version}", key="runs/1", op="set", version=version, parent_change_id=f"c{version - 1}",
            value=value, encoding="json", schema="",
        )  # fmt: skip
        kept, parent = keep(change, parent)
        rows.append(Content(version, value if kept.packed is None else None, kept.packed, kept.keyframe, kept.digest))
    return rows


def held(run: Sequence[Content]) -> list[Held]:
    return [
        Held(one.version, is_delta(one.packed), one.value is None and one.packed is None, 10, one.keyframe)
        for one in run
    ]


def applied(run: Sequence[Content], rewrites: Sequence[Rewrite]) -> list[Content]:
    """Do to rows what the statement does."""
    found = {one.version: one for one in run}
    for how in rewrites:
        row = found[how.version]
        if how.how == "moved":
            found[how.version] = row._replace(keyframe=how.keyframe)
        else:
            found[how.version] = row._replace(value=how.value, packed=how.packed, keyframe=None)
    return [found[one.version] for one in run]


RUN = run_of(VALUES)


def test_the_run_of_these_tests_is_a_keyframe_and_deltas() -> None:
    assert [one.keyframe for one in RUN] == [None] + [1] * 11


@pytest.mark.parametrize(
    ("lets_go", "expected"),
    [
        (set(), Plan([], [], {})),
        ({*range(1, 13)}, Plan([*range(1, 13)], [], {})),
        ({1}, Plan([1], [2], dict.fromkeys(range(3, 13), 2))),
        ({*range(1, 9)}, Plan([*range(1, 9)], [9], {10: 9, 11: 9, 12: 9})),
        ({12}, Plan([12], [], {})),
        ({2, 3, 5}, Plan([2, 3, 5], [4, 6], dict.fromkeys(range(7, 13), 6))),
        ({99}, Plan([], [], {})),
    ],
)
def test_a_delta_whose_parent_goes_becomes_a_keyframe(lets_go: set[int], expected: Plan) -> None:
    assert plan(held(RUN), lets_go) == expected


@given(st.lists(st.sets(st.integers(1, 12)), max_size=4))
@settings(max_examples=150, deadline=None)
def test_what_is_kept_is_read_as_before_however_often_something_goes(times: list[set[int]]) -> None:
    run, gone = RUN, set[int]()
    for lets_go in times:
        planned = plan(held(run), lets_go)
        assert set(planned.goes) == lets_go - gone
        gone |= lets_go
        run = applied(run, rewritten(run, planned, None))
        kept = {one.version for one in run} - gone
        prove(run, kept, None)
        for version in gone:
            one = run[version - 1]
            assert (one.value, one.packed, one.keyframe) == (None, None, None)
            with pytest.raises(Damage, match="is not there"):
                prove(run, {version}, None)


def test_a_run_that_begins_with_a_delta_to_another_key_is_read_from_there() -> None:
    origin = VALUES[3]
    first = Content(1, None, delta(VALUES[4], origin, origin=True), None, sha256(VALUES[4]).digest())
    second = Content(2, None, delta(VALUES[5], VALUES[4]), 1, sha256(VALUES[5]).digest())
    prove([first, second], {1, 2}, origin)
    planned = plan(held([first, second]), {1})
    assert planned == Plan([1], [2], {})
    after = applied([first, second], rewritten([first, second], planned, origin))
    prove(after, {2}, None)
    with pytest.raises(Damage):
        rewritten([first, second], planned, None)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"packed": None}, "what it is a delta to is missing"),
        ({"packed": (RUN[4].packed or b"")[:-3] + b"abc"}, "it does not|digest says"),
        ({"digest": b"other"}, "the value of version 5 is not what its digest says"),
        ({"digest": None}, "the value of version 5 is not what its digest says"),
        ({"keyframe": 3}, "reading version 5 begins at version 3, its keyframe is 1"),
    ],
)
def test_a_damaged_run_is_left_alone(damage: dict[str, object], says: str) -> None:
    broken = [*RUN[:4], RUN[4]._replace(**damage), *RUN[5:]]  # type: ignore[arg-type]
    for lets_go in ({1}, {9}):
        with pytest.raises(Damage, match=says):
            rewritten(broken, plan(held(RUN), lets_go), None)
    with pytest.raises(Damage):
        prove(broken, set(range(1, 13)), None)


def test_small_and_random_values_become_plain_where_they_stand_alone() -> None:
    chance = random.Random(7)
    values = [chance.randbytes(500)]
    values += [values[0] + bytes([n]) for n in range(3)]
    run = run_of(values)
    assert [one.keyframe for one in run] == [None, 1, 1, 1]
    after = applied(run, rewritten(run, plan(held(run), {1, 2}), None))
    assert after[2].value == values[2]
    prove(after, {3, 4}, None)

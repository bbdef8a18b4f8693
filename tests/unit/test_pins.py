"""What checkpoints pin is read from their states."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from statecache.rules.pins import CHECKPOINT_SCHEMA, Pin, checkpoints_of, is_pinned, pin_of


def record(**fields: Any) -> bytes:
    return msgspec.json.encode({"label": "a", "made_by": {"statecache": "1"}, **fields})


def test_a_checkpoint_of_a_key_pins_a_version_and_one_of_a_group_a_place() -> None:
    of_key = record(scope="key", key="runs/42/plan", version=7)
    assert pin_of("runs/42/plan/checkpoints/a", "set", CHECKPOINT_SCHEMA, of_key, 90) == Pin("runs/42/plan", False, 7)
    of_group = record(scope="group", key="runs/42")
    assert pin_of("runs/42/checkpoints/a", "set", CHECKPOINT_SCHEMA, of_group, 90) == Pin("runs/42", True, n=90)
    renamed = record(scope="group", key="runs/42", point="3-17")
    assert pin_of("runs/42/checkpoints/b", "set", CHECKPOINT_SCHEMA, renamed, 90) == Pin("runs/42", True, n=17)


def test_what_is_no_checkpoint_pins_nothing() -> None:
    of_key = record(scope="key", key="runs/42", version=7)
    assert pin_of("runs/42/checkpoints/a", "delete", CHECKPOINT_SCHEMA, b"", 9) is None
    assert pin_of("runs/42/checkpoints/a", "set", "app.Run@1", of_key, 9) is None
    assert pin_of("runs/42", "set", CHECKPOINT_SCHEMA, of_key, 9) is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("statecache/checkpoint@2", b"\x80"),
        (CHECKPOINT_SCHEMA, b"{}"),
        (CHECKPOINT_SCHEMA, record(scope="group", key="runs/42", point="here")),
        (CHECKPOINT_SCHEMA, record(scope="all", key="runs/42")),
    ],
)
def test_one_that_cannot_be_read_pins_all_that_it_may_name(schema: str, value: bytes) -> None:
    pin = pin_of("runs/42/checkpoints/a", "set", schema, value, 9)
    assert pin == Pin("runs/42", True)
    assert is_pinned([pin], "runs/42", 3, 5, 7)
    assert is_pinned([pin], "runs/42/plan", 3, 5, 7)
    assert not is_pinned([pin], "runs/421", 3, 5, 7)


def test_a_version_is_pinned_by_its_number_or_by_a_place_at_which_it_was_the_newest() -> None:
    by_number, by_place = Pin("runs/42", False, 7), Pin("runs/42", True, n=20)
    assert is_pinned([by_number], "runs/42", 7, 5, 9)
    assert not is_pinned([by_number], "runs/42", 8, 5, 9)
    assert not is_pinned([by_number], "runs/42/plan", 7, 5, 9)
    for key in ("runs/42", "runs/42/plan"):
        assert [is_pinned([by_place], key, 1, n, n + 10) for n in (9, 10, 11, 20, 21)] == [
            False, False, True, True, False,
        ]  # fmt: skip
        assert is_pinned([by_place], key, 1, 3, None)
        assert not is_pinned([by_place], key, 1, 21, None)
    assert not is_pinned([by_place], "runs/43", 1, 11, 21)
    assert not is_pinned([], "runs/42", 7, 5, 9)


def test_checkpoints_stand_below_the_key_and_below_its_group() -> None:
    assert checkpoints_of("runs/42") == ("runs/42/checkpoints/",)
    assert checkpoints_of("runs/42/plan") == ("runs/42/plan/checkpoints/", "runs/42/checkpoints/")

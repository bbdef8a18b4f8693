"""A value as a tree and in a line: all of it where it is small, bounded and said so where it is not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from statecache.inspector.tree import (
    CHARACTERS_MAX,
    CHILDREN_MAX,
    LEVELS_MAX,
    NODES_MAX,
    TEXT_MAX,
    Row,
    brief,
    tree,
    visible,
)
from statecache.rules.paths import part_at, path_of


def told(rows: list[Row]) -> list[str]:
    return [f"{row.kind} {row.name}: {row.text or row.note}".replace(" : ", ": ") for row in rows]


def test_a_value_is_shown_part_by_part() -> None:
    value = {"goal": "refund", "n": 7, "ok": True, "none": None, "said": ["a", {"b": 0.5}], "empty": {}, "no": []}
    assert told(tree(value)) == [
        "open: 7", "leaf goal: refund", "leaf n: 7", "leaf ok: true", "leaf none: null",
        "open said: 2", "leaf 0: a", "open 1: 1", "leaf b: 0.5", "close: ", "close: ",
        "leaf empty: {}", "leaf no: []", "close: ",
    ]  # fmt: skip
    assert told(tree("alone")) == ["leaf: alone"]
    assert told(tree(5)) == ["leaf: 5"]


def test_every_row_has_the_path_at_which_its_part_stands() -> None:
    value = {"a b": [{"c": 1}, "x"], "d": {"e": {"f": "g"}}}
    for row in tree(value):
        if row.kind == "leaf":
            assert brief(part_at(value, path_of(row.path)), 9).strip('"') == row.text


def test_a_part_is_shown_as_a_page_of_its_own() -> None:
    value = {"rows": [*range(250)]}
    first = tree(value["rows"], path=("rows",))
    assert len([row for row in first if row.kind == "leaf"]) == CHILDREN_MAX
    more = next(row for row in first if row.kind == "more")
    assert (more.note, more.path, more.first) == ("150", "rows", 100)
    last = tree(value["rows"], path=("rows",), first=200)
    assert [row.text for row in last if row.kind == "leaf"] == [str(n) for n in range(200, 250)]
    assert [row.kind for row in last if row.kind == "more"] == []
    assert [row.kind for row in tree(value["rows"], path=("rows",), first=9999)] == ["open", "close"]


def test_a_large_value_shows_what_is_near_its_top() -> None:
    value = {"big": [[0] * 50 for _ in range(CHILDREN_MAX)], "last": {"x": 1}}
    rows = tree(value)
    assert sum(row.kind != "close" for row in rows) <= NODES_MAX + 2 * CHILDREN_MAX
    assert "leaf x: 1" in told(rows)
    cut = [row for row in rows if row.kind == "cut"]
    assert cut
    assert all(part_at(value, path_of(row.path)) == [0] * 50 for row in cut)


def test_what_is_deep_is_cut_and_what_is_small_is_unfolded() -> None:
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    rows = tree(deep)
    assert [row.kind for row in rows] == ["open"] * LEVELS_MAX + ["cut"] + ["close"] * LEVELS_MAX
    assert all(row.unfolded for row in tree({"a": {"b": {"c": 1}}}) if row.kind == "open")
    many = {"a": [{"b": n} for n in range(90)], "c": {"d": {"e": [*range(80)]}}}
    assert [row.name for row in tree(many) if row.kind == "open" and row.unfolded] == ["", "a", "c"]


def test_long_texts_are_cut_and_all_texts_together_bounded() -> None:
    (row,) = tree("x" * (TEXT_MAX + 5))
    assert (row.kind, len(row.text)) == ("text", TEXT_MAX)
    assert row.note == f"{TEXT_MAX + 5:,} characters, the first {TEXT_MAX:,} are shown"
    rows = tree(["y" * TEXT_MAX] * CHILDREN_MAX)
    assert sum(len(row.text) for row in rows) < CHARACTERS_MAX + CHILDREN_MAX * 100
    (lines,) = tree("one\ntwo")
    assert (lines.kind, lines.text) == ("text", "one\ntwo")


def test_what_only_msgpack_holds_is_shown_too() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    value = {
        1: b"\x00\xff",
        b"k": [1],
        2.5: {"x": 1},
        None: at,
        "ext": msgspec.msgpack.Ext(5, b"ab"),
        "inf": float("inf"),
    }
    assert told(tree(value)) == [
        "open: 6", "leaf 1: 2 bytes: 00 ff", "cut 1 bytes: 6b: 1", "cut 2.5: 1", "leaf null: 2026-01-02T00:00:00+00:00",
        "leaf ext: extension 5 of 2 bytes: 61 62", "leaf inf: inf", "close: ",
    ]  # fmt: skip
    assert [row.path for row in tree(value) if row.kind == "cut"] == ["", ""]


def test_names_without_end_lead_nowhere_and_are_cut() -> None:
    row = tree({"k" * 5000: {"a": 1}})[1]
    assert (row.kind, row.path) == ("cut", "")
    assert len(row.name) < 150


@pytest.mark.parametrize("text", ["\u202eevil", "a\x00b", "\x1b[31m", "\ufeff", "\r"])
def test_what_would_steer_a_browser_or_mislead_a_reader_is_escaped(text: str) -> None:
    assert visible(text).isprintable()
    assert visible("a\n\tb") == "a\n\tb"
    rows = tree({text: text})
    assert all(row.name.isprintable() for row in rows)
    assert all(row.text.isprintable() for row in rows)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"a": [1, "two", None, True], "b": {}}, '{"a": [1, "two", null, true], "b": {}}'),
        ('say "x"\n\\', '"say \\"x\\"\\n\\\\"'),
        (12345678901234567890123, "12345678901234567890123"),
        (False, "false"),
        ("x" * 100, '"' + "x" * 39 + "…"),
        ([[0] * 1000] * 1000, "[[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,…"),
    ],
)
def test_a_value_in_one_line(value: Any, line: str) -> None:
    assert brief(value, 40) == line

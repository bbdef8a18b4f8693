"""The graph beside a log: golden drawings of branches and merges, the right way up and upside down."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from statecache.cli.history.lanes import Lanes, Row, text_of, upside_down

Node = tuple[str, list[str]]

LINE: list[Node] = [("a3", ["a2"]), ("a2", ["a1"]), ("a1", [])]
MERGED: list[Node] = [
    ("a4", ["a3", "b2"]), ("b2", ["b1"]), ("a3", ["a2"]), ("b1", ["a2"]), ("a2", ["a1"]), ("a1", []),
]  # fmt: skip
TWO_BRANCHES: list[Node] = [
    ("b2", ["b1"]), ("a3", ["a2"]), ("c1", ["a2"]), ("b1", ["a2"]), ("a2", ["a1"]), ("a1", []),
]  # fmt: skip
TAKEN_OVER: list[Node] = [
    ("b2", ["b1", "a3"]), ("c2", ["c1"]), ("a3", ["a2"]), ("c1", ["b1"]), ("b1", ["a2"]), ("a2", ["a1"]), ("a1", []),
]  # fmt: skip
CROSSED: list[Node] = [
    ("a5", ["a4", "c1"]), ("b2", ["b1"]), ("a4", ["a3", "b1"]), ("c1", ["a2"]), ("b1", ["a1"]), ("a3", ["a2"]),
    ("a2", ["a1"]), ("a1", []),
]  # fmt: skip
CUT: list[Node] = [("b2", ["b1"]), ("a9", ["a8"])]


def drawn(nodes: Sequence[Node], *, first: str | None = None, turned: bool = False) -> list[str]:
    lanes = Lanes(first)
    rows = [row for name, parents in nodes for row in lanes.draw(name, parents)]
    return [text_of(row.cells) for row in (upside_down(rows) if turned else rows)]


GOLDEN = [
    (LINE, None, "● ● ●"),
    (MERGED, None, "● ├─╮ │_● ●_│ │_● ├─╯ ● ●"),
    (TWO_BRANCHES, "a3", "__● ●_│ │_│_● │_●_│ ├─┴─╯ ● ●"),
    (TAKEN_OVER, "a3", "__● ╭─┤ │_│_● ●_│_│ │_│_● │_├─╯ │_● ├─╯ ● ●"),
    (CROSSED, None, "● ├─╮ │_│_● ●_│_│ ├─│─┤ │_●_│ │_│_● ●_│_│ ├─╯_│ ●___│ ├───╯ ●"),
    (CUT, "a9", "__● ●_│"),
]


@pytest.mark.parametrize(("nodes", "first", "drawing"), GOLDEN)
def test_a_graph_is_drawn(nodes: list[Node], first: str | None, drawing: str) -> None:
    """The rows of a drawing are parted by spaces; underscores stand for the spaces in them."""
    assert drawn(nodes, first=first) == [row.replace("_", " ") for row in drawing.split(" ")]


def test_upside_down_each_corner_is_turned() -> None:
    assert drawn(MERGED, turned=True) == ["●", "●", "├─╮", "│ ●", "● │", "│ ●", "├─╯", "●"]
    assert drawn(TWO_BRANCHES, first="a3", turned=True)[2] == "├─┬─╮"


def test_lanes_go_on_beside_what_more_there_is_to_say() -> None:
    lanes = Lanes()
    rows = [row for name, parents in MERGED for row in lanes.draw(name, parents)]
    told = [(text_of(row.above), text_of(row.below)) for row in rows if row.node is not None]
    assert told == [("", "│"), ("│ │", "│ │"), ("│ │", "│ │"), ("│ │", "│ │"), ("│", "│"), ("│", "")]
    assert (text_of(upside_down(rows)[0].above), text_of(upside_down(rows)[0].below)) == ("", "│")


def _random_history(chance: random.Random) -> list[Node]:
    """Return a history, the newest change first, of keys that are branched and merged at random."""
    tips = {"a": "a1"}
    nodes: list[Node] = [("a1", [])]
    for _ in range(chance.randrange(60)):
        key, other = chance.choice(sorted(tips)), chance.choice(sorted(tips))
        if chance.random() < 0.2 and len(tips) < 9:
            key = chr(ord("a") + len(tips))
            parents = [tips[other]]
        else:
            parents = [tips[key]] + ([tips[other]] if other != key and chance.random() < 0.3 else [])
        tips[key] = f"{key}{len(nodes) + 1}"
        nodes.append((tips[key], parents))
    return nodes[::-1]


UP, DOWN = frozenset("│╰╯├┤┴┼"), frozenset("│╭╮├┤┬┼")


@pytest.mark.parametrize("seed", range(30))
def test_no_line_begins_or_ends_in_the_air(seed: int) -> None:
    nodes = _random_history(random.Random(seed))
    lanes = Lanes(first=next(name for name, _ in nodes if name[0] == "a"))
    rows: list[Row] = [row for name, parents in nodes for row in lanes.draw(name, parents)]
    assert sum(row.node is not None for row in rows) == len(nodes)
    width = max(len(row.cells) for row in rows)
    texts = [text_of(row.cells).ljust(width) for row in rows]
    for upper, lower in pairwise(texts):
        for over, under in zip(upper, lower, strict=True):
            if over in DOWN:
                assert under in UP or under == "●", (upper, lower)
            if under in UP:
                assert over in DOWN or over == "●", (upper, lower)
    assert not set(texts[-1]) & DOWN

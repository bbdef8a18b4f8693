"""The graph beside a log: a lane for each chain of changes, drawn from the newest change down. Pure.

    ●      runs/42 version 4
    ├─╮    it is a merge: a second lane goes to what was merged
    │ ●    version 2 of the branch
    ● │    version 3, which the branch has not
    │ ●    version 1 of the branch
    ├─╯    the branch began here
    ●      version 2

A lane waits for the change that it goes to, and ends where that is drawn. Lanes keep their columns; a column that is
free is used again. What is drawn is known from the changes so far and their parents alone, so a long log is drawn while
it is read. Upside down, for a log that begins with the oldest, it is the same with each row's corners turned.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

Name = Hashable
Cell = tuple[str, int]
"""A character, and the lane whose colour it has."""

NODE = "●"
"""What stands for a change; whoever shows it may draw it otherwise."""
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_BOXES = {
    _UP | _DOWN: "│", _LEFT | _RIGHT: "─", _UP | _RIGHT: "╰", _UP | _LEFT: "╯", _DOWN | _RIGHT: "╭",
    _DOWN | _LEFT: "╮", _UP | _DOWN | _RIGHT: "├", _UP | _DOWN | _LEFT: "┤", _UP | _LEFT | _RIGHT: "┴",
    _DOWN | _LEFT | _RIGHT: "┬", _UP | _DOWN | _LEFT | _RIGHT: "┼",
}  # fmt: skip
_TURNED = str.maketrans("╰╯╭╮┴┬", "╭╮╰╯┬┴")


class Row(NamedTuple):
    """A row of the graph: `node` is the lane in which a change stands, None where lanes only join or part.

    `above` and `below` are the lanes as they go on over and under the row: what more there is to say of a change
    stands beside them.
    """

    cells: Sequence[Cell]
    node: int | None
    above: Sequence[Cell] = ()
    below: Sequence[Cell] = ()


class Lanes:
    """A graph that is drawn change by change; the first column is kept for the change `first`, if it is given."""

    def __init__(self, first: Name = None) -> None:
        self._waits: list[Name] = [] if first is None else [first]
        self._kept = first

    def draw(self, name: Name, parents: Sequence[Name]) -> list[Row]:
        """Return the rows of the next change: its own, with what joins lanes before it, or parts them behind it.

        A change is drawn before its parents. A parent that never comes leaves its lane open to the end.
        """
        rows = []
        waiting = [lane for lane, wait in enumerate(self._waits) if wait == name]
        node, joining = (waiting[0], waiting[1:]) if waiting else (self._free(0), [])
        above = self._open()
        self._kept = None if name == self._kept else self._kept
        if joining:
            for lane in joining:
                self._waits[lane] = None
            rows.append(Row(_linked(node, joining, up=above, down=self._open()), None))
            above = self._open()
        self._waits[node] = name
        cells = _bars(self._open())
        cells[2 * node] = NODE, node
        self._waits[node] = parents[0] if parents else None
        below = self._open()
        rows.append(Row(cells, node, _bars(above), _bars(below)))
        parting = [self._lane_of(parent, node) for parent in parents[1:]]
        if parting:
            rows.append(Row(_linked(node, parting, up=below, down=self._open()), None))
        while self._waits and self._waits[-1] is None:
            self._waits.pop()
        return rows

    def _open(self) -> set[int]:
        """Return the lanes that are drawn."""
        return {at for at, wait in enumerate(self._waits) if wait is not None and not (at == 0 and self._kept)}

    def _free(self, first: int) -> int:
        for lane in range(first, len(self._waits)):
            if self._waits[lane] is None:
                return lane
        self._waits.append(None)
        return len(self._waits) - 1

    def _lane_of(self, name: Name, node: int) -> int:
        """Return the lane that waits for a change, a new one to the right of a node where none does."""
        if name in self._waits:
            self._kept = None if name == self._kept else self._kept
            return self._waits.index(name)
        lane = self._free(node + 1)
        self._waits[lane] = name
        return lane


def upside_down(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of a graph that begins with the oldest change."""
    turned = [
        Row([(char.translate(_TURNED), lane) for char, lane in row.cells], row.node, row.below, row.above)
        for row in rows
    ]
    return turned[::-1]


def text_of(cells: Sequence[Cell]) -> str:
    """Return cells as text."""
    return "".join(char for char, _ in cells).rstrip()


def _bars(lanes: set[int]) -> list[Cell]:
    return [(char, lane) for lane in range(max(lanes, default=-1) + 1) for char in ("│" if lane in lanes else " ", " ")]


def _linked(node: int, others: Sequence[int], *, up: set[int], down: set[int]) -> list[Cell]:
    """Return a row in which a node's lane is linked with others; a lane that it has to cross goes on through it."""
    ends = {node, *others}
    low, high = min(ends), max(ends)
    cells: list[Cell] = []
    for lane in range(max(*up, *down, high) + 1):
        inside = low <= lane <= high
        bits = _UP * (lane in up) | _DOWN * (lane in down)
        if lane in ends:
            bits |= _LEFT * (lane > low) | _RIGHT * (lane < high)
        char = _BOXES.get(bits, "─" if inside else " ")
        link = max(lane + 1, node) if lane >= node else lane
        cells += [(char, lane if bits else link), ("─" if low <= lane < high else " ", link)]
    return cells

"""How a log looks: beside a graph on a terminal, as a table when piped.

    ●    9  3 min ago   set  ada  1.2 KiB  (merge of runs/42-b@5)  both found it
    ├─╮
    │ ●  runs/42-b@5  4 min ago  set  bob  1.1 KiB
    ● │  8  5 min ago   set  ada  1.2 KiB  (before payment)
    │ ●  runs/42-b@4  6 min ago  set  bob  1.1 KiB  (branch of @7)
    ├─╯
    ●    7  6 min ago   set  ada  1.1 KiB

Changes of the key itself are named by their versions, others by key and version; what was made from the key says so by
the version alone. A change is a dot, a delete a cross; a
circle is a change whose value is no longer kept. Where a line is longer than the terminal is wide it goes on below,
beside the lanes of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec
from rich.console import Console
from rich.text import Text

from statecache.cli.history.headers import ago, reason_of, size_of, who
from statecache.cli.history.lanes import NODE, Cell, Lanes, Row, upside_down
from statecache.cli.history.logged import Entry
from statecache.cli.screen import plain
from statecache.records import text_of

DELETED, NOT_KEPT = "✗", "○"
_LANES = ("yellow", "cyan", "magenta", "green", "blue", "red")
_AGE, _OP = len("119 min ago"), len("delete")
_FURTHER = 4
"""How far to the right a line goes on below."""
_TEXT_MIN = 24
"""How many columns are left for what is said, however many lanes there are."""


class GraphLog:
    """The lines of a log beside its graph, change by change."""

    def __init__(self, key: str, newest: int, now: datetime) -> None:
        self._key = key
        self._lanes = Lanes((key, newest) if newest else None)
        self._digits = len(str(newest))
        self._now = now

    def rows(self, entry: Entry) -> list[tuple[Row, Text | None]]:
        """Return the rows of the graph for the next change, and what stands beside its own."""
        rows = self._lanes.draw(entry.node, entry.parents)
        return [(_marked(row, entry), self._line(entry) if row.node is not None else None) for row in rows]

    def _line(self, entry: Entry) -> Text:
        version = entry.version
        ours = version.key == self._key
        name = f"{version.version:>{self._digits}}" if ours else plain(f"{version.key}@{version.version}")
        age, op = ago(version.at, self._now), plain(version.op)
        line = Text(name, "bold yellow" if ours else "bold cyan")
        line.append(f"  {age:<{_AGE if ours else 0}}", "cyan")
        line.append(f"  {op:<{_OP if ours else 0}}", "red" if version.op != "set" else "none")
        line.append(f"  {plain(who(version))}", "blue")
        if size := size_of(version):
            line.append(f"  {size}", "dim")
        for text, style in marks_of(entry, self._key):
            line.append("  ").append(f"({plain(text)})", style)
        if reason := reason_of(version):
            line.append(f"  {plain(reason)}", "none")
        return line


def turned(rows: Sequence[tuple[Row, Text | None]]) -> list[tuple[Row, Text | None]]:
    """Return a log that begins with the oldest change."""
    return [*zip(upside_down(row for row, _ in rows), (text for _, text in reversed(rows)), strict=True)]


def lines_of(row: Row, text: Text | None, screen: Console) -> Iterator[Text]:
    """Yield the lines of a row: the first, and those in which what is said goes on, none wider than the screen."""
    graph = _graph(row.cells)
    if text is None:
        yield graph
        return
    sides = [_graph(cells) for cells in (row.cells, row.below)]
    margin = max(side.cell_len for side in sides) + 1
    width = max(screen.width - margin, _TEXT_MIN)
    first, *_ = text.wrap(screen, width, overflow="fold")
    yield _beside(sides[0], margin, first)
    rest = text[len(first.plain.rstrip()) :]
    rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
    if rest.plain:
        for line in rest.wrap(screen, width - _FURTHER, overflow="fold"):
            yield _beside(sides[1], margin + _FURTHER, line)


def marks_of(entry: Entry, key: str = "") -> list[tuple[str, str]]:
    """Return what marks a change, with its colour: checkpoints, what it was made from, what was made from it.

    Changes of the key, if one is given, are named by what stands behind it.
    """
    version, made = entry.version, entry.made_from
    if made is not None and made.key == key and version.key != key:
        made = msgspec.structs.replace(made, key="")
    return [
        *((label, "bold green") for label in entry.checkpoints),
        *([(str(made), "magenta")] if made is not None else []),
        *((str(link), "magenta") for link in entry.links),
        *([("not durable yet", "yellow")] if not version.durable else []),
        *([("value not kept", "dim")] if not version.kept else []),
        *([("versions before it are missing", "yellow")] if version.gap else []),
    ]


def cells_of(entry: Entry) -> tuple[str, ...]:
    """Return a change as a row of the table."""
    version = entry.version
    marks = "; ".join(mark for mark, _ in marks_of(entry))
    size = str(version.size) if version.op == "set" else ""
    return (
        version.key, str(version.version), text_of(version.at), version.op, version.actor, version.writer, size, marks,
        reason_of(version),
    )  # fmt: skip


def _marked(row: Row, entry: Entry) -> Row:
    """Return a change's row of the graph with the sign of what it is."""
    if row.node is None:
        return row
    sign = DELETED if entry.version.op != "set" else NODE if entry.version.kept else NOT_KEPT
    cells = [(sign, lane) if at == 2 * row.node else (char, lane) for at, (char, lane) in enumerate(row.cells)]
    return row._replace(cells=cells)


def _graph(cells: Sequence[Cell]) -> Text:
    text = Text()
    for char, lane in cells:
        text.append(char, _LANES[lane % len(_LANES)])
    text.rstrip()
    return text


def _beside(graph: Text, margin: int, text: Text) -> Text:
    line = graph.copy()
    line.pad_right(margin - line.cell_len)
    return line.append(text)

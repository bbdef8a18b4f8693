"""How differences of two values look on a terminal: by paths, long texts word by word or line by line.

    ~ step  2 → 3
    + said[2]  "it is refunded"
    - plan
        - {
        -   "next": "ask the customer"
        - }
    ~ notes
        the order [-is open-]{+was refunded+} and closed

What is new is green, what is gone red. Without colours words are marked as above; with them they are not. Whatever is
too long for the terminal goes on in the next line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from statecache.cli.history.texts import Piece, lines, words
from statecache.cli.screen import counted, plain, print_table, printable
from statecache.rules.difference import Difference

_COLUMNS = ("op", "path", "before", "after")
SHORT = 60
"""Up to so many characters, together, texts are told whole, before and after."""
INDENT = 4
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_COLOURS = {"added": "green", "removed": "red", "changed": "yellow", "left out": "dim", "same": ""}
_MARKS = {"added": ("{+", "+}"), "removed": ("[-", "-]"), "same": ("", "")}
Side = Literal["added", "removed"]


class _Look(NamedTuple):
    """How differences are shown: how wide, whether in colours, and how many lines of each value at most, 0 for all."""

    width: int
    coloured: bool
    most: int


def drawn(found: Sequence[Difference], screen: Console, *, most: int = 0) -> RenderableType:
    """Return the differences as they are shown on that screen: whole, or at most so many lines of each value."""
    look = _Look(screen.width, screen.color_system is not None and not screen.no_color, most)
    return Group(*(part for one in found for part in _drawn(one, look)))


def tell_table(found: Sequence[Difference]) -> None:
    """Print differences as a table."""
    cells = [["" if part is UNSET else json_text(part) for part in (one.before, one.after)] for one in found]
    print_table(_COLUMNS, [[one.op, one.place, *told] for one, told in zip(found, cells, strict=True)])


def facts_of(found: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return differences as objects: `path`, `op`, and `before` and `after` where there is such a thing."""
    return [
        {"path": one.place, "op": one.op}
        | {name: value for name, value in (("before", one.before), ("after", one.after)) if value is not UNSET}
        for one in found
    ]


def json_text(value: Any, *, indent: int = -1) -> str:
    """Return plain data as JSON, laid out if it is to be, with nothing in it that steers a terminal."""
    data = msgspec.json.encode(value, enc_hook=str)
    return printable(msgspec.json.format(data, indent=indent).decode("utf-8", "replace"))


def _drawn(one: Difference, look: _Look) -> Iterator[RenderableType]:
    head = Text(f"{_SIGNS[one.op]} ", style=_COLOURS[one.op]).append(plain(one.place), style="bold")
    if _are_long_texts(one.before, one.after):
        yield head
        yield _below(_texts(one.before, one.after, look.coloured), look)
        return
    sides: list[tuple[Side, Any]] = [("removed", one.before), ("added", one.after)]
    told = [(side, value) for side, value in sides if value is not UNSET]
    short = [(side, json_text(value)) for side, value in told]
    line = head.copy().append("  ")
    for at, (side, text) in enumerate(short):
        line.append(" → " if at else "", style="dim").append(text, style=_COLOURS[side])
    if line.cell_len <= look.width:
        yield line
        return
    yield head
    for side, value in told:
        yield _below([Text(f"{_SIGNS[side]} {text}", _COLOURS[side]) for text in _laid_out(value)], look)


def _laid_out(value: Any) -> list[str]:
    if isinstance(value, str) and "\n" in value:
        return [plain(line) for line in value.removesuffix("\n").split("\n")]
    return json_text(value, indent=2).split("\n")


def _are_long_texts(*values: Any) -> bool:
    texts = [value for value in values if isinstance(value, str)]
    return len(texts) == len(values) and (len("".join(texts)) > SHORT or any("\n" in text for text in texts))


def _texts(before: str, after: str, coloured: bool) -> list[Text]:
    if "\n" in before or "\n" in after:
        return [_line(piece) for piece in lines(before, after)]
    text = Text()
    for piece in words(before, after):
        if piece.op == "left out":
            text.append(f" … {len(piece.text):,} characters … ", style=_COLOURS[piece.op])
            continue
        opening, closing = ("", "") if coloured else _MARKS[piece.op]
        style = _COLOURS[piece.op] + (" strike" if coloured and piece.op == "removed" else "")
        text.append(f"{opening}{plain(piece.text)}{closing}", style=style)
    return [text]


def _line(piece: Piece) -> Text:
    if piece.op == "left out":
        return Text(f"… {piece.text.count(chr(10)) + 1:,} lines …", style=_COLOURS[piece.op])
    return Text(f"{_SIGNS.get(piece.op, ' ')} {plain(piece.text)}", style=_COLOURS[piece.op])


def _below(texts: Sequence[Text], look: _Look) -> RenderableType:
    shown = list(texts[: look.most] if look.most else texts)
    for text in shown:
        text.overflow = "fold"
        if look.most and text.cell_len > look.most * look.width:
            text.truncate(look.most * look.width, overflow="ellipsis")
    if len(texts) > len(shown):
        shown.append(Text(f"… {counted(len(texts) - len(shown), 'more line')}", _COLOURS["left out"]))
    return Padding(Group(*shown), (0, 0, 0, INDENT))

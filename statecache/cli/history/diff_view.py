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
from typing import Any, Literal

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from statecache.cli.history.texts import Piece, lines, words
from statecache.cli.screen import plain, printable
from statecache.rules.difference import Difference

SHORT = 40
"""Up to so many characters a text is told whole, before and after."""
INDENT = 4
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_COLOURS = {"added": "green", "removed": "red", "changed": "yellow", "left out": "dim", "same": ""}
_MARKS = {"added": ("{+", "+}"), "removed": ("[-", "-]"), "same": ("", "")}
Side = Literal["added", "removed"]


def drawn(found: Sequence[Difference], screen: Console) -> RenderableType:
    """Return the differences as they are shown on that screen."""
    coloured = screen.color_system is not None and not screen.no_color
    return Group(*(part for one in found for part in _drawn(one, screen.width, coloured)))


def json_text(value: Any, *, indent: int = -1) -> str:
    """Return plain data as JSON, laid out if it is to be, with nothing in it that steers a terminal."""
    data = msgspec.json.encode(value, enc_hook=str)
    return printable(msgspec.json.format(data, indent=indent).decode("utf-8", "replace"))


def _drawn(one: Difference, width: int, coloured: bool) -> Iterator[RenderableType]:
    head = Text(f"{_SIGNS[one.op]} ", style=_COLOURS[one.op]).append(plain(one.place), style="bold")
    if _is_long_text(one.before) and _is_long_text(one.after, other=one.before):
        yield head
        yield _below(_texts(one.before, one.after, coloured))
        return
    sides: list[tuple[Side, Any]] = [("removed", one.before), ("added", one.after)]
    told = [(side, value) for side, value in sides if value is not msgspec.UNSET]
    short = [(side, json_text(value)) for side, value in told]
    line = head.copy().append("  ")
    for at, (side, text) in enumerate(short):
        line.append(" → " if at else "", style="dim").append(text, style=_COLOURS[side])
    if line.cell_len <= width:
        yield line
        return
    yield head
    for side, value in told:
        yield _below([Text(f"{_SIGNS[side]} {text}", _COLOURS[side]) for text in _laid_out(value)])


def _laid_out(value: Any) -> list[str]:
    if isinstance(value, str) and "\n" in value:
        return [plain(line) for line in value.split("\n")]
    return json_text(value, indent=2).split("\n")


def _is_long_text(value: Any, other: Any = "") -> bool:
    return isinstance(value, str) and isinstance(other, str) and ("\n" in value + other or len(value + other) > SHORT)


def _texts(before: str, after: str, coloured: bool) -> list[Text]:
    if "\n" in before or "\n" in after:
        return [_line(piece) for piece in lines(before, after)]
    text = Text()
    for piece in words(before, after):
        if piece.op == "left out":
            text.append(f" … {len(piece.text):,} characters … ", style=_COLOURS[piece.op])
            continue
        opening, closing = ("", "") if coloured else _MARKS[piece.op]
        style = _COLOURS[piece.op] + (" strike" if piece.op == "removed" else "")
        text.append(f"{opening}{plain(piece.text)}{closing}", style=style)
    return [text]


def _line(piece: Piece) -> Text:
    if piece.op == "left out":
        return Text(f"… {piece.text.count(chr(10)) + 1:,} lines …", style=_COLOURS[piece.op])
    return Text(f"{_SIGNS.get(piece.op, ' ')} {plain(piece.text)}", style=_COLOURS[piece.op])


def _below(texts: Sequence[Text]) -> RenderableType:
    for text in texts:
        text.overflow = "fold"
    return Padding(Group(*texts), (0, 0, 0, INDENT))

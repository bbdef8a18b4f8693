"""Sparklines: how a figure went, one character for so many looks, as high as the highest of them. Pure.

The lowest block is zero and nothing else; a blank is a time of which nothing is known. Looks are counted, and each
belongs to one character, so the line moves by whole characters and none of them changes its looks.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

LOOKS_KEPT = 120
"""How many looks a line shows, of one second each."""
BLOCKS = "▁▂▃▄▅▆▇█"
WIDTHS = (60, 40, 30, 24, 20, 15, 12, 10)
"""How wide a line may be: what divides the looks."""


class Past(msgspec.Struct, frozen=True):
    """The last values of a figure, oldest first, None where it was not known; the newest is of the look `newest`."""

    values: Sequence[float | None] = ()
    newest: int = 0

    def peak(self) -> float | None:
        """Return the highest value; None where none is known."""
        return max((value for value in self.values if value is not None), default=None)


def width_within(cells: int) -> int:
    """Return the width of the widest line that so many cells hold; 0 where none fits."""
    return next((width for width in WIDTHS if width <= cells), 0)


def sparkline(past: Past, width: int) -> str:
    """Draw the values in that many characters, one of `WIDTHS`, the newest at the right; '' for 0."""
    if not width:
        return ""
    looks, peak = LOOKS_KEPT // width, past.peak() or 0.0
    highest: dict[int, float] = {}
    for back, value in enumerate(reversed(past.values)):
        if value is not None:
            cell = (past.newest - back) // looks
            highest[cell] = max(value, highest.get(cell, 0.0))
    last = past.newest // looks
    return "".join(_block(highest.get(cell), peak) for cell in range(last - width + 1, last + 1))


def _block(value: float | None, peak: float) -> str:
    if value is None:
        return " "
    top = len(BLOCKS) - 1
    return BLOCKS[min(top, 1 + int(value / peak * top))] if value > 0 else BLOCKS[0]

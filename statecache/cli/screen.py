"""How things look on a screen, and how they look when piped.

A terminal gets colour and boxes; a pipe gets neither: a table is a header and rows, cells parted by tabs. Text that
came from elsewhere (keys, writers, reasons) is shown with its control characters escaped, for what agents write must
not be able to steer an operator's terminal.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal

import msgspec
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red", "note": "dim"}
_NOT_FOR_TERMINALS = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_LOCAL_MODES = 3
"""Where the modes that echo is among stand in what termios tells of a terminal."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_RIGHT = frozenset({
    "version", "bytes", "age", "shards", "entries", "lag", "heartbeat", "writes", "count", "states", "oldest", "newest",
})  # fmt: skip
_WORD = re.compile(r"(?:`[^`\n]*`|\S)+")
"""A word of a line; a command in backquotes is one."""
_FOLDED_TO = 16
"""How narrow a column of a table may become on a terminal, in cells, where what stands in it is longer."""


def is_terminal() -> bool:
    """Return whether a person reads standard output."""
    return sys.stdout.isatty()


def draws(screen: Console) -> bool:
    """Return whether the screen can be drawn on: a terminal that moves its cursor, which TERM=dumb does not."""
    return screen.is_terminal and not screen.is_dumb_terminal


@contextmanager
def unechoed() -> Iterator[None]:
    """Have the terminal show nothing of what is typed until the block ends: `^C` would move what is drawn there."""
    if not sys.stdin or not sys.stdin.isatty():
        yield
        return
    import termios

    keyboard = sys.stdin.fileno()
    if os.tcgetpgrp(keyboard) != os.getpgrp():  # whoever runs in the background may not change it
        yield
        return
    before = termios.tcgetattr(keyboard)
    quiet = before.copy()
    quiet[_LOCAL_MODES] &= ~termios.ECHO
    termios.tcsetattr(keyboard, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def console(*, on_stderr: bool = False) -> Console:
    """Return a console that colours for terminals only, and never guesses what text means."""
    stream = sys.stderr if on_stderr else sys.stdout
    return Console(stderr=on_stderr, highlight=False, force_terminal=stream.isatty(), emoji=False, markup=False)


def print_json(value: Any) -> None:
    """Print one JSON object on one line; a lone surrogate, which is no UTF-8, as its escape."""
    try:
        data = msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:
        data = json.dumps(msgspec.to_builtins(value, enc_hook=str)).encode()
    print(data.decode())


def plain(text: str) -> str:
    """Return text in one line, with what is not printable escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, width: int) -> str:
    """Cut text in its middle to that many cells: keys differ at their ends, and are told apart by them."""
    if cell_len(text) <= width:
        return text
    behind = (width - 1) // 2
    return f"{set_cell_size(text, width - 1 - behind)}…{set_cell_size(text[::-1], behind)[::-1]}"


def folded(text: str | Iterable[str], width: int, gap: str = " ") -> str:
    """Return words, or a text's, as lines no wider than that; a word that is wider stands alone, to be pasted whole."""
    lines: list[str] = []
    for word in _WORD.findall(text) if isinstance(text, str) else text:
        if lines and cell_len(lines[-1]) + cell_len(gap) + cell_len(word) <= width:
            lines[-1] += gap + word
        else:
            lines.append(word)
    return "\n".join(lines)


def tell(text: str) -> None:
    """Print a line on stderr behind the command's name; a terminal gets it broken between words.

    Where stderr has no room, or nobody reads it, what the command does goes on all the same.
    """
    line = f"statecache: {text}"
    with suppress(OSError):
        print(folded(line, console(on_stderr=True).width) if sys.stderr.isatty() else line, file=sys.stderr)


def say(text: str | Sequence[str]) -> None:
    """Print a sentence, or the parts of a line; a terminal gets it broken between words, or between parts."""
    gap = " " if isinstance(text, str) else "  "
    whole = text if isinstance(text, str) else gap.join(text)
    print(folded(text, console().width, gap) if is_terminal() else whole)


def styled(text: str, style: str) -> Text:
    """Return text in the colour of `ok`, `warning`, `error` or `note`."""
    return Text(text, style=_STYLES.get(style, style or "none"))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, styles: Sequence[str] = ()) -> None:
    """Print a table; `styles` gives each row one of the words of `styled`."""
    if not is_terminal():
        for row in (columns, *rows):
            print("\t".join(plain(cell) for cell in row))
        return
    screen, shown = console(), [[plain(cell) for cell in row] for row in rows]
    widths = _widths(columns, shown)
    if sum(widths) + 3 * len(columns) > screen.width:
        columns, shown = _without_empty(columns, shown)
        widths = _widths(columns, shown)
    gaps = 2 * len(columns)
    if sum(min(width, _FOLDED_TO) for width in widths) + gaps > screen.width:
        _print_one_by_one(columns, shown, styles)
        return
    table = Table(
        box=SIMPLE_HEAD, header_style="bold", pad_edge=False,
        collapse_padding=sum(widths) + gaps + len(columns) > screen.width,
    )  # fmt: skip
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column in _RIGHT else "left"
        table.add_column(
            column, justify=justify, overflow="fold", min_width=min(width, _FOLDED_TO), no_wrap=width <= _FOLDED_TO
        )
    for at, row in enumerate(shown):
        table.add_row(*map(Text, row), style=_STYLES.get(styles[at], "") if styles else "")
    screen.print(table)


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]


def _without_empty(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Sequence[str], list[list[str]]]:
    """Return a table without the columns in which nothing stands."""
    kept = [at for at in range(len(columns)) if any(row[at] for row in rows)] if rows else [*range(len(columns))]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _print_one_by_one(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Print the rows of a table that finds no room side by side: each as lines, with the column before each cell."""
    width = max(map(len, columns)) + 2
    for at, row in enumerate(rows):
        print()
        for column, cell in zip(columns, row, strict=True):
            if cell:
                print_labelled(column, cell, width=width, style=styles[at] if styles else "", label_style="")


def print_labelled(label: str, text: str, *, width: int, style: str = "", label_style: str = "bold") -> None:
    """Print text behind a label; on a terminal what is too long goes on below its beginning."""
    if not is_terminal():
        print(f"{label:<{width}}{plain(text)}".rstrip())
        return
    line = Table.grid()
    line.add_column(width=width, no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row(styled(label, label_style), styled(plain(text), style))
    console().print(line)


def beside(sign: Text, text: Text) -> Table:
    """Return text beside a sign; what is too long goes on below its beginning."""
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_column(no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row(sign, text)
    return line


def print_value(data: bytes) -> None:
    """Print JSON: as it is into a pipe, laid out and coloured on a terminal."""
    if not is_terminal():
        sys.stdout.write(data.decode("utf-8", "replace") + "\n")
        return
    text = printable(msgspec.json.format(data, indent=2).decode("utf-8", "replace"))
    console().print(JSONHighlighter()(Text(text)), soft_wrap=True)


def printable(text: str) -> str:
    """Return JSON with what steers terminals escaped, for it escapes only some of that itself."""
    return _NOT_FOR_TERMINALS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class Counting:
    """A count that is shown on stderr while it grows, with a bar where the end is known; only on a terminal."""

    def __init__(self, doing: str, total: int | None = None) -> None:
        screen = Console(stderr=True, highlight=False)
        bar = [] if total is None else [BarColumn()]
        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), *bar,
            MofNCompleteColumn() if bar else TextColumn("{task.completed:,}"), TimeElapsedColumn(),
            console=screen, disable=not draws(screen), transient=True,
        )  # fmt: skip
        self._ending = ExitStack()
        self._task = self._progress.add_task(doing, total=total)

    def __enter__(self) -> Callable[[int], None]:
        if not self._progress.disable:
            self._ending.enter_context(unechoed())
        self._ending.enter_context(self._progress)
        return lambda count: self._progress.update(self._task, completed=count)

    def __exit__(self, *exc_info: object) -> None:
        self._ending.close()


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: 1 entry, 2 entries."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def size_text(size: float) -> str:
    """Return a number of bytes in a few characters."""
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 or size >= 100 else f"{size:.1f} {_UNITS[unit]}"


def time_text(seconds: float) -> str:
    """Return a span of seconds in a few characters."""
    if seconds < 0:
        return "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"

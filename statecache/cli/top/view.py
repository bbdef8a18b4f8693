"""How `top` looks: a head of eight lines, three of them with the last two minutes as a sparkline, and below it as many
rows of three tables as the terminal has room for. Where it has some, a line of the head that is too long goes on below.

Below 72 columns the tables stand one below the other; from there on workers stand below the worst shards, with the
hot keys beside them, and from 110 columns on all three stand side by side. The hot keys have what width is left over.
"""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from statecache.cli.screen import counted, plain, shortened, size_text, styled, time_text
from statecache.cli.sparkline import LOOKS_KEPT, sparkline, width_within
from statecache.cli.status.command import backlog_text, lag_text, server_text, shards_text
from statecache.cli.status.postgres import COUNTED_MAX
from statecache.cli.status.rates import EVERY_S, LOOKS_MAX, Figures
from statecache.rules.backlog import NEARLY_FULL

WIDE = 110
NARROW = 72
_BAR_MIN, _BAR_MAX = 8, 40
_LABEL = 10
_BESIDE_LINE = 40
"""What the longest text beside a sparkline takes: a lag in entries, bytes and time."""
_FOLDS_FROM = 24
"""How many lines a terminal needs for a head that may be longer than eight."""
_PAST_MIN = LOOKS_KEPT * EVERY_S / 60
_WORST_WIDTH = 36
_SHARDS_AND_BEAT = 17
"""What a table of workers takes beside their names."""


class View:
    """The newest figures, drawn for the size that the terminal has at that moment."""

    def __init__(self, screen: Console, figures: Figures) -> None:
        self._screen = screen
        self.figures = figures

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        width, height = self._screen.size
        line = width_within(width - _LABEL - _BESIDE_LINE)
        bar = width - _LABEL - len(backlog_text(self.figures.backlog)) - 1
        head = lines_of(self.figures, bar=min(_BAR_MAX, bar) if bar >= _BAR_MIN else 0, line=line)
        title = _title(self.figures, width)
        if height >= _FOLDS_FROM:
            head = [part for one in head for part in folded(self._screen, one, width)]
        lines = [title, *head][:height]
        for one in lines:
            one.truncate(width, overflow="ellipsis")
        rows = height - len(lines) - 1
        yield Group(*lines, *([Text(""), _tables(self.figures, width, rows)] if rows > 2 else []))


def _title(figures: Figures, width: int) -> Text:
    left = f"statecache top  {figures.sample.at:%H:%M:%S} UTC"
    right = f"every {EVERY_S:.0f} s, last {_PAST_MIN:.0f} min, q quits"
    if len(left) + len(right) + 2 > width:
        right = "q quits"
    return Text(left + right.rjust(max(len(right) + 2, width - len(left))), style="reverse", no_wrap=True)


def lines_of(figures: Figures, *, bar: int = 0, line: int = 0) -> list[Text]:
    """Return the lines of the head, with a bar and sparklines of that many cells."""
    sample, backlog = figures.sample, figures.backlog
    shards, used = figures.shards, backlog["used"]
    bad = "warning" if shards["closed"] or shards["unowned"] else ""
    full = "" if used is None or used <= NEARLY_FULL else "error"
    aside = _aside(figures)
    return [
        _line("Redis", server_text(sample.redis), "" if sample.redis.reachable else "error"),
        _line("Postgres", server_text(sample.postgres), "" if sample.postgres.reachable else "error"),
        _line("Shards", f"{shards_text(shards)}{aside}", bad or ("warning" if sample.quarantined else "")),
        _line("Commits", _went(figures, "commits", line) + _rates(figures, "commits", line)),
        _line("Flushed", _went(figures, "flushed", line) + _rates(figures, "flushed", line)),
        _line("Lag", _went(figures, "lag", line) + _lag(figures, line)),
        _line("Backlog", _bar(used, bar) + backlog_text(backlog), full),
    ]


def _line(label: str, text: str, style: str = "") -> Text:
    line = Text(no_wrap=True).append(f"{label:<{_LABEL}}", style="bold")
    return line.append_text(styled(plain(text), style or "none"))


def folded(screen: Console, line: Text, width: int) -> list[Text]:
    """Return a line that is too long as two, the second below what the label is of."""
    if line.cell_len <= width or width < 2 * _LABEL:
        return [line]
    label, text = line.divide([_LABEL])
    first, *more = text.wrap(screen, width - _LABEL, no_wrap=False)
    first.rstrip()
    rest = Text(" ").join(more)
    return [label + first, Text(" " * _LABEL, no_wrap=True) + rest]


def _went(figures: Figures, name: str, width: int) -> str:
    return sparkline(figures.past[name], width) + (" " if width else "")


def _rates(figures: Figures, name: str, width: int) -> str:
    """Return a rate, and beside a sparkline the one that its highest block stands for."""
    now, past = _rate(figures.commits_per_s if name == "commits" else figures.flushed_per_s), figures.past[name]
    return f"{now}, at most {_rate(past.peak())}" if width else now


def _lag(figures: Figures, width: int) -> str:
    """Return the lag, and beside a sparkline the highest one, where there is room: else the lag now is near it."""
    now, peak = lag_text(figures.lag), figures.past["lag"].peak()
    most = "" if not width or not peak else f", at most {counted(int(peak), 'entry', 'entries')}"
    return now + most if len(now + most) <= _BESIDE_LINE else now


def _rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:,.0f}/s"


def _aside(figures: Figures) -> str:
    sample = figures.sample
    if sample.quarantined is None or sample.conflicts is None:
        return ""
    counts = [
        str(count) if count <= COUNTED_MAX else f"{COUNTED_MAX}+" for count in (sample.quarantined, sample.conflicts)
    ]
    return f"; {counts[0]} in quarantine, {counts[1]} in conflict"


def _bar(used: float | None, width: int) -> str:
    if used is None or not width:
        return ""
    filled = min(width, round(used * width))
    return "█" * filled + "░" * (width - filled) + " "


def _tables(figures: Figures, width: int, rows: int) -> RenderableType:
    if width < NARROW:
        each = max(2, (rows - 2) // 3)
        parts = [
            _worst(figures, each, width),
            _workers(figures, each, width),
            _hot(figures, rows - 2 * each - 2, width),
        ]
        return Group(*(part for one in parts for part in (one, Text("")))) if rows > 8 else parts[-1]
    names = [len(one.id) for one in figures.sample.workers or ()]
    beside = min(44, _SHARDS_AND_BEAT + max([10, *names]))
    if width >= WIDE:
        left = width - _WORST_WIDTH - beside - 4
        return _beside(_worst(figures, rows, _WORST_WIDTH), _workers(figures, rows, beside), _hot(figures, rows, left))
    upper = max(3, (rows - 1) // 2)
    below = _workers(figures, rows - upper - 1, _WORST_WIDTH)
    left_side = Group(_worst(figures, upper, _WORST_WIDTH), Text(""), below)
    return _beside(left_side, _hot(figures, rows, width - _WORST_WIDTH - 2))


def _beside(*parts: RenderableType) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(*parts)
    return grid


def _table(columns: list[tuple[str, int, bool]], rows: list[list[str]], most: int) -> Table:
    """Make a table of that many lines with its header; a column is its name, width and whether it is a number."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold underline")
    for name, width, number in columns:
        table.add_column(name, width=width, justify="right" if number else "left", no_wrap=True, overflow="ellipsis")
    for row in rows[: max(0, most - 1)]:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def _worst(figures: Figures, most: int, width: int) -> Table:
    missing = "none" if figures.lag["entries"] == 0 else "?"
    rows = worst_rows(figures) or [[missing, "", "", ""]]
    columns = [("behind", 7, True), ("entries", 9, True), ("bytes", 9, True), ("oldest", max(7, width - 29), True)]
    shown = 4 if width >= _WORST_WIDTH else 2
    return _table(columns[:shown], [row[:shown] for row in rows], most)


def worst_rows(figures: Figures) -> list[list[str]]:
    """Return the shards that are furthest behind: number, entries, bytes, the oldest entry's age."""
    return [
        [str(one.shard), f"{one.lag_entries:,}", size_text(one.lag_bytes or 0),
         "?" if one.lag_s is None else time_text(one.lag_s)]
        for one in figures.lag["worst"]
    ]  # fmt: skip


def _workers(figures: Figures, most: int, width: int) -> Table:
    name = max(10, width - _SHARDS_AND_BEAT)
    known = [[shortened(row[0], name), *row[1:]] for row in worker_rows(figures)]
    missing = "not known" if figures.sample.workers is None else "none"
    columns = [("worker", name, False), ("shards", 6, True), ("beat", 7, True)]
    return _table(columns, known or [[missing, "", ""]], most)


def worker_rows(figures: Figures) -> list[list[str]]:
    """Return the live workers: name, shards, how long ago each said that it lives."""
    return [[plain(one.id), str(one.shards), time_text(one.heartbeat_s)] for one in figures.sample.workers or ()]


def _hot(figures: Figures, most: int, width: int) -> Table:
    wide = max(12, width - 7)
    rows = [[row[0], shortened(row[1], wide)] for row in hot_rows(figures)]
    title = f"hot keys, a sample of {LOOKS_MAX * EVERY_S:.0f} s"
    columns = [("writes", 6, True), (title if len(title) <= wide else "hot keys", wide, False)]
    return _table(columns, rows or [["", "none"]], most)


def hot_rows(figures: Figures) -> list[list[str]]:
    """Return the keys that were written most: how often, and the key."""
    return [[str(count), plain(key)] for key, count in figures.hot]

"""How `demo` looks: a panel while it runs, plain lines where nobody watches, and a last screen.

    statecache demo, seed 7 ─────────────────────────── 12.3 s
    acknowledged  ████████████░░░░░░░░░  104 of 197
    in Postgres   ██████████░░░░░░░░░░░  97, 7 to be flushed
    at work       agents ●●●○  workers ●●  Redis ●  Postgres ○
    11.8 s  Postgres  killed, coming back
    10.1 s  agent 2   killed, back after 0.9 s

The panel fits into 80 columns and 24 lines, and shows more kills where there are more lines. It goes when the last
screen comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from statecache.cli.demo.afterwards import ROWS_MIN, Afterwards, told
from statecache.cli.screen import draws, plain, time_text, unechoed
from statecache.clock import monotonic
from statecache.replay.progress import Casualty, ReplayProgress
from statecache.replay.report import Report
from statecache.replay.story import Story, Stretch
from statecache.replay.supervisor import Options, Played

REFRESHES_PER_S = 8
RATE_S = 2.0
PROGRESS_S = 5.0
STRETCHES_MIN, STRETCHES_MAX = 4, 30
WIDTH_MAX = 100
_LABEL = len("acknowledged")
_NARROW = 62
"""Up to that width the processes at work stand closer together."""
_HEAD_LINES = 10
_OTHER_LINES = 19
_ROWS_MAX = 8
"""How many rows of the log are drawn where there is room."""
_KILLS_MAX = 12
_BAR_MAX = 40
_KINDS = {"agent": "agents", "flusher": "workers", "redis": "Redis", "postgres": "Postgres"}
_DOING = {"flushers": "workers", "the flush": "the flush into Postgres"}


class View:
    """The display of a replay: the supervisor calls it at every turn."""

    def __init__(self, screen: Console, options: Options) -> None:
        self._screen = screen
        self._options = options
        self._began = monotonic()
        self._progress = ReplayProgress(doing="starting servers")
        self._rate = Rate()
        self._ending = ExitStack()
        self._lines = None if draws(screen) else Lines(screen, options.messages)

    def __enter__(self) -> Self:
        self._began = monotonic()
        if self._lines is None:
            live = Live(
                get_renderable=self.panel,
                console=self._screen,
                refresh_per_second=REFRESHES_PER_S,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._ending.enter_context(unechoed())
            self._ending.enter_context(live)
        else:
            self._lines.say(0.0, headline(self._options))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> float:
        """Take the panel away and return the seconds since it came."""
        self._ending.close()
        return monotonic() - self._began

    def goes_on(self, doing: str) -> None:
        """Show that something else is done now."""
        self(msgspec.structs.replace(self._progress, doing=doing))

    def __call__(self, progress: ReplayProgress, /) -> None:
        self._progress = progress
        self._rate.note(progress.acknowledged, monotonic())
        if self._lines is not None:
            self._lines.tell(progress, began=self._began, now=monotonic())

    def panel(self) -> RenderableType:
        """Draw how the replay stands, for the size that the terminal has at that moment."""
        now, (columns, lines) = monotonic(), self._screen.size
        width = min(columns, WIDTH_MAX)
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(style="bold", no_wrap=True, min_width=_LABEL)
        rows.add_column(no_wrap=True, overflow="ellipsis")
        for label, text in self._rows(now, width):
            rows.add_row(label, text)
        kills = kills_table(self._progress.casualties, began=self._began, most=min(_KILLS_MAX, lines - _HEAD_LINES))
        return Panel(
            Group(rows, Text(""), kills),
            title=f"statecache demo, seed {self._options.seed}",
            title_align="left",
            subtitle=time_text(now - self._began),
            subtitle_align="right",
            width=width,
        )

    def _rows(self, now: float, width: int) -> list[tuple[str, Text]]:
        progress, messages = self._progress, self._options.messages
        bar = min(_BAR_MAX, max(10, width - 44))
        flushed = min(progress.flushed, messages)
        unflushed = max(0, progress.acknowledged - flushed)
        return [
            ("now", Text(doing_text(progress.doing), style="cyan")),
            ("acknowledged", bar_text(progress.acknowledged, messages, bar).append(f" of {messages} messages")),
            ("in Postgres", bar_text(flushed, messages, bar).append(f", {unflushed} not flushed yet")),
            ("commits/s", Text(f"{self._rate.per_s(now):.1f}")),
            ("at work", at_work(progress, self._options, apart="  " if width > _NARROW else " ")),
        ]


class Rate:
    """The growth of a number over the last seconds."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def note(self, number: int, now: float) -> None:
        """Record the number, at most ten times a second."""
        if not self._looks or now - self._looks[-1][0] >= 0.1:
            self._looks.append((now, number))
        while self._looks[0][0] < now - RATE_S:
            self._looks.popleft()

    def per_s(self, now: float) -> float:
        """Return the growth per second."""
        looks = list(self._looks)
        if not looks or now <= looks[0][0]:
            return 0.0
        return (looks[-1][1] - looks[0][1]) / max(now - looks[0][0], 0.5)


class Lines:
    """A replay in plain lines: what it does, who was killed, who came back, and now and then how far it is."""

    def __init__(self, screen: Console, messages: int) -> None:
        self._screen = screen
        self._messages = messages
        self._doing = ""
        self._told = 0.0
        self._known: list[Casualty] = []

    def tell(self, progress: ReplayProgress, *, began: float, now: float) -> None:
        """Print what has changed since the last call."""
        if progress.doing != self._doing:
            self._doing = progress.doing
            self.say(now - began, doing_text(progress.doing))
        for place, one in enumerate(progress.casualties):
            known = self._known[place] if place < len(self._known) else None
            if known is None:
                self.say(one.killed_at - began, f"{name_of(one)} killed")
            if one.back_at is not None and (known is None or known.back_at is None):
                self.say(one.back_at - began, f"{name_of(one)} back after {time_text(one.back_at - one.killed_at)}")
        self._known = list(progress.casualties)
        if now - began - self._told >= PROGRESS_S:
            self._told = now - began
            behind = max(0, progress.acknowledged - progress.flushed)
            self.say(now - began, f"{progress.acknowledged} of {self._messages} acknowledged, {behind} not flushed yet")

    def say(self, seconds: float, text: str) -> None:
        """Print a line at once, also into a pipe or a file."""
        self._screen.print(f"{seconds:5.1f} s  {plain(text)}", soft_wrap=True)
        self._screen.file.flush()


def headline(options: Options) -> str:
    """Return the line that says what is about to happen."""
    return (
        f"seed {options.seed}: {options.agents} agents, {options.flushers} workers, "
        f"{len(options.runs)} recorded runs, {options.messages} messages"
    )


def doing_text(doing: str) -> str:
    """Return what the supervisor does in words for people."""
    for word, other in _DOING.items():
        doing = doing.replace(word, other)
    return doing


def name_of(casualty: Casualty) -> str:
    """Return a name, for people, of what was killed."""
    if casualty.kind == "agent":
        return f"agent {casualty.name}"
    return casualty.name.replace("-", " ") if casualty.kind == "flusher" else _KINDS[casualty.kind]


def bar_text(number: int, of: int, width: int) -> Text:
    """Draw a share as a bar, followed by the number."""
    filled = min(width, round(width * number / of)) if of else 0
    return Text("█" * filled, style="green").append("░" * (width - filled), style="dim").append(f" {number:>4}", "none")


def at_work(progress: ReplayProgress, options: Options, *, apart: str) -> Text:
    """Draw a dot for each process that should be there: green while it is at work, red while it is away."""
    away = [one.kind for one in progress.casualties if one.back_at is None]
    counts = {"agent": options.agents, "flusher": options.flushers, "redis": 1, "postgres": 1}
    there = "dim" if progress.doing.startswith("starting") else "green"
    text = Text()
    for kind, count in counts.items():
        gone = min(count, away.count(kind))
        text.append(apart if text else "").append(f"{_KINDS[kind]} ")
        text.append("●" * (count - gone), there).append("○" * gone, "bold red")
    return text


def kills_table(casualties: Sequence[Casualty], *, began: float, most: int) -> RenderableType:
    """Draw the newest kills, the newest first, with who is away and who came back."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="dim", width=7)
    table.add_column(width=10)
    table.add_column(no_wrap=True)
    for one in list(reversed(casualties))[: max(1, most)]:
        if one.back_at is None:
            what = Text("killed, coming back", style="bold red")
        else:
            what = Text(f"killed, back after {time_text(one.back_at - one.killed_at)}", style="green")
        table.add_row(f"{one.killed_at - began:.1f} s", name_of(one), what)
    return table if casualties else Text("nobody was killed yet", style="dim")


# The last screen.


def show(
    screen: Console, played: Played, lines: Sequence[str], *, seconds: float, after: Afterwards | None = None
) -> None:
    """Print what happened, and lines to go on with; where nobody watches, without the blanks that fill cells."""
    if screen.is_terminal:
        _last_screen(screen, played, lines, seconds, after)
        return
    with screen.capture() as captured:
        _last_screen(screen, played, lines, seconds, after)
    for line in captured.get().splitlines():
        screen.print(line.rstrip(), soft_wrap=True)
    screen.file.flush()


def _last_screen(
    screen: Console, played: Played, lines: Sequence[str], seconds: float, after: Afterwards | None
) -> None:
    report, story = played.report, played.story
    spare = screen.height - _OTHER_LINES if screen.is_terminal else STRETCHES_MAX + _ROWS_MAX
    tight = after is not None and spare < STRETCHES_MIN + _ROWS_MAX
    screen.print(verdict_text(report), soft_wrap=not screen.is_terminal)
    screen.print(facts_table(played, seconds=seconds))
    for finding in report.findings:
        screen.print(f"  {plain(finding)}", soft_wrap=True)
    if report.journals:
        screen.print(f"  journals and logs: {report.journals}", soft_wrap=True)
    if story is not None:
        screen.print()
        screen.print(story_text(story))
        rows = ROWS_MIN if tight else _ROWS_MAX
        most = spare if after is None else spare - rows - 1
        screen.print(stretches_table(story, most=max(STRETCHES_MIN - tight, most)))
        for line in told(after, screen, most=rows) if after is not None else ():
            screen.print(line, soft_wrap=True)
    if lines:
        if not tight:
            screen.print()
        screen.print(Text("Next: ", style="bold").append(_NEXT_SHORT if tight else _NEXT, style="none"))
        _to_paste(screen, lines)


_NEXT_SHORT = "the same, with servers to look into; other kills; servers of your own."
_NEXT = (
    "the same kills, and servers that stay up to look into; other kills, also on runs of your own "
    "(a FILE before --kill); servers to develop against."
)


def verdict_text(report: Report) -> Text:
    """Return the outcome in one line."""
    missed = [_KINDS[kind] for kind, count in report.kills.items() if not count]
    if not report.audit_ok:
        return Text("The audit FAILED.", style="bold red")
    if missed:
        return Text(f"Nothing was lost, but not killed with a commit in flight: {', '.join(missed)}.", style="yellow")
    return Text("Nothing was lost, nothing happened twice, no history forked.", style="bold green")


def facts_table(played: Played, *, seconds: float) -> Table:
    """Return a table of what there is to say in numbers."""
    report = played.report
    kills = ", ".join(f"{_KINDS[kind]} {count}" for kind, count in report.kills.items())
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("killed", f"{kills}, each with commits in flight")
    table.add_row("runs", f"{report.runs}, resumed {report.resumed} times by an agent's next life")
    table.add_row(
        "commits",
        f"{report.commits_acked} of {report.messages} messages acknowledged, durability {report.durability}",
    )
    table.add_row(
        "audit",
        f"lost {report.lost}, duplicated {report.duplicated}, forked {report.forked}, quarantined {report.quarantined}",
    )
    table.add_row(
        "compared",
        f"{played.changes} changes in Postgres with journals and input, one by one; "
        f"{report.runs} states in Redis with Postgres, byte for byte",
    )
    table.add_row("commit", f"p50 {_ms(report.commit_p50_ms)}, p99 {_ms(report.commit_p99_ms)}, outages included")
    table.add_row("took", f"{seconds:.1f} s in all, {report.commits_per_s:.1f} commits/s; seed {report.seed}")
    return table


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.2f} s"


def story_text(story: Story) -> Text:
    """Return the line that introduces the story."""
    times = "once" if story.resumed == 1 else f"{story.resumed} times"
    text = Text(story.key, style="bold cyan")
    return text.append(f", resumed {times}: its chain in Postgres, as audited", style="none")


def stretches_table(story: Story, *, most: int) -> Table:
    """Draw a chain as at most `most` stretches, the first and the last ones, each with what happened before it."""
    table = Table.grid(padding=(0, 2, 0, 0))
    writer = max([len("writer"), *(len(plain(one.writer)) for one in story.stretches)])
    table.add_column(justify="right", no_wrap=True, min_width=len("  versions"))
    table.add_column(justify="right", no_wrap=True, min_width=len("epoch"))
    table.add_column(no_wrap=True, min_width=writer)
    table.add_column()
    table.add_row("  versions", "epoch", "writer", "", style="dim")
    stretches = list(story.stretches)
    hidden = 0 if len(stretches) <= most else len(stretches) - most + 1
    for place, one in enumerate(stretches):
        if hidden and 1 <= place <= hidden:
            if place == 1:
                table.add_row("…", "", "", Text(f"{hidden} more", style="dim"))
            continue
        before = stretches[place - 1] if place else None
        versions = str(one.first) if one.first == one.last else f"{one.first}-{one.last}"
        table.add_row(versions, str(one.epoch), plain(one.writer), Text(reason_of(before, one), style="dim"))
    return table


def reason_of(before: Stretch | None, one: Stretch) -> str:
    """Return why a stretch begins."""
    if before is None:
        return ""
    reasons = ["agent killed, the next life goes on"] if one.writer != before.writer else []
    reasons += ["Redis killed"] if one.epoch != before.epoch else []
    return "; ".join(reasons)


def keep_lines(screen: Console, lines: Sequence[str]) -> None:
    """Print how to look into the servers; each line stands by itself, however narrow the terminal is."""
    screen.print()
    screen.print(Text("The servers stay up until Ctrl-C.", style="bold").append(" In another terminal:", style="none"))
    _to_paste(screen, lines)
    screen.file.flush()


def _to_paste(screen: Console, lines: Sequence[str]) -> None:
    for line in lines:
        screen.print(f"  {line}", soft_wrap=True, style="cyan")

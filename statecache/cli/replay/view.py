"""How a replay looks: a bar while it runs, a table at its end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from statecache.cli.screen import draws, unechoed
from statecache.replay.progress import ReplayProgress
from statecache.replay.report import Report


class View:
    """How far a replay is, shown on stderr and only where that is a terminal."""

    def __init__(self, messages: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[kills]}"),
            console=self._console,
            disable=not draws(self._console),
            refresh_per_second=8,
            transient=True,
        )
        self._ending = ExitStack()
        self._task = self._progress.add_task("starting", total=messages, kills="")

    def __enter__(self) -> Self:
        if not self._progress.disable:
            self._ending.enter_context(unechoed())
        self._ending.enter_context(self._progress)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    def __call__(self, progress: ReplayProgress) -> None:
        """Show how the replay stands; the supervisor calls it at every turn."""
        if not self._progress.disable:
            self._progress.update(
                self._task,
                description=progress.doing,
                completed=progress.acknowledged,
                kills=killed(progress.kills),
            )


def killed(kills: Mapping[str, int]) -> str:
    """Return the kills in a few words."""
    return "killed: " + ", ".join(f"{kind} {count}" for kind, count in kills.items()) if kills else ""


def show(report: Report, *, on_stderr: bool) -> None:
    """Print the report as a table, then its findings."""
    console = Console(stderr=on_stderr, highlight=False)
    table = Table(show_header=False, title="replay", title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for name in (
        "runs", "messages", "commits_acked", "durability", "lost", "duplicated", "forked", "quarantined", "resumed",
    ):  # fmt: skip
        table.add_row(name.replace("_", " "), str(getattr(report, name)))
    for kind, count in report.kills.items():
        table.add_row(f"kills: {kind}", str(count))
    table.add_section()
    table.add_row("commits/s", f"{report.commits_per_s:,.1f}")
    table.add_row("commit p50, p99", f"{report.commit_p50_ms:,.2f} ms, {report.commit_p99_ms:,.2f} ms")
    table.add_row("flush lag p99", f"{report.flush_lag_p99_ms:,.1f} ms")
    table.add_section()
    table.add_row("audit", "[green]passed[/]" if report.audit_ok else "[red]FAILED[/]")
    table.add_row("seed", str(report.seed))
    console.print(table)
    for finding in report.findings:
        console.print(f"  {finding}", markup=False)
    if report.journals:
        console.print(f"journals and logs: {report.journals}", markup=False, soft_wrap=True)

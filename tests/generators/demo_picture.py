"""Draws docs/demo.svg: the last screen of `statecache demo`, by rich, from what a real run recorded.

    python -m tests.generators.demo_picture     runs the demo, and records it in `demo_run.json` (`make picture`)

The same code that shows the screen draws it, so a picture of another screen is out of date (`generated`).
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from rich.console import Console

from statecache import Settings
from statecache.cli.demo import view as demo_view
from statecache.cli.demo.afterwards import Afterwards
from statecache.cli.demo.command import demo, lines_to_try, program
from statecache.replay.report import Report
from statecache.replay.stage import Stage
from statecache.replay.story import Story
from statecache.replay.supervisor import Played

RUN = Path(__file__).with_name("demo_run.json")
COLUMNS, LINES, SEED = 88, 32, 7


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the last screen of a run shows."""

    report: Report
    changes: int
    story: Story | None
    seconds: float
    after: Afterwards | None = None


def picture() -> str:
    """Return the recorded run's last screen as SVG."""
    run = msgspec.json.decode(RUN.read_bytes(), type=Recorded)
    played = Played(report=run.report, changes=run.changes, story=run.story, stage=Stage(Settings(), {}, None))
    screen = Console(
        record=True, file=io.StringIO(), width=COLUMNS, height=LINES, force_terminal=True, color_system="truecolor",
        highlight=False, emoji=False, markup=False, legacy_windows=False, _environ={},
    )  # fmt: skip
    lines = [line.replace(program(), "statecache", 1) for line in lines_to_try(run.report.seed)]
    demo_view.show(screen, played, lines, seconds=run.seconds, after=run.after)
    return screen.export_svg(title="statecache demo", unique_id="demo")


def record() -> int:
    """Run the demo and record what its last screen shows; return its exit status."""
    show = demo_view.show

    def keep(
        screen: Console, played: Played, lines: Sequence[str], *, seconds: float, after: Afterwards | None = None
    ) -> None:
        run = Recorded(
            report=played.report, changes=played.changes, story=played.story, seconds=round(seconds, 1), after=after
        )
        RUN.write_bytes(msgspec.json.format(msgspec.json.encode(run)) + b"\n")
        show(screen, played, lines, seconds=seconds, after=after)

    with ExitStack() as stack:
        replaced: Any = patch.object(demo_view, "show", keep)
        stack.enter_context(replaced)
        return demo(seed=SEED)


if __name__ == "__main__":
    sys.exit(record())

"""Terminals that cannot be drawn on: they are told so, or get lines."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

from statecache.cli.screen import draws

LIMIT_S = 60.0


@pytest.mark.parametrize(("term", "drawn"), [("xterm-256color", True), ("dumb", False), ("unknown", False)])
def test_what_can_be_drawn_on(term: str, drawn: bool) -> None:
    assert draws(Console(force_terminal=True, _environ={"TERM": term})) is drawn
    assert not draws(Console(force_terminal=False, _environ={"TERM": term}))


def test_top_says_what_else_there_is() -> None:
    screen, inside = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "statecache", "top"],
        stdin=inside, stdout=inside, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(inside)
    os.close(screen)
    assert done.returncode == 2
    assert "this terminal (TERM=dumb) cannot be drawn on. Say --once or --json." in done.stderr

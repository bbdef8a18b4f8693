"""Terminals that cannot be drawn on: they are told so, or get lines."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

from statecache.cli.screen import draws
from statecache.dev import wrapped

LIMIT_S = 60.0


@pytest.mark.parametrize(("term", "drawn"), [("xterm-256color", True), ("dumb", False), ("unknown", False)])
def test_what_can_be_drawn_on(term: str, drawn: bool) -> None:
    assert draws(Console(force_terminal=True, _environ={"TERM": term})) is drawn
    assert not draws(Console(force_terminal=False, _environ={"TERM": term}))


def test_dev_breaks_its_sentences_between_words_and_nothing_that_is_to_be_pasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    pasted = "  export STATECACHE_POSTGRES_URL=postgresql://postgres:secret@127.0.0.1:15432/postgres\n"
    sentence = "Valkey, Postgres 18.4 and a worker are running. Data and logs are in /home/somebody/state\n"
    told = wrapped(f"{sentence}\n{pasted}\nCtrl-C stops them.\n")
    first, second, *rest = told.splitlines(keepends=True)
    assert (first + second).replace("\n", " ").strip() == sentence.strip()
    assert max(len(first), len(second)) <= 60
    assert rest == ["\n", pasted, "\n", "Ctrl-C stops them.\n"]


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

"""Lines that are longer than a terminal: broken between words, and nothing that is to be pasted is broken at all."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from statecache.cli.screen import folded, say, tell

LIMIT_S = 60.0
WIDTHS = (60, 80, 120)
ERROR = (
    "Redis is unavailable (connect): redis://127.0.0.1:6379/0 (the default: STATECACHE_REDIS_URL is not set): "
    "Error 111 connecting to 127.0.0.1:6379. Is the server up, the URL right? "
    "`statecache status --redis-url redis://127.0.0.1:6379/0` shows how it stands."
)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_line_is_broken_between_words_and_a_command_stays_whole(width: int) -> None:
    lines = folded(ERROR, width).split("\n")
    assert max(map(len, lines)) <= width
    assert " ".join(lines) == ERROR
    assert any("`statecache status --redis-url redis://127.0.0.1:6379/0`" in line for line in lines)


def test_what_is_longer_than_a_line_stands_alone_and_wide_characters_count_twice() -> None:
    cursor = "1:1," * 40
    assert folded(f"go on with --since '{cursor}'", 60).split("\n") == ["go on with --since", f"'{cursor}'"]
    assert folded("状態 状態 状態", 9).split("\n") == ["状態 状態", "状態"]
    assert folded("a lone ` and more", 9).split("\n") == ["a lone `", "and more"]


@pytest.mark.parametrize("width", WIDTHS)
def test_parts_of_a_line_are_parted_where_it_is_broken(width: int) -> None:
    parts = ["runs/42", "version 4", "change 3b1266535f763c7ca59baaff", "position 1-4"]
    lines = folded(parts, width, gap="  ").split("\n")
    assert [part for line in lines for part in line.split("  ")] == parts
    assert max(map(len, lines)) <= width


def test_a_pipe_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    tell(ERROR)
    say(["a" * 50, "b" * 50])
    out, err = capsys.readouterr()
    assert err == f"statecache: {ERROR}\n"
    assert out == f"{'a' * 50}  {'b' * 50}\n"


def on_a_terminal(width: int, *arguments: str) -> tuple[int, list[str]]:
    """Run the command line where both of its outputs are a terminal; return its status and the lines."""
    screen, inside = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "statecache", *arguments], stdout=inside, stderr=inside, stdin=subprocess.DEVNULL,
        timeout=LIMIT_S, check=False, env={**os.environ, "COLUMNS": str(width)},
    )  # fmt: skip
    os.close(inside)
    lines = os.read(screen, 65536).decode().splitlines()
    os.close(screen)
    return done.returncode, lines


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_to_be_pasted_has_notes_that_a_shell_passes_over(width: int) -> None:
    urls = ("--redis-url", "redis://u:p@h:1/0", "--postgres-url", "postgresql://u:p@h/db")
    status, lines = on_a_terminal(width, "where", "runs/42", *urls)
    notes = lines[3 : lines.index("# what agents see now")]
    assert (status, len(notes)) == (0, 4 if width == 60 else 2)
    assert all(line.startswith("# ") and len(line) <= width for line in notes)


@pytest.mark.parametrize("width", WIDTHS)
def test_an_error_on_a_terminal_is_as_wide_as_that(width: int) -> None:
    status, lines = on_a_terminal(width, "get", "runs/42", "--redis-url", "redis://127.0.0.1:1/0")
    assert status == 4
    assert max(map(len, lines)) <= width
    assert re.match(r"statecache: Redis is unavailable \(connect\): redis://127\.0\.0\.1:1/0: ", " ".join(lines))

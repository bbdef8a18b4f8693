"""What a type checker tells users: the errors that a program should have, and the types that it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/typing/verbs.py"
CHECK_S = 300.0
QUOTE = '"'
_PATH = re.compile(r"[a-z_.]+[.](?=[A-Z])|builtins[.]")
"""What stands before the name of a type."""


def expected() -> dict[int, str]:
    """Return what stands beside the program's lines."""
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    found = {number: re.search(r"# ((?:is|error): .+)$", line) for number, line in enumerate(lines, 1)}
    return {number: one[1] for number, one in found.items() if one}


def told() -> dict[int, str]:
    """Return what mypy tells of them."""
    command = [sys.executable, "-m", "mypy", "--no-pretty", "--no-error-summary", "--hide-error-context", str(PROGRAM)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=CHECK_S)
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        place = re.match(r"[^:]+:(\d+): (\w+): (.*)$", line)
        assert place, done.stdout + done.stderr
        number, kind, text = int(place[1]), place[2], place[3]
        if kind == "error":
            found[number] = f"error: {text.rpartition('[')[2].removesuffix(']')}"
        elif text.startswith("Revealed type"):
            found[number] = f"is: {_PATH.sub('', text.split(QUOTE)[1])}"
    return found


def test_a_checker_knows_what_verbs_take_and_give() -> None:
    assert told() == expected()
    assert len(expected()) > 40

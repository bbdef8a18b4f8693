"""What type checkers tell users: the errors that a program should have, and the types that they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/typing/verbs.py"
CHECK_S = 300.0
QUOTE = '"'
_PATH = re.compile(r"[a-z_.]+[.](?=[A-Z])|builtins[.]")
"""What stands before the name of a type."""

Told = dict[int, str]


def expected() -> Told:
    """Return what stands beside the program's lines."""
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    found = {number: re.search(r"# ((?:is|error): .+)$", line) for number, line in enumerate(lines, 1)}
    return {number: one[1] for number, one in found.items() if one}


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=CHECK_S)
    assert done.stdout, done.stderr
    return done.stdout


def mypy() -> Told:
    """Return what mypy tells of them."""
    found: Told = {}
    told = _run(
        [sys.executable, "-m", "mypy", "--no-pretty", "--no-error-summary", "--hide-error-context", str(PROGRAM)]
    )
    for line in told.splitlines():
        place = re.match(r"[^:]+:(\d+): (\w+): (.*)$", line)
        assert place, told
        number, kind, text = int(place[1]), place[2], place[3]
        if kind == "error":
            found[number] = f"error: {text.rpartition('[')[2].removesuffix(']')}"
        elif text.startswith("Revealed type"):
            found[number] = f"is: {_PATH.sub('', text.split(QUOTE)[1])}"
    return found


def pyright() -> Told:
    """Return what pyright tells of them; it has three names for all the errors that there are here."""
    told = _run([sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, str(PROGRAM)])
    found: Told = {}
    for one in json.loads(told)["generalDiagnostics"]:
        number = one["range"]["start"]["line"] + 1
        if one.get("rule") in ("reportArgumentType", "reportCallIssue", "reportAttributeAccessIssue"):
            found[number] = "error"
        elif one["severity"] == "information" and " is " in one["message"]:
            found[number] = f"is: {one['message'].rpartition(' is ')[2].strip(QUOTE)}"
    return found


def _in_one_word(told: Told) -> Told:
    return {number: "error" if one.startswith("error") else one for number, one in told.items()}


def test_mypy_knows_what_verbs_take_and_give() -> None:
    assert mypy() == expected()
    assert len(expected()) > 50


def test_pyright_knows_it_too() -> None:
    assert pyright() == _in_one_word(expected())

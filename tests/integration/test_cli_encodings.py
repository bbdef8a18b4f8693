"""Where standard output is not UTF-8: what its encoding has no code for is escaped, and nothing ends in the middle."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from statecache import StateCache
from tests.support.command_line import WAIT_S, CommandLine

KEY = "runs/\u00e9t\u00e9\u2192\U0001f600"
VALUE = {"says": "\u00e9 \u2192 \U0001f600", "number": 1}
ENCODINGS = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}


def ran(cli: CommandLine, encoding: str, *arguments: str) -> tuple[int, bytes, bytes]:
    environment = cli.environment() | {"PYTHONIOENCODING": ""} | ENCODINGS[encoding]
    command = [sys.executable, "-m", "statecache", *arguments]
    done = subprocess.run(command, capture_output=True, check=False, timeout=WAIT_S, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_has_no_code_is_escaped_and_everything_is_shown(
    cli: CommandLine, sync_cache: StateCache, encoding: str
) -> None:
    for key in ("runs/0", KEY, "runs/z"):
        sync_cache.set(key, VALUE, reason="\u2192")
    accent = b"\xe9" if encoding == "latin-1" else b"\\u00e9"
    shown = b"runs/" + accent + b"t" + accent + rb"\u2192\ud83d\ude00"
    status, out, err = ran(cli, encoding, "ls", "runs/")
    assert (status, err, [line.split(b"\t")[0] for line in out.splitlines()[1:]]) == (
        0,
        b"",
        [b"runs/0", b"runs/z", shown],
    )
    for command in (["log", "runs/0"], ["log", "runs/0", "--graph"], ["show", "runs/0@1"], ["ls", "runs/", "--json"]):
        status, out, err = ran(cli, encoding, *command)
        assert (status, err) == (0, b""), command
    for command in (["get", "runs/0"], ["get", "runs/0", "--json"]):
        status, out, err = ran(cli, encoding, *command)
        told = json.loads(out.decode("latin-1"))
        assert (status, told.get("value", told)) == (0, VALUE), "it can be read again"
    if encoding == "latin-1":  # the C locale does not read such an argument
        status, out, err = ran(cli, encoding, "get", "runs/\u2192")
        assert (status, rb"runs/\u2192" in err, b"unexpected" in err) == (1, True, False)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_export_is_in_utf_8_all_the_same(cli: CommandLine, sync_cache: StateCache, encoding: str) -> None:
    sync_cache.set(KEY, VALUE)
    status, out, _ = ran(cli, encoding, "export", "runs/")
    line = json.loads(out.decode("utf-8"))
    assert (status, line["key"], line["value"]) == (0, KEY, VALUE)
    assert "\u2192".encode() in out

"""`statecache demo` as a person meets it: watched, piped, left up to look into, and interrupted."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from statecache.clock import monotonic
from statecache.settings import process_environment
from statecache.testing.process import descendants, identity
from tests.fixtures.surroundings import short_folder
from tests.support.polling import pause_thread

WAIT_S = 120.0
IN_TERMINAL = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from statecache.cli import main
main()
"""
KINDS = ("agent", "flusher", "redis", "postgres")
NOTHING_FOUND = {"lost": 0, "duplicated": 0, "forked": 0, "quarantined": 0, "audit_ok": True, "findings": []}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for temporary files that the user who runs Postgres for root can pass into; nothing stays in it."""
    with tempfile.TemporaryDirectory(prefix="sct", dir=short_folder()) as name:
        Path(name).chmod(0o711)
        yield Path(name)
        assert list(Path(name).iterdir()) == []


def environment(folder: Path) -> dict[str, str]:
    """Return a user's environment that names servers, which the demo must leave alone; its terminal takes colours."""
    clean = {name: value for name, value in process_environment().items() if not name.startswith("STATECACHE_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), clean["PATH"]])
    others = {"STATECACHE_REDIS_URL": "redis://127.0.0.1:1/0", "TERM": "xterm-256color", "PATH": path}
    return clean | others | {"TMPDIR": str(folder)}


class Demo:
    """A running demo, whose lines are read one by one; stdout may go to a file instead."""

    def __init__(self, folder: Path, *arguments: str, out: Path | None = None) -> None:
        stdout = subprocess.PIPE if out is None else os.open(out, os.O_WRONLY | os.O_CREAT)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "statecache", "demo", *arguments],
            stdout=stdout,
            stderr=subprocess.STDOUT if out is None else subprocess.PIPE,
            encoding="utf-8",
            env=environment(folder),
        )
        if out is not None:
            os.close(stdout)
        self.lines: list[str] = []

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def until(self, words: str) -> None:
        """Read on until a line with these words."""
        stream = self.process.stdout or self.process.stderr
        assert stream is not None
        while not (self.lines and words in self.lines[-1]):
            line = stream.readline()
            assert line, "".join(self.lines)
            self.lines.append(str(line))

    def end(self, number: signal.Signals) -> int:
        """Send the signal and return the exit status, once every process below it has ended."""
        below = [(pid, known) for pid in descendants(self.process.pid) if (known := identity(pid)) is not None]
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=WAIT_S)
        self.lines += (out or err or "").splitlines(keepends=True)
        assert [pid for pid, known in below if identity(pid) == known] == []
        return int(self.process.returncode)


def test_everything_is_killed_nothing_is_lost_and_the_servers_can_be_looked_into(folder: Path, tmp_path: Path) -> None:
    with Demo(folder, "--seed", "7", "--keep", "--json", out=tmp_path / "out") as demo:
        demo.until("Ctrl-C")
        demo.until("psql")
        seen = "".join(demo.lines)
        looks = [line.strip() for line in demo.lines if re.match("  (export|statecache|[^ ]*(redis-cli|psql)) ", line)]
        (line,) = (tmp_path / "out").read_text().splitlines()
        found = json.loads(line)
        story = found["story"]
        assert len(looks) >= 5
        for look in looks[2:]:
            _try_out(look, looks[:2], story, folder)
        _paste(f"statecache set {story['key']} 1 --durability postgres", looks[:2], folder)
        assert descendants(demo.process.pid)
        assert demo.end(signal.SIGINT) == 0
    assert (tmp_path / "out").read_text() == line + "\n"
    assert {name: found[name] for name in NOTHING_FOUND} == NOTHING_FOUND
    assert (found["runs"], found["seed"], found["commits_acked"]) == (12, 7, found["messages"])
    assert found["kills"] == dict.fromkeys(KINDS, 3)
    assert 0 < found["seconds"] < WAIT_S
    assert demo.lines[-1] == "Stopping.\n"
    assert "\x1b" not in seen
    assert "Nothing was lost, nothing happened twice, no history forked.\n" in seen
    for name in (r"agent \d", r"worker \d", "Redis", "Postgres"):
        assert re.search(rf"^ *\d+\.\d s  {name} killed$", seen, re.MULTILINE)
        assert re.search(rf"^ *\d+\.\d s  {name} back after ", seen, re.MULTILINE)
    assert f"{story['key']}, resumed " in seen
    _is_one_chain_over_kills(story)
    back = found["went_back"]
    first = [one["last"] for one in story["stretches"] if one["writer"] == story["stretches"][0]["writer"]]
    assert (back["key"], back["version"], back["branch"]) == (story["key"], first[-1], f"{story['key']}-b")
    assert f"It goes back to version {back['version']}; a branch goes another way:\n" in seen
    assert re.search(rf"^● +\d+ .*demo .*\(rollback to {back['version']}\)$", seen, re.MULTILINE)
    assert re.search(rf"^│ ● {back['branch']}@1 .*\(branch of @{back['version']}\)$", seen, re.MULTILINE)


def _try_out(line: str, exports: list[str], story: dict[str, Any], folder: Path) -> None:
    shown = _paste(f"{line} --once" if line.endswith(" top") else line, exports, folder)
    expected = "64 open" if line.endswith(" top") else story["run"]
    for one in story["stretches"] if "psql" in line else ():
        assert re.search(rf"{one['first']} \| +{one['epoch']} \| {one['writer']}\n", shown)
    assert "psql" in line or expected in shown


def _paste(line: str, exports: list[str], folder: Path) -> str:
    """Run a line in a shell, after the lines that say where the servers are, and return its output."""
    done = subprocess.run(
        ["sh", "-c", "\n".join([*exports, line])],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
        env=environment(folder),
    )
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout


def _is_one_chain_over_kills(story: dict[str, Any]) -> None:
    stretches = story["stretches"]
    assert story["resumed"] > 0
    assert all(re.fullmatch(r"agent-[0-3]\.\d", one["writer"]) for one in stretches)
    assert len({one["writer"] for one in stretches}) == story["resumed"] + 1
    assert len({one["epoch"] for one in stretches}) > 1
    assert stretches[0]["first"] == 1
    for before, after in pairwise(stretches):
        assert after["first"] == before["last"] + 1
        assert after["epoch"] >= before["epoch"]


def test_a_signal_while_the_servers_start_ends_it(folder: Path) -> None:
    with Demo(folder) as demo:
        demo.until("starting servers")
        while not descendants(demo.process.pid):
            assert demo.process.poll() is None
            pause_thread()
        assert demo.end(signal.SIGTERM) == 130
        assert "Traceback" not in "".join(demo.lines)


def test_in_a_terminal_it_draws_a_panel_that_fits_and_ctrl_c_ends_it(folder: Path) -> None:
    screen, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, "demo", "--seed", "7"],
        stdin=inside, stdout=inside, stderr=inside, start_new_session=True, env=environment(folder),
    )  # fmt: skip
    os.close(inside)
    try:
        seen = _read(screen, until="coming back")
        below = [(pid, known) for pid in descendants(process.pid) if (known := identity(pid)) is not None]
        os.write(screen, b"\x03")
        while all(identity(pid) == known for pid, known in below):
            assert process.poll() is None
            pause_thread()
        os.write(screen, b"\x03")  # the end has begun, and is not to be disturbed
        seen += _read(screen)
        assert process.wait(WAIT_S) == 130
    finally:
        process.kill()
        process.wait()
        os.close(screen)
    assert [pid for pid, known in below if identity(pid) == known] == []
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert max(map(len, re.split(r"[\r\n]+", plain))) == 80
    assert "statecache demo, seed 7" in plain
    assert re.search(r"at work       agents [●○]{4}  workers [●○]{2}  Redis [●○]  Postgres [●○]", plain)
    assert "Traceback" not in plain
    assert "^C" not in plain, "it would move what is drawn, and leave an edge of it"
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l"), "the cursor is gone"


def _read(screen: int, *, until: str = "\0") -> str:
    """Read what is drawn until these words, or to the end."""
    seen, end = b"", monotonic() + WAIT_S
    while until.encode() not in seen:
        ready, _, _ = select.select([screen], [], [], max(0.0, end - monotonic()))
        assert ready, seen[-2000:]
        try:
            more = os.read(screen, 65536)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        seen += more
    return seen.decode("utf-8", "replace")

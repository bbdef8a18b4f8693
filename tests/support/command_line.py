"""The command line in a test: through its real entry, here or in a process of its own, on the test's deployment."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from statecache import Settings
from statecache.cli.main import run
from statecache.settings import process_environment

WAIT_S = 60.0


class Ended(NamedTuple):
    """How a command ended: its exit status and its output."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The object on the last line of stdout."""
        return json.loads(self.out.splitlines()[-1])


def variables(settings: Settings) -> dict[str, str]:
    """Return the environment that makes a command work on the deployment."""
    changed = settings.model_dump(exclude_unset=True)
    return {f"STATECACHE_{name.upper()}": str(value) for name, value in changed.items() if value is not None}


class CommandLine:
    """The commands, run on one deployment."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._environment = variables(settings)
        for name in process_environment():
            if name.startswith("STATECACHE_"):
                monkeypatch.delenv(name)
        for name, value in self._environment.items():
            monkeypatch.setenv(name, value)

    def __call__(self, *arguments: str) -> Ended:
        self._capsys.readouterr()
        status = run(arguments)
        return Ended(status, *self._capsys.readouterr())

    async def beside(self, *arguments: str) -> Ended:
        """Run the command in a thread, for a test that has an event loop."""
        return await asyncio.to_thread(self, *arguments)

    def apart(self, *arguments: str, given: str | None = None) -> Ended:
        """Run the command in a process of its own, its output piped."""
        done = subprocess.run(
            [sys.executable, "-m", "statecache", *arguments],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
            env=self.environment(),
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def environment(self) -> dict[str, str]:
        """Return the environment of a process on the deployment; its terminal would take colours."""
        return process_environment() | self._environment | {"TERM": "xterm-256color", "GITHUB_ACTIONS": "true"}


async def parked_ids(cli: CommandLine, *options: str) -> list[str]:
    """Return the ids of what `quarantine list` lists."""
    return [one["id"] for one in (await cli.beside("quarantine", "list", "--json", *options)).json["parked"]]

"""Agents as processes of their own, on a test's deployment, some of which are killed."""

from __future__ import annotations

import os
import subprocess
import sys

from statecache import Settings
from tests.rules.tree import ROOT

_NAMED = ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards")


def begun(settings: Settings, module: str, *words: str) -> subprocess.Popen[str]:
    """Start the module with these words; it finds the deployment in its environment."""
    environment = os.environ | {f"STATECACHE_{name.upper()}": str(getattr(settings, name)) for name in _NAMED}
    command = [sys.executable, "-m", module, *words]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def killed_at(running: subprocess.Popen[str], line: str) -> None:
    """Read what a process says, and kill it when it says that."""
    with running:
        assert running.stdout is not None
        assert line in (told.strip() for told in running.stdout)
        running.kill()
    assert running.returncode < 0

"""Shell completion: installed as a user installs it, then TAB is pressed in a real shell on a terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from statecache.settings import process_environment

SHELLS = [shell for shell in ("bash", "zsh", "fish") if shutil.which(shell)]
LIMIT_S = 60.0
NOTES = """#!{python}
import os, sys
if "_STATECACHE_COMPLETE" in os.environ or "--install-completion" in sys.argv:
    from statecache.cli import main
    main()
with open(os.environ["TYPED"], "a") as notes:
    print(*sys.argv[1:], file=notes)
"""
"""A `statecache` that completes, and notes how it was called instead of doing it."""
ON_A_TERMINAL = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"


def test_nothing_that_talks_to_servers_is_imported_to_help_or_to_complete() -> None:
    """Who presses TAB waits for it."""
    code = "import sys, statecache.cli.app; print([name for name in ('psycopg', 'redis') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the command on its path, and no completion yet."""
    command = tmp_path / "bin/statecache"
    command.parent.mkdir()
    command.write_text(NOTES.format(python=sys.executable))
    command.chmod(0o755)
    (tmp_path / ".local/share/fish/generated_completions").mkdir(parents=True)  # else fish reads all manual pages first
    return tmp_path


def surroundings(home: Path) -> dict[str, str]:
    """Return the variables of a shell at home."""
    here = {"HOME": str(home), "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}", "TERM": "xterm"}
    return process_environment() | here | {"TYPED": str(home / "typed"), "PYTHONPATH": os.pathsep.join(sys.path)}


def typed(shell: str, home: Path, *lines: str) -> list[str]:
    """Type lines into an interactive shell, and return how the command was called."""
    keys = "".join(f"{line}\n" for line in (*lines, "exit"))
    command = [sys.executable, "-c", ON_A_TERMINAL, shell, "-i"]
    subprocess.run(
        command, input=keys.encode(), env=surroundings(home), capture_output=True, timeout=LIMIT_S, check=False
    )
    return (home / "typed").read_text().splitlines()


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_commands_options_and_words(shell: str, home: Path) -> None:
    installing = [shell, "-c", "statecache --install-completion; true"]
    done = subprocess.run(
        installing, env=surroundings(home), capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert f"{shell} completion installed" in done.stdout
    called = typed(
        shell, home,
        "statecache vers\t",  # zsh loads its completion at the first TAB, and completes from the second on
        "statecache quara\tli\t",
        "statecache set runs/1 2 --dura\tpos\t",
        "statecache policy --loc\tenf\t",
        "statecache merge runs/1 runs/2 --pre\tth\t",
        "statecache rollb\truns/1 -1 --dry\t",
    )  # fmt: skip
    assert called[1:] == [
        "quarantine list", "set runs/1 2 --durability postgres", "policy --locking enforced",
        "merge runs/1 runs/2 --prefer theirs", "rollback runs/1 -1 --dry-run",
    ]  # fmt: skip


def test_a_shell_that_was_not_told_completes_nothing(home: Path) -> None:
    assert typed("bash", home, "statecache quara\tli\t") == ["quarali"]

"""A run of several processes makes what a module's tests share once, and loads the machine with one thing at a time.

A test that ends its process or hangs costs itself alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from statecache.testing import ports
from tests.fixtures.processes import (
    COMPUTING,
    ONE_AFTER_THE_OTHER,
    WAITING,
    ports_of,
    pytest_collection_modifyitems,
    turned,
)

ROOT = Path(__file__).parents[2]
PLUGINS = ("-p", "xdist", "-p", "tests.fixtures.processes", "-p", "no:cacheprovider")
SHARED = """
import os
import pathlib
import pytest

@pytest.fixture(scope="module")
def made():
    with open("made", "a") as file:
        print(pathlib.Path(__file__).stem, os.getpid(), file=file)

@pytest.mark.parametrize("number", range(12))
def test_one(made, number):
    pass
"""

ENDS_ITS_PROCESS = """
import os

def test_before(): pass
def test_ends(): os._exit(3)
"""
HANGS = ENDS_ITS_PROCESS.replace("os._exit(3)", "__import__('time').sleep(60)")


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in two processes that share out by file."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", folder, *PLUGINS, "-n", "2", *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip


def _makers(folder: Path, files: list[str]) -> dict[str, list[str]]:
    """Run such files in two processes; return, for each file, the processes that made what its tests share."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(SHARED)
    done = _run(folder, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    made: dict[str, list[str]] = {}
    for line in (folder / "made").read_text().splitlines():
        name, process = line.split()
        made.setdefault(name, []).append(process)
    return made


def test_what_a_modules_tests_share_is_made_once(tmp_path: Path) -> None:
    made = _makers(tmp_path, ["tests/unit/test_a.py", "tests/unit/test_b.py", *ONE_AFTER_THE_OTHER])
    assert {name: len(processes) for name, processes in made.items()} == dict.fromkeys(made, 1)
    assert len(made) == 2 + len(ONE_AFTER_THE_OTHER)
    assert len({made[Path(name).stem][0] for name in ONE_AFTER_THE_OTHER}) == 1


@pytest.mark.parametrize("behind", [0, 1, 2, 9])
@pytest.mark.parametrize("text", [ENDS_ITS_PROCESS, HANGS], ids=["ended", "hung"])
def test_what_ends_its_process_fails_once_and_the_rest_of_its_file_runs(tmp_path: Path, text: str, behind: int) -> None:
    (tmp_path / "test_a.py").write_text(text + f"@__import__('pytest').mark.parametrize('n', range({behind}))\n"
                                               "def test_behind(n): pass\n")  # fmt: skip
    options = ["-o", "faulthandler_timeout=2", "-o", "faulthandler_exit_on_timeout=true"]
    done = _run(tmp_path, *options, "test_a.py")
    assert f"1 failed, {1 + behind} passed" in done.stdout, done.stdout + done.stderr
    assert "crashed while running 'test_a.py::test_ends'" in done.stdout
    assert ("in test_ends" in done.stderr) == (text is HANGS)


@pytest.mark.parametrize("others", [1, 2, 3])
def test_files_of_one_test_run_to_the_end_though_a_process_ended(tmp_path: Path, others: int) -> None:
    """A process keeps its last test until it is told that none comes behind it."""
    names = ["test_a.py", *(f"test_b{number}.py" for number in range(others))]
    (tmp_path / names[0]).write_text(ENDS_ITS_PROCESS)
    for name in names[1:]:
        (tmp_path / name).write_text("def test_one(): pass\n")
    done = _run(tmp_path, *names)
    assert f"1 failed, {1 + others} passed" in done.stdout, done.stdout + done.stderr


def test_what_computes_is_spread_among_what_waits_the_longest_first_and_what_is_quick_comes_last() -> None:
    waiting = [f"{WAITING}test_{number}.py" for number in range(20)]
    names = ["tests/unit/test_b.py", "tests/unit/test_a.py", *waiting, "tests/acceptance/test_a.py", *COMPUTING[1::-1]]
    items: list[Any] = [SimpleNamespace(nodeid=f"{name}::test") for name in names for _ in range(2)]
    pytest_collection_modifyitems(items)
    order = [item.nodeid.partition("::")[0] for item in items][::2]
    assert [item.nodeid.partition("::")[0] for item in items][1::2] == order
    assert [(at, name) for at, name in enumerate(order) if not name.startswith((WAITING, "tests/unit/"))] == [
        (0, COMPUTING[0]), (6, COMPUTING[1]), (12, "tests/acceptance/test_a.py"),
    ]  # fmt: skip
    assert [name for name in order if name.startswith(WAITING)] == waiting
    assert order[-2:] == names[:2]


def test_each_process_begins_to_compile_elsewhere_and_comes_to_all() -> None:
    files = [Path(f"test_{number}.py") for number in range(10)]
    begun = [turned(files, f"gw{number}", 4) for number in range(4)]
    assert [one[0].stem for one in begun] == ["test_0", "test_2", "test_5", "test_7"]
    assert all(sorted(one) == files for one in begun)


def test_the_files_that_are_named_exist() -> None:
    assert [name for name in (*COMPUTING, WAITING, *ONE_AFTER_THE_OTHER) if not (ROOT / name).exists()] == []


def test_no_two_processes_have_a_port_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LOWEST", 16384)
    monkeypatch.setattr(ports, "HIGHEST", 32767)
    highest = ports._highest()
    for count in (1, 2, 4, 7):
        shares = [ports_of(f"gw{number}", count) for number in range(count)]
        assert shares[0][0] == 16384
        assert highest - count < shares[-1][1] <= highest
        assert all(before[1] < behind[0] for before, behind in pairwise(shares))
    replaced = ports_of("gw5", 4)  # one that takes the place of a process that ended
    assert replaced == ports_of("gw1", 4)

"""The embedded servers end with their process, whatever end it comes to, and whoever runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from statecache.testing import servers, template
from statecache.testing.process import descendants, identity, wait_for_end
from tests.fixtures.surroundings import short_folder

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30.0
NOBODY = 65534
ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

PARENT = """
import json, os, sys
from statecache.testing import servers
s = servers(workers=0, migrate=False)
s.start()
facts = {"folder": str(s.folder), "pids": [s.pid("redis"), s.pid("postgres")], "uid": os.geteuid()}
sys.stdout.write(json.dumps(facts) + "\\n")
sys.stdout.flush()
"""


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A temporary folder of the test's own: any start clears up in its folder, those of other tests' servers too."""
    with tempfile.TemporaryDirectory(prefix="sct", dir=short_folder()) as name:
        Path(name).chmod(0o711)
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield


class Parent:
    """A process of its own that has started servers, and then runs the code."""

    def __init__(self, code: str, *, python: str = sys.executable, **options: Any) -> None:
        command = [python, "-c", PARENT + code]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT, **options
        )
        facts = json.loads(self.line())
        self.folder = Path(facts["folder"])
        self.redis, self.postgres = self.pids = facts["pids"]
        self.uid = facts["uid"]

    def line(self) -> str:
        assert self.process.stdout is not None
        return str(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> str:
        written, _ = self.process.communicate()
        assert self.process.returncode == 0
        return str(written)


@pytest.mark.usefixtures("apart")
def test_they_end_with_a_parent_that_was_killed_and_the_next_start_clears_up() -> None:
    parent = Parent("sys.stdin.read()")
    below = descendants(parent.postgres)
    segment = _segment(parent.folder)
    parent.kill()
    assert wait_for_end([*parent.pids, *below], WAIT_S)
    assert parent.folder.exists()
    with servers(workers=0, migrate=False):
        assert not parent.folder.exists()
    assert segment not in _segments()


def test_they_end_with_a_parent_that_forgot_to_close_them() -> None:
    parent = Parent("")
    parent.end()
    assert wait_for_end(parent.pids, 0.0)
    assert not parent.folder.exists()


def test_a_forked_child_that_exits_closes_nothing() -> None:
    parent = Parent("""
import warnings
warnings.simplefilter("ignore")
child = os.fork()
if not child:
    s.close()
    sys.exit()
os.waitpid(child, 0)
sys.stdout.write(f"{s.pid('redis')} {s.pid('postgres')}")
""")
    assert parent.end().split() == [str(pid) for pid in parent.pids]


@pytest.mark.usefixtures("apart")
def test_a_frozen_postgres_of_a_killed_parent_is_cleared_up() -> None:
    parent = Parent("s.pause('postgres'); sys.stdout.write('x\\n'); sys.stdout.flush(); sys.stdin.read()")
    parent.line()
    parent.kill()
    with servers(workers=0, migrate=False):
        assert identity(parent.postgres) is None


def test_nothing_is_left_after_the_block() -> None:
    with servers(workers=0, migrate=False) as s:
        folder = s.folder
        pids = [s.pid("redis"), s.pid("postgres"), *descendants(s.pid("postgres") or 0)]
        segment = _segment(folder)
        assert segment in _segments()
    assert not folder.exists()
    assert not folder.with_suffix(".lock").exists()
    assert [pid for pid in pids if pid is None or identity(pid) is not None] == []
    assert segment not in _segments()


def test_a_killed_postgres_leaves_no_shared_memory_after_the_block() -> None:
    with servers(workers=0, migrate=False) as s:
        segment = _segment(s.folder)
        s.kill("postgres")
        assert segment in _segments()
    assert segment not in _segments()


def _segment(folder: Path) -> str:
    return (folder / "postgres/data/postmaster.pid").read_text().splitlines()[6].split()[1]


def _segments() -> list[str]:
    return [line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]


def test_processes_that_start_at_once_make_one_template(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", PARENT]
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    made = [path.name for path in (tmp_path / "cache" / "statecache").iterdir()]
    assert len([name for name in made if not name.endswith(".lock")]) == 1


def test_a_torn_template_is_made_anew(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for _ in range(2):
        Parent("", env=environment).end()
        (template,) = (path for path in (tmp_path / "cache" / "statecache").iterdir() if path.is_dir())
        (template / "password").unlink()


def test_without_a_usable_home_every_start_makes_its_own_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "user_folder", lambda _: None)
    with servers(workers=0, migrate=False) as s:
        psycopg.connect(s.postgres_url).close()


@ONLY_ROOT
def test_run_by_root_postgres_belongs_to_an_ordinary_user() -> None:
    with servers(workers=0, migrate=False) as s:
        assert Path(f"/proc/{s.pid('postgres')}").stat().st_uid != 0
        assert (s.folder / "postgres/data").stat().st_mode & 0o777 == 0o700
        assert s.folder.stat().st_mode & 0o777 == 0o711


@ONLY_ROOT
def test_an_ordinary_user_needs_nothing_of_root() -> None:
    home, copy = (Path("/tmp") / f"statecache-{what}-{os.getpid()}" for what in ("home", "python"))
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY, NOBODY)
    copy.mkdir()
    try:
        python, libraries = _for_everybody(copy)
        environment = {"PATH": os.defpath, "HOME": str(home), "PYTHONPATH": _python_path(), **libraries}
        parent = Parent("sys.stdin.read()", python=python, env=environment, user=NOBODY, group=NOBODY, extra_groups=[])
        assert parent.uid == NOBODY
        assert {Path(f"/proc/{pid}").stat().st_uid for pid in parent.pids} == {NOBODY}
        with servers(workers=0, migrate=False):
            assert parent.folder.exists()
        parent.end()
        assert next(home.glob(".cache/statecache/postgres-18*")).stat().st_uid == NOBODY
    finally:
        shutil.rmtree(home)
        shutil.rmtree(copy)


def _python_path() -> str:
    return os.pathsep.join([str(ROOT), str(ROOT / "workers"), str(Path(redis.__file__).parents[1])])


def _for_everybody(folder: Path) -> tuple[str, dict[str, str]]:
    """Return an interpreter that another user can run with our packages, and what it needs of the environment.

    Ours may lie in a closed home; then a copy of it is made, of links where the folder is on the same disk.
    """
    if _can_run(sys.executable, {}):
        return sys.executable, {}
    base, name = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "bin").mkdir()
    python = _link(base / "bin" / name, folder / "bin" / name)
    for library in (base / "lib").glob("libpython*"):
        _link(library, folder / "lib" / library.name)
    skipped = shutil.ignore_patterns("site-packages", "test", "idlelib", "ensurepip", "tkinter")
    shutil.copytree(base / "lib" / name, folder / "lib" / name, ignore=skipped, copy_function=_link)
    libraries = {"LD_LIBRARY_PATH": str(folder / "lib")}
    assert _can_run(python, libraries)
    return python, libraries


def _link(given: str | Path, to: str | Path) -> str:
    Path(to).parent.mkdir(exist_ok=True)
    try:
        os.link(given, to)
    except OSError:  # another disk
        shutil.copy2(given, to)
    return str(to)


def _can_run(python: str, libraries: dict[str, str]) -> bool:
    done = subprocess.run(
        ["/usr/bin/env", python, "-c", "import statecache.testing.embedded, hiredis"],
        user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, cwd="/", check=False,
        env={"PYTHONPATH": _python_path(), **libraries},
    )  # fmt: skip
    return done.returncode == 0

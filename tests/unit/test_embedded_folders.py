"""Folders go with their process, whatever end it came to; nobody else's are touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from statecache.errors import ConfigurationError
from statecache.testing import folders, ports
from statecache.testing.folders import Throwaway, clear_up, locked, reachable, temporary_folder, user_folder
from statecache.testing.process import RunAs
from tests.fixtures.surroundings import short_folder

ROOT = Path(__file__).resolve().parents[2]
STRANGER = RunAs(uid=54321, gid=54321)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short temporary folder of the test's own, which everybody can pass."""
    with tempfile.TemporaryDirectory(prefix="sct", dir=short_folder()) as name:
        os.chmod(name, 0o711)
        monkeypatch.setattr("tempfile.gettempdir", lambda: name)
        yield Path(name)


def test_a_throwaway_folder_is_private_and_goes_when_removed(temporary: Path) -> None:
    folder = Throwaway.create(None)
    assert folder.path.parent == temporary
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "file").write_text("x")
    folder.remove()
    assert list(temporary.iterdir()) == []


def test_the_folders_of_the_living_stay_and_those_of_the_killed_go(temporary: Path) -> None:
    living = Throwaway.create(None)
    code = (
        "import sys, signal, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from statecache.testing.folders import Throwaway\n"
        "f = Throwaway.create(None); (f.path / 'file').write_text('x'); (f.path / 'sub').mkdir()\n"
        "sys.stdout.write(f'{f.path}\\n'); sys.stdout.flush(); signal.pause()"
    )
    killed = subprocess.Popen([sys.executable, "-c", code, temporary], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert killed.stdout is not None
    left = Path(killed.stdout.readline().strip())
    clear_up(temporary)
    assert left.exists()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    clear_up(temporary)
    assert not left.exists()
    assert [path.name for path in temporary.iterdir() if path.is_dir()] == [living.path.name]
    living.remove()


def test_a_lock_that_is_a_link_or_somebody_elses_is_left_alone(temporary: Path) -> None:
    precious = temporary / "precious"
    precious.mkdir()
    (temporary / "statecache-a.lock").symlink_to(temporary / "precious.lock")
    (temporary / "precious.lock").touch()
    clear_up(temporary)
    assert precious.exists()
    assert (temporary / "statecache-a.lock").is_symlink()


def test_a_temporary_folder_too_long_for_sockets_or_closed_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    long = temporary / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(long))
    assert temporary_folder(None) == Path("/tmp")
    closed = temporary / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(closed))
    assert temporary_folder(None) == closed
    assert temporary_folder(STRANGER) == Path("/tmp")


def test_reachable_looks_at_every_folder_on_the_way(temporary: Path) -> None:
    (temporary / "open" / "deep").mkdir(parents=True)
    assert reachable(temporary / "open" / "deep" / "not-yet", STRANGER)
    (temporary / "open").chmod(0o700)
    assert not reachable(temporary / "open" / "deep", STRANGER)
    assert reachable(temporary / "open" / "deep", RunAs(uid=os.geteuid(), gid=54321))
    assert reachable(temporary / "open" / "deep", None)


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", wait=False) as first, locked(tmp_path / "lock", wait=False) as second:
        assert (first, second) == (True, False)
    with locked(tmp_path / "lock", wait=True) as again:
        assert again


@pytest.mark.parametrize(("kind", "inside"), [("data", ".local/share"), ("cache", ".cache")])
def test_the_users_folder_follows_xdg_then_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, inside: str
) -> None:
    environment = {"HOME": str(tmp_path), f"XDG_{kind.upper()}_HOME": str(tmp_path / "xdg")}
    monkeypatch.setattr(folders, "process_environment", lambda: environment)
    monkeypatch.setattr("sys.platform", "linux")
    assert user_folder(kind) == tmp_path / "xdg" / "statecache"  # type: ignore[arg-type]
    environment[f"XDG_{kind.upper()}_HOME"] = "relative/is/ignored"
    assert user_folder(kind) == tmp_path / inside / "statecache"  # type: ignore[arg-type]


def test_a_home_of_another_user_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Under sudo, HOME may still be the other user's, who could not write into a folder of ours there."""
    real = os.geteuid()
    if real == 0:
        os.chown(tmp_path, 54321, 54321)
    else:
        monkeypatch.setattr("os.geteuid", lambda: 54321)
    monkeypatch.setattr(folders, "process_environment", lambda: {"HOME": str(tmp_path)})
    monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError))
    assert user_folder("cache") is None
    assert list(tmp_path.iterdir()) == []


def test_root_without_an_ordinary_user_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("pwd.getpwnam", lambda _: (_ for _ in ()).throw(KeyError))
    with pytest.raises(ConfigurationError, match="Postgres refuses to be run by root"):
        folders.ordinary_user()


def test_ports_come_from_below_those_of_outgoing_connections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "LOWEST", 16384)  # this process may have a share of its own
    monkeypatch.setattr(ports, "HIGHEST", 32767)
    for told, below in (("32768\t60999\n", 32768), ("20000\t65535\n", 20000)):
        (tmp_path / "range").write_text(told)
        monkeypatch.setattr(ports, "_OUTGOING", tmp_path / "range")
        assert all(ports.LOWEST <= ports.free_port() < below for _ in range(50))


def test_a_port_somebody_listens_on_is_not_free() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert not ports.is_free(taken.getsockname()[1])

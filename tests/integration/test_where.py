"""What `where` prints is executed, word for word, and shows the state."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from psycopg.conninfo import conninfo_to_dict

from statecache import AsyncStateCache, Settings
from statecache.cli.main import run
from statecache.settings import process_environment
from statecache.testing.workers import Workers
from tests.fixtures.servers import plain_client
from tests.support.pages import psql_folder

KEYS = ("runs/42", 'runs/it\'s "quoted" $HOME `id` \\n {07}', "runs/é/ünï")


def environment_of(settings: Settings) -> dict[str, str]:
    """Return what a shell's environment needs for the printed lines to work: passwords, and a way to find psql."""
    passwords = {
        "REDISCLI_AUTH": urlsplit(settings.redis_url).password or "",
        "PGPASSWORD": str(conninfo_to_dict(settings.postgres_url).get("password") or ""),
    }
    folders = [process_environment().get("PATH", ""), str(psql_folder())]
    return (
        process_environment() | {name: word for name, word in passwords.items() if word} | {"PATH": ":".join(folders)}
    )


def executed(line: str, settings: Settings) -> str:
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, check=False, timeout=30, env=environment_of(settings)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def lines(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[dict[str, list[str]]]:
    """The lines that the command prints for each key."""
    for name in ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards"):
        monkeypatch.setenv(f"STATECACHE_{name.upper()}", str(getattr(settings, name)))
    printed = {}
    for key in KEYS:
        assert run(["where", key]) == 0
        printed[key] = capsys.readouterr().out.splitlines()
    yield printed
    capsys.readouterr()


def line_for(program: str, printed: list[str]) -> str:
    (line,) = [line for line in printed if line.startswith(f"{program} ")]
    return line


async def test_the_redis_line_shows_the_live_state_as_json(
    cache: AsyncStateCache, settings: Settings, lines: dict[str, list[str]]
) -> None:
    for key in KEYS:
        await cache.set(key, {"step": 3, "note": "ü"})
        line = line_for("redis-cli", lines[key])
        if shutil.which("redis-cli"):
            assert '{"step":3,"note":"ü"}' in executed(line.replace("redis-cli", "redis-cli --raw", 1), settings)
            assert "step" in executed(line, settings)
        else:
            with plain_client(settings.redis_url, decode_responses=True) as client:
                assert client.hgetall(shlex.split(line)[-1])["value"] == '{"step":3,"note":"ü"}'


async def test_the_psql_line_shows_the_durable_state_as_json(
    cache: AsyncStateCache, settings: Settings, lines: dict[str, list[str]], tmp_path: Path
) -> None:
    named = ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards")
    workers = Workers(tmp_path, lambda: {f"STATECACHE_{n.upper()}": str(getattr(settings, n)) for n in named})
    workers.start(1)
    try:
        for key in KEYS:
            await cache.set(key, {"step": 3, "note": "ü"}, durability="postgres", timeout=30)
    finally:
        workers.stop()
    for key in KEYS:
        line = line_for("psql", lines[key])
        shown = executed(line.replace("psql", "psql --csv --tuples-only", 1), settings)
        assert json.loads(shown[shown.index('"{') + 1 : -2].replace('""', '"')) == {"step": 3, "note": "ü"}
        assert "(1 row)" in executed(line, settings)


def test_neither_line_shows_a_password(settings: Settings, lines: dict[str, list[str]]) -> None:
    secrets = {urlsplit(settings.redis_url).password, conninfo_to_dict(settings.postgres_url).get("password")}
    text = "\n".join(lines[KEYS[0]])
    assert not [secret for secret in secrets if secret and str(secret) in text]

"""The lines that `where` prints, and what they never show."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from statecache.cli.main import run
from statecache.cli.states.where import Where, where
from statecache.errors import ConfigurationError, InvalidKey
from statecache.settings import Settings

PLAIN = Settings(redis_url="redis://127.0.0.1:6379/0", postgres_url="postgresql://127.0.0.1:5432/postgres")


def placed(key: str = "runs/42", **settings: object) -> Where:
    return where(Settings(**{**PLAIN.model_dump(), **settings}), key)


def test_the_lines_of_an_ordinary_key() -> None:
    found = placed()
    assert found.redis_key == "sc:{58}:state:runs/42"
    assert found.redis_cli == "redis-cli -u redis://127.0.0.1:6379/0 HGETALL 'sc:{58}:state:runs/42'"
    assert found.psql == (
        "psql postgresql://127.0.0.1:5432/postgres -c "
        "\"select key, epoch, version, value_json from statecache.state_view where key = 'runs/42'\""
    )
    assert found.notes == []


@pytest.mark.parametrize("key", ["runs/it's", 'runs/"q"', "runs/$HOME `id` \\ !x", "runs/'';--", "runs/é{}"])
def test_any_key_survives_shell_and_sql(key: str) -> None:
    found = placed(key)
    assert shlex.split(found.redis_cli)[-1] == found.redis_key
    sql = shlex.split(found.psql)[-1]
    assert sql.endswith(f"where key = '{key.replace(chr(39), chr(39) * 2)}'")


@pytest.mark.parametrize(
    "key", ["runs/a b\nc", "runs/\x1b[31m", "runs/\x9b7'\\033\\", 'runs/\u202eé\x7f9\t$HOME `id` "!x']
)
def test_a_key_steers_no_terminal_and_its_lines_can_be_pasted_still(
    capsys: pytest.CaptureFixture[str], key: str
) -> None:
    found = placed(key)
    sql = f"select key, epoch, version, value_json from statecache.state_view where key = '{key.replace(*_TWICE)}'"
    assert pasted(found.redis_cli)[-1] == found.redis_key
    assert pasted(found.psql)[-1] == sql
    assert run(["where", key]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))


_TWICE = ("'", "''")


def pasted(line: str) -> list[str]:
    """Return the words that a shell makes of a line."""
    script = f'words() {{ printf "%s\\0" "$@"; }}; words {line}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def test_a_key_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidKey):
        placed("runs")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://h", "redis-cli -u redis://h:6379/0"),
        ("redis://h:7000/3", "redis-cli -u redis://h:7000/3"),
        ("redis://h:7000?db=4", "redis-cli -u redis://h:7000/4"),
        ("redis://[::1]:7000/0", "redis-cli -u 'redis://[::1]:7000/0'"),
        ("rediss://h:7000/0", "redis-cli -u rediss://h:7000/0 --cacert /ca.pem"),
        ("rediss://h:7000/0?ssl_certfile=/me.pem", "redis-cli -u rediss://h:7000/0 --cacert /ca.pem --cert /me.pem"),
        ("unix:///run/redis.sock?db=2", "redis-cli -s /run/redis.sock -n 2"),
        ("redis://alice:secret@h/0", "redis-cli -u redis://h:6379/0 --user alice"),
        ("redis://:secret@h/0", "redis-cli -u redis://h:6379/0"),
    ],
)
def test_every_kind_of_redis_url(url: str, words: str) -> None:
    authority = "/ca.pem" if url.startswith("rediss") else None
    found = placed(redis_url=url, redis_ca_file=authority)
    assert found.redis_cli.startswith(words + " HGETALL")
    assert "secret" not in found.redis_cli
    assert any("REDISCLI_AUTH" in note for note in found.notes) == ("secret" in url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://h/d", "psql postgresql://h/d"),
        ("postgresql://me:secret@h:5433/d", "psql postgresql://me@h:5433/d"),
        ("postgresql://h/d?password=secret&sslmode=require", "psql 'postgresql://h/d?sslmode=require'"),
        ("postgresql:///d?host=/run/pg", "psql 'postgresql:///d?host=/run/pg'"),
        ("postgresql://a:1,b:2/d?target_session_attrs=any", "psql 'postgresql://a:1,b:2/d?target_session_attrs=any'"),
        ("host=h dbname=d password=secret", "psql 'dbname=d host=h'"),
        ("host=h dbname='my db'", "psql \"dbname='my db' host=h\""),
    ],
)
def test_every_kind_of_postgres_url(url: str, words: str) -> None:
    found = placed(postgres_url=url)
    assert found.psql.startswith(words + " -c ")
    assert "secret" not in found.psql
    assert any("PGPASSWORD" in note for note in found.notes) == ("secret" in url)


def test_a_schema_of_another_name_is_quoted() -> None:
    assert 'from "user".state_view where' in shlex.split(placed(postgres_schema="user").psql)[-1]


def test_urls_that_are_none_are_configuration_errors() -> None:
    with pytest.raises(ConfigurationError):
        placed(postgres_url="postgresql://h/d?nonsense=1")
    with pytest.raises(ConfigurationError):
        placed(redis_url="redis://h:port/0")


def test_json_holds_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECACHE_REDIS_URL", PLAIN.redis_url)
    monkeypatch.setenv("STATECACHE_POSTGRES_URL", PLAIN.postgres_url)
    assert run(["where", "runs/42", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["shard"], found["redis_cli"], found["psql"]) == (58, placed().redis_cli, placed().psql)
    assert run(["where", "runs/42"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {placed().redis_cli, placed().psql} <= set(lines)
